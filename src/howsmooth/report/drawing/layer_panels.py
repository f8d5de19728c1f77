"""Panels with one place for each layer, side by side, and a logarithmic axis of their own each."""

import math
from collections.abc import Iterable

import altair as alt

from howsmooth.report.drawing.panels import COLUMNS, Styles, marks_of, panels
from howsmooth.report.drawing.scales import drawable, labelled
from howsmooth.report.drawing.specs import Rows

PANEL = {"width": 330, "height": 210}


def over_layers(values: Iterable[tuple[int, float | None]], *, series: str, panel: str) -> Rows:
    """Return a row for each layer whose value a logarithmic axis can show."""
    return [{"x": layer, "y": y, "series": series, "panel": panel} for layer, y in values if drawable(y)]


def layer_panels(rows: Rows, styles: Styles, *, title: str, up: str) -> alt.FacetChart:
    """Draw series over the layers of a model, one panel for each ``panel`` of the rows.

    Models differ in depth, and products of many layers by many decades: every panel has its own axes.

    Args:
        rows: What to draw: ``x``, the layer, ``y``, ``series`` and ``panel``.
        styles: How each series is drawn, by its name, the lowest first.
        title: What is seen.
        up: What y is.
    """
    drawn = {name: style for name, style in styles.items() if any(row["series"] == name for row in rows)}
    heights = [row["y"] for row in rows]
    decades = range(math.floor(math.log10(min(heights))), math.ceil(math.log10(max(heights))) + 1)
    x = alt.X("x:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    y = alt.Y("y:Q", title=up, scale=alt.Scale(type="log"), axis=labelled([float(f"1e{power}") for power in decades]))
    named = [alt.Tooltip("series:N", title="what"), alt.Tooltip("x:O", title="layer")]
    tooltip = [*named, alt.Tooltip("y:Q", title=up, format=",.4~r")]
    layers = [
        mark.encode(x=x, y=y, tooltip=named[:1] if mark.mark.type == "line" else tooltip)
        for mark in marks_of(drawn, COLUMNS - 1)
    ]
    chart = panels(alt.LayerChart(layer=layers).properties(**PANEL), rows, title=title, columns=COLUMNS - 1)
    return chart.resolve_scale(x="independent", y="independent").resolve_axis(x="independent", y="independent")
