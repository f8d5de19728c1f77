"""What is known about one layer, in two lanes: at this text, and for any input whose tokens are no longer."""

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing import palette
from howsmooth.report.drawing.panels import titled
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.theory.results import Side, label_of
from howsmooth.wording import at_most, interval, number

TEXT_LANE, ANY_LANE = "At these inputs", "Any input"
TYPICAL, MEASURED, CERTIFIED = "random perturbations", "worst perturbation, measured", "proven at these windows"
ATTAINED, AT_MOST = "an explicit input attains it", "no input exceeds it"
# The marks of the table on top of the page: an open circle for what is typical, a bar for what nothing exceeds.
RING = "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0ZM-0.6,0A0.6,0.6,0,1,0,0.6,0A0.6,0.6,0,1,0,-0.6,0Z"
BAR = "M-0.4,-1.3H0.4V1.3H-0.4Z"
KINDS = {
    TYPICAL: (palette.TYPICAL, RING),
    MEASURED: (palette.MEASURED, "circle"),
    CERTIFIED: (palette.CERTIFICATE, "square"),
    ATTAINED: (palette.WITNESS, "triangle-right"),
    AT_MOST: (palette.BOUND, BAR),
}
# What stands right of this share of the axis has its number on its left.
MIDDLE, WIDTH, NAMES = 0.5, 520, 130


def layers(section: Section) -> list[LayerSummary]:
    """Return the layers that it can show: all of them."""
    return [layer for m in section.measurements for layer in m.layers]


def draw(section: Section, layer: int | None) -> Chart:
    """Draw the rungs of one layer; of all layers if none is named, for a page that shows one at a time."""
    chosen = [summary for summary in layers(section) if layer in (None, summary.layer)]
    rows = [row for summary in chosen for row in _lanes(summary)]
    there = [name for name in KINDS if any(row.get("kind") == name for row in rows)]
    colours, shapes = ([KINDS[name][i] for name in there] for i in (0, 1))
    legend = alt.Legend(orient="bottom", columns=1, labelFontSize=12, labelLimit=260, symbolSize=90, symbolOpacity=1)
    colour = alt.Color("kind:N", title=None, scale=alt.Scale(domain=there, range=colours), legend=legend)
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=there, range=shapes), legend=legend)
    # the names of the lanes in bold
    lane = f"datum.value == '{TEXT_LANE}' || datum.value == '{ANY_LANE}'"
    weight = alt.condition(lane, alt.value("bold"), alt.value("normal"))
    names = alt.Axis(labelLimit=260, labelFontWeight=weight, domain=False, ticks=False, labelPadding=8)
    # little room, in pixels: much of it would span many decades on a phone
    span = alt.Scale(zero=False, nice=False, padding=14)
    # an axis of logarithms: the number itself where it is short; its own description would call logarithms numbers
    plain = "datum.value > -4 && datum.value < 7"
    label = f"{plain} ? format(pow(10, datum.value), ',.2~r') : '10^' + format(datum.value, '.3~r')"
    decades = alt.Axis(labelExpr=label, tickMinStep=1, tickCount=6, aria=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=names),
        x=alt.X("log10:Q", title="Lipschitz constant", scale=span, axis=decades),
    )
    titles = {"lane": "lane", "name": "what", "number": "value", "worth": "worth"}
    told = [alt.Tooltip("layer:Q"), *(alt.Tooltip(f"{name}:N", title=title) for name, title in titles.items())]
    spread = base.mark_rule(strokeWidth=6, opacity=0.4).encode(x="from:Q", x2="to:Q", color=colour)
    marks = base.mark_point(filled=True, size=110, opacity=1).encode(color=colour, shape=shape, tooltip=told)
    numbers = base.mark_text(
        fontSize=12, align=alt.expr("datum.right ? 'right' : 'left'"), dx=alt.expr("datum.right ? -10 : 10")
    )
    title = "What these inputs attain, and what any input could"
    if layer is not None:
        summary, room = chosen[0], chosen[0].headroom
        title = f"Layer {layer}: {number(summary.constant)} at this text"
        if summary.any_input is None:
            title += "; no theorem covers this map"
        elif room is not None:
            title = f"Layer {layer}: the smallest proven bound is {at_most(room, 3)} times what this text attains"
    # rows without a number stay in the data of the marks: they name the lanes
    numbers = numbers.encode(x=base.encoding.x.copy(), text="number:N")
    numbers.encoding.x.shorthand = "beside:Q"
    drawn = (spread.transform_filter("isValid(datum.from)"), marks, numbers)
    return alt.layer(*drawn).properties(width=WIDTH, height=alt.Step(28), title=titled(title, WIDTH + NAMES))


