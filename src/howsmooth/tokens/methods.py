"""Searches for the worst swap by forward passes, which are counted: random, HotFlip, GCG, singular, exhaustive."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning
from howsmooth.maps.composition import Chain
from howsmooth.maps.protocols import Map
from howsmooth.models.activations import Activations
from howsmooth.models.map_names import MapName
from howsmooth.models.parts.block import chain, entering
from howsmooth.models.parts.ends import Lexicon, entrance, lexicon
from howsmooth.models.transformer import Transformer
from howsmooth.spectral.solvers import singular_values
from howsmooth.tokens.replacements import Replacements

# The map whose output is a score for each class.
CLASSES = "classes"
# So many tokens go through the model together.
TOKENS = 2048
# So many sequences are tried between two looks at the gradient, drawn from so many candidates for each position.
TRIED, CANDIDATES = 64, 256
# How many singular directions are followed, and how far they are bracketed.
DIRECTIONS, RTOL = 4, 0.1
# How often nothing that was drawn may be spelled before a search gives up.
MISSES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Outputs:
    """The output of a map, for sequences of tokens of one length."""

    model: Transformer
    map: str
    layer: int  # of which layer, where it is a map of one
    lexicon: Lexicon | None  # every input that a position can have; none where it is not known how the model embeds
    # from the sum of the embeddings to the output, in closed form; none where there is no such form, and the model is
    # run
    chain: Chain | None

    @classmethod
    def of(cls, model: Transformer, tokens: Int[Tensor, " n"], *, name: str, layer: int) -> "Outputs":
        """Read the map once."""
        begins = model.check_map(name, layer)
        layer = begins if MapName.parse(name).spans_layers else layer
        if model.ends.stem is None:
            return cls(model=model, map=name, layer=layer, lexicon=None, chain=None)
        known = lexicon(model, len(tokens))
        summed = model.embed(tokens)
        if not torch.allclose(known(tokens), summed, rtol=1e-4, atol=1e-4 * float(summed.abs().max())):
            raise AssumptionError(
                "tokens must not hold padding, which shifts the others; leave it out.", field="tokens"
            )
        found = model.activations(tokens[None])
        return cls(model=model, map=name, layer=layer, lexicon=known, chain=_chain(model, found, name, layer))

    @torch.no_grad()
    def __call__(self, rows: Int[Tensor, "b n"]) -> Float[Tensor, "b m out"]:
        """Return the outputs of sequences: one forward pass for each."""
        found = []
        for part in rows.split(max(1, TOKENS // rows.shape[-1])):
            if self.chain is not None and self.lexicon is not None:
                found.append(self.chain(self.lexicon(part.to(self.lexicon.words.device))))
            else:
                f, X = self.model.activations(part).at(self.layer, self.map)
                found.append(f(X))
        return torch.cat(found)


def _chain(model: Transformer, found: Activations, name: str, layer: int) -> Chain | None:
    """Return the map from the sum of the embeddings, with all that stands in front; none if a part has no form."""
    if name == "network":
        f, _X = found.at(0, name)
        return f if isinstance(f, Chain) else None
    maps: list[Map] = list(entrance(model, "block"))
    if layer > 0:
        front, _X = found.at(0, f"to:{layer - 1}")
        if not isinstance(front, Chain):
            return None
        maps.extend(front.maps)
    last = _from_block(found, name, layer)
    return None if last is None else Chain(*maps, *last.maps)


def _from_block(found: Activations, name: str, layer: int) -> Chain | None:
    """Return the map itself, from what enters its block."""
    part, parsed = found.layers[layer], MapName.parse(name)
    f, _X = found.at(layer, name)
    if parsed.spans_layers:
        return f if isinstance(f, Chain) else None
    if name == "mlp":
        front = entering(part, part.closed_form)
        return chain(*(front.maps if isinstance(front, Chain) else ()), part.map(name))
    if name == "block" and part.feed_forward is None:
        return None
    return chain(None if parsed.reads_block else part.pre_norm, part.map(name))


class Trials:
    """Sequences tried by forward passes: the best is kept, passes and products with Jacobians are counted."""

    def __init__(
        self, outputs: Outputs, replacements: Replacements, tokens: Tensor, *, edits: int, budget: int
    ) -> None:
        self.outputs, self.replacements, self.tokens = outputs, replacements, tokens
        self.edits, self.budget, self.passes, self.tried = edits, budget, 1, 0
        (self.at_text,) = outputs(tokens[None])
        # the sequence that moves the output furthest so far, how far, and how far after each batch of trials
        self.best, self.displacement, self.trace = tokens, 0.0, [0.0]
        # how many sequences change the class that is predicted; none if the output is no score of classes
        self.flips = 0 if outputs.map == CLASSES else None

    @property
    def left(self) -> int:
        """How many passes are left."""
        return max(0, self.budget - self.passes)

    def take(self, passes: int) -> None:
        """Count passes that were taken elsewhere."""
        self.passes += passes

    def run(self, rows: Int[Tensor, "b n"]) -> Float[Tensor, " c"]:
        """Try the sequences that text can spell, as many as passes are left for; return their displacements."""
        rows = self.replacements.fitting(rows)[: self.left]
        self.tried += len(rows)
        if len(rows) == 0:
            return self.at_text.new_zeros(0)
        found = self.outputs(rows)
        moved = (found - self.at_text).flatten(1).norm(dim=1)
        if self.flips is not None:
            self.flips += int((found[:, 0].argmax(-1) != self.at_text[0].argmax()).sum())
        self.passes += len(rows)
        most = int(moved.argmax())
        if float(moved[most]) > self.displacement:
            self.best, self.displacement = rows[most], float(moved[most])
        self.trace.append(self.displacement)
        return moved


def swapped(base: Int[Tensor, " n"], places: Int[Tensor, " b"], incoming: Int[Tensor, " b"]) -> Int[Tensor, "b n"]:
    """Return a sequence with one token swapped, once for each pair."""
    rows = base.expand(len(places), -1).clone()
    rows[torch.arange(len(places)), places] = incoming
    return rows


Method = Callable[[Trials, torch.Generator], None]


def at_random(trials: Trials, generator: torch.Generator) -> None:
    """Swap tokens at random places for random others, all ``edits`` at once."""
    missed = 0
    while trials.left and missed < MISSES:
        moved = trials.run(torch.stack([_drawn(trials, generator) for _ in range(min(trials.left, 4 * TRIED))]))
        missed = 0 if len(moved) else missed + 1


def by_gradient(trials: Trials, generator: torch.Generator) -> None:
    """Take the swap that the first order says is best, again and again (HotFlip): one trial for each gradient.

    At the text the gradient of the displacement is zero. There the first order is that of a random direction, pushed
    forward and pulled back; either sign of a swap counts.
    """
    tried: set[tuple[int, ...]] = set()
    base, swaps = trials.tokens, 0
    while trials.left > 3:
        scores = _first_order(trials, base, generator)
        row = _most_promising(trials, base, scores, tried)
        if row is None:
            return
        tried.add(tuple(row.tolist()))
        moved = trials.run(row[None])
        swaps = 0 if swaps + 1 >= trials.edits or not len(moved) else swaps + 1
        base = row if swaps else trials.tokens


def by_coordinates(trials: Trials, generator: torch.Generator) -> None:
    """Draw swaps that the gradient at the best sequence likes, and keep what a forward pass likes most (GCG)."""
    tried: set[tuple[int, ...]] = set()
    while trials.left > 3:
        scores = _first_order(trials, trials.best, generator)
        top = scores.topk(min(CANDIDATES, scores.shape[1]), dim=1)
        rows = [_proposal(trials, top, generator) for _ in range(2 * TRIED)]
        fresh = [row for row in rows if row is not None and tuple(row.tolist()) not in tried][:TRIED]
        if not fresh:
            fresh = [_drawn(trials, generator)]
        tried.update(tuple(row.tolist()) for row in fresh)
        trials.run(torch.stack(fresh))


def by_singular_directions(trials: Trials, generator: torch.Generator) -> None:
    r"""Try swaps in the order of what the leading singular directions make of them.

    .. math:: \Bigl(\sum_k\sigma_k^2\langle v_k, \Delta\rangle^2\Bigr)^{1/2} \le \|J\Delta\|
    """
    chain, known = _closed(trials)
    for edit in range(trials.edits):
        base, share = trials.best, trials.left // (trials.edits - edit)
        end, start = trials.passes + share, 0
        ranked = _by_directions(trials, chain, known, base, share // 2, generator)
        order = ranked.flatten().argsort(descending=True)
        while trials.passes < end and trials.left and start < len(order):
            some = order[start : start + min(4 * TRIED, end - trials.passes)]
            some = some[ranked.flatten()[some] > 0]
            if len(some) == 0:
                break
            trials.run(swapped(base, some // ranked.shape[1], some % ranked.shape[1]))
            start += len(some)


def over_one_position(trials: Trials, generator: torch.Generator) -> None:
    """Try every token at one position: the one where a few random swaps move the output most; then the next one."""
    for _edit in range(trials.edits):
        base, free = trials.best, _free(trials, trials.best)[: trials.left]
        if len(free) == 0:
            return
        drawn = [int(_pick(trials.replacements.allowed[p], generator)) for p in free.tolist()]
        moved = (trials.outputs(swapped(base, free, torch.tensor(drawn))) - trials.at_text).flatten(1).norm(dim=1)
        trials.take(len(free))
        place = free[moved.argmax()]
        coming = trials.replacements.allowed[place].nonzero()[:, 0]
        for some in coming.split(4 * TRIED):
            trials.run(swapped(base, place.expand(len(some)), some))


def _drawn(trials: Trials, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return the text with ``edits`` tokens swapped at random."""
    row, places = trials.tokens.clone(), trials.replacements.positions
    for p in places[torch.randperm(len(places), generator=generator)[: trials.edits]].tolist():
        row[p] = _pick(trials.replacements.allowed[p], generator)
    return row


