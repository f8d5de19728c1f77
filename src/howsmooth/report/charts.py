"""Charts of regimes and of splitting; the palette and the axes that all charts share."""

from typing import Any

import altair as alt

from howsmooth.search.regimes import Regimes
from howsmooth.search.splitting_map import SplittingMap

# Okabe and Ito's palette, which colour-blind readers can tell apart.
INK, GREY, BLUE, ORANGE, GREEN = "#222222", "#8a8a8a", "#0072b2", "#d55e00", "#009e73"
SKY, PINK, YELLOW = "#56b4e9", "#cc79a7", "#e69f00"
LARGE_NUMBERS = "datum.value >= 1e5 || datum.value < 1e-3 ? format(datum.value, '.0e') : format(datum.value, '~g')"

Rows = list[dict[str, Any]]
Chart = alt.LayerChart | alt.FacetChart


def splitting_chart(found: SplittingMap) -> Chart:
    """Draw the plane of two atoms on the line: where splitting beats moving, and by how much."""
    step = float(found.grid[1] - found.grid[0])
    gain = (found.split / found.move - 1).clamp_min(0)
    places = found.grid.tolist()
    rows: Rows = [
        {"x": x - step / 2, "x2": x + step / 2, "y": y - step / 2, "y2": y + step / 2, "gain": float(gain[i, j])}
        for i, x in enumerate(places)
        for j, y in enumerate(places)
        if gain[i, j] > 0
    ]
    span = [places[0] - step / 2, places[-1] + step / 2]
    scale = alt.Scale(domain=span, nice=False)
    cells = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect(stroke=None)
        .encode(
            x=alt.X("x:Q", title="first atom", scale=scale),
            x2="x2:Q",
            y=alt.Y("y:Q", title="second atom", scale=scale),
            y2="y2:Q",
            color=alt.Color("gain:Q", title="gain", scale=alt.Scale(scheme="oranges"), legend=alt.Legend(format="%")),
        )
    )
    axes = alt.Chart(alt.Data(values=[{"zero": 0}]))
    cross = alt.layer(
        axes.mark_rule(color=GREY, strokeWidth=0.7).encode(x=alt.X("zero:Q", scale=scale)),
        axes.mark_rule(color=GREY, strokeWidth=0.7).encode(y=alt.Y("zero:Q", scale=scale)),
    )
    title = f"Splitting wins for {found.share:.1%} of the pairs (A = {found.A:g}, V = {found.V:g})"
    return alt.layer(cells, cross).properties(width=340, height=340, title=title)


def regimes_chart(found: Regimes) -> Chart:
    """Draw the worst constants against the length, between the bounds, with the crossing."""
    colours = {"upper bound": BLUE, "worst found": ORANGE, "measures attain": GREEN}
    rows: Rows = []
    for row in found.rows:
        rows.append({"n": row.n, "value": row.upper.value, "kind": "upper bound"})
        rows.append({"n": row.n, "value": row.found, "kind": "worst found"})
        rows.append({"n": row.n, "value": found.lower.value, "kind": "measures attain"})
    x = alt.X("n:Q", title="number of tokens n", scale=alt.Scale(type="log", nice=False), axis=powers())
    y = alt.Y("value:Q", title="Lipschitz constant", scale=alt.Scale(type="log"), axis=powers())
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(orient="top-left"),
    )
    lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    dots = alt.Chart(alt.Data(values=[r for r in rows if r["kind"] == "worst found"])).mark_point(filled=True, size=35)
    layers = [lines, dots.encode(x="n:Q", y="value:Q", color="kind:N")]
    if found.rows[0].n <= found.crossing <= found.rows[-1].n:
        mark = alt.Chart(alt.Data(values=[{"n": found.crossing, "text": f"n* ≈ {found.crossing:,.0f}"}]))
        layers.append(mark.mark_rule(color=GREY, strokeDash=[4, 4]).encode(x="n:Q"))
        layers.append(
            mark.mark_text(align="left", dx=5, baseline="bottom", color=INK).encode(
                x="n:Q", y=alt.value(295), text="text:N"
            )
        )
    return alt.layer(*layers).properties(width=480, height=300, title=f"Radius {found.radius:g}")


def powers() -> alt.Axis:
    """Return an axis that writes large and small numbers as powers of ten."""
    return alt.Axis(labelExpr=LARGE_NUMBERS, tickCount=6)