def table(section: Section) -> Numbers:
    """Return a row for each rung of each layer, and for each theorem that does not apply."""
    rows: list[NumberRow] = []
    for layer in layers(section):
        for row in rungs(layer):
            cells = (row["lane"], row["name"], row["number"], row["kind"], row["worth"])
            rows.append((layer.layer, (str(layer.layer), *cells)))
        for refusal in layer.ladder.refused:
            what = "all theorems" if refusal.name == "all" else label_of(refusal.name)
            rows.append((layer.layer, (str(layer.layer), ANY_LANE, what, "does not apply", "—", refusal.reason)))
    return Numbers(head=("layer", "lane", "what", "value", "kind", "where, and why"), rows=rows)


def rungs(summary: LayerSummary) -> Rows:
    """Return one row for each rung that can be drawn: this text first, each lane from the lowest to the highest."""
    anywhere = [
        {
            "name": bound.label,
            "kind": AT_MOST if bound.side is Side.UPPER else ATTAINED,
            "lane": ANY_LANE,
            "log10": bound.log_value / math.log(10),
            "number": f"{bound.side} {bound.digits}",
            "worth": f"{bound.domain} ({bound.source})",
        }
        for bound in summary.ladder.bounds
    ]
    rows = [row for row in (*_at_text(summary), *anywhere) if math.isfinite(row["log10"])]
    return sorted(rows, key=lambda row: (row["lane"] != TEXT_LANE, row["log10"]))


def _lanes(summary: LayerSummary) -> Rows:
    """Return the rungs with a row above each lane that names it."""
    found = rungs(summary)
    low, high = (end((row["log10"] for row in found), default=0.0) for end in (min, max))
    middle = low + MIDDLE * (high - low)
    rows: Rows = []
    for lane in dict.fromkeys(row["lane"] for row in found):
        rows.append({"name": lane, "right": None})
        for row in (row for row in found if row["lane"] == lane):
            right = row["log10"] > middle
            # a number stands beside the range that it is the mean of
            rows.append(row | {"right": right, "beside": row.get("from" if right else "to", row["log10"])})
    return [row | {"order": order, "layer": summary.layer} for order, row in enumerate(rows)]


def _at_text(summary: LayerSummary) -> Iterator[dict[str, Any]]:
    def rung(name: str, kind: str, value: float, written: str, low: float | None, high: float | None) -> dict[str, Any]:
        spread = {"from": math.log10(low), "to": math.log10(high)} if low and high else {}
        return {"name": name, "kind": kind, "lane": TEXT_LANE, "log10": math.log10(value), "number": written} | spread

    windows, typical = f"windows of {number(summary.length)} tokens", summary.typical
    if typical and typical.value > 0:
        told = f"{windows}: root mean square gain of random perturbations, with its 95 % interval"
        found = rung("typical (mean)", TYPICAL, typical.value, str(typical), typical.low, typical.high)
        yield found | {"worth": told}
    if summary.constant > 0:
        told, written = f"{windows}: {interval(summary.least, summary.most)}", number(summary.constant, 4)
        found = rung("worst (mean)", MEASURED, summary.constant, written, summary.least, summary.most)
        yield found | {"worth": told}
    if summary.local_upper:
        written = f"≤ {at_most(summary.local_upper, 4)}"
        found = rung("certificate (mean)", CERTIFIED, summary.local_upper, written, None, None)
        yield found | {"worth": f"{windows}: a proof, for these alone"}


CHARTS = (
    ChartKind(
        name="bounds_ladder",
        short="ladder",
        sections=("measurement",),
        rank=50,
        about="What is known about one layer, in two lanes. At this text: what random perturbations are multiplied by, "
        "what the worst one is multiplied by, and the certificate if there is one. For any input of as many tokens, "
        "none longer than the longest of the text: what explicit inputs attain, and what no input exceeds.",
        wanted=lambda section: any(m.layers for m in section.measurements),
        draw=draw,
        table=table,
        layers=layers,
    ),
)
