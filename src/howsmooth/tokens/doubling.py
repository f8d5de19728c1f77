"""Mass splitting in text: a token is copied and the copy changed, against changing the token itself."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual, Sum
from howsmooth.maps.pooling import Pooling
from howsmooth.maps.positions import Positions
from howsmooth.models.parts.embedding import Lexicon, entrance
from howsmooth.models.transformer import Transformer
from howsmooth.tokens.outputs import Outputs
from howsmooth.tokens.replacements import Words, replacements
from howsmooth.transport.measures import DiscreteMeasure
from howsmooth.transport.wasserstein import conditional_wasserstein, wasserstein

# A text that is changed in any of the ways is so many token edits from what it was: a replacement, or an insertion.
TOKEN_EDITS = 1


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One token that comes to one position, in three ways; each a ratio of distances between measures.

    Attributes:
        position: Where.
        token: What comes.
        moved: The token itself becomes it.
        doubled: A copy of the token becomes it, at the same position: half of the token's mass.
        shifted: The copy stands behind the token, and all that follow move on by one, as in a text; none where masked
            measures with other positions are infinitely far apart, or the model has no position left.
        moved_by: How far the outputs are apart where the token itself becomes it: the distance for one token edit.
        doubled_by: The same for the copy at the same position.
        shifted_by: The same for the copy behind the token.
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
class Doubling:
    r"""How copying a token and changing the copy compares with changing the token itself, by :math:`W_2` of both ends.

    Attributes:
        tokens: The sequence.
        pairs: What was tried.
        map: Which map.
        masked: Whether distances are conditional ones.
    """

    tokens: Int[Tensor, " n"]
    pairs: tuple[Pair, ...]
    map: str
    masked: bool

    @property
    def share(self) -> float:
        """Of all pairs, those where doubling beats moving."""
        return sum(pair.doubled > pair.moved for pair in self.pairs) / len(self.pairs)

    @property
    def shifted_share(self) -> float | None:
        """Of all pairs, those where doubling with positions shifted beats moving."""
        found = [pair.shifted > pair.moved for pair in self.pairs if pair.shifted is not None]
        return sum(found) / len(found) if found else None

    @property
    def edit_share(self) -> float:
        """Of all pairs, those where doubling moves the output further for one token edit than moving does."""
        return sum(pair.doubled_by > pair.moved_by for pair in self.pairs) / len(self.pairs)

    def best(self, way: str) -> Pair:
        """Return the pair with the largest value in one of the ways."""
        return max(self.pairs, key=lambda pair: getattr(pair, way) or 0.0)

    def __repr__(self) -> str:
        """Say how often doubling beats moving."""
        return f"Doubling({len(self.pairs)} pairs; doubling beats moving in {100 * self.share:.0f} %)"

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
def doubling(
    model: Transformer,
    tokens: Int[Tensor, " n"],
    *,
    map: str = "attention",  # noqa: A002 — the word everywhere else
    pairs: int = 64,
    candidates: Words | None = None,
    whole_words: bool = False,
    round_trip: bool = False,
    generator: torch.Generator | None = None,
) -> Doubling:
    r"""Compare copying a token and changing the copy with changing the token itself: finite mass splitting.

    .. math:: W_2(F(\mu), F(\nu)) / W_2(\mu, \nu)

    :math:`\mu` is the measure of what the map reads at the text, equal masses. In :math:`\nu` a token has moved to the
    place of another token of the vocabulary; or half of its mass has (the copy has the position of the token, and both
    have half its weight in every softmax: the exact split of the theory); or the copy is one more token, and all
    behind it stand one position further. Distances are conditional where attention is masked. A text that is doubled
    so differs from the first by one insertion, one that is moved by one replacement.

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
    text = _Measured.of(model, tokens, map)
    places = allowed.positions
    drawn: list[tuple[int, int]] = []
    for _try in range(8 * pairs):  # not all of them are spelled
        p = int(places[torch.randint(len(places), (), generator=generator)])
        coming = allowed.allowed[p].nonzero()[:, 0]
        v = int(coming[torch.randint(len(coming), (), generator=generator)])
        changed = tokens.clone()
        changed[p] = v
        if len(drawn) < pairs and len(allowed.fitting(changed[None])):
            drawn.append((p, v))
    if not drawn:
        raise AssumptionError("none of the swaps is spelled as the tokenizer reads it.", field="round_trip")
    found = tuple(
        pair for p in sorted({p for p, _v in drawn}) for pair in text.pairs(p, [v for q, v in drawn if q == p])
    )
    return Doubling(tokens=tokens, pairs=found, map=map, masked=text.masked)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
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
    def of(cls, model: Transformer, tokens: Tensor, name: str) -> "_Measured":
        known, chain, reads = _parts(model, tokens, name)
        limit = model.max_length
        longer = None
        if limit is None or len(tokens) < limit:
            more, further, _reads = _parts(model, torch.cat((tokens, tokens[-1:])), name)
            longer = more, further
        masked = model.layers[0].closed_form.positions.causal
        return cls(tokens=tokens, known=known, reads=reads, chain=chain, longer=longer, masked=masked)

    def pairs(self, p: int, coming: Sequence[int]) -> list[Pair]:
        """Return what tokens do that come to a position."""
        n = len(self.tokens)
        here = self._read(self.known(self.tokens))
        mu = self._measure(here, torch.arange(n)), self._measure(self.chain(here), torch.arange(n))
        moved, doubled = (
            [_Apart.of(mu, nu) for nu in way] for way in (self._moved(p, coming), self._doubled(p, coming))
        )
        behind = None if self.masked else self._shifted(p, coming)
        shifted = [None] * len(coming) if behind is None else [_Apart.of(mu, nu) for nu in behind]
        return [_pair(p, *found) for found in zip(coming, moved, doubled, shifted, strict=True)]

    def _moved(self, p: int, coming: Sequence[int]) -> list[tuple[DiscreteMeasure, DiscreteMeasure]]:
        rows = self.tokens.repeat(len(coming), 1)
        rows[:, p] = torch.tensor(coming)
        index = torch.arange(len(self.tokens))
        return self._measures(self._read(self.known(rows)), self.chain, index)

    def _doubled(self, p: int, coming: Sequence[int]) -> list[tuple[DiscreteMeasure, DiscreteMeasure]]:
        n = len(self.tokens)
        index = torch.cat((torch.arange(p + 1), torch.arange(p, n)))
        masses = torch.ones(n + 1, dtype=self.known.words.dtype)
        masses[p : p + 2] = 0.5
        rows = self.tokens[index].repeat(len(coming), 1)
        rows[:, p + 1] = torch.tensor(coming)
        X = self._read(self.known.words[rows] + self.known.places[index])
        return self._measures(X, _split(self.chain, index, masses), index, masses / n)

    def _shifted(self, p: int, coming: Sequence[int]) -> list[tuple[DiscreteMeasure, DiscreteMeasure]] | None:
        if self.longer is None:
            return None
        known, chain = self.longer
        rows = torch.cat((self.tokens[: p + 1], self.tokens[p:])).repeat(len(coming), 1)
        rows[:, p + 1] = torch.tensor(coming)
        return self._measures(self._read(known(rows)), chain, torch.arange(rows.shape[1]))

    def _measures(
        self, X: Float[Tensor, "c n d"], f: Chain, index: Tensor, masses: Tensor | None = None
    ) -> list[tuple[DiscreteMeasure, DiscreteMeasure]]:
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


