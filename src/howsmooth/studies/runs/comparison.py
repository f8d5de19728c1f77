"""What a comparison of two runs returns: a ratio for each layer, and which differences are real."""

import enum
import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from howsmooth.markup import paragraph
from howsmooth.markup import table as table_html
from howsmooth.studies.runs.measurement import fitted
from howsmooth.studies.runs.ratios import Ratio
from howsmooth.studies.values import to_json
from howsmooth.wording import aligned, at_least, at_most, count, number, percent, visible

# Columns that leave a narrow terminal, the first ones first.
EXPENDABLE = ("error bars", "windows", "text", "model", "second", "first", "map")


class Verdict(enum.StrEnum):
    """What came of a comparison; the value is what the user reads."""

    LARGER = "larger"
    SMALLER = "smaller"
    ALIKE = "within error bars"
    OPEN = "not told apart"
    ONE = "one window"
    ZERO = "a constant is 0"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One part of a layer at one length, in two runs.

    Attributes:
        models: Which model, in the first run and in the second.
        texts: Which text, likewise.
        map: Which part of the layer.
        layer: Which layer.
        length: How many tokens; none for sequences that are measured whole, each with its own.
        windows: How many windows of the first run, and of the second.
        paired: Whether both runs have the same windows, so that each is compared with itself.
        constants: The geometric mean of the constants, in the first run and in the second.
        ratio: That of the second run over that of the first; none if a constant is zero.
    """

    models: tuple[str, str]
    texts: tuple[str, str]
    map: str
    layer: int
    length: int | None
    windows: tuple[int, int]
    paired: bool
    constants: tuple[float, float]
    ratio: Ratio | None

    @property
    def verdict(self) -> Verdict:
        """Whether the difference is real, that is, whether the interval, error bars counted in, leaves out 1."""
        if self.ratio is None:
            return Verdict.ZERO
        if self.ratio.within is None:
            return Verdict.ONE
        low, high = self.ratio.within
        if low > 1:
            return Verdict.LARGER
        if high < 1:
            return Verdict.SMALLER
        least, most = self.ratio.near
        return Verdict.ALIKE if least <= 1 <= most else Verdict.OPEN

    @property
    def real(self) -> bool:
        """Whether the second run is told apart from the first here."""
        return self.verdict in (Verdict.LARGER, Verdict.SMALLER)

    @property
    def place(self) -> str:
        """Where it is, in words."""
        part = "" if self.map == "attention" else f"{self.map} of "
        return f"{part}layer {self.layer}" + ("" if self.length is None else f" at {count(self.length, 'token')}")

    def cells(self, confidence: float) -> dict[str, str]:
        """The row of a table, by what its columns are called."""
        return {
            "model": self.models[1],
            "text": self.texts[1],
            "map": self.map,
            "layer": str(self.layer),
            "n": "—" if self.length is None else number(self.length),
            "windows": _either(*self.windows),
            "first": number(self.constants[0], 4),
            "second": number(self.constants[1], 4),
            "ratio": "—" if self.ratio is None else number(self.ratio.value, 4),
            "error bars": "—" if self.ratio is None else bracketed(self.ratio.near),
            percent(confidence): "—" if self.ratio is None else bracketed(self.ratio.within),
            "second is": self.verdict.value,
        }

    def as_row(self) -> dict[str, Any]:
        """Return the fields that the command line prints as JSON."""
        ratio = self.ratio
        low, high = (None, None) if ratio is None or ratio.within is None else ratio.within
        least, most = (None, None) if ratio is None else ratio.near
        return {
            "models": self.models,
            "texts": self.texts,
            "map": self.map,
            "layer": self.layer,
            "length": self.length,
            "windows": self.windows,
            "paired": self.paired,
            "first": self.constants[0],
            "second": self.constants[1],
            "ratio": None if ratio is None else ratio.value,
            "low": low,
            "high": high,
            "error_low": least,
            "error_high": most,
            "real": self.real,
            "verdict": self.verdict.value,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """How many times larger the constants of one run are than those of another.

    Attributes:
        first: What the ratios are relative to.
        second: What is compared with it.
        rows: One for each part of a layer and length that both have.
        confidence: The probability with which all intervals hold together.
        notes: What a reader has to know: windows that are no pairs, places that one run alone has.
    """

    first: str
    second: str
    rows: tuple[Difference, ...]
    confidence: float
    notes: tuple[str, ...] = ()

    @property
    def real(self) -> tuple[Difference, ...]:
        """The differences that are real."""
        return tuple(row for row in self.rows if row.real)

    @property
    def paired(self) -> bool:
        """Whether every window is compared with itself."""
        return all(row.paired for row in self.rows)

    def chart(self) -> Any:
        """Draw every ratio with its interval, one panel for each length and map."""
        # charts are drawn one room further on; by its name, since nothing here depends on it
        return importlib.import_module("howsmooth.report.differences").differences_chart(self)

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        return f"{self.second} over {self.first}"

    @property
    def sentence(self) -> str:
        """Say which differences are real, and the largest of them."""
        sure, many = self.real, count(len(self.rows), "ratio")
        if not sure:
            return f"No difference is real: of {many}, none is told apart from 1."
        most = max(sure, key=_size)
        between = "" if most.ratio is None else f" {bracketed(most.ratio.within)}"
        told = f"{most.place} differs most, {number(_value(most), 4)} times the first{between}"
        share = f"{count(len(sure), 'difference')} of {len(self.rows)} {'is' if len(sure) == 1 else 'are'} real"
        return f"{share}: {told}."

    @property
    def legend(self) -> str:
        """What the columns mean and what they are worth."""
        pairs = "each window with itself" if self.paired else "windows as independent samples"
        return (
            f"Ratio: geometric mean of the second over that of the first, {pairs}. Intervals are of t on logarithms; "
            f"the error bars of the constants are part of them, and all hold together with {percent(self.confidence)} "
            "(Bonferroni). A difference is real if its interval leaves out 1."
        )

    @property
    def columns(self) -> list[str]:
        """The names of the columns that have something to say."""
        rows = [row.cells(self.confidence) for row in self.rows]
        alike = {name for name in ("model", "text", "map") if len({row[name] for row in rows}) == 1}
        return [
            name for name in (rows[0] if rows else {}) if name not in alike and any(row[name] != "—" for row in rows)
        ]

    def __repr__(self) -> str:
        """Show the ratios as plain text."""
        found = [row.cells(self.confidence) for row in self.rows]
        rows = [self.columns, *([row[name] for name in self.columns] for row in found)]
        shown = (self.title, self.sentence, *aligned(rows), *(f"Note: {note}." for note in self.notes))
        return visible("\n".join(shown))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Render in a rich console: the answer, every ratio, what they are worth, and what to know."""
        # names may hold brackets, which are no markup
        yield Text(self.sentence)
        yield Text(self.title, style="bold")
        rows = [row.cells(self.confidence) for row in self.rows]
        yield fitted(rows, self.columns, EXPENDABLE, console, options)
        yield Text(self.legend, style="dim")
        yield from (Text(f"Note: {note}.", style="yellow") for note in self.notes)

    def _repr_html_(self) -> str:
        found = (row.cells(self.confidence) for row in self.rows)
        answer = table_html(self.columns, ([row[name] for name in self.columns] for row in found), caption=self.title)
        said = "".join(paragraph(f"Note: {note}.") for note in self.notes)
        return paragraph(self.sentence) + answer + paragraph(self.legend) + said

    def to_json(self) -> str:
        """Return one JSON object; a number without end is null."""
        return to_json(
            {
                "first": self.first,
                "second": self.second,
                "confidence": self.confidence,
                "paired": self.paired,
                "rows": [row.as_row() for row in self.rows],
                "notes": self.notes,
            }
        )


def bracketed(ends: tuple[float, float] | None) -> str:
    """Write both ends of an interval of ratios, rounded outwards.

    Example:
        >>> bracketed((0.98765, 1.23451)), bracketed((1.0000001, math.inf))
        ('[0.987, 1.235]', '[1.0000001, ∞]')
    """
    return "—" if ends is None else f"[{_end(ends[0], at_least)}, {_end(ends[1], at_most)}]"


def _end(value: float, rounded: Callable[[float, int], str]) -> str:
    """Round one end to three digits, or to as many as tell it from 1."""
    written = (rounded(value, digits) for digits in range(3 if value < 1 else 4, 17))
    return next((text for text in written if text != "1"), "1")


def _either(first: int, second: int) -> str:
    return str(first) if first == second else f"{first}, {second}"


def _value(row: Difference) -> float:
    return math.nan if row.ratio is None else row.ratio.value


def _size(row: Difference) -> float:
    """How far a ratio lies from 1, upwards or downwards."""
    value = _value(row)
    return abs(math.log(value)) if 0 < value < math.inf else math.inf
