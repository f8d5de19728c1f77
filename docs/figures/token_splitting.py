"""Mass splitting in text: replacing a copy of a token, compared with replacing the token itself."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.affine import Pooling
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, map_leaves
from howsmooth.maps.positions import Positions
from howsmooth.models.parts.ends import Lexicon, entrance
from howsmooth.models.transformer import Transformer
from howsmooth.tokens.methods import Outputs
from howsmooth.tokens.replacements import Words, replacements
from howsmooth.transport.distances import conditional_wasserstein, wasserstein
from howsmooth.transport.measures import DiscreteMeasure

# Every changed text is one token edit away from the given one: a replacement, or an insertion.
TOKEN_EDITS = 1
# A measure before a map, and after it.
_Ends = tuple[DiscreteMeasure, DiscreteMeasure]


@dataclass(frozen=True, kw_only=True)
class SplitPair:
    """A new token at one position, in three ways; each a ratio of distances between measures.

    Attributes:
        position: The position.
        token: The new token.
        moved: It replaces the token.
        doubled: It replaces a copy of the token at the same position, with half of the token's mass.
        shifted: It is inserted after the token, and all that follow move on by one, as in a text; none where masked
            measures with other positions are infinitely far apart, or the model has no position left.
        moved_by: The distance of the outputs where it replaces the token: the distance for one token edit.
        doubled_by: The same for the copy at the same position.
        shifted_by: The same for the insertion.
    """

    position: int
    token: int
    moved: float
    doubled: float
    shifted: float | None
    moved_by: float
    doubled_by: float
    shifted_by: float | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TokenSplitting:
    r"""Ratios of :math:`W_2` distances where a copy of a token is replaced, and where the token itself is.

    Attributes:
        tokens: The sequence.
        pairs: What was tried.
        map: Which map.
        masked: Whether distances are conditional ones.
    """

    tokens: Int[Tensor, " n"]
    pairs: tuple[SplitPair, ...]
    map: str
    masked: bool

    @property
    def share(self) -> float:
        """The share of pairs where doubling beats moving."""
        return sum(pair.doubled > pair.moved for pair in self.pairs) / len(self.pairs)

    @property
    def shifted_share(self) -> float | None:
        """The share of pairs where doubling with positions shifted beats moving."""
        found = [pair.shifted > pair.moved for pair in self.pairs if pair.shifted is not None]
        return sum(found) / len(found) if found else None

    @property
    def edit_share(self) -> float:
        """The share of pairs where doubling moves the output further for one token edit than moving does."""
        return sum(pair.doubled_by > pair.moved_by for pair in self.pairs) / len(self.pairs)

    def best(self, way: str) -> SplitPair:
        """Return the pair with the largest value in one of the ways."""
        return max(self.pairs, key=lambda pair: getattr(pair, way) or 0.0)

    def __repr__(self) -> str:
        """Show how often doubling beats moving."""
        return f"TokenSplitting({len(self.pairs)} pairs; doubling beats moving in {100 * self.share:.0f} %)"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "tokens": self.tokens.tolist(),
            "map": self.map,
            "masked": self.masked,
            "share": self.share,
            "shifted_share": self.shifted_share,
            "edit_share": self.edit_share,
            "token_edits": TOKEN_EDITS,
            "pairs": [dataclasses.asdict(pair) for pair in self.pairs],
        }


@torch.no_grad()
def token_splitting(
    model: Transformer,
    tokens: Int[Tensor, " n"],
    *,
    map: str = "attention",  # noqa: A002 — the word everywhere else
    pairs: int = 64,
    candidates: Words | None = None,
    whole_words: bool = False,
    round_trip: bool = False,
    generator: torch.Generator | None = None,
) -> TokenSplitting:
    r"""Compare replacing a copy of a token with replacing the token itself: finite mass splitting.

    .. math:: W_2(F(\mu), F(\nu)) / W_2(\mu, \nu)

    :math:`\mu` is the measure of the map's inputs at the text, with equal masses. In :math:`\nu` a token has moved to
    the embedding of another token of the vocabulary; or half of its mass has (the copy has the position of the token,
    and both have half its weight in every softmax: the exact split of the theory); or the copy is one more token, and
    all after it move on by one position. Distances are conditional where attention is masked. A doubled text differs
    from the given one by one insertion, a moved one by one replacement.

    Args:
        model: The model.
        tokens: One sequence, without padding.
        map: ``attention``, ``heads``, ``head:3``, ``residual`` or ``block`` of the first layer, or a map of many that
            begins there.
        pairs: How many positions and tokens to try, drawn at random.
        candidates: As for :func:`hs.swap`.
        whole_words: Likewise.
        round_trip: Likewise, of the text in which the token itself is changed.
        generator: The source of randomness; one with a fixed seed by default.

    Raises:
        AssumptionError: If the map has no closed form from the first layer on, or scores depend on distances as
            DeBERTa's do.
    """
    if isinstance(pairs, bool) or not isinstance(pairs, int) or pairs < 1:
        raise AssumptionError(f"pairs must be a whole number, at least 1, got {pairs}.", field="pairs")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    allowed = replacements(model, tokens, candidates=candidates, whole_words=whole_words, round_trip=round_trip)
    text = _TextMeasures.of(model, tokens, map)
    places = allowed.positions
    drawn: list[tuple[int, int]] = []
    for _try in range(8 * pairs):  # not all of them are spelled
        p = int(places[torch.randint(len(places), (), generator=generator)])
        incoming = allowed.allowed[p].nonzero()[:, 0]
        v = int(incoming[torch.randint(len(incoming), (), generator=generator)])
        changed = tokens.clone()
        changed[p] = v
        if len(drawn) < pairs and len(allowed.fitting(changed[None])):
            drawn.append((p, v))
    if not drawn:
        raise AssumptionError("none of the swaps is spelled as the tokenizer reads it.", field="round_trip")
    found = tuple(
        pair for p in sorted({p for p, _v in drawn}) for pair in text.pairs(p, [v for q, v in drawn if q == p])
    )
    return TokenSplitting(tokens=tokens, pairs=found, map=map, masked=text.masked)


@dataclass(frozen=True, kw_only=True, eq=False)
class _TextMeasures:
    """A map between measures, at a text.

    Attributes:
        tokens: The text.
        known: Every input that a position can have, one position more than the text has if the model has it.
        reads: From the sum of the embeddings to what the map reads, token by token.
        chain: The map.
        masked: Whether it is masked.
    """

    tokens: Int[Tensor, " n"]
    known: Lexicon
    reads: Sequence[Any]
    chain: Chain
    longer: "tuple[Lexicon, Chain] | None"
    masked: bool

    @classmethod
    def of(cls, model: Transformer, tokens: Tensor, name: str) -> "_TextMeasures":
        known, chain, reads = _parts(model, tokens, name)
        limit = model.max_length
        longer = None
        if limit is None or len(tokens) < limit:
            more, further, _reads = _parts(model, torch.cat((tokens, tokens[-1:])), name)
            longer = more, further
        masked = model.layers[0].closed_form.positions.causal
        return cls(tokens=tokens, known=known, reads=reads, chain=chain, longer=longer, masked=masked)

    def pairs(self, p: int, incoming: Sequence[int]) -> list[SplitPair]:
        """Compare the ways in which tokens come to a position."""
        index = torch.arange(len(self.tokens))
        here = self._read(self.known(self.tokens))
        mu = self._measure(here, index), self._measure(self.chain(here), index)
        found = {way: [_distances(mu, nu) for nu in ends] for way, ends in self._ways(p, incoming)}
        pairs = []
        for place, token in enumerate(incoming):
            numbers: dict[str, Any] = {}
            for way in ("moved", "doubled", "shifted"):
                outputs, ratio = found[way][place] if way in found else (None, None)
                numbers |= {way: ratio, f"{way}_by": outputs}
            pairs.append(SplitPair(position=p, token=token, **numbers))
        return pairs

    def _ways(self, p: int, incoming: Sequence[int]) -> Iterator[tuple[str, list[_Ends]]]:
        """Yield the measures of each way, one for each incoming token."""
        n = len(self.tokens)
        once, twice = torch.arange(n), torch.cat((torch.arange(p + 1), torch.arange(p, n)))

        def rows(index: Tensor, place: int) -> Tensor:
            changed = self.tokens[index].repeat(len(incoming), 1)
            changed[:, place] = torch.tensor(incoming)
            return changed

        yield "moved", self._measures(self.known(rows(once, p)), self.chain, once)
        masses = torch.ones(n + 1, dtype=self.known.words.dtype)
        masses[p : p + 2] = 0.5
        doubled = self.known.words[rows(twice, p + 1)] + self.known.places[twice]
        yield "doubled", self._measures(doubled, _split(self.chain, twice, masses), twice, masses / n)
        if self.longer is not None and not self.masked:
            known, chain = self.longer
            yield "shifted", self._measures(known(rows(twice, p + 1)), chain, torch.arange(n + 1))

    def _measures(
        self, sums: Float[Tensor, "c n d"], f: Chain, index: Tensor, masses: Tensor | None = None
    ) -> list[_Ends]:
        X = self._read(sums)
        ends = zip(X, f(X), strict=True)
        return [(self._measure(x, index, masses), self._measure(y, index, masses)) for x, y in ends]

    def _measure(self, points: Tensor, index: Tensor, masses: Tensor | None = None) -> DiscreteMeasure:
        if len(points) != len(index):  # one vector for a whole sentence
            return DiscreteMeasure(points.double())
        positions = (index.double() + 1) / len(self.tokens) if self.masked else None
        return DiscreteMeasure(points.double(), None if masses is None else masses.double(), positions)

    def _read(self, sums: Tensor) -> Tensor:
        for f in self.reads:
            sums = f(sums)
        return sums


def _distances(mu: "_Ends", nu: "_Ends") -> tuple[float, float]:
    """Return the distance of the outputs of two measures, and its ratio to that of the inputs."""
    (before, after), (changed_before, changed_after) = mu, nu
    inputs, outputs = _distance(before, changed_before), _distance(after, changed_after)
    return outputs, outputs / inputs if inputs > 0 else 0.0


def _distance(mu: DiscreteMeasure, nu: DiscreteMeasure) -> float:
    return float(wasserstein(mu, nu) if mu.positions is None else conditional_wasserstein(mu, nu))


def _parts(model: Transformer, tokens: Tensor, name: str) -> tuple[Lexicon, Chain, Sequence[Any]]:
    """Return every input of a length, the map, and what stands in front of it, token by token."""
    outputs = Outputs.of(model, tokens, name=name, layer=0)
    if outputs.layer != 0 or outputs.chain is None or outputs.lexicon is None:
        raise AssumptionError(
            f"doubling needs a map in closed form that begins at the first layer, got {name!r}.", field="map"
        )
    alone = name in ("attention", "heads") or name.startswith("head:")
    reads = () if name == "network" else entrance(model, "attention" if alone else "block")
    return outputs.lexicon, Chain(*outputs.chain.maps[len(reads) :]), reads


def _split(f: Any, index: Int[Tensor, " m"], masses: Float[Tensor, " m"]) -> Any:
    """Return a map as it acts on parts of tokens, each at the position of its token with its share of the mass."""

    def split(leaf: Any) -> Any:
        if isinstance(leaf, Pooling):
            return Pooling(weights=leaf.weights[index] * masses)
        return _split_attention(leaf, index, masses) if isinstance(leaf, Attention) else leaf

    return map_leaves(f, split)


def _split_attention(f: Attention, index: Tensor, masses: Tensor) -> Attention:
    if f.positions.distances is not None:
        raise AssumptionError("doubling does not know scores that depend on distances as DeBERTa's do.", field="model")
    n = int(index.max()) + 1
    bias = masses.new_zeros(f.layout.heads, n, n)
    f.positions.apply(bias, slice(0, n), slice(0, n))
    rotary = None if f.positions.rotary is None else dataclasses.replace(f.positions.rotary, positions=index)
    positions = Positions(mask=bias[:, index][:, :, index], rotary=rotary)
    return dataclasses.replace(f, positions=positions, weights=masses)
