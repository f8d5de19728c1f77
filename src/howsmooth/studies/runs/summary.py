"""From records at a text to the answer for each layer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import Any

from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.growth import Growth, growth
from howsmooth.theory.results import Ladder
from howsmooth.wording import at_most, exponent, interval, number

NO_BOUNDS = Ladder(rungs=())
# Every bound for a layer, a length and a radius.
Bounds = Callable[[int, int, float], Ladder]


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
        most: The largest of them, at its upper end.
        typical: What random perturbations are multiplied by, root mean square over windows.
        growth: How the constant grows with the length; none if only one length was measured.
        radius: The mean radius of the tokens at that length.
        reach: The largest norm of a token among them.
        ladder: Every bound for that many tokens in the ball of that radius; empty where the theory has none.
        local_upper: The geometric mean of the certificates at these inputs, if they were asked for.
        released_growth: How the quantity of the paper's released scripts grows, if it was asked for.
    """

    layer: int
    length: int
    shortest: int
    windows: int
    constant: float
    least: float
    most: float
    typical: float | None
    growth: Growth | None
    radius: float
    reach: float
    local_upper: float | None = None
    ladder: Ladder = NO_BOUNDS
    released_growth: Growth | None = None

    @property
    def sharp_upper(self) -> float | None:
        """The worst-case bound for any such tokens, where the theory has one."""
        return next((bound.value for bound in self.ladder.rungs if bound.name == "sharp_upper"), None)

    @property
    def headroom(self) -> float | None:
        """How many times larger the worst-case bound is than the constant."""
        return None if self.sharp_upper is None or self.constant == 0 else self.sharp_upper / self.constant

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
            "typical": "—" if self.typical is None else number(self.typical),
            "worst": number(self.constant, 4),
            "range": interval(self.least, self.most, 3),
            "exponent": exponent_cell(self.growth),
            "95 %": "—" if self.growth is None else f"[{exponent(self.growth.low)}, {exponent(self.growth.high)}]",
            "n": self.lengths,
            "windows": str(self.windows),
            "R": number(self.radius),
            "certificate": "—" if self.local_upper is None else at_most(self.local_upper, 3),
            "any input": "—" if self.sharp_upper is None else at_most(self.sharp_upper, 3),
        }

    def as_row(self) -> dict[str, Any]:
        """Return the fields that the command line prints as JSON."""
        row = {
            "layer": self.layer,
            "length": self.length,
            "shortest": self.shortest,
            "windows": self.windows,
            "constant": self.constant,
            "constant_low": self.least,
            "constant_high": self.most,
            "typical": self.typical,
            **_exponents("exponent", self.growth),
            "exponent_note": None if self.growth is None else self.growth.note,
            "radius": self.radius,
            "reach": self.reach,
            "sharp_upper": self.sharp_upper,
            "local_upper": self.local_upper,
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
    layers: dict[int, list[TextRecord]] = {}
    # in the order of the text: neighbouring windows are alike, and intervals reckon with it
    for record in sorted(records, key=lambda r: (r.ask.layer, r.ask.window.digest, r.ask.window.index)):
        layers.setdefault(record.ask.layer, []).append(record)
    common = set.intersection(*({r.ask.length for r in found} for found in layers.values())) if layers else set()
    return tuple(
        _summary(layer, max(common or {r.ask.length for r in found}), found, bounds) for layer, found in layers.items()
    )


def _summary(layer: int, length: int, records: Sequence[TextRecord], bounds: Bounds) -> LayerSummary:
    whole = records[0].ask.window.whole
    # sentences have lengths of their own: all of them are summed up, and their lengths say nothing about growth
    chosen = [record for record in records if whole or record.ask.length == length]
    here = [record.answer for record in chosen]
    radius = fmean(answer.mean_radius for answer in here)
    proven = [answer.local_upper for answer in here if answer.local_upper is not None]
    gains = [answer.typical**2 for answer in here if answer.typical is not None]
    return LayerSummary(
        layer=layer,
        length=max(record.ask.length for record in chosen),
        shortest=min(record.ask.length for record in chosen),
        windows=len(here),
        constant=geometric([answer.lower for answer in here]),
        least=min(answer.lower for answer in here),
        most=max(answer.upper or answer.lower for answer in here),
        typical=fmean(gains) ** 0.5 if gains else None,
        growth=None if whole else growth_of((r.ask.length, r.answer.lower) for r in records),
        radius=radius,
        reach=max(answer.reach for answer in here),
        ladder=bounds(layer, max(record.ask.length for record in chosen), radius),
        local_upper=geometric(proven) if proven else None,
        released_growth=growth_of(
            (r.ask.length, r.answer.released_quantity)
            for r in records
            if r.answer.released_quantity is not None and not whole
        ),
    )


def mean_constant(records: Sequence[TextRecord]) -> float:
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
