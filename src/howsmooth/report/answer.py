"""The answer on top of a report and in the terminal: one sentence for each measurement, one row for each layer."""

import functools
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from howsmooth.models.map_names import MapName
from howsmooth.report.embedding import asset
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import at_most, count, exponent, grows, number

# So many layers are named one by one.
NAMED = 4


def sentence(measurement: Measurement) -> str:
    """Say in one sentence how smooth the layers are: the least smooth one, its scale, and the smoothest."""
    if not measurement.layers:
        return "Nothing is measured yet."
    if not measurement.comparable:
        return "The layers have no length in common yet, so none of them is called the least smooth."
    worst = least_smooth(measurement.layers)
    typical = "" if worst.typical is None else worst.typical.said
    bound = worst.any_input
    tokens = f"any {count(worst.length, 'token')} no longer than {worst.cells['longest']}, the longest here,"
    proven = "" if bound is None or math.isinf(bound.log_value) else f"; for {tokens} at most {bound.rounded(3)}-fold"
    one = worst.shortest == worst.length
    place = (
        count(worst.length, "token") if one else f"{count(worst.windows, measurement.thing)} of {worst.lengths} tokens"
    )
    enters = "the sum of the embeddings" if measurement.map == "network" else f"what enters layer {worst.layer}"
    through = f" through {measurement.map!r}" if MapName.parse(measurement.map).spans_layers else ""
    said = (
        f"{'at' if one else 'over'} {place} the worst small perturbation of {enters} "
        f"{grows(worst.constant, through)}{typical}{proven}{_smoothest(measurement.layers)}."
    )
    return f"{said[0].upper()}{said[1:]}" if measurement.complete else f"So far, {said}"


def growth_sentence(measurement: Measurement) -> str:
    """Say in one sentence how that factor grows with the number of tokens, and of which layers no law can say it."""
    laws = [(layer, layer.growth) for layer in measurement.layers if layer.growth is not None]
    if not laws:
        return "Nothing is known about growth, which takes several lengths."
    sure = [(layer, law) for layer, law in laws if not law.doubted]
    doubted = [layer for layer, law in laws if law.doubted]
    said = [part for part in (_laws(sure), _lawless(measurement, doubted, alone=not sure)) if part]
    return f"{'; '.join(said)}."


def growth_words(measurement: Measurement, layer: LayerSummary) -> str:
    """Say how one layer grows in a few words; nothing if it was measured at one length."""
    if layer.growth is None:
        return ""
    if layer.growth.doubted:
        return f"follows no power law {_span(measurement, [layer])}"
    low, high = exponent(layer.growth.low), exponent(layer.growth.high)
    return f"{_law(layer.growth)} [{low}, {high}]"


def _smoothest(layers: Sequence[LayerSummary]) -> str:
    best = min(layers, key=lambda layer: layer.constant)
    return f"; the smoothest is layer {best.layer}, with {number(best.constant)}" if len(layers) > 1 else ""


def _laws(found: Sequence[tuple[LayerSummary, Growth]]) -> str:
    if not found:
        return ""
    slow, fast = (choose(found, key=lambda pair: pair[1].exponent) for choose in (min, max))
    (slowest, least), (fastest, most) = slow, fast
    begin = "With the number of tokens n this factor"
    if exponent(least.exponent) == exponent(most.exponent):
        return f"{begin} {_law(most)}"
    return f"{begin} {_law(least)} (layer {slowest.layer}) up to n^{exponent(most.exponent)} (layer {fastest.layer})"


def _law(law: Growth) -> str:
    return f"{'grows' if law.exponent > 0 else 'changes'} like n^{exponent(law.exponent)}"


def _lawless(measurement: Measurement, doubted: Sequence[LayerSummary], *, alone: bool) -> str:
    if not doubted:
        return ""
    said = f"{_listed(doubted, len(measurement.layers))} no power law {_span(measurement, doubted)}"
    return said[0].upper() + said[1:] if alone else said


def _listed(layers: Sequence[LayerSummary], whole: int) -> str:
    names = [str(layer.layer) for layer in layers]
    if len(names) == 1:
        return f"layer {names[0]} follows"
    if len(names) > NAMED:
        return f"{len(names)} of {whole} layers follow"
    return f"layers {', '.join(names[:-1])} and {names[-1]} follow"


def _span(measurement: Measurement, layers: Sequence[LayerSummary]) -> str:
    lengths = [record.ask.length for layer in layers for record in measurement.at(layer=layer.layer)]
    return f"between {number(min(lengths))} and {number(max(lengths))} tokens"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number that each row of the answer has.

    Attributes:
        key: What the glossary and the drawing call it.
        cell: What a summary calls it.
        name: What stands at the head.
        hint: What it is about, in a few words.
        meaning: What it is, in a sentence.
    """

    key: str
    cell: str
    name: str
    hint: str
    meaning: str


@functools.cache
def every_column() -> tuple[Column, ...]:
    """Return all columns, in their order."""
    return tuple(Column(**column) for column in tomllib.loads(asset("glossary.toml"))["columns"])


def columns_of(rows: "Sequence[AnswerRow]") -> list[Column]:
    """Return the columns in which some row has a number."""
    return [column for column in every_column() if any(row.cells[column.cell] != "—" for row in rows)]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The numbers of one layer on a line that all rows of a table share, logarithmic, from 0 to 1.

    Attributes:
        marks: What each number is, and where it stands.
        low: Where the smallest constant of a window stands.
        high: Where the largest stands.
        one: Where perturbations neither grow nor shrink; none if that is beyond the line.
    """

    marks: tuple[tuple[str, float], ...]
    low: float
    high: float
    one: float | None


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """What is known about one layer, and of which measurement.

    Attributes:
        measurement: Where the numbers come from.
        section: The place of the section that draws it closely; none if no section does.
        layer: The numbers.
        mark: What stands out about it, if anything.
        strip: The numbers as a picture; none if nothing can be drawn.
    """

    measurement: Measurement
    section: int | None
    layer: LayerSummary
    mark: str
    strip: Strip | None

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
        "certificate": layer.local_upper,
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
