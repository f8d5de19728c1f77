"""Long sequences with many tokens at a few places: the worst ones by ascent, for attention of every kind."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.ball import Ball
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mean_field_maps import WeightedJacobian
from howsmooth.search.norm_gradient import measurable_inputs, norm_gradient_or_skip
from howsmooth.search.population_ascent import PopulationAscent
from howsmooth.search.start_patterns import start_patterns
from howsmooth.tensor_dataclass import TensorDataclass

PLACES = 8
# How many inputs of each pattern are measured, how many of the best climb, and how many trials each gets.
PATTERNS, RUNS, STEPS = 2, 24, 40

# Places (m, d), and how many tokens are at each.
Start = tuple[Tensor, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class RepeatedTokens(TensorDataclass):
    r"""Attention on sequences with many tokens at each of a few places, as measures: :math:`D^{1/2}JD^{-1/2}`.

    Directions that move the tokens of one place together attain the constant of the measure, which is thus at most that
    of the sequence.

    Attributes:
        attention: The map.
        masses: How many tokens are at each place, one row for each input. Not their shares: a sink counts for one.
    """

    attention: MultiHead
    masses: Float[Tensor, "runs m"]

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.attention.dtype

    def __call__(self, X: Float[Tensor, "runs m d"]) -> Float[Tensor, "runs m out"]:
        """Return the images of the places."""
        return dataclasses.replace(self.attention, weights=self.masses)(X)

    def jacobian(self, X: Float[Tensor, "runs m d"]) -> WeightedJacobian:
        """Differentiate at every input."""
        return WeightedJacobian.of(dataclasses.replace(self.attention, weights=self.masses).jacobian(X), self.masses)

    def take(self, chosen: Tensor) -> "RepeatedTokens":
        """Return the map on some of the inputs."""
        return dataclasses.replace(self, masses=self.masses[chosen])


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstSequence:
    """The worst sequence that was found.

    Attributes:
        value: Its constant, attained.
        points: The places.
        counts: How many tokens are at each.
    """

    value: float
    points: Float[Tensor, "m d"]
    counts: tuple[int, ...]


def worst_repeated_tokens(attention: MultiHead, n: int, radius: float, known: Sequence[Start]) -> WorstSequence:
    """Search sequences of ``n`` tokens in a ball, on a few places, for the largest constant.

    Args:
        attention: Unmasked attention of any kind that is a map on measures.
        n: How many tokens, at least 3.
        radius: The radius of the ball.
        known: Inputs to start from beside patterns, of any numbers of places.
    """
    generator, ball = torch.Generator().manual_seed(0), Ball(radius)
    like = torch.empty(attention.d, dtype=attention.dtype)
    patterns = start_patterns(ball, min(n, PLACES), like, PATTERNS, generator)
    starts = [
        *(spread(points, counts) for points, counts in known),
        *((points, counts) for counts in shapes(n) for points in patterns),
    ]
    X = ball.nearest(torch.stack([points for points, _counts in starts]))
    counts = torch.tensor([numbers for _points, numbers in starts], dtype=torch.float64)
    f = RepeatedTokens(attention=attention, masses=counts.to(like))
    chosen, first = measurable_inputs(f.take, X, generator)
    best = first.lower.argsort(descending=True)[:RUNS]
    climbing = chosen[best]
    g = f.take(climbing)
    climb = PopulationAscent(
        lambda Y, guess: norm_gradient_or_skip(g.take, Y, guess, generator),
        ball,
        X[climbing],
        first.direction[best],
        generator,
    )
    for _trial in range(STEPS):
        climb.advance()
    ended, last = measurable_inputs(g.take, climb.tokens, generator)
    begun = WorstSequence(value=float(first.lower[best[0]]), points=X[climbing[0]], counts=_whole(counts[climbing[0]]))
    top = int(last.lower.argmax())
    reached = WorstSequence(
        value=float(last.lower[top]), points=climb.tokens[ended[top]], counts=_whole(counts[climbing[ended[top]]])
    )
    return max(begun, reached, key=lambda found: found.value)


def shapes(n: int) -> Iterator[tuple[int, ...]]:
    """Yield numbers of tokens at each place with the sum n: most at the first place, or nearly equal numbers."""
    m = min(n, PLACES)
    for light in sorted({max(1, round(n**power)) for power in (0.0, 0.25, 0.5, 0.75)}):
        if light * (m - 1) < n:
            yield (n - light * (m - 1), *[light] * (m - 1))
    for alone in (0, 1, 2):
        if n > m > alone:
            yield (*_equal(n - alone, m - alone), *[1] * alone)


def stretched(counts: tuple[int, ...], n: int) -> Iterator[tuple[int, ...]]:
    """Yield numbers for a longer sequence: new tokens go to the fullest place, or to all places in proportion."""
    fullest = max(range(len(counts)), key=counts.__getitem__)
    for factor in (1, n // sum(counts)):
        many = [factor * count for count in counts]
        many[fullest] += n - sum(many)
        yield tuple(many)


def spread(points: Float[Tensor, "m d"], counts: tuple[int, ...]) -> Start:
    """Return a sequence on more places: the fullest place is split in halves until there are enough."""
    where, many = list(range(len(counts))), list(counts)
    while len(many) < min(sum(counts), PLACES):
        fullest = max(range(len(many)), key=many.__getitem__)
        where.append(where[fullest])
        many.append(many[fullest] // 2)
        many[fullest] -= many[-1]
    return points[where], tuple(many)


def _equal(n: int, m: int) -> tuple[int, ...]:
    return (n // m + n % m, *[n // m] * (m - 1))


def _whole(counts: Float[Tensor, " m"]) -> tuple[int, ...]:
    return tuple(int(x) for x in counts)
