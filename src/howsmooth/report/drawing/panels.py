"""Panels side by side with logarithmic axes: points and lines, one series over the other, under a wrapped title."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import altair as alt

from howsmooth.report.drawing.palette import BLUE
from howsmooth.report.drawing.scales import drawable, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Rows
from howsmooth.theory.results import Side
from howsmooth.wording import at_least, at_most, number

# The width of a letter in pixels: of a wide font, so that a line fits whatever font it is shown in.
LETTER = 8.5
# A line of fewer letters is hard to read, however narrow the chart is.
SHORTEST = 45


def titled(text: str, width: float) -> alt.TitleParams:
    """Return a title in lines that fit a width in pixels."""
    lines = textwrap.wrap(text, max(SHORTEST, int(width / LETTER)), break_long_words=False)
    return alt.TitleParams(lines if len(lines) > 1 else text, offset=12)


COLUMNS, PANEL, GAP = 3, {"width": 215, "height": 165}, 20
Mark = Literal["points", "line", "dotted line", "threads", "rule", "bars"]


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a series is drawn."""

    mark: Mark = "points"  # as what; threads are lines, one for each window, and bars begin at one
    colour: str = BLUE
    dash: tuple[int, int] = (1, 0)  # lengths of dashes and gaps; none for a line without gaps
    width: float = 2.0  # the width of a line
    # on which side of the constant its values lie, if they are bounds: they are rounded to stay there
    side: Side | None = None

    def written(self, value: float) -> str:
        """Write a value of the series as it is told to a pointer."""
        return {None: number, Side.LOWER: at_least, Side.UPPER: at_most}[self.side](value, 5)


Styles = dict[str, Style]


def series_panels(
    rows: Rows,
    styles: Styles,
    *,
    title: str,
    across: str,
    up: str = "Lipschitz constant",
    axis: alt.Axis | None = None,
    size: dict[str, int] = PANEL,
    told: Sequence[alt.Tooltip] = (),
    band: str = "",
) -> alt.FacetChart:
    """Draw series of points and lines on logarithmic axes, one panel for each ``panel`` of the rows.

    All panels have the same heights, so that they can be compared, and so that the ticks can be chosen. Rows have
    ``x``, ``y``, ``series`` and ``panel``; styles stand by their series, the lowest first; ``told`` is told of a point
    besides, and the series ``band`` has a band between ``low`` and ``high``.
    """
    drawn = {name: _shown(style, name, rows) for name, style in styles.items() if _most(name, rows)}
    span = span_of([row["x"] for row in rows if "x" in row])
    heights = span_of([row[name] for row in rows for name in ("y", "low", "high") if name in row])
    x = alt.X("x:Q", title=across, scale=log_scale(span), axis=axis or log_axis(span))
    y = alt.Y("y:Q", title=up, scale=log_scale(heights), axis=log_axis(heights))
    # a line is one mark: it has a name, and no value of its own to tell
    named = [alt.Tooltip("series:N", title="what")]
    valued = [*named, alt.Tooltip("x:Q", title=across, format=",.4~r"), alt.Tooltip("told:N", title=up)]
    pointed = {name: style for name, style in drawn.items() if style.mark in ("points", "dotted line", "bars")}
    rows = [
        row | {"told": pointed[row["series"]].written(row["y"])} if row.get("series") in pointed else row
        for row in rows
    ]
    columns = COLUMNS if len({row["panel"] for row in rows}) > 1 else COLUMNS - 1
    layers = []
    for name, mark in marks_of(drawn, columns):
        # what is told besides is known of points, and not of means that are drawn as points
        tooltip = [*valued, *told] if styles[name].mark == "points" else valued
        layers.append(mark.encode(x=x, y=y, tooltip=named if mark.mark.type == "line" else tooltip))
    layers += [_only(mark_rule(style), name).encode(x=x) for name, style in drawn.items() if style.mark == "rule"]
    if band in drawn:
        area = alt.Chart().mark_area(color=drawn[band].colour, opacity=0.22)
        low = alt.Y("low:Q", title=up, scale=log_scale(heights))
        layers.insert(0, _only(area, band).encode(x=x, y=low, y2="high:Q"))
    return panels(alt.LayerChart(layer=layers).properties(**size), rows, title=title)


def _most(series: str, rows: Rows) -> int:
    """Count the points that a series has in the panel where it has most."""
    return max(Counter(row["panel"] for row in rows if row.get("series") == series).values(), default=0)


