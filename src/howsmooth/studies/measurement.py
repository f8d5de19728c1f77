"""What a measurement of a model returns: every record, and the answer for each layer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from howsmooth.markup import paragraph
from howsmooth.markup import table as table_html
from howsmooth.studies.growth import Growth
from howsmooth.studies.records import Record
from howsmooth.theory.results import Ladder

COLUMNS = ("layer", "constant", "range", "exponent", "95 % interval", "R", "certificate", "sharp bound")
NO_BOUNDS = Ladder(rungs=())


@dataclass(frozen=True, kw_only=True)
class LayerSummary:
    """The answer for one layer.

    Attributes:
        layer: Which one.
        length: The longest length that was measured.
        constant: The geometric mean of the constants at that length.
        least: The smallest of them.
        most: The largest of them.
        growth: How the constant grows with the length; none if only one length was measured.
        radius: The mean radius of the tokens at that length.
        reach: The length of the longest token among them.
        ladder: Every bound for that many tokens in the ball of that radius; empty where the theory has none.
        local_upper: The geometric mean of the certificates at these inputs, likewise.
        released_growth: How the quantity of the paper's released scripts grows, if it was asked for.
    """

    layer: int
    length: int
    constant: float
    least: float
    most: float
    growth: Growth | None
    radius: float
    local_upper: float | None
    reach: float | None = None
    ladder: Ladder = NO_BOUNDS
    released_growth: Growth | None = None

    @property
    def sharp_upper(self) -> float | None:
        """The sharp bound for any such tokens, where the theory has one."""
        return next((bound.value for bound in self.ladder.rungs if bound.name == "sharp_upper"), None)

    @property
    def headroom(self) -> float | None:
        """How many times larger the sharp bound is than the constant."""
        return None if self.sharp_upper is None or self.constant == 0 else self.sharp_upper / self.constant

    @property
    def cells(self) -> tuple[str, ...]:
        """The answer in words, one for each of ``COLUMNS``."""
        growth = self.growth
        return (
            str(self.layer),
            _digits(self.constant, 4),
            "–".join(dict.fromkeys(_digits(end, 3) for end in (self.least, self.most))),
            "—" if growth is None else f"{growth.exponent:.3f}",
            "—" if growth is None else f"[{growth.low:.2f}, {growth.high:.2f}]",
            f"{self.radius:.3g}",
            "—" if self.local_upper is None else _digits(self.local_upper, 3),
            "—" if self.sharp_upper is None else f"{self.sharp_upper:.3g}",
        )

    def as_row(self) -> dict[str, Any]:
        """Return the fields that the command line prints as JSON."""
        growth, released = self.growth, self.released_growth
        row = {
            "layer": self.layer,
            "length": self.length,
            "constant": self.constant,
            "constant_low": self.least,
            "constant_high": self.most,
            "exponent": growth and growth.exponent,
            "exponent_low": growth and growth.low,
            "exponent_high": growth and growth.high,
            "exponent_note": growth and growth.note,
            "radius": self.radius,
            "sharp_upper": self.sharp_upper,
            "local_upper": self.local_upper,
        }
        if released is None:
            return row
        return row | {
            "released_exponent": released.exponent,
            "released_exponent_low": released.low,
            "released_exponent_high": released.high,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Measurement:
    """How smooth each attention layer of a model is on a text.

    Attributes:
        model: Which model.
        text: Which text.
        map: Which part of each layer.
        records: One for each layer, length and window, in that order.
        heads: Likewise for single heads, if they were asked for; the map of a task says which head.
        layers: The answer for each layer.
        notes: What the reader has to know: quantised weights, maps without a closed form, and the like.
        tokens: The tokens of the first window of the longest length, in words.
        openings: The first few tokens of each window, by length and window.
        run: The folder with the records; none if they were not kept.
        complete: Whether every task was done.
    """

    model: str
    text: str
    map: str
    records: tuple[Record, ...]
    heads: tuple[Record, ...]
    layers: tuple[LayerSummary, ...]
    notes: tuple[str, ...]
    tokens: tuple[str, ...]
    run: str | None
    complete: bool
    openings: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)

    def at(self, *, layer: int | None = None, length: int | None = None) -> tuple[Record, ...]:
        """Return the records of a layer, or of a length, or of both."""
        return tuple(r for r in self.records if layer in (None, r.task.layer) and length in (None, r.task.length))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that were measured."""
        return tuple(sorted({record.task.length for record in self.records}))

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        length = max(self.lengths, default=0)
        count = len({record.task.window for record in self.at(length=length)})
        windows = "1 window" if count == 1 else f"{count} windows"
        return f"{self.model} on {self.text}: the constant of {self.map!r} at {windows} of n = {length} tokens"

    @property
    def legend(self) -> str:
        """What the columns mean and what the numbers are worth."""
        pairs = [(record.upper, record.lower) for record in self.records if record.upper and record.lower]
        widest = max((upper / lower for upper, lower in pairs), default=1.0)
        worth = 100 * self.records[0].task.confidence if self.records else 0
        return (
            f"Each window's constant is attained, and within a factor of {widest:.4f} of the truth ({worth:g} % each). "
            "It grows like n^exponent. Certificate: a proof at these inputs (mean). Sharp bound: for any "
            f"{max(self.lengths, default=0)} tokens no longer than R, the mean radius of those in the text."
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        said = list(self.notes)
        open_ends = sum(record.status not in ("converged", "invariant", "zero") for record in self.records)
        if open_ends:
            said.append(f"{open_ends} of {len(self.records)} brackets did not close: their upper ends are loose")
        said += [f"layer {s.layer}: {s.growth.note}" for s in self.layers if s.growth is not None and s.growth.note]
        return tuple(said)

    def __repr__(self) -> str:
        """Show the answer for each layer as plain text."""
        table = [COLUMNS, *(layer.cells for layer in self.layers)]
        widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join((self.title, *lines, *(f"Note: {remark}." for remark in self.remarks)))

    def __rich__(self) -> Group:
        """Render in a rich console: the answer, what it is worth, and what to know."""
        table = Table(box=None, padding=(0, 1, 0, 0))
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for layer in self.layers:
            table.add_row(*layer.cells)
        # names may hold brackets, which are no markup
        said = [Text(f"Note: {remark}.", style="yellow") for remark in self.remarks]
        return Group(Text(self.title, style="bold"), table, Text(self.legend, style="dim"), *said)

    def _repr_html_(self) -> str:
        answer = table_html(COLUMNS, (layer.cells for layer in self.layers), caption=self.title)
        said = "".join(paragraph(f"Note: {remark}.") for remark in self.remarks)
        return answer + paragraph(self.legend) + said

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(
            {
                "model": self.model,
                "text": self.text,
                "map": self.map,
                "run": self.run,
                "complete": self.complete,
                "notes": self.notes,
                "layers": [layer.as_row() for layer in self.layers],
                "records": [record.as_row() for record in self.records],
                "heads": [record.as_row() for record in self.heads],
            }
        )


def _digits(value: float, digits: int) -> str:
    """Write a number with so many digits, but never as a power of ten below 10⁵."""
    return f"{value:.{digits}g}" if value < 10**digits or value >= 1e5 else f"{value:.0f}"


def least_smooth(layers: Sequence[LayerSummary]) -> LayerSummary:
    """Return the layer with the largest constant."""
    return max(layers, key=lambda layer: layer.constant)


def mean_constant(records: Sequence[Record]) -> float:
    """Return the geometric mean of the attained constants; zero if one of them is."""
    return geometric_mean(r.lower for r in records) if all(r.lower > 0 for r in records) else 0.0