def _pick(allowed: Tensor, generator: torch.Generator) -> Tensor:
    coming = allowed.nonzero()[:, 0]
    return coming[torch.randint(len(coming), (), generator=generator)]


def _first_order(trials: Trials, base: Int[Tensor, " n"], generator: torch.Generator) -> Float[Tensor, "n v"]:
    """Return what every swap does to the displacement in first order; −∞ where it is not allowed."""
    chain, known = _closed(trials)
    Z = known(base)
    value, J = chain.value_and_jacobian(Z)
    away = value - trials.at_text
    at_the_text = bool((base == trials.tokens).all())
    if at_the_text:
        away = J.jvp(torch.randn(Z.shape, generator=generator).to(Z))
    gradient = J.vjp(away / away.norm().clamp(min=torch.finfo(away.dtype).tiny))
    trials.take(3 if at_the_text else 2)
    scores = gradient @ known.words.mT - (gradient * known.words[base]).sum(-1, keepdim=True)
    scores = scores.abs() if at_the_text else scores
    return scores.masked_fill(~_open(trials, base).to(scores.device), -torch.inf)


def _open(trials: Trials, base: Tensor) -> Tensor:
    """Return what may come to each position and is not there."""
    allowed = trials.replacements.allowed.clone()
    allowed[torch.arange(len(base)), base.cpu()] = False
    return allowed


