"""The blocks of a model alone and together, layer by layer, and what the rest of the model does to an error."""

import math
from collections.abc import Callable

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BOUND, MEASURED, TYPICAL, YELLOW
from howsmooth.report.drawing.panels import COLUMNS, Style, Styles, marks_of, panels
from howsmooth.report.drawing.scales import drawable, labelled
from howsmooth.report.drawing.tables import Chart, Numbers, Rows, cell, extent
from howsmooth.report.sections import Section
from howsmooth.studies.runs.composition import Composition, Depth, compositions, large
from howsmooth.wording import count, grows, number

BLOCK, PRODUCT, TOGETHER, NOISE = "each block alone", "product of the blocks", "the blocks together", "random noise"
WORST = "the worst error"
PRODUCTS: Styles = {
    BLOCK: Style(mark="bars", colour=YELLOW),
    PRODUCT: Style(mark="dotted line", colour=BOUND, dash=(5, 3)),
    TOGETHER: Style(mark="dotted line", colour=MEASURED),
    NOISE: Style(mark="dotted line", colour=TYPICAL),
}
ERRORS: Styles = {WORST: Style(mark="dotted line", colour=MEASURED), NOISE: PRODUCTS[NOISE]}
# A product that is larger by less is told as equal.
ALIKE = 1.05
# What a logarithmic axis of floats can hold.
HIGHEST = 300.0
PANEL = {"width": 330, "height": 210}


def found(section: Section) -> list[Composition]:
    """Return what is known of each model and length."""
    return compositions(section.of_kind("whole"))


def panel(composition: Composition) -> str:
    """Return the name of the panel of a model and a length."""
    return f"{composition.model}, {count(composition.length, 'token')}"


def over_layers(each: Composition, series: dict[str, Callable[[Depth], float | None]]) -> Rows:
    """Return a row for each layer and series whose value a logarithmic axis can show."""
    return [
        {"x": depth.layer, "y": y, "series": name, "panel": panel(each)}
        for name, value in series.items()
        for depth in each.depths
        if drawable(y := value(depth))
    ]


def layer_panels(rows: Rows, styles: Styles, *, title: str, up: str) -> alt.FacetChart:
    """Draw series over the layers of a model, one panel for each ``panel`` of the rows.

    Models differ in depth, and products of many layers by many decades: every panel has its own axes.
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
        for _name, mark in marks_of(drawn, COLUMNS - 1)
    ]
    chart = panels(alt.LayerChart(layer=layers).properties(**PANEL), rows, title=title, columns=COLUMNS - 1)
    return chart.resolve_scale(x="independent", y="independent").resolve_axis(x="independent", y="independent")


def draw_products(section: Section) -> Chart:
    """Draw the blocks alone, their product, and the blocks together: a panel for each model and length."""
    series: dict[str, Callable[[Depth], float | None]] = {
        BLOCK: lambda depth: depth.block,
        PRODUCT: lambda depth: 10**depth.log_product if depth.log_product < HIGHEST else None,
        TOGETHER: lambda depth: depth.to,
        NOISE: lambda depth: depth.typical_to.value if depth.typical_to else None,
    }
    every = found(section)
    gaps = extent((each.depths[-1].log_gap for each in every), large)
    title = f"The product of the blocks is {gaps} times what they do together"
    if min(each.depths[-1].log_gap for each in every) > math.log10(ALIKE):
        title = f"Layers do not multiply: {title[0].lower()}{title[1:]}"
    rows = [row for each in every for row in over_layers(each, series)]
    return layer_panels(rows, PRODUCTS, up="multiplies perturbations by", title=title)


def table_products(section: Section) -> Numbers:
    """Return a row for each model, length and layer."""
    every = found(section)
    rows = [(depth.layer, (panel(each), *depth.cells.values())) for each in every for depth in each.depths]
    return Numbers(head=("where", *every[0].columns), rows=rows)


def draw_errors(section: Section) -> Chart:
    """Draw what becomes of an error that enters each layer: a panel for each model and length."""
    series: dict[str, Callable[[Depth], float | None]] = {
        WORST: lambda depth: depth.onward,
        NOISE: lambda depth: depth.typical_onward.value if depth.typical_onward else None,
    }
    every = found(section)
    longest = max(every, key=lambda each: each.length)
    most = max(longest.depths, key=lambda depth: depth.onward)
    where = f"{longest.model} at {count(longest.length, 'token')}"
    title = f"An error hurts {where} most where it enters layer {most.layer}: there it {grows(most.onward)}"
    rows = [row for each in every for row in over_layers(each, series)]
    return layer_panels(rows, ERRORS, up="multiplies errors by", title=title)


def table_errors(section: Section) -> Numbers:
    """Return a row for each model, length and layer."""
    rows = [
        (depth.layer, (panel(each), number(depth.layer), cell(depth.onward), str(depth.typical_onward or "—")))
        for each in found(section)
        for depth in each.depths
    ]
    return Numbers(head=("where", "layer", "worst", "random noise"), rows=rows)


CHARTS = (
    ChartKind(
        name="layers_do_not_multiply",
        short="product",
        sections=("whole",),
        rank=10,
        about="For each layer a bar for the constant of its block alone, the product of these constants up to the "
        "layer, the constant of the same blocks together, and what they multiply random noise by; one panel for each "
        "model and length.",
        wanted=lambda section: bool(found(section)),
        draw=draw_products,
        table=table_products,
    ),
    ChartKind(
        name="error_injection",
        short="injection",
        sections=("whole",),
        rank=20,
        about="What the rest of the model multiplies an error by that enters a layer, for every layer: the worst "
        "error, and random noise; one panel for each model and length.",
        wanted=lambda section: bool(found(section)),
        draw=draw_errors,
        table=table_errors,
    ),
)
