"""Axes and scales for numbers over many decades."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from howsmooth.errors import AssumptionError
from howsmooth.report.charts import LARGE_NUMBERS, Chart, powers


def round_ticks(span: Sequence[float]) -> alt.Axis:
    """Return an axis with ticks at 1, 2, 5, 10 and so on; at powers of ten if the span is long."""
    low, high = span
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) < 5 else (1,)
    values = [digit * 10.0**decade for decade in decades for digit in digits if low <= digit * 10.0**decade <= high]
    return alt.Axis(values=values, labelExpr=LARGE_NUMBERS) if len(values) > 2 else powers()


def log_scale(span: list[float]) -> alt.Scale:
    """Return a logarithmic scale over a span."""
    return alt.Scale(type="log", nice=False, domain=span)


def span_of(values: Sequence[float], *, room: float = 1.15) -> list[float]:
    """Return a domain that a logarithmic scale can draw, though there be one value or none."""
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    if low == high:
        room = 2.0
    return [low / room, high * room]


def drawable(value: float) -> bool:
    """Tell whether a logarithmic scale has a place for a value."""
    return 0 < value < math.inf


def straightened(chart: Chart) -> Chart:
    """Return a chart with linear axes in place of logarithmic ones.

    Raises:
        AssumptionError: If it has no logarithmic axis that can be made linear.
    """
    spec = chart.to_dict()
    straight = linear(spec)
    if straight == spec:
        raise AssumptionError("this figure has no axes that can be linear; leave --linear out.")
    return type(chart).from_dict(straight)


def linear(spec: Any) -> Any:
    """Return a specification with linear axes in place of logarithmic ones."""
    if isinstance(spec, list):
        return [linear(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    return {name: _straight(part) if name in ("x", "y") else linear(part) for name, part in spec.items()}


def _straight(channel: Any) -> Any:
    scale = channel.get("scale") if isinstance(channel, dict) else None
    if not isinstance(scale, dict) or scale.get("type") != "log":
        return channel
    axis = channel.get("axis") or {}
    # labels and ticks were chosen for decades
    kept = {name: value for name, value in axis.items() if name in ("minExtent", "labelOverlap", "labelSeparation")}
    domain = {"domain": [0, scale["domain"][1]]} if "domain" in scale else {"zero": True}
    return channel | {"scale": {"type": "linear", "nice": False} | domain, "axis": kept | {"tickCount": 5}}
