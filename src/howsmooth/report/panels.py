"""Panels side by side with logarithmic axes: points and lines, one series over the other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import altair as alt

from howsmooth.report.charts import LARGE_NUMBERS, Rows
from howsmooth.report.measurement_charts import COLUMNS, PANEL
from howsmooth.report.scales import drawable, log_scale, round_ticks, span_of
from howsmooth.report.wording import error_bar
from howsmooth.studies.records import Record

MARKS: dict[str, dict[str, Any]] = {
    "points": {"type": "point", "filled": True, "size": 28, "opacity": 0.85},
    "line": {"type": "line", "strokeWidth": 2},
    "thread": {"type": "line", "strokeWidth": 1, "opacity": 0.5},
    "dashes": {"type": "line", "strokeWidth": 1.5, "strokeDash": [5, 3]},
    "dotted line": {"type": "line", "strokeWidth": 1.5, "point": {"filled": True, "size": 28}},
    "rule": {"type": "rule", "strokeWidth": 1.2, "strokeDash": [2, 3]},
}
# How each series is drawn, by its name: mark and colour.
Styles = dict[str, tuple[str, str]]
# Which digits get no label, where some panel spans more than a factor.
UNLABELLED = {12.0: "4689", 2.0: "9"}
# Panels whose values differ by less than this factor are drawn as flat: noise is not blown up.
FLAT, ROOM = 1.04, "room"


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
    layers = [marked(mark, series=name).encode(color=colour) for name, (mark, _colour) in drawn.items()]
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
    span = span_of([row["x"] for row in rows])
    x = alt.X("x:Q", title=across, scale=log_scale(span), axis=round_ticks(span)) if isinstance(across, str) else across
    y = alt.Y("y:Q", title=up, scale=alt.Scale(type="log", nice=False, padding=8), axis=log_ticks(rows, "y"))
    unseen = marked("points", series=ROOM).encode(opacity=alt.value(0))
    told = [
        alt.Tooltip("series:N", title="what"),
        alt.Tooltip("x:Q", title=across if isinstance(across, str) else "across", format=".4~r"),
        alt.Tooltip("y:Q", title=up, format=".5~r"),
        alt.Tooltip("told:N", title="error bar, sequence"),
    ]
    placed = [layer.encode(x=x, y=y, tooltip=told) for layer in layers if layer.mark.type != "rule"]
    placed += [layer.encode(x=x) for layer in layers if layer.mark.type == "rule"] + [unseen.encode(x=x, y=y)]
    chart = panels(alt.LayerChart(layer=placed).properties(**size), rows + room(rows, "y"), title=title)
    return chart.resolve_axis(x="independent").resolve_scale(y="shared" if shared else "independent")


def panels(chart: alt.LayerChart, rows: Rows, *, title: str) -> alt.FacetChart:
    """Repeat a chart for each ``panel`` of the rows, in their order, under a label that may have several lines."""
    header = alt.Header(
        labelExpr="split(datum.value, '\\n')", labelFontSize=12, labelAnchor="start", labelLineHeight=15
    )
    facet = alt.Facet("panel:N", title=None, sort=list(dict.fromkeys(row["panel"] for row in rows)), header=header)
    return chart.facet(facet=facet, data=alt.Data(values=rows), columns=COLUMNS).properties(
        title=alt.TitleParams(title, offset=12)
    )


def room(rows: Rows, axis: str) -> Rows:
    """Return two unseen points for each panel that is nearly flat along an axis."""
    widened: Rows = []
    for panel, here in _sorted(rows, axis).items():
        if here[-1][axis] < FLAT * here[0][axis]:
            ends = here[0][axis] / FLAT, here[-1][axis] * FLAT
            widened += [here[0] | {axis: end, "panel": panel, "series": ROOM} for end in ends]
    return widened


def log_ticks(rows: Rows, axis: str) -> alt.Axis:
    """Return an axis whose labels do not crowd; all are as wide, so that panels stand below each other."""
    span = max((here[-1][axis] / here[0][axis] for here in _sorted(rows, axis).values()), default=1.0)
    digits = next((digits for factor, digits in UNLABELLED.items() if span > factor), "")
    few = f"test(/^[{digits}]e/, format(datum.value, '.3~e')) ? '' : {LARGE_NUMBERS}" if digits else LARGE_NUMBERS
    return alt.Axis(labelExpr=few, tickCount=5, labelOverlap="greedy", labelSeparation=3, minExtent=40)


def marked(mark: str, *, series: str) -> alt.Chart:
    """Return one of our marks for the rows of one series; threads are one for each window."""
    chart = alt.Chart(mark=alt.MarkDef(**MARKS[mark])).transform_filter(alt.datum.series == series)
    return chart.encode(detail="window:N") if mark == "thread" else chart


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """Return the records of each key, keys and lengths in their order."""
    groups: dict[Any, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.task.length, r.task.window)):
        groups.setdefault(key(record), []).append(record)
    return dict(sorted(groups.items()))


def points(pairs: Iterable[tuple[float, float | None]], **fields: Any) -> Rows:
    """Return a row for each pair whose second number a logarithmic axis can show."""
    return [{"x": x, "y": y, "told": "—", **fields} for x, y in pairs if y is not None and drawable(y)]


def told(record: Record) -> str:
    """Say the error bar of a record, and which window it is about."""
    return error_bar(record) + (f", window {record.task.window}" if record.task.text else "")


def _sorted(rows: Rows, axis: str) -> dict[str, Rows]:
    """Return the rows of each panel, in their order along an axis."""
    found: dict[str, Rows] = {}
    for row in sorted((row for row in rows if axis in row), key=lambda row: row[axis]):
        found.setdefault(row["panel"], []).append(row)
    return found
