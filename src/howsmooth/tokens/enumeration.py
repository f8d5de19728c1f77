"""Every swap of one token compared: all positions, the whole vocabulary, for attention of the first layer."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.models.parts.embedding import entrance
from howsmooth.tokens.one_swap import OneSwap
from howsmooth.tokens.outputs import Outputs
from howsmooth.tokens.trials import Trials

# So many of the worst are looked at again by applying the map: the quick form has a rounding of its own.
AGAIN = 32
# How many tokens are embedded at a time.
ROWS = 8192


def enumerated(trials: Trials) -> int:
    """Try the worst of all swaps, one after another for several edits; return how many were compared."""
    compared = 0
    for _edit in range(trials.edits):
        base = trials.best
        moved = displacements(trials, base)
        compared += int((moved > -torch.inf).sum())
        order = moved.flatten().argsort(descending=True)
        for some in order.split(AGAIN):
            some = some[moved.flatten()[some] > -torch.inf]
            rows = trials.swapped(base, some // moved.shape[1], some % moved.shape[1])
            if len(trials.run(rows)) or not len(some):  # where none is spelled, the next are
                break
    return compared


@torch.no_grad()
def displacements(trials: Trials, base: Tensor) -> Float[Tensor, "n v"]:
    """Return how far each swap of a sequence moves the output from that of the text; −∞ where it is not allowed."""
    outputs = trials.outputs
    f, known = _attention(outputs), outputs.lexicon
    if known is None:
        raise AssumptionError("enumeration needs a family in closed form; use method='random'.", field="method")
    X = _read(outputs, known(base))
    quick = OneSwap.at(f, X, origin=OneSwap.at(f, _read(outputs, known(trials.tokens))))
    found = X.new_full(trials.replacements.allowed.shape, -torch.inf)
    for p in ((base == trials.tokens) & trials.replacements.allowed.any(-1)).nonzero()[:, 0].tolist():
        coming = trials.replacements.allowed[p].nonzero()[:, 0]
        for some in coming.split(ROWS):
            found[p, some] = quick.displacements(p, _read(outputs, known.words[some] + known.places[p]))
    return found


def _attention(outputs: Outputs) -> Attention:
    name = "attention" if outputs.map == "normed" else outputs.map
    f = outputs.model.layers[outputs.layer].map(name)
    if not isinstance(f, Attention):
        raise AssumptionError("enumeration is for attention in closed form; use method='random'.", field="method")
    if f.sink is not None:
        raise AssumptionError("enumeration does not know sinks; use method='random'.", field="method")
    return f


def _read(outputs: Outputs, sums: Tensor) -> Tensor:
    """Return what attention reads, where the embeddings add up to this."""
    for f in entrance(outputs.model, "attention"):
        sums = f(sums)
    return sums
