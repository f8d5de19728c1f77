"""What charts are made of, and their numbers as tables: for readers who do not see them, or want the digits."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from howsmooth.studies.records import Record
from howsmooth.wording import at_least, at_most, number

Rows = list[dict[str, Any]]
Chart = alt.LayerChart | alt.FacetChart
# A row of a table of numbers: the layer it is about, if it is about one, and its cells.
NumberRow = tuple[int | None, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a chart shows, as a table."""

    head: tuple[str, ...]
    rows: Sequence[NumberRow]


def cell(value: float | None, digits: int = 4, *, written: Callable[[float, int], str] = number) -> str:
    """Write one number, or that there is none; a bound as :func:`at_least` or :func:`at_most` does."""
    return "—" if value is None else written(value, digits)


def ends(records: Iterable[Record]) -> tuple[str, str]:
    """Write the smallest lower end and the largest upper end of some constants; infinite where one has none."""
    answers: Sequence[Any] = [record.answer for record in records]
    low, high = min(a.lower for a in answers), max(math.inf if a.upper is None else a.upper for a in answers)
    return at_least(low, 4), at_most(high, 4)


def extent(values: Iterable[float], written: Callable[[float], str] = number) -> str:
    """Write the smallest and the largest of some numbers; once, where they read the same."""
    found = list(values)
    return " to ".join(dict.fromkeys(written(end) for end in (min(found), max(found))))
