"""Logarithmic panels side by side; and what they show of worst cases: bounds, regimes, worst measures."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import median
from typing import TypeVar

import altair as alt

from howsmooth.report.charts import BLUE, GREEN, GREY, INK, LARGE_NUMBERS, ORANGE, Chart, Rows
from howsmooth.report.measurement_charts import COLUMNS, PANEL, _drawable, _log, _round_ticks, _span
from howsmooth.studies.records import Record
from howsmooth.studies.summary import growth_of
from howsmooth.studies.tasks import Matrix

SKY, PINK, YELLOW = "#56b4e9", "#cc79a7", "#e69f00"
WIDE = {"width": 440, "height": 280}
MARKS = {
    "points": {"type": "point", "filled": True, "size": 26, "opacity": 0.8},
    "line": {"type": "line", "strokeWidth": 2},
    "dashes": {"type": "line", "strokeWidth": 1.5, "strokeDash": [5, 3]},
    "dotted": {"type": "line", "strokeWidth": 1.5, "point": {"filled": True, "size": 26}},
    "rule": {"type": "rule", "strokeWidth": 1.2, "strokeDash": [2, 3]},
}
# How each series is drawn, by its name: mark and colour.
Styles = dict[str, tuple[str, str]]
Key = TypeVar("Key", bound=Hashable)

UPPER, FOUND, PLATEAU, CROSSING = "upper bound", "worst found", "measures attain", "crossing n*"
REGIMES: Styles = {
    UPPER: ("line", BLUE),
    PLATEAU: ("dashes", GREEN),
    CROSSING: ("rule", GREY),
    FOUND: ("dotted", ORANGE),
}
BOUNDS: dict[str, tuple[str, str, str]] = {
    "discrete_upper": ("paper's upper", "dashes", GREY),
    "sharp_upper": ("sharp upper", "line", BLUE),
    "tied_pair": ("tied pair", "dotted", GREEN),
    "two_point": ("two points", "dotted", YELLOW),
    "discrete_lower": ("paper's lower", "dashes", PINK),
}
ASCENT = "ascent"
HUES = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, INK)
GUIDE = "√(n/n*), then 1"
# How far from the crossing the transition is drawn, and how far the two laws are read off.
FAR, CLEAR = 1e4, 10.0
LIGHTEST = 1e-9


def grouped(records: Iterable[Record], key: Callable[[Record], Key]) -> dict[Key, list[Record]]:
    """Return the records of each key, in the order of keys."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: groups[name] for name in sorted(groups, key=lambda name: name)}  # type: ignore[type-var]


def points(pairs: Iterable[tuple[float, float | None]], **fields: str | float) -> Rows:
    """Return a row for each pair that a logarithmic scale can draw."""
    return [{"x": x, "y": y, **fields} for x, y in pairs if y is not None and _drawable(x) and _drawable(y)]


def series_panels(
    rows: Rows, styles: Styles, *, across: str, up: str, title: str, size: dict[str, int] = PANEL, shared: bool = False
) -> alt.FacetChart:
    """Draw series of points and lines on logarithmic axes, one panel for each ``panel`` of the rows."""
    drawn = {name: style for name, style in styles.items() if any(row["series"] == name for row in rows)}
    colours = alt.Scale(domain=list(drawn), range=[colour for _mark, colour in drawn.values()])
    legend = alt.Legend(orient="top", labelFontSize=12, symbolOpacity=1, columns=3) if len(drawn) > 1 else None
    plain = alt.Chart().encode(color=alt.Color("series:N", title=None, scale=colours, legend=legend))
    layers = [only(plain.mark_point().properties(mark=MARKS[mark]), name) for name, (mark, _c) in drawn.items()]
    return log_panels(layers, rows, across=across, up=up, title=title, size=size, shared=shared)


def log_panels(
    layers: Sequence[alt.Chart],
    rows: Rows,
    *,
    across: str | alt.X,
    up: str,
    title: str,
    size: dict[str, int] = PANEL,
    shared: bool = False,
) -> alt.FacetChart:
    """Draw layers over each other in every panel; heights are shared between panels, or each has its own."""
    span = _span([row["x"] for row in rows if "x" in row])
    x = alt.X("x:Q", title=across, scale=_log(span), axis=_round_ticks(span)) if isinstance(across, str) else across
    heights = alt.Scale(type="log", nice=False, padding=8)
    ticks = alt.Axis(labelExpr=LARGE_NUMBERS, tickCount=4, labelOverlap="greedy")
    y = alt.Y("y:Q", title=up, scale=heights, axis=ticks)
    placed = [layer.encode(x=x) if layer.mark.type == "rule" else layer.encode(x=x, y=y) for layer in layers]
    header = alt.Header(labelExpr="split(datum.value, '\\n')", labelFontSize=12, labelAnchor="start", labelLineHeight=15)
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    chart = alt.LayerChart(layer=placed).properties(**size)
    faceted = chart.facet(
        facet=alt.Facet("panel:N", title=None, sort=panels, header=header), data=alt.Data(values=rows), columns=COLUMNS
    ).properties(title=alt.TitleParams(title, offset=12))
    return faceted if shared else faceted.resolve_scale(y="independent")


def only(chart: alt.Chart, series: str) -> alt.Chart:
    """Keep the rows of one series."""
    return chart.transform_filter(alt.datum.series == series)


def worst_case(records: Sequence[Record]) -> Chart:
    """Draw bounds, explicit inputs and ascent, against the length at one radius and against the radius at one length."""
    bounds = [r for r in records if r.task.kind == "bounds"] or list(records)
    by_radius, by_length = grouped(bounds, lambda r: r.task.radius), grouped(bounds, lambda r: r.task.length)
    radius = max(by_radius, key=lambda k: len(by_radius[k]))
    length = max(by_length, key=lambda k: len(by_length[k]))
    at_radius = [r for r in records if r.task.radius == radius]
    at_length = [r for r in records if r.task.length == length]
    rows = [
        *_bounds(at_radius, lambda r: r.task.length, f"against the number of tokens, R = {radius:g}"),
        *_bounds(at_length, lambda r: r.task.radius, f"against the radius, n = {length}"),
    ]
    styles: Styles = {name: (mark, colour) for name, mark, colour in BOUNDS.values()} | {ASCENT: ("points", INK)}
    axis = alt.Axis(labelExpr=LARGE_NUMBERS, tickCount=5, labelOverlap="greedy")
    x = alt.X("x:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=8), axis=axis)
    longest = max(by_radius[radius], key=lambda r: r.task.length)
    size = {"width": 320, "height": 260}
    chart = series_panels(rows, styles, across=x, up="Lipschitz constant", title=_gap(longest), size=size, shared=True)
    return chart.resolve_scale(x="independent")