def _most_promising(trials: Trials, base: Tensor, scores: Tensor, tried: set[tuple[int, ...]]) -> Tensor | None:
    """Return the sequence of the best score that was not tried yet, another position swapped; none if all were."""
    fixed = (base != trials.tokens).nonzero()[:, 0]
    scores = scores.index_fill(0, fixed.to(scores.device), -torch.inf)
    best = scores.flatten().topk(min(scores.numel(), len(tried) + 1))
    order = best.indices[best.values > -torch.inf]
    rows = swapped(base, order // scores.shape[1], order % scores.shape[1])
    return next((row for row in rows if tuple(row.tolist()) not in tried), None)


def _proposal(trials: Trials, top: torch.return_types.topk, generator: torch.Generator) -> Tensor | None:
    """Draw one swap of the best sequence from the top of a position; where that is one too many, take one back."""
    places = trials.replacements.positions
    swapped = (trials.best != trials.tokens).nonzero()[:, 0]
    # every other draw changes a token that was swapped already: where a swap moves much, others do
    if len(swapped) and bool(torch.rand((), generator=generator) < 0.5):
        places = swapped
    p = int(places[torch.randint(len(places), (), generator=generator)])
    j = int(torch.randint(top.values.shape[1], (), generator=generator))
    if not float(top.values[p, j]) > -torch.inf:
        return None
    row = trials.best.clone()
    changed = [i for i in (row != trials.tokens).nonzero()[:, 0].tolist() if i != p]
    if len(changed) >= trials.edits:
        back = changed[int(torch.randint(len(changed), (), generator=generator))]
        row[back] = trials.tokens[back]
    row[p] = top.indices[p, j]
    return row


def _by_directions(
    trials: Trials, chain: Chain, known: Lexicon, base: Tensor, products: int, generator: torch.Generator
) -> Float[Tensor, "n v"]:
    """Return what the leading singular directions make of every swap; zero where it is not allowed."""
    J = chain.jacobian(known(base))
    most = max(1, min(DIRECTIONS, J.codomain[0] * J.codomain[1], products // 8))
    # a value takes two products a step and three more; brackets that stay open are good enough to rank by
    steps = max(1, (products // most - 3) // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = singular_values(J, k=most, rtol=RTOL, max_steps=steps, seed=generator)
    trials.take(1 + found.products)
    overlaps = torch.einsum("kne,ve->knv", found.right, known.words)
    moved = overlaps - overlaps.gather(2, base.to(overlaps.device).expand(len(overlaps), -1)[..., None])
    scores = (found.values[:, None, None] * moved).square().sum(0)
    free = torch.zeros(len(base), dtype=torch.bool)
    free[_free(trials, base)] = True
    return scores.masked_fill(~(_open(trials, base) & free[:, None]).to(scores.device), 0.0)


def _free(trials: Trials, base: Tensor) -> Int[Tensor, " m"]:
    """Return the positions that may be swapped and were not."""
    places = trials.replacements.positions
    return places[(base == trials.tokens)[places]]


def _closed(trials: Trials) -> tuple[Chain, Lexicon]:
    chain, known = trials.outputs.chain, trials.outputs.lexicon
    if chain is None or known is None:
        raise AssumptionError(
            "gradients of tokens need a family in closed form, which this model's is not; use method='random' or "
            "'exhaustive'.",
            field="method",
        )
    return chain, known


METHODS: dict[str, Method] = {
    "random": at_random,
    "gradient": by_gradient,
    "gcg": by_coordinates,
    "singular": by_singular_directions,
    "exhaustive": over_one_position,
}
