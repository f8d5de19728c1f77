"""Panels side by side with logarithmic axes: points and lines, one series over the other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt

from howsmooth.report.charts import LARGE_NUMBERS, Rows
from howsmooth.report.measurement_charts import COLUMNS, PANEL, _drawable, _log, _round_ticks, _span
from howsmooth.studies.records import Record

# The rest of Okabe and Ito's palette.
SKY, PINK, YELLOW = "#56b4e9", "#cc79a7", "#e69f00"
MARKS: dict[str, dict[str, Any]] = {
    "points": {"type": "point", "filled": True, "size": 28, "opacity": 0.8},
    "line": {"type": "line", "strokeWidth": 2},
    "thread": {"type": "line", "strokeWidth": 1, "opacity": 0.5},
    "dashes": {"type": "line", "strokeWidth": 1.5, "strokeDash": [5, 3]},
    "dotted line": {"type": "line", "strokeWidth": 1.5, "point": {"filled": True, "size": 28}},
    "rule": {"type": "rule", "strokeWidth": 1.2, "strokeDash": [2, 3]},
}
# How each series is drawn, by its name: mark and colour.
Styles = dict[str, tuple[str, str]]


def series_panels(
    rows: Rows,
    styles: Styles,
    *,
    title: str,
    across: str | alt.X,
    up: str = "Lipschitz constant",
    size: dict[str, int] = PANEL,
    shared: bool = False,
) -> alt.FacetChart:
    """Draw series of points and lines on logarithmic axes, one panel for each ``panel`` of the rows."""
    drawn = {name: style for name, style in styles.items() if any(row["series"] == name for row in rows)}
    colours = alt.Scale(domain=list(drawn), range=[colour for _mark, colour in drawn.values()])
    legend = alt.Legend(orient="top", labelFontSize=12, labelLimit=300, symbolOpacity=1) if len(drawn) > 1 else None
    colour = alt.Color("series:N", title=None, scale=colours, legend=legend)
    layers = [
        marked(mark, series=name).encode(color=colour, detail="window:N") for name, (mark, _colour) in drawn.items()
    ]
    return log_panels(layers, rows, across=across, up=up, title=title, size=size, shared=shared)


def log_panels(
    layers: Sequence[alt.Chart],
    rows: Rows,
    *,
    title: str,
    across: str | alt.X,
    up: str,
    size: dict[str, int] = PANEL,
    shared: bool = False,
) -> alt.FacetChart:
    """Draw layers over each other in every panel; heights are shared by all panels, or each has its own."""
    span = _span([row["x"] for row in rows])
    x = alt.X("x:Q", title=across, scale=_log(span), axis=_round_ticks(span)) if isinstance(across, str) else across
    ticks = alt.Axis(labelExpr=LARGE_NUMBERS, tickCount=4, labelOverlap="greedy")
    y = alt.Y("y:Q", title=up, scale=alt.Scale(type="log", nice=False, padding=8), axis=ticks)
    placed = [layer.encode(x=x) if layer.mark.type == "rule" else layer.encode(x=x, y=y) for layer in layers]
    chart = panels(alt.LayerChart(layer=placed).properties(**size), rows, title=title)
    return chart if shared else chart.resolve_scale(y="independent")


def panels(chart: alt.LayerChart, rows: Rows, *, title: str) -> alt.FacetChart:
    """Repeat a chart for each ``panel`` of the rows, in their order, under a label that may have several lines."""
    header = alt.Header(
        labelExpr="split(datum.value, '\\n')", labelFontSize=12, labelAnchor="start", labelLineHeight=15
    )
    facet = alt.Facet("panel:N", title=None, sort=list(dict.fromkeys(row["panel"] for row in rows)), header=header)
    return chart.facet(facet=facet, data=alt.Data(values=rows), columns=COLUMNS).properties(
        title=alt.TitleParams(title, offset=12)
    )


def marked(mark: str, *, series: str) -> alt.Chart:
    """Return one of our marks for the rows of one series."""
    return alt.Chart(mark=alt.MarkDef(**MARKS[mark])).transform_filter(alt.datum.series == series)


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """Return the records of each key, keys and lengths in their order."""
    groups: dict[Any, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.task.length, r.task.window)):
        groups.setdefault(key(record), []).append(record)
    return dict(sorted(groups.items()))


def points(pairs: Iterable[tuple[float, float | None]], **fields: Any) -> Rows:
    """Return a row for each pair whose second number a logarithmic axis can show."""
    return [{"x": x, "y": y, **fields} for x, y in pairs if y is not None and _drawable(y)]