@dataclass(frozen=True, kw_only=True)
class _Apart:
    """How far the outputs are apart, and how far relative to the inputs."""

    outputs: float
    ratio: float

    @classmethod
    def of(cls, mu: tuple[DiscreteMeasure, DiscreteMeasure], nu: tuple[DiscreteMeasure, DiscreteMeasure]) -> "_Apart":
        """Compare measures before a map and behind it."""
        (before, after), (changed, came) = mu, nu
        inputs, outputs = _distance(before, changed), _distance(after, came)
        return cls(outputs=outputs, ratio=outputs / inputs if inputs > 0 else 0.0)


def _pair(p: int, token: int, moved: _Apart, doubled: _Apart, shifted: _Apart | None) -> Pair:
    return Pair(
        position=p,
        token=token,
        moved=moved.ratio,
        doubled=doubled.ratio,
        shifted=None if shifted is None else shifted.ratio,
        moved_by=moved.outputs,
        doubled_by=doubled.outputs,
        shifted_by=None if shifted is None else shifted.outputs,
    )


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
    """Return a map as it acts on parts of tokens: each at the place of its token, with its share of the mass."""
    if isinstance(f, Chain | Sum):
        return type(f)(*(_split(part, index, masses) for part in f.maps))
    if isinstance(f, Residual):
        return Residual(_split(f.map, index, masses))
    if isinstance(f, Pooling):
        return Pooling(weights=f.weights[index] * masses)
    return _split_attention(f, index, masses) if isinstance(f, Attention) else f


def _split_attention(f: Attention, index: Tensor, masses: Tensor) -> Attention:
    if f.positions.distances is not None:
        raise AssumptionError("doubling does not know scores that depend on distances as DeBERTa's do.", field="model")
    n = int(index.max()) + 1
    bias = masses.new_zeros(f.layout.heads, n, n)
    f.positions.apply(bias, slice(0, n), slice(0, n))
    rotary = None if f.positions.rotary is None else dataclasses.replace(f.positions.rotary, positions=index)
    positions = Positions(mask=bias[:, index][:, :, index], rotary=rotary)
    return dataclasses.replace(f, positions=positions, weights=masses)
