"""Regimes: the growth of the worst constant with the sequence length, up to its value on measures."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Ball, measures_in_ball
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mean_field_maps import WeightedJacobian
from howsmooth.markup import paragraph, strict_json, table
from howsmooth.search.ascent import PopulationAscent
from howsmooth.search.measure_search import few_atom_measures, tied_pair_measures
from howsmooth.search.mechanisms import is_plain_softmax
from howsmooth.search.norm_gradient import measurable_inputs, norm_gradient_or_skip
from howsmooth.search.starts import start_patterns
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.theory.assumptions import require_plain, require_radius
from howsmooth.theory.bounds import sharp_mean_field_lower, sharp_mean_field_upper, sharp_upper, smallest_upper
from howsmooth.theory.heads import total_value
from howsmooth.theory.mean_field import require_mean_field
from howsmooth.theory.results import Bound, lower_bound
from howsmooth.theory.worst_inputs.origin_token import best_origin_token
from howsmooth.transport.measures import DiscreteMeasure
from howsmooth.wording import at_least, number

PLACES = 8
# How many inputs of each pattern are measured, how many of the best climb, and how many trials each gets.
PATTERNS, RUNS, STEPS = 2, 24, 40
# Constants that differ by less are told as one.
FLAT = 1.01
# Places (m, d), and how many tokens are at each.
Start = tuple[Tensor, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Regime:
    """The worst constant found on sequences of one length.

    Attributes:
        n: The length.
        found: The largest constant found, attained by an input on few places.
        shape: The number of tokens at each of its places.
        upper: The smallest upper bound at this length.
    """

    n: int
    found: float
    shape: tuple[int, ...]
    upper: Bound

    def __post_init__(self) -> None:
        """Refuse ends that contradict each other; a bound that is below by rounding is raised."""
        object.__setattr__(self, "upper", self.upper.above(self.found))


@dataclass(frozen=True, kw_only=True, repr=False)
class Regimes:
    r"""The worst constants against the length, between the discrete and the mean-field bounds.

    Sequences are measures: no value of a row is larger than the constant on measures, and ``lower`` is at least each of
    them.

    Attributes:
        rows: One entry for each length.
        radius: The radius of the ball.
        upper: The bound on measures, hence on every length; known for the softmax alone, as the next two.
        lower: The largest value that measures are known to attain, sequences of these lengths among them.
        crossing: The length :math:`n^*` at which one token is the lightest atom of a measure that attains as much,
            within a percent: shorter sequences have no mass as light. Infinite where that mass is no float.
    """

    rows: tuple[Regime, ...]
    radius: float
    upper: Bound | None = None
    lower: Bound | None = None
    crossing: float | None = None

    def __post_init__(self) -> None:
        """Refuse bounds on measures that contradict each other, or a row."""
        if self.upper is not None and self.lower is not None:
            object.__setattr__(self, "upper", self.upper.above(self.lower.value))

    def __repr__(self) -> str:
        lines = [f"n = {row.n:>8}   {at_least(row.found):>12} ≤ Lip ≤ {row.upper.digits}" for row in self.rows]
        return "\n".join((*lines, self.sentence))

    def _repr_html_(self) -> str:
        rows = ((f"{row.n:,}", at_least(row.found), row.upper.digits) for row in self.rows)
        return table(("n", "Lip ≥", "Lip ≤"), rows, caption=f"radius {self.radius:g}") + paragraph(self.sentence)

    @property
    def rising(self) -> tuple[Regime, ...]:
        """The rows up to the shortest beyond which no value found is larger by more than a percent."""
        rows = sorted(self.rows, key=lambda row: row.n)
        most = max(row.found for row in rows)
        last = next(i for i, row in enumerate(rows) if row.found >= most / FLAT)
        return tuple(rows[: last + 1])

    @property
    def sentence(self) -> str:
        """Say whether the constant still grows, and what measures attain, as far as it is found or proven."""
        if self.upper is None or self.lower is None or self.crossing is None:
            return f"{self.headline}."
        known = f"Measures attain at least {self.lower.digits}"
        if 1 < self.crossing < math.inf:
            known += f", with atoms as light as one token of {number(math.ceil(self.crossing), 4)}"
        return f"{self.headline}. {known}; no measure exceeds {self.upper.digits}."

    @property
    def headline(self) -> str:
        """Say where the constant stops growing if that is proven, and else what is found."""
        rows, top = sorted(self.rows, key=lambda row: row.n), self.rising[-1]
        ceiling = math.inf if self.upper is None else self.upper.value
        stopped = next((row for row in rows if ceiling <= FLAT * row.found < math.inf), None)
        if stopped is not None:
            return f"From n = {number(stopped.n, 4)} on the constant grows by at most one percent, proven"
        if top.n < rows[-1].n:
            return (
                f"Beyond n = {number(top.n, 4)} no constant found is larger by more than one percent; that the "
                "constant stops growing is not proven"
            )
        found = f"At n = {number(top.n, 4)} the largest constant found is {at_least(top.found)}"
        return f"{found} and still grows" if len(self.rising) > 1 else found

    def to_json(self) -> str:
        """Return one JSON object."""
        rows = [{"n": r.n, "found": r.found, "shape": r.shape, "upper": r.upper.as_dict()} for r in self.rows]
        ends = {
            name: None if bound is None else bound.as_dict()
            for name, bound in (("upper", self.upper), ("lower", self.lower))
        }
        about = {"radius": self.radius, "crossing": self.crossing, "sentence": self.sentence}
        return strict_json(about | {"rows": rows} | ends)


def regimes(attention: MultiHead, radius: float, lengths: Sequence[int]) -> Regimes:
    r"""Find the worst constants on sequences in a ball against their length.

    The inputs are few places with many tokens each: two points on a real eigenvector, the tied pair, with the best
    integer numbers of tokens. As weighted measures their cost does not depend on the length. Sequences of n tokens
    have masses no lighter than 1/n; what longer ones attain beyond that, and what measures do, is at least what is
    found at any length.

    Other mechanisms are searched: ascent over sequences on eight places, with several numbers of tokens at each. Of
    measures nothing is proven for them.

    Args:
        attention: One unmasked head, with scores :math:`\langle Ax,y\rangle` alone; or unmasked attention of another
            kind, with any number of heads. What counts tokens (sigmoid and entmax attention, linear attention without a
            denominator) is a map on measures once it has a ``count``, which stays the same for all lengths.
        radius: The radius of the ball.
        lengths: The lengths, at least 3.

    Raises:
        AssumptionError: If attention is masked or has a feature that no bound covers, or counts tokens and does not
            say how many.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(regimes(Attention.single_head(A=-one, V=one), 2.0, [10, 100]).crossing)  # 1 + 3 e⁸
        8944
    """
    if not lengths or any(not isinstance(n, int) or n < 3 for n in lengths):
        raise AssumptionError(f"lengths must be whole numbers, at least 3, got {list(lengths)}.", field="lengths")
    if isinstance(attention, MultiHead) and not is_plain_softmax(attention):
        return _searched(attention, radius, lengths)
    head = require_mean_field(attention, "regimes", radius)
    wide, places = attention.to(torch.float64, "cpu"), list(few_atom_measures(head, radius))
    # all tokens in one place: the constant is that of the values
    alone = float(torch.linalg.matrix_norm(total_value((head,)), ord=2))
    # a token at the origin, the others far away on both sides
    u = radius * best_origin_token((head,)).direction
    bests = {1: WorstSequence(value=alone, points=0 * u[None], counts=(1,))}
    whole, rows = sharp_mean_field_upper(attention, radius=radius), dict[int, Regime]()
    # what measures attain, and the mass of the lightest atom
    attained = [(alone, 1.0)]
    for place in places:
        if (lightest := float(place.masses.min())) > 0:  # it may be no float
            attained.append((_constant(wide, place.points, place.masses), lightest))
    for n in sorted(set(lengths)):
        starts: list[Start] = [(torch.stack((0 * u, u, -u)), (1, n // 2, n - 1 - n // 2))]
        for place in (*places, *tied_pair_measures(head, radius, n)):
            starts += [(place.points, counts) for counts in dict.fromkeys(place.counts(n))]
        before = next(reversed(bests.values()))
        starts += [(before.points, counts) for counts in dict.fromkeys(stretched(before.counts, n))]
        # the measures that m tokens make 2m, 3m, … make too
        tried = [
            dataclasses.replace(best, counts=tuple(n // m * count for count in best.counts))
            for m, best in bests.items()
            if n % m == 0
        ]
        for points, counts in starts:
            masses = torch.tensor(counts, dtype=torch.float64) / n
            tried.append(WorstSequence(value=_constant(wide, points, masses), points=points, counts=counts))
        bests[n] = max(tried, key=lambda each: each.value)
        attained.append((bests[n].value, min(bests[n].counts) / n))
        upper = min((sharp_upper(attention, n=n, radius=radius), whole), key=lambda bound: bound.log_value)
        rows[n] = Regime(n=n, found=bests[n].value, shape=bests[n].counts, upper=upper)
    (most, _lightest), lower = max(attained), sharp_mean_field_lower(attention, radius=radius)
    # those that are built before those of some length
    crossings = (1 / lightest for value, lightest in attained if max(most, lower.value) <= FLAT * value)
    if lower.value < most:
        lower = lower_bound(math.log(most), "worst_measure", measures_in_ball(radius), "ours: measured at Diracs")
        lower = dataclasses.replace(lower, value=most)  # and not what rounding makes of its logarithm
    ordered, crossing = tuple(rows[n] for n in lengths), next(crossings, math.inf)
    return Regimes(rows=ordered, radius=radius, upper=whole, lower=lower, crossing=crossing)


def _constant(attention: MultiHead, points: Float[Tensor, "m d"], masses: Float[Tensor, " m"]) -> float:
    """Measure the constant at a measure of few atoms; masses that are whole numbers over n make it a sequence of n."""
    return float(local_lipschitz(attention, DiscreteMeasure(points, masses), seed=0).lower)


def _searched(attention: MultiHead, radius: float, lengths: Sequence[int]) -> Regimes:
    """Search at every length; what a shorter sequence has is a start for the longer ones."""
    require_radius(radius)
    require_plain(attention, "regimes", causal=False)
    wide = attention.to(torch.float64, "cpu")
    wide.on(DiscreteMeasure(torch.zeros(1, wide.d, dtype=torch.float64)))  # what is no map on measures says so
    uppers = [smallest_upper(attention, n=n, radius=radius) for n in lengths]
    rows, found = {}, None
    for n, upper in sorted(zip(lengths, uppers, strict=True), key=lambda row: row[0]):
        known = list(_softmax_places(wide, radius, n))
        if found is not None:
            known += [(found.points, counts) for counts in stretched(found.counts, n)]
        found = worst_repeated_tokens(wide, n, radius, known)
        rows[n] = Regime(n=n, found=found.value, shape=found.counts, upper=upper)
    return Regimes(rows=tuple(rows[n] for n in lengths), radius=radius)


def _softmax_places(attention: MultiHead, radius: float, n: int) -> Iterator[Start]:
    """Yield the places of the softmax, for attention that is one but for its sink."""
    if not isinstance(attention, Attention):
        return
    try:
        head = require_mean_field(dataclasses.replace(attention, sink=None), "explicit inputs", radius)
    except AssumptionError:
        return  # several heads, or biases: patterns remain
    for place in (*few_atom_measures(head, radius), *tied_pair_measures(head, radius, n)):
        yield from ((place.points, counts) for counts in place.counts(n))


@dataclass(frozen=True, kw_only=True, eq=False)
class RepeatedTokens(TensorDataclass):
    r"""Attention on sequences with many tokens at each of a few places, as measures: :math:`D^{1/2}JD^{-1/2}`.

    Directions that move the tokens of one place together attain the constant of the measure, which is thus at most that
    of the sequence.
    """

    attention: MultiHead
    masses: Float[Tensor, "runs m"]  # how many tokens are at each place, not their shares: a sink counts for one

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
    """The worst sequence that was found."""

    value: float  # its constant, attained
    points: Float[Tensor, "m d"]  # the places
    counts: tuple[int, ...]  # how many tokens are at each


def worst_repeated_tokens(attention: MultiHead, n: int, radius: float, known: Sequence[Start]) -> WorstSequence:
    """Search sequences of ``n`` tokens in a ball, on a few places, for the largest constant."""
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
