"""Axes and scales for numbers over many decades, or over less than one."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import altair as alt

from howsmooth.wording import number

# Which digits of each decade get a tick, the most crowded first.
DIGITS = ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
FEWEST, MOST = 3, 6
# Neighbouring lengths that lie nearer than this share of an axis would write over each other.
APART = 0.12


def log_axis(span: Sequence[float]) -> alt.Axis:
    """Return an axis with few round numbers, written as everywhere else."""
    return labelled(round_numbers(*span))


def length_axis(lengths: Iterable[int]) -> alt.Axis:
    """Return an axis with the lengths that were measured, as far as they do not crowd; round ones if there are many."""
    ordered = sorted(set(lengths))
    if not 0 < len(ordered) <= MOST + 1:
        return log_axis(span_of(ordered))
    width = math.log(ordered[-1] / ordered[0])
    kept = ordered[:1]
    kept += [n for before, n in pairwise(ordered) if math.log(n / before) >= APART * width]
    return labelled(kept)


def labelled(values: Sequence[float], digits: int = 3) -> alt.Axis:
    """Return an axis with ticks at some values, each with its label: Vega's own formats write 1e+4 beside 9000."""
    labels = ", ".join(f"'{number(value, digits)}'" for value in values)
    places = ", ".join(map(repr, values))
    expression = f"[{labels}][indexof([{places}], datum.value)]"
    return alt.Axis(values=list(values), labelExpr=expression, labelOverlap="greedy", labelSeparation=4)


def round_numbers(low: float, high: float) -> list[float]:
    """Return three to six round numbers between two positive ones, evenly spread on a logarithmic axis.

    Example:
        >>> round_numbers(1, 1000), round_numbers(3.1, 6.9)
        ([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0], [4.0, 5.0, 6.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in DIGITS:
        found = _between(low, high, (float(f"{digit}e{decade}") for decade in decades for digit in digits))
        if len(found) <= MOST + 1:
            break
    # too many decades for one tick each
    while len(found) > MOST + 1:
        found = found[::2]
    return found if len(found) >= FEWEST else even_numbers(low, high)


def even_numbers(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances: over less than a decade, decimals are rounder than digits."""
    rough = (high - low) / FEWEST
    power = math.floor(math.log10(rough))
    step = next(step for step in (5, 2, 1, 0.5) if float(f"{step}e{power}") <= rough)
    unit = float(f"{step}e{power}")
    first = math.ceil(low / unit)
    places = max(0, 1 - power)
    return [round(k * unit, places) for k in range(first, math.floor(high / unit) + 1)]


def _between(low: float, high: float, values: Iterable[float]) -> list[float]:
    return [value for value in values if low <= value <= high]


def log_scale(span: Sequence[float]) -> alt.Scale:
    """Return a logarithmic scale over a span."""
    return alt.Scale(type="log", nice=False, domain=list(span))


def span_of(values: Iterable[float], *, room: float = 1.15) -> list[float]:
    """Return a domain that a logarithmic scale can draw, though there be one value or none."""
    found = list(values)
    low, high = (min(found), max(found)) if found else (1.0, 1.0)
    if low == high:
        room = 2.0
    return [low / room, high * room]


def drawable(value: float | None) -> bool:
    """Tell whether a logarithmic scale has a place for a value."""
    return value is not None and 0 < value < math.inf
