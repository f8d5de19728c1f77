"""Where in a model an error hurts: what becomes at the output of noise that enters each layer."""

from howsmooth.report.charts.layers_do_not_multiply import found, panel
from howsmooth.report.drawing.layer_panels import layer_panels, over_layers
from howsmooth.report.drawing.palette import BLUE, GREEN
from howsmooth.report.drawing.panels import Style, Styles
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers, cell
from howsmooth.report.sections import Section
from howsmooth.studies.runs.composition import Composition
from howsmooth.wording import count, number

SECTIONS, RANK, PER_LAYER, SHORT = ("whole",), 20, False, "injection"
ABOUT = (
    "What the rest of the model multiplies an error by that enters a layer, for every layer: the worst error, and "
    "random noise; one panel for each model and length."
)
WORST, NOISE = "the worst error", "random noise"
STYLES: Styles = {WORST: Style(mark="dotted line", colour=BLUE), NOISE: Style(mark="dotted line", colour=GREEN)}


def wanted(section: Section) -> bool:
    """Tell whether something was measured from a layer on."""
    return bool(found(section))


def draw(section: Section) -> Chart:
    """Draw a panel for each model and length."""
    rows: Rows = []
    every = found(section)
    for each in every:
        rows += over_layers(((d.layer, d.onward) for d in each.depths), series=WORST, panel=panel(each))
        noise = ((d.layer, d.typical_onward.value) for d in each.depths if d.typical_onward is not None)
        rows += over_layers(noise, series=NOISE, panel=panel(each))
    return layer_panels(rows, STYLES, up="multiplies errors by", title=_title(every))


def table(section: Section) -> Numbers:
    """Return a row for each model, length and layer."""
    rows: list[NumberRow] = [
        (depth.layer, (panel(each), number(depth.layer), cell(depth.onward), str(depth.typical_onward or "—")))
        for each in found(section)
        for depth in each.depths
    ]
    return Numbers(head=("where", "layer", "worst", "random noise"), rows=tuple(rows))


def _title(every: list[Composition]) -> str:
    longest = max(every, key=lambda each: each.length)
    most = max(longest.depths, key=lambda depth: depth.onward)
    where = f"{longest.model} at {count(longest.length, 'token')}"
    return f"An error hurts {where} most where it enters layer {most.layer}: there it grows {number(most.onward)}-fold"
