"""From records at a text to the answer for each layer."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING
from statistics import fmean, geometric_mean
from typing import Any

from howsmooth.spectral.typical import mean_gain
from howsmooth.studies.kinds.text import BOUND_COLUMNS, TextAnswer, TextRecord
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.growth import Growth, growth
from howsmooth.theory.results import Bound, BoundsTable, Side
from howsmooth.wording import at_most, estimated, exponent, interval, number, rounded

# Of the interval of a typical gain; with how many digits the ball is told that bounds are about.
CONFIDENCE, BALL_DIGITS = 0.95, 4
NO_BOUNDS = BoundsTable(bounds=())
# Every bound for a layer, a length and a radius.
Bounds = Callable[[int, int, float], BoundsTable]


@dataclass(frozen=True, kw_only=True)
class Typical:
    """What random perturbations are multiplied by at some windows, in the root mean square."""

    value: float  # the estimate
    # the lower end of its interval at 95 %, over random directions at these windows; none in runs of earlier versions
    low: float | None
    high: float | None  # the upper end

    def __str__(self) -> str:
        """Write it with its interval."""
        return " ".join(filter(None, self.cells))

    @property
    def cells(self) -> tuple[str, str]:
        """The value and its interval in words, with as many digits as that leaves."""
        return estimated(self.value, self.low, self.high)

    @property
    def said(self) -> str:
        """What stands behind the worst perturbation in a sentence."""
        value, interval = self.cells
        by = f"shrinks to {value} of its size" if self.value < 1 else f"grows {value}-fold"
        by = "keeps its size" if value == "1" else by
        return f", a random one {by}{interval and f' {interval}'}"


@dataclass(frozen=True, kw_only=True)
class LayerSummary:
    """The answer for one layer.

    Attributes:
        layer: Which one.
        length: The longest length at which all layers were measured, or this layer's own if there is none; of sequences
            that are measured whole, the longest.
        shortest: The shortest of those that are summed up: the same for windows, the shortest sequence otherwise.
        windows: How many windows of that length; or how many sequences.
        constant: The geometric mean of the constants at them.
        least: The smallest of them.
        most: The largest of them, at its upper end; infinite where one of them has none.
        relative: The geometric mean of the condition numbers at them; none if some window has none.
        typical: What random perturbations are multiplied by, root mean square over windows, with its interval.
        growth: How the constant grows with the length; none if only one length was measured.
        radius: The mean radius of the tokens at that length.
        reach: The largest norm of a token among them.
        ladder: Every bound for that many tokens in the ball that holds all of these; empty where the theory has none.
        proven: The geometric mean of each bound at these inputs that was asked for, by its field of the answer.
        released_growth: How the quantity of the paper's released scripts grows, if it was asked for.
    """

    layer: int
    length: int
    shortest: int
    windows: int
    constant: float
    least: float
    most: float
    relative: float | None = None
    typical: Typical | None
    growth: Growth | None
    radius: float
    reach: float
    proven: Mapping[str, float] = field(default_factory=dict)
    ladder: BoundsTable = NO_BOUNDS
    released_growth: Growth | None = None

    @property
    def ball(self) -> float:
        """The radius of the ball that bounds are about, the norm of the longest token, rounded up."""
        return ball_around(self.reach)

    @property
    def local_upper(self) -> float | None:
        """The geometric mean of the certificates at these inputs, if they were asked for."""
        return self.proven.get("local_upper")

    @property
    def any_input(self) -> Bound | None:
        """The smallest proven bound for any tokens in that ball, where the theory has one."""
        return self.ladder.upper if any(bound.side is Side.UPPER for bound in self.ladder.bounds) else None

    @property
    def headroom(self) -> float | None:
        """How many times larger that bound is than the constant."""
        return None if self.any_input is None or self.constant == 0 else self.any_input.value / self.constant

    @property
    def lengths(self) -> str:
        """How many tokens what is summed up has."""
        ends = (self.shortest, self.length)
        return number(self.length) if self.shortest == self.length else " to ".join(map(number, ends))

    @property
    def cells(self) -> dict[str, str]:
        """The answer in words, by what to call it."""
        return {
            "layer": str(self.layer),
            "typical": "—" if self.typical is None else self.typical.cells[0],
            "typical 95 %": (self.typical and self.typical.cells[1]) or "—",
            "worst": number(self.constant, 4),
            "relative": "—" if self.relative is None else number(self.relative),
            "range": interval(self.least, self.most, 3),
            "exponent": exponent_cell(self.growth),
            "95 %": "—" if self.growth is None else f"[{exponent(self.growth.low)}, {exponent(self.growth.high)}]",
            "n": self.lengths,
            "windows": str(self.windows),
            "R": number(self.radius),
            **{
                head: at_most(self.proven[name], 3) if name in self.proven else "—"
                for name, head in BOUND_COLUMNS.items()
            },
            "longest": "—" if self.any_input is None else number(self.ball, BALL_DIGITS),
            "any input": "—" if self.any_input is None else self.any_input.rounded(3),
        }

    def as_row(self) -> dict[str, Any]:
        """Return the fields that the command line prints as JSON."""
        row = {
            **{name: getattr(self, name) for name in ("layer", "length", "shortest", "windows", "constant")},
            "constant_low": self.least,
            "constant_high": self.most,
            "relative": self.relative,
            "typical": None if self.typical is None else self.typical.value,
            "typical_low": None if self.typical is None else self.typical.low,
            "typical_high": None if self.typical is None else self.typical.high,
            **_exponents("exponent", self.growth),
            "exponent_note": None if self.growth is None else self.growth.note,
            "radius": self.radius,
            "reach": self.reach,
            "ball": self.ball,
            "any_input_upper": None if self.any_input is None else self.any_input.value,
            "any_input_name": None if self.any_input is None else self.any_input.name,
            **{name: self.proven.get(name) for name in BOUND_COLUMNS},
        }
        return row | ({} if self.released_growth is None else _exponents("released_exponent", self.released_growth))


def _exponents(name: str, law: Growth | None) -> dict[str, float | None]:
    if law is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: law.exponent, f"{name}_low": law.low, f"{name}_high": law.high}


def exponent_cell(law: Growth | None) -> str:
    """Write the exponent of a law; with a question mark where no power law describes the data."""
    return "—" if law is None else exponent(law.exponent) + ("?" if law.doubted else "")


def summarise(records: Sequence[TextRecord], bounds: Bounds) -> tuple[LayerSummary, ...]:
    """Return the answer for each layer of one model and map, all at one length if they have one in common."""
    # in the order of the text: neighbouring windows are alike, and intervals reckon with it
    ordered = sorted(records, key=lambda r: (r.ask.layer, r.ask.window.digest, r.ask.window.index))
    layers = grouped(ordered, lambda r: r.ask.layer)
    common = set.intersection(*({r.ask.length for r in found} for found in layers.values())) if layers else set()
    return tuple(
        _summary(layer, max(common or {r.ask.length for r in found}), found, bounds) for layer, found in layers.items()
    )


def _summary(layer: int, length: int, records: Sequence[TextRecord], bounds: Bounds) -> LayerSummary:
    whole = records[0].ask.window.whole
    # sentences have lengths of their own: all of them are summed up, and their lengths say nothing about growth
    chosen = [record for record in records if whole or record.ask.length == length]
    here = [record.answer for record in chosen]
    reach = max(answer.reach for answer in here)
    relative = [answer.relative for answer in here if answer.relative is not None]
    proven = {name: [x for answer in here if (x := getattr(answer, name)) is not None] for name in BOUND_COLUMNS}
    return LayerSummary(
        layer=layer,
        length=max(record.ask.length for record in chosen),
        shortest=min(record.ask.length for record in chosen),
        windows=len(here),
        constant=geometric([answer.lower for answer in here]),
        least=min(answer.lower for answer in here),
        most=max(math.inf if answer.upper is None else answer.upper for answer in here),
        relative=geometric(relative) if len(relative) == len(here) else None,
        typical=typical_of(chosen),
        growth=None if whole else growth_of((r.ask.length, r.answer.lower) for r in records),
        radius=fmean(answer.mean_radius for answer in here),
        reach=reach,
        ladder=bounds(layer, max(record.ask.length for record in chosen), ball_around(reach)),
        proven={name: geometric(values) for name, values in proven.items() if values},
        released_growth=growth_of(
            (r.ask.length, r.answer.released_quantity)
            for r in records
            if r.answer.released_quantity is not None and not whole
        ),
    )


def typical_of(records: Sequence[Record[Any, TextAnswer]]) -> Typical | None:
    """Return the typical gain over windows: none if no record has it.

    The interval is over random directions, at these windows: Jacobians at several windows are the blocks of one, see
    :func:`~howsmooth.spectral.typical.mean_gain`. Records of earlier versions know no interval.
    """
    answers = [record.answer for record in records if record.answer.typical is not None]
    if not answers:
        return None
    gains = [answer.typical or 0.0 for answer in answers]
    value, low, high = mean_gain(
        gains,
        [answer.lower for answer in answers],
        [answer.upper or math.inf for answer in answers],
        [answer.dimensions or math.inf for answer in answers],
        samples=max(1, min(answer.probes for answer in answers)),
        doubt=1 - CONFIDENCE,
        bound_doubt=1 - records[0].ask.solver.confidence,
    )
    if any(answer.typical_low is None for answer in answers):
        return Typical(value=value, low=None, high=None)
    if all(answer.typical_low == answer.typical_high for answer in answers):  # as many directions as dimensions
        return Typical(value=value, low=value, high=value)
    return Typical(value=value, low=low, high=high)


def ball_around(reach: float) -> float:
    """Return the radius of a ball that holds tokens of norm up to ``reach``: rounded up to four digits.

    Example:
        >>> ball_around(15.23418), ball_around(8.0)
        (15.24, 8.0)
    """
    places = BALL_DIGITS - 1 - math.floor(math.log10(reach)) if reach > 0 else 0
    return float(rounded(reach, places, ROUND_CEILING))


def mean_constant(records: Sequence[Record[Any, TextAnswer]]) -> float:
    """Return the geometric mean of the attained constants; zero if one of them is."""
    return geometric([record.answer.lower for record in records])


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean; zero if one of the values is."""
    return geometric_mean(values) if all(value > 0 for value in values) else 0.0


def growth_of(values: Iterable[tuple[int, float]]) -> Growth | None:
    """Fit the growth of values at lengths, in the order of the text, where there are two lengths and no zeros."""
    by_length: dict[int, list[float]] = {}
    for length, value in values:
        by_length.setdefault(length, []).append(value)
    if len(by_length) < 2 or not all(value > 0 for found in by_length.values() for value in found):
        return None
    return growth(by_length)
