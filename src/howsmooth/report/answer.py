"""The table on top of a report, one row for each layer, and the words that explain it."""

import functools
import math
import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.report.embedding import asset
from howsmooth.report.sentences import growth_words
from howsmooth.studies.kinds.text import BOUND_COLUMNS
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.theory.results import Side
from howsmooth.wording import at_most, count, number


@functools.cache
def glossary() -> dict[str, list[dict[str, Any]]]:
    """Return the words of a report: the columns of its table, and the terms that it explains."""
    return tomllib.loads(asset("glossary.toml"))


def columns_of(rows: "Sequence[AnswerRow]") -> list[dict[str, Any]]:
    """Return the columns in which some row has a number."""
    return [column for column in glossary()["columns"] if any(row.cells[column["cell"]] != "—" for row in rows)]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The numbers of one layer on a line that all rows of a table share, logarithmic, from 0 to 1."""

    marks: tuple[tuple[str, float], ...]  # what each number is, and where it stands
    low: float  # where the smallest constant of a window stands
    high: float  # where the largest stands
    one: float | None  # where perturbations neither grow nor shrink; none if that is beyond the line


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """What is known about one layer, and of which measurement."""

    measurement: Measurement  # where the numbers come from
    section: int | None  # the place of the section that draws it closely; none if no section does
    layer: LayerSummary  # the numbers
    mark: str  # what stands out about it, if anything
    strip: Strip | None  # the numbers as a picture; none if nothing can be drawn

    @property
    def cells(self) -> dict[str, str]:
        """The numbers in words, by what to call them; the typical one with its interval."""
        return self.layer.cells | {"typical": str(self.layer.typical or "—")}

    @property
    def more(self) -> list[str]:
        """What stands on the second line: the range, the growth, the radius, the room below the bound."""
        layer = self.layer
        windows = count(layer.windows, self.measurement.thing)
        said = [
            "" if self.measurement.comparable else f"at {count(layer.length, 'token')}",
            f"{layer.cells['range']} over {windows}" if layer.windows > 1 else "",
            growth_words(self.measurement, layer),
            f"radius {number(layer.radius)}, longest token {number(layer.ball, 4)}",
            "" if layer.headroom is None else f"bound {at_most(layer.headroom, 2)} times the worst",
            self._overlap,
        ]
        return [part for part in said if part]

    @property
    def _overlap(self) -> str:
        """Whether the windows at hand tell this layer apart from the least smooth one."""
        worst = least_smooth(self.measurement.layers)
        close = self.measurement.comparable and layer_reaches(self.layer, worst)
        return f"range overlaps that of layer {worst.layer}" if close else ""


def layer_reaches(layer: LayerSummary, worst: LayerSummary) -> bool:
    """Tell whether some window of a layer is as bad as some window of the least smooth one."""
    return layer is not worst and layer.windows > 1 and layer.most >= worst.least


def answer_rows(measurements: Sequence[tuple[int | None, Measurement]]) -> list[AnswerRow]:
    """Return a row for each layer of each measurement; a number says which section draws it closely."""
    found = [(place, m, layer) for place, m in measurements for layer in m.layers]
    values = [value for _place, _m, layer in found for _name, value in _numbers(layer)]
    ends = (min(values), max(values)) if values else (1.0, 1.0)
    return [
        AnswerRow(measurement=m, section=place, layer=layer, mark=_mark(m, layer), strip=_strip(layer, ends))
        for place, m, layer in found
    ]


def _mark(m: Measurement, layer: LayerSummary) -> str:
    if len(m.layers) < 2 or not m.comparable:
        return ""
    constants = [other.constant for other in m.layers]
    marks = {min(constants): "smoothest", max(constants): "least smooth"}
    return marks.get(layer.constant, "")


def _numbers(layer: LayerSummary) -> Iterator[tuple[str, float]]:
    given = {
        "typical": None if layer.typical is None else layer.typical.value,
        "worst": layer.constant,
        **{head: layer.proven.get(name) for name, head in BOUND_COLUMNS.items()},
        "any": None if layer.any_input is None else layer.any_input.value,
    }
    yield from ((name, value) for name, value in given.items() if value is not None and 0 < value < math.inf)


def _strip(layer: LayerSummary, ends: tuple[float, float]) -> Strip | None:
    low, high = map(math.log, ends)
    if low == high or not 0 < layer.least <= layer.most < math.inf:
        return None

    def place(value: float) -> float:
        return min(1.0, max(0.0, (math.log(value) - low) / (high - low)))

    return Strip(
        marks=tuple((name, place(value)) for name, value in _numbers(layer)),
        low=place(layer.least),
        high=place(layer.most),
        one=place(1.0) if low < 0 < high else None,
    )


def terms(measurements: Collection[Measurement], kinds: Collection[str]) -> list[dict[str, Any]]:
    """Return the words that a report on these measurements and kinds of questions uses."""
    used = {key for m in measurements for key in _used_by(m)}
    return [term for term in glossary()["terms"] if term["key"] in used or {*term["kinds"]} & {*kinds}]


def _used_by(m: Measurement) -> set[str]:
    layers = m.layers
    told = {
        "typical": any(layer.typical is not None for layer in layers),
        "relative": any(layer.relative is not None for layer in layers),
        "growth": any(layer.growth is not None for layer in layers),
        **{head: any(name in layer.proven for layer in layers) for name, head in BOUND_COLUMNS.items()},
        "any": any(layer.any_input is not None for layer in layers),
        "inputs": any(bound.side is Side.LOWER for layer in layers for bound in layer.ladder.bounds),
        "tokens": bool(m.tokens),
    }
    return {key for key, used in told.items() if used}