def _shown(style: Style, series: str, rows: Rows) -> Style:
    """Return how a series is drawn: a line through one point cannot be seen, so that it is a point."""
    lines = style.mark in ("line", "dotted line") and _most(series, rows) == 1
    return replace(style, mark="points") if lines else style


def panels(chart: alt.LayerChart, rows: Rows, *, title: str, columns: int = COLUMNS) -> alt.FacetChart:
    """Repeat a chart for each ``panel`` of the rows, in their order, under a label that may have several lines."""
    header = alt.Header(
        labelExpr="split(datum.value, '\\n')",
        labelFontSize=12,
        labelAnchor="start",
        labelLineHeight=15,
        # a long name ends in dots before it reaches the next panel
        labelLimit=chart.width + 25,
    )
    names = list(dict.fromkeys(row["panel"] for row in rows))
    facet = alt.Facet("panel:N", title=None, sort=names, header=header)
    width = min(columns, len(names)) * (chart.width + GAP)
    drawn = chart.facet(facet=facet, data=alt.Data(values=rows), columns=columns).properties(title=titled(title, width))
    # every panel has its own axis: a shared one stands far below the panels of a row that is not full
    return drawn.resolve_axis(x="independent")


def points(pairs: Iterable[tuple[float, float | None]], **fields: Any) -> Rows:
    """Return a row for each pair whose numbers a logarithmic axis can show."""
    return [{"x": x, "y": y, **fields} for x, y in pairs if drawable(x) and drawable(y)]


def marks_of(drawn: Styles, columns: int) -> list[tuple[str, alt.Chart]]:
    """Return the marks of every series, with its name.

    Points are coloured by their fill and lines by their stroke: two legends, so that a line is not told by a dot.
    """
    stroke, dash, fill = _channels(drawn, columns)
    layers = []
    for name, style in drawn.items():
        if style.mark == "points":
            mark = alt.Chart().mark_point(filled=True, size=28, opacity=0.85)
            layers.append((name, _only(mark, name).encode(fill=fill)))
        elif style.mark == "bars":
            # a logarithmic axis has no zero; from one, a bar says whether something grows or shrinks
            bars = alt.Chart().mark_bar(opacity=0.55)
            layers.append((name, _only(bars, name).encode(fill=fill, y2=alt.Y2Datum(1))))
        elif style.mark != "rule":
            opacity = 0.5 if style.mark == "threads" else 1.0
            line = _only(alt.Chart().mark_line(strokeWidth=style.width, opacity=opacity), name)
            detail = {"detail": "window:N"} if style.mark == "threads" else {}
            layers.append((name, line.encode(stroke=stroke, strokeDash=dash, **detail)))
        if style.mark == "dotted line":
            dots = alt.Chart().mark_point(filled=True, size=28, opacity=1, color=style.colour)
            layers.append((name, _only(dots, name)))
    return layers


def _channels(drawn: Styles, columns: int) -> tuple[alt.Stroke, alt.StrokeDash, alt.Fill]:
    lines = {name: style for name, style in drawn.items() if style.mark not in ("points", "rule", "bars")}
    marks = {name: style for name, style in drawn.items() if style.mark in ("points", "bars")}
    shown = len(drawn) > 1
    legend: dict[str, Any] = {
        "orient": "top",
        "labelFontSize": 12,
        "labelLimit": 300,
        "symbolOpacity": 1,
        "columns": columns,
        "columnPadding": 26,
    }
    stroked = alt.Legend(**legend, symbolType="stroke", symbolSize=400, symbolStrokeWidth=2) if shown else None
    dotted = alt.Legend(**legend, symbolType="circle", symbolSize=60, padding=5) if shown else None

    line_colours, mark_colours = ([style.colour for style in some.values()] for some in (lines, marks))
    dashes = alt.Scale(domain=list(lines), range=[list(style.dash) for style in lines.values()])
    strokes, fills = (
        alt.Scale(domain=list(lines), range=line_colours),
        alt.Scale(domain=list(marks), range=mark_colours),
    )
    return (
        alt.Stroke("series:N", title=None, scale=strokes, legend=stroked),
        alt.StrokeDash("series:N", title=None, scale=dashes, legend=stroked),
        alt.Fill("series:N", title=None, scale=fills, legend=dotted),
    )


def mark_rule(style: Style) -> alt.Chart:
    """Return a vertical line."""
    return alt.Chart().mark_rule(color=style.colour, strokeWidth=1.2, strokeDash=list(style.dash))


def _only(chart: alt.Chart, series: str) -> alt.Chart:
    return chart.transform_filter(alt.datum.series == series)
