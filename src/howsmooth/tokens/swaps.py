"""Swaps of tokens that move the output most: all of them compared, or searched for."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.attention import Attention
from howsmooth.markup import strict_json
from howsmooth.models.inputs.model_inputs import read_sentence
from howsmooth.models.load import load
from howsmooth.models.parts.ends import entrance
from howsmooth.models.transformer import Transformer
from howsmooth.tokens.methods import CLASSES, METHODS, Outputs, Trials, swapped
from howsmooth.tokens.replacements import Words, replacements
from howsmooth.tokens.swap_displacement import SwapDisplacement
from howsmooth.tokens.swap_settings import BUDGET, ENUMERATION, check_search
from howsmooth.validation import Seed, generator_from, plain_mode, token_ids
from howsmooth.wording import at_least, count

# The map itself is applied to this many of the worst swaps: the quadratic form has other rounding errors.
REPEATED = 32
# The number of tokens that are embedded at a time.
ROWS = 8192


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Swap:
    """A sequence with some tokens swapped, and how far that moves the output.

    Attributes:
        tokens: The given sequence.
        swapped: The sequence with tokens swapped; unchanged if no allowed swap moves the output.
        displacement: How far the output moves, in the Euclidean norm.
        cosine: The cosine of both outputs, where the output is one vector, such as a sentence embedding.
        map: Which map.
        layer: Of which layer it is, or at which it begins.
        method: The method that found the swaps.
        proven: True if this is provably the worst allowed swap, up to rounding.
        tried: The number of compared sequences.
        passes: Its cost: forward passes of one sequence, and products with its Jacobian.
        trace: The largest displacement after each batch of trials.
        classes: The predicted class before and after, for a model that is a classifier.
        flips: How many of the compared sequences change the predicted class, for the map ``classes``.
    """

    tokens: Int[Tensor, " n"]
    swapped: Int[Tensor, " n"]
    displacement: float
    cosine: float | None
    map: str
    layer: int
    method: str
    proven: bool
    tried: int
    passes: int
    trace: tuple[float, ...]
    classes: tuple[str, str] | None = None
    flips: int | None = None

    @property
    def flipped(self) -> bool | None:
        """Whether the predicted class changes; none for a model that is no classifier."""
        return None if self.classes is None else self.classes[0] != self.classes[1]

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of swapped tokens."""
        return tuple((self.tokens != self.swapped).nonzero()[:, 0].tolist())

    def __repr__(self) -> str:
        """Show the swapped token ids and the displacement."""
        swaps = ", ".join(f"{int(self.tokens[i])} → {int(self.swapped[i])} at {i}" for i in self.positions)
        worst = "the worst of" if self.proven else "the best of"
        return f"Swap({swaps or 'nothing'}; {at_least(self.displacement)}, {worst} {count(self.tried, 'sequence')})"

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        lists = {name: plain[name].tolist() for name in ("tokens", "swapped")}
        return plain | lists | {"positions": list(self.positions), "trace": list(self.trace), "flipped": self.flipped}


@plain_mode()
@torch.no_grad()
def swap(
    model: Transformer | str | os.PathLike[str] | nn.Module,
    tokens: Int[Tensor, " n"] | Sequence[int] | str,
    *,
    map: str = "attention",  # noqa: A002 — the word everywhere else
    layer: int = 0,
    edits: int = 1,
    method: str | None = None,
    budget: int | None = None,
    candidates: Words | None = None,
    whole_words: bool = False,
    round_trip: bool = False,
    seed: Seed = 0,
) -> Swap:
    r"""Find which ``edits`` tokens to replace by which to move the output most: :math:`\|F(t')-F(t)\|`.

    For attention of the first layer (``attention``, ``normed``, ``heads``, ``head:3`` of layer 0) one swap changes one
    token of what attention reads, so that **all of them are compared**: every position, the whole vocabulary
    (``enumeration``). The worst of them is the worst there is; for several edits they are taken one after another, and
    nothing is proven. Behind the first layer, and for whole models, a swap changes every token: then sequences are
    tried by true forward passes.

    Args:
        model: What :func:`load` takes, or what it returned.
        tokens: One sequence, without padding; or a sentence, read between the special tokens of the model.
        map: Which output: a map of a layer, or one of the whole model such as ``sentence`` or ``logits``.
        layer: Of which layer, where it is a map of one.
        edits: How many tokens may be replaced.
        method: ``enumeration``; ``random``; ``gradient`` (HotFlip: the best swap in first order, one trial for each
            gradient); ``gcg`` (the best by forward passes among those that the gradient likes); ``singular`` (those in
            the directions of the leading singular vectors first); ``exhaustive`` (all tokens at one position). By
            default ``enumeration`` where it can be done, else ``gcg``.
        budget: How many passes the search may take, forward passes of one sequence and products with its Jacobian
            alike; 1,000 by default, and as many as needed for ``enumeration`` and ``exhaustive``.
        candidates: What may come in: a list for every position, or for each token a list of its own; words, or
            numbers of tokens.
        whole_words: Whether only tokens that are words are replaced and come in.
        round_trip: Whether the changed text must be read as the changed tokens.
        seed: Seeds everything random: a whole number, or a torch.Generator to draw from.

    Raises:
        AssumptionError: If there are more edits than tokens that may be replaced, no candidate is left, or method, map
            or layer do not exist.
        UnsupportedModelError: If the model reads no tokens, or has no tokenizer where words are asked for.
    """
    method = check_search(map, layer=layer, edits=edits, method=method, budget=budget)
    model = model if isinstance(model, Transformer) else load(model)
    tokens = token_ids(read_sentence(model, tokens) if isinstance(tokens, str) else tokens)
    if tokens.ndim != 1:
        raise ShapeError(f"tokens must be one sequence (n,), got {tuple(tokens.shape)}.", field="tokens")
    model.check_map(map, layer)
    allowed = replacements(model, tokens, candidates=candidates, whole_words=whole_words, round_trip=round_trip)
    if edits > len(allowed.positions):
        raise AssumptionError(
            f"edits must not exceed the {count(len(allowed.positions), 'token')} that may be replaced, got {edits}.",
            field="edits",
        )
    outputs = Outputs.of(model, tokens, name=map, layer=layer)
    generator = generator_from(seed)
    unlimited = method == ENUMERATION or (method == "exhaustive" and budget is None)
    most = 10**12 if unlimited else BUDGET if budget is None else budget
    trials = Trials(outputs, allowed, tokens, edits=edits, budget=most)
    if method == ENUMERATION:
        compared = enumerate_swaps(trials)
        return dataclasses.replace(_found(trials, method, proven=edits == 1), tried=compared)
    METHODS[method](trials, generator)
    return _found(trials, method, proven=False)


