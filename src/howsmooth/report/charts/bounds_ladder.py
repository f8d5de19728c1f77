"""What is known about one layer, in two lanes: at this text, and for any input whose tokens are no longer."""

import math
from collections.abc import Iterator, Sequence
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
    kinds = _kinds([row["kind"] for row in rows if "kind" in row])
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", title=None, sort=alt.EncodingSortField("order", op="min"), axis=_names()),
        x=alt.X("log10:Q", title="Lipschitz constant", scale=_span(), axis=_decades()),
    )
    spread = base.mark_rule(strokeWidth=6, opacity=0.4).encode(x="from:Q", x2="to:Q", color=kinds["color"])
    marks = base.mark_point(filled=True, size=110, opacity=1).encode(**kinds, tooltip=_told())
    numbers = base.mark_text(
        fontSize=12, align=alt.expr("datum.right ? 'right' : 'left'"), dx=alt.expr("datum.right ? -10 : 10")
    )
    numbers = numbers.encode(x=base.encoding.x.copy(), text="number:N")
    numbers.encoding.x.shorthand = "beside:Q"
    title = _title(chosen[0]) if layer is not None else "What these inputs attain, and what any input could"
    # rows without a number stay in the data of the marks: they name the lanes
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
    rows = [row for row in (*_at_text(summary), *_anywhere(summary)) if math.isfinite(row["log10"])]
    return sorted(rows, key=lambda row: (row["lane"] != TEXT_LANE, row["log10"]))


def _lanes(summary: LayerSummary) -> Rows:
    """Return the rungs with a row above each lane that names it."""
    found = rungs(summary)
    ends = [row["log10"] for row in found]
    rows: Rows = []
    for lane in dict.fromkeys(row["lane"] for row in found):
        rows.append({"name": lane, "right": None})
        for row in (row for row in found if row["lane"] == lane):
            right = _share(row["log10"], ends) > MIDDLE
            # a number stands beside the range that it is the mean of
            rows.append(row | {"right": right, "beside": row.get("from" if right else "to", row["log10"])})
    return [row | {"order": order, "layer": summary.layer} for order, row in enumerate(rows)]


def _share(value: float, values: list[float]) -> float:
    low, high = min(values), max(values)
    return (value - low) / (high - low) if low < high else 0.0


def _at_text(summary: LayerSummary) -> Iterator[dict[str, Any]]:
    windows = f"windows of {number(summary.length)} tokens"
    if summary.typical and summary.typical.value > 0:
        told = f"{windows}: root mean square gain of random perturbations, with its 95 % interval"
        typical = _rung("typical (mean)", TYPICAL, TEXT_LANE, summary.typical.value, told)
        yield typical | {"number": str(summary.typical)} | _spread(summary.typical.low, summary.typical.high)
    if summary.constant > 0:
        told = f"{windows}: {interval(summary.least, summary.most)}"
        worst = _rung("worst (mean)", MEASURED, TEXT_LANE, summary.constant, told)
        yield worst | _spread(summary.least, summary.most)
    if summary.local_upper:
        told = f"{windows}: a proof, for these alone"
        yield _rung("certificate (mean)", CERTIFIED, TEXT_LANE, summary.local_upper, told, sign="≤ ")


def _spread(low: float | None, high: float | None) -> dict[str, float]:
    return {"from": math.log10(low), "to": math.log10(high)} if low and high else {}


def _rung(name: str, kind: str, lane: str, value: float, worth: str, sign: str = "") -> dict[str, Any]:
    written = at_most(value, 4) if sign else number(value, 4)
    return {
        "name": name,
        "kind": kind,
        "lane": lane,
        "log10": math.log10(value),
        "number": f"{sign}{written}",
        "worth": worth,
    }


def _anywhere(summary: LayerSummary) -> Iterator[dict[str, Any]]:
    for bound in summary.ladder.bounds:
        yield {
            "name": bound.label,
            "kind": AT_MOST if bound.side is Side.UPPER else ATTAINED,
            "lane": ANY_LANE,
            "log10": bound.log_value / math.log(10),
            "number": f"{bound.side} {bound.digits}",
            "worth": f"{bound.domain} ({bound.source})",
        }


def _title(summary: LayerSummary) -> str:
    room = summary.headroom
    if room is None:
        return f"Layer {summary.layer}: {number(summary.constant)} at this text; no theorem covers this map"
    return f"Layer {summary.layer}: the smallest proven bound is {at_most(room, 3)} times what this text attains"


def _kinds(found: Sequence[str]) -> dict[str, Any]:
    """Return colour and shape of each kind that is there, and one legend for both."""
    legend = alt.Legend(orient="bottom", columns=1, labelFontSize=12, labelLimit=260, symbolSize=90, symbolOpacity=1)
    there = [name for name in KINDS if name in found]
    colours, shapes = zip(*(KINDS[name] for name in there), strict=True)
    return {
        "color": alt.Color("kind:N", title=None, scale=alt.Scale(domain=there, range=list(colours)), legend=legend),
        "shape": alt.Shape("kind:N", title=None, scale=alt.Scale(domain=there, range=list(shapes)), legend=legend),
    }


def _told() -> list[alt.Tooltip]:
    titles = {"lane": "lane", "name": "what", "number": "value", "worth": "worth"}
    return [alt.Tooltip("layer:Q"), *(alt.Tooltip(f"{name}:N", title=title) for name, title in titles.items())]


def _names() -> alt.Axis:
    """Return the names of the rungs, those of the lanes in bold."""
    lane = f"datum.value == '{TEXT_LANE}' || datum.value == '{ANY_LANE}'"
    weight = alt.condition(lane, alt.value("bold"), alt.value("normal"))
    return alt.Axis(labelLimit=260, labelFontWeight=weight, domain=False, ticks=False, labelPadding=8)


def _span() -> alt.Scale:
    # little room, in pixels: much of it would span many decades on a phone
    return alt.Scale(zero=False, nice=False, padding=14)


def _decades() -> alt.Axis:
    """Return an axis for logarithms: the number itself where it is short, else a power of ten."""
    plain = "datum.value > -4 && datum.value < 7"
    label = f"{plain} ? format(pow(10, datum.value), ',.2~r') : '10^' + format(datum.value, '.3~r')"
    # its own description would call these logarithms numbers
    return alt.Axis(labelExpr=label, tickMinStep=1, tickCount=6, aria=False)


CHARTS = (
    ChartKind(
        name="bounds_ladder",
        short="ladder",
        sections=("measurement",),
        rank=50,
        about="What is known about one layer, in two lanes. At these inputs: what random perturbations are multiplied "
        "by, what the worst one is multiplied by, and the certificate if there is one. For any input of as many "
        "tokens, none longer than the longest of the text: what explicit inputs attain, and what no input exceeds.",
        wanted=lambda section: any(m.layers for m in section.measurements),
        draw=draw,
        table=table,
        layers=layers,
    ),
)
