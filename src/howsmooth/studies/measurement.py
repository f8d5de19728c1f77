"""What a measurement of a model returns: every record, and the answer for each layer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from howsmooth.studies.growth import Growth
from howsmooth.studies.records import Record


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
        sharp_upper: The bound for that many tokens in the ball of that radius, where the theory has one.
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
    sharp_upper: float | None
    local_upper: float | None
    released_growth: Growth | None = None

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

    def at(self, *, layer: int | None = None, length: int | None = None) -> tuple[Record, ...]:
        """Return the records of a layer, or of a length, or of both."""
        return tuple(r for r in self.records if layer in (None, r.task.layer) and length in (None, r.task.length))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that were measured."""
        return tuple(sorted({record.task.length for record in self.records}))

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


def mean_constant(records: Sequence[Record]) -> float:
    """Return the geometric mean of the attained constants; zero if one of them is."""
    return geometric_mean(r.lower for r in records) if all(r.lower > 0 for r in records) else 0.0