def _found(trials: Trials, method: str, *, proven: bool) -> Swap:
    if trials.tried == 0:
        raise AssumptionError(
            "none of the swaps is spelled as the tokenizer reads it; allow other candidates, or leave out the round "
            "trip.",
            field="round_trip",
        )
    (output,) = trials.outputs(trials.best[None])
    one = len(output) == 1
    cosine = torch.nn.functional.cosine_similarity(trials.at_text[0].double(), output[0].double(), dim=0)
    return Swap(
        tokens=trials.tokens,
        swapped=trials.best,
        displacement=trials.displacement,
        cosine=float(cosine) if one else None,
        map=trials.outputs.map,
        layer=trials.outputs.layer,
        method=method,
        proven=proven,
        tried=trials.tried,
        passes=trials.passes,
        trace=tuple(trials.trace),
        classes=_classes(trials),
        flips=trials.flips,
    )


def _classes(trials: Trials) -> tuple[str, str] | None:
    """Return the predicted class before and after the best swap; none for a model that is no classifier."""
    model, rows = trials.outputs.model, torch.stack((trials.tokens, trials.best))
    head = model.ends.class_head
    if isinstance(head, str) or len(head.labels) < 2:
        return None
    scores = (
        trials.outputs if trials.outputs.map == CLASSES else Outputs.of(model, trials.tokens, name=CLASSES, layer=0)
    )
    before, after = scores(rows)[:, 0].argmax(-1).tolist()
    return head.labels[before], head.labels[after]


def enumerate_swaps(trials: Trials) -> int:
    """Try the worst of all single swaps, repeatedly for several edits; return the number of compared swaps."""
    compared = 0
    for _edit in range(trials.edits):
        base = trials.best
        moved = displacements(trials, base)
        compared += int((moved > -torch.inf).sum())
        order = moved.flatten().argsort(descending=True)
        for some in order.split(REPEATED):
            some = some[moved.flatten()[some] > -torch.inf]
            rows = swapped(base, some // moved.shape[1], some % moved.shape[1])
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

    def read(sums: Tensor) -> Tensor:
        """Return the input of attention for given sums of embeddings."""
        return functools.reduce(lambda Y, f: f(Y), entrance(outputs.model, "attention"), sums)

    X = read(known(base))
    form = SwapDisplacement.at(f, X, origin=SwapDisplacement.at(f, read(known(trials.tokens))))
    found = X.new_full(trials.replacements.allowed.shape, -torch.inf)
    for p in ((base == trials.tokens) & trials.replacements.allowed.any(-1)).nonzero()[:, 0].tolist():
        incoming = trials.replacements.allowed[p].nonzero()[:, 0]
        for some in incoming.split(ROWS):
            found[p, some] = form.displacements(p, read(known.words[some] + known.places[p]))
    return found


def _attention(outputs: Outputs) -> Attention:
    name = "attention" if outputs.map == "normed" else outputs.map
    f = outputs.model.layers[outputs.layer].map(name)
    if not isinstance(f, Attention):
        raise AssumptionError("enumeration is for attention in closed form; use method='random'.", field="method")
    if f.sink is not None:
        raise AssumptionError("enumeration does not know sinks; use method='random'.", field="method")
    return f
