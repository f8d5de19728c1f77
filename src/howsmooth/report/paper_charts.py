"""The paper's figures, and the checks that its readers ask for: from the records of each study to its charts."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean, median

import altair as alt

from howsmooth.report.charts import BLUE, GREEN, GREY, INK, ORANGE, Chart, Rows, splitting_chart
from howsmooth.report.measurement_charts import PANEL, _drawable, _span
from howsmooth.report.worst_case_charts import (
    LARGE_NUMBERS,
    YELLOW,
    Styles,
    grouped,
    log_panels,
    marked,
    panels,
    points,
    regimes_panels,
    series_panels,
    transition,
    worst_case,
    worst_measures,
)
from howsmooth.search.splitting_map import splitting_map
from howsmooth.studies.growth import DOUBTFUL, Growth
from howsmooth.studies.records import Record
from howsmooth.studies.summary import growth_of

Draw = Callable[[Sequence[Record]], Chart]
TOKENS, CONSTANT = "number of tokens n", "local Lipschitz constant"
WINDOW, LAW, RELEASED, MEAN, CERTIFICATE = "window", "power law", "released quantity", "mean", "certificate"
SPLIT, MOVE = "split one token", "move all tokens"


def constant_against_length(records: Sequence[Record]) -> Chart:
    """Draw every window's constant against the length, the fitted law, and what the released scripts compute."""
    rows: Rows = []
    for place, found in grouped(records, _place).items():
        law, released = _law(found), growth_of((r.task.length, r.released) for r in found if r.released is not None)
        told = [place, _exponent(law), *([f"released n^{released.exponent:.2f}"] if released else [])]
        panel = "\n".join(line for line in told if line)
        lengths = sorted({r.task.length for r in found})
        for r in found:
            rows += points([(r.task.length, r.lower)], panel=panel, series=WINDOW, radius=r.radius)
        rows += points(((n, law.at(n)) for n in lengths), panel=panel, series=LAW) if law else []
        rows += points(_means(found, lambda r: r.released), panel=panel, series=RELEASED)
    radii = [row["radius"] for row in rows if row.get("radius")]
    scale = alt.Scale(scheme="viridis", reverse=True, type="log", domain=_span(radii, room=1.0))
    colour = alt.Color("radius:Q", title="radius", scale=scale, legend=alt.Legend(labelExpr=LARGE_NUMBERS, tickCount=4))
    kinds = alt.Scale(domain=[LAW, RELEASED], range=[[1, 0], [5, 3]])
    legend = alt.Legend(orient="top", labelFontSize=12, symbolStrokeColor=INK, symbolSize=400)
    dash = alt.StrokeDash("series:N", title=None, scale=kinds, legend=legend)
    lines = [
        marked("line", series=name).encode(color=alt.value(hue), strokeDash=dash)
        for name, hue in ((RELEASED, GREY), (LAW, ORANGE))
    ]
    layers = [lines[0], marked("points", series=WINDOW).encode(color=colour), lines[1]]
    return log_panels(layers, rows, across=TOKENS, up=CONSTANT, title=_growth_title(records))


def constant_against_radius(records: Sequence[Record]) -> Chart:
    """Draw every window's constant against the mean radius of its tokens, coloured by the length."""
    rows: Rows = []
    for r in _ordered(records):
        rows += points([(r.radius or 0.0, r.lower)], panel=_place(r), series=WINDOW, tokens=r.task.length)
    scale = alt.Scale(scheme="viridis", reverse=True, type="log", domain=_span([row["tokens"] for row in rows], room=1.0))
    colour = alt.Color("tokens:Q", title="tokens", scale=scale, legend=alt.Legend(tickCount=4, labelExpr=LARGE_NUMBERS))
    x = alt.X("x:Q", title="mean radius", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=4))
    chart = log_panels(
        [marked("points", series=WINDOW).encode(color=colour)], rows, across=x, up=CONSTANT, title=_spread_title(records)
    )
    return chart.resolve_scale(x="independent", y="independent")


def radius_against_length(records: Sequence[Record]) -> Chart:
    """Draw the mean radius of the tokens of every window against the length."""
    rows: Rows = []
    changes = []
    for place, found in grouped(records, _place).items():
        rows += points(((r.task.length, r.radius) for r in found), panel=place, series=WINDOW)
        means = _means(found, lambda r: r.radius)
        rows += points(means, panel=place, series=MEAN)
        changes += [means[-1][1] / means[0][1]] if len(means) > 1 else []
    title = "The mean radius of the tokens"
    if changes:
        title = f"From the shortest to the longest windows the radius changes by {_range(changes)}"
    styles: Styles = {WINDOW: ("points", BLUE), MEAN: ("line", ORANGE)}
    return series_panels(rows, styles, across=TOKENS, up="mean radius", title=title)
