"""What the blocks of a model do alone and together: the product of their constants against the truth, over depth."""

from howsmooth.report.drawing.layer_panels import layer_panels, over_layers
from howsmooth.report.drawing.palette import BLUE, GREEN, ORANGE, SKY
from howsmooth.report.drawing.panels import Style, Styles
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.runs.composition import Composition, compositions, large
from howsmooth.wording import count

SECTIONS, RANK, PER_LAYER, SHORT = ("whole",), 10, False, "product"
ABOUT = (
    "For each layer a bar for the constant of its block alone, the product of these constants up to the layer, the "
    "constant of the same blocks together, and what they multiply random noise by; one panel for each model and length."
)
BLOCK, PRODUCT, TOGETHER, NOISE = "each block alone", "product of the blocks", "the blocks together", "random noise"
STYLES: Styles = {
    BLOCK: Style(mark="bars", colour=SKY),
    PRODUCT: Style(mark="dotted line", colour=ORANGE, dash=(5, 3)),
    TOGETHER: Style(mark="dotted line", colour=BLUE),
    NOISE: Style(mark="dotted line", colour=GREEN),
}
# What a logarithmic axis of floats can hold.
HIGHEST = 300.0


def wanted(section: Section) -> bool:
    """Tell whether a model was measured up to some layer."""
    return bool(found(section))


def found(section: Section) -> list[Composition]:
    """Return what is known of each model and length."""
    return compositions(section.of_kind("whole"))


def draw(section: Section) -> Chart:
    """Draw a panel for each model and length."""
    rows: Rows = []
    every = found(section)
    for each in every:
        place, depths = panel(each), each.depths
        products = ((d.layer, 10**d.log_product) for d in depths if d.log_product < HIGHEST)
        rows += over_layers(((d.layer, d.block) for d in depths), series=BLOCK, panel=place)
        rows += over_layers(products, series=PRODUCT, panel=place)
        rows += over_layers(((d.layer, d.to) for d in depths), series=TOGETHER, panel=place)
        noise = ((d.layer, d.typical_to.value) for d in depths if d.typical_to is not None)
        rows += over_layers(noise, series=NOISE, panel=place)
    return layer_panels(rows, STYLES, up="multiplies perturbations by", title=_title(every))


def panel(composition: Composition) -> str:
    """Return the name of the panel of a model and a length."""
    return f"{composition.model}, {count(composition.length, 'token')}"


def table(section: Section) -> Numbers:
    """Return a row for each model, length and layer."""
    every = found(section)
    rows: list[NumberRow] = [
        (depth.layer, (panel(each), *depth.cells.values())) for each in every for depth in each.depths
    ]
    return Numbers(head=("where", *every[0].columns), rows=tuple(rows))


def _title(every: list[Composition]) -> str:
    gaps = [each.depths[-1].log_gap for each in every]
    ends = " to ".join(dict.fromkeys(large(gap) for gap in (min(gaps), max(gaps))))
    return f"Layers do not multiply: the product of the blocks is {ends} times what they do together"
