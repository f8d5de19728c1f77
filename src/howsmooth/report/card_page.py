"""The card of a model, and several side by side, as pages."""

from pathlib import Path
from typing import Any

import altair as alt

from howsmooth.report.drawing.palette import MEASURED, TYPICAL
from howsmooth.report.drawing.panels import PANEL, panels
from howsmooth.report.drawing.scales import drawable, labelled, log_scale, round_numbers
from howsmooth.report.drawing.tables import Chart
from howsmooth.report.result_page import write_table
from howsmooth.studies.cards import Card, CardComparison
from howsmooth.studies.settings import command

COLOURS = {"worst": MEASURED, "typical": TYPICAL}
# How much is left free above and below, as a factor.
ROOM = 1.3


def write_card_page(found: Card, path: Path) -> Path:
    """Write the page of a card; return where it is."""
    return write_table(
        found,
        path,
        title=f"How smooth is {found.model}?",
        command=command("card", found.model),
        chart=layers_chart(found),
        caption="What perturbations are multiplied by in each attention layer: the worst, with its range over windows, "
        "and random ones, with their interval.",
    )


def write_cards_page(found: CardComparison, paths: list[str], path: Path) -> Path:
    """Write a page that puts cards side by side; return where it is."""
    title = f"How smooth are {', '.join(each.model for each in found.cards)}?"
    return write_table(found, path, title=title, command=command("compare", *paths))


def layers_chart(found: Card) -> Chart:
    """Draw the worst and the typical gain of each layer with their ends."""
    rows: list[dict[str, Any]] = [
        {
            "panel": "",
            "layer": at,
            "gain": name,
            "value": row[name].value,
            "low": row[name].low or row[name].value,
            "high": row[name].high or row[name].value,
        }
        for at, row in enumerate(found.layers)
        for name in COLOURS
        if name in row and drawable(row[name].value)
    ]
    heights = [min(row["low"] for row in rows) / ROOM, max(row["high"] for row in rows) * ROOM]
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        color=alt.Color("gain:N", title=None, scale=scale, legend=alt.Legend(orient="top", symbolOpacity=1)),
        tooltip=[alt.Tooltip(name) for name in ("layer:O", "gain:N", "value:Q", "low:Q", "high:Q")],
    )

    def up(field: str) -> alt.Y:
        axis = labelled(round_numbers(*heights))
        return alt.Y(f"{field}:Q", title="multiplied by", scale=log_scale(heights), axis=axis)

    drawn = [
        base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=up("low"), y2="high:Q"),
        base.mark_point(filled=True, size=48, opacity=1).encode(y=up("value")),
    ]
    chart = alt.LayerChart(layer=drawn).properties(width=PANEL["width"], height=PANEL["height"])
    return panels(chart, rows, title="")
