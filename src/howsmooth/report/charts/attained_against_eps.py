"""What attacks attain for each unit of eps, against eps: one line for each method, below what the theory allows."""

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, extent
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.attack import AttackSummary, summarise_attacks
from howsmooth.theory.results import Side
from howsmooth.wording import count, number

PREDICTED, CEILING = "predicted", "what the theory allows"
STYLES: Styles = {
    CEILING: Style(mark="line", colour=GREY, dash=(2, 3)),
    PREDICTED: Style(mark="line", colour=INK, dash=(6, 4)),
    "random": Style(mark="dotted line", colour=GREEN, side=Side.LOWER),
    "fgsm": Style(mark="dotted line", colour=SKY, side=Side.LOWER),
    "pgd": Style(mark="dotted line", colour=PINK, side=Side.LOWER),
    "singular": Style(mark="dotted line", colour=ORANGE, side=Side.LOWER),
    "ascent": Style(mark="dotted line", colour=BLUE, side=Side.LOWER),
}


def draw(section: Section) -> Chart:
    """Draw a panel for each map, length and norm."""
    every = summarise_attacks(section.of_kind("attack"))
    rows: Rows = []
    for each in every:
        at = {"panel": _panel(each)}
        # the first row keeps the panel of a map that nothing moves
        rows.append(dict(at))
        for line in each.lines:
            rows += points([(line.eps, line.attained)], series=line.method, **at)
        for line in each.best:
            rows += points([(line.eps, line.predicted)], series=PREDICTED, **at)
            rows += points([(line.eps, line.ceiling)], series=CEILING, **at)
    return series_panels(rows, STYLES, title=_title(every), across="ε", up="attained / ε")


def table(section: Section) -> Numbers:
    """Return a row for each map, radius and method."""
    every = summarise_attacks(section.of_kind("attack"))
    rows: list[NumberRow] = [(each.layer, (each.name, *line.cells.values())) for each in every for line in each.lines]
    return Numbers(head=("where", *every[0].lines[0].cells), rows=rows)


def _panel(each: AttackSummary) -> str:
    ends = each.linear_until
    until = "linear throughout" if ends is None else f"linear until ε ≈ {number(ends, 2)}" if ends else "not linear"
    return f"{each.model}, {each.map} of layer {each.layer}\n{count(each.length, 'token')}, {each.norm} norm: {until}"


def _title(every: list[AttackSummary]) -> str:
    ratios = [line.ratio for each in every for line in each.best if line.ratio is not None]
    if not ratios:
        return "What attacks attain"
    ends = extent(ratios, lambda value: number(value, 3))
    return f"The best attacks attain {ends} times what the derivative predicts"


CHARTS = (
    ChartKind(
        name="attained_against_eps",
        short="attained",
        sections=("attack",),
        rank=10,
        about="How far attacks move the output for each unit of eps, against eps on logarithmic axes: a line for each "
        "method, a dashed line for what the derivative predicts, and one above for what the theory allows; one panel "
        "for each map.",
        wanted=lambda section: any(drawable(r.answer.attained) for r in section.of_kind("attack")),
        draw=draw,
        table=table,
    ),
)
