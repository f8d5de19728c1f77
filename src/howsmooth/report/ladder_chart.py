"""The bounds of a layer from the lowest to the highest, with what was measured among them."""

import math
from collections.abc import Iterator

import altair as alt

from howsmooth.report.charts import BLUE, GREEN, ORANGE, PINK, Chart, Rows
from howsmooth.studies.measurement import LayerSummary, Measurement
from howsmooth.theory.results import Side

MEASURED, CERTIFIED = "measured on the text", "proven at these windows"
ATTAINED, AT_MOST = "some input of this radius attains it", "no input of this radius exceeds it"
COLOURS = {MEASURED: BLUE, CERTIFIED: PINK, ATTAINED: GREEN, AT_MOST: ORANGE}
SHAPES = {MEASURED: "circle", CERTIFIED: "square", ATTAINED: "triangle-right", AT_MOST: "triangle-left"}
NAMES = {
    "sharp_lower": "tied pair",
    "kim_lower": "token at the origin",
    "discrete_lower": "the paper's two points",
    "sharp_upper": "sharp bound",
    "discrete_upper": "the paper's bound",
    "sharp_mean_field_upper": "sharp bound for measures",
    "mean_field_upper": "the paper's bound for measures",
    "masked_mean_field_upper": "the paper's bound for masked measures",
}


def bounds_ladder(measurement: Measurement, layer: int | None = None) -> Chart:
    """Draw the rungs of one layer; of all layers if none is named, for a page that shows one at a time."""
    chosen = [summary for summary in measurement.layers if layer in (None, summary.layer)]
    rows = [row for summary in chosen for row in rungs(summary)]
    scale = alt.Scale(zero=False, nice=False, padding=70)  # room for the numbers
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", title=None, sort=alt.EncodingSortField("log10", op="min"), axis=alt.Axis(labelLimit=260)),
        x=alt.X("log10:Q", title="Lipschitz constant", scale=scale, axis=_decades()),
    )
    kinds = list(COLOURS)
    colour = alt.Color("kind:N", title=None, scale=alt.Scale(domain=kinds, range=list(COLOURS.values())))
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=kinds, range=list(SHAPES.values())))
    legend = alt.Legend(orient="bottom", columns=1, labelFontSize=12, labelLimit=260, symbolSize=90, symbolOpacity=1)
    spread = base.mark_rule(strokeWidth=6, opacity=0.4, color=BLUE).encode(x="from:Q", x2="to:Q")
    spread = spread.transform_filter("isValid(datum.from)")
    marks = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=colour.legend(legend),
        shape=shape.legend(legend),
        tooltip=[
            alt.Tooltip("layer:Q"),
            alt.Tooltip("name:N", title="what"),
            alt.Tooltip("number:N", title="value"),
            alt.Tooltip("worth:N", title="worth"),
        ],
    )
    numbers = base.mark_text(align="left", dx=10, fontSize=12).encode(text="number:N")
    title = _title(chosen[0]) if layer is not None else "What the theory allows, and what the text attains"
    return alt.layer(spread, marks, numbers).properties(width=520, height=alt.Step(32), title=title)


def rungs(summary: LayerSummary) -> Rows:
    """Return one row for each rung, from the lowest to the highest that can be drawn."""
    rows = [row | {"layer": summary.layer} for row in _rungs(summary) if math.isfinite(row["log10"])]
    return sorted(rows, key=lambda row: row["log10"])


def _rungs(summary: LayerSummary) -> Iterator[dict]:
    for bound in summary.ladder.rungs:
        yield {
            "name": NAMES[bound.name],
            "kind": AT_MOST if bound.side is Side.UPPER else ATTAINED,
            "log10": bound.log_value / math.log(10),
            "number": f"{bound.side} {bound.digits}",
            "worth": f"{bound.domain} ({bound.source})",
        }
    if summary.constant > 0:
        yield {
            "name": "measured (mean)",
            "kind": MEASURED,
            "log10": math.log10(summary.constant),
            "from": math.log10(summary.least),
            "to": math.log10(summary.most),
            "number": f"{summary.constant:.4g}",
            "worth": f"windows of {summary.length} tokens: {summary.least:.4g} to {summary.most:.4g}",
        }
    if summary.local_upper is not None and summary.local_upper > 0:
        yield {
            "name": "certificate (mean)",
            "kind": CERTIFIED,
            "log10": math.log10(summary.local_upper),
            "number": f"≤ {summary.local_upper:.4g}",
            "worth": f"windows of {summary.length} tokens: a proof, for these alone",
        }


def _title(summary: LayerSummary) -> str:
    room = summary.headroom
    if room is None:
        return f"Layer {summary.layer}: {summary.constant:.3g} on the text; no theorem covers this map"
    return f"Layer {summary.layer}: the sharp bound is {room:.3g} times what the text attains"


def _decades() -> alt.Axis:
    """Return an axis for logarithms: powers of ten, with the plain number where it is short."""
    plain = "datum.value > -4 && datum.value < 5"
    label = f"{plain} ? format(pow(10, datum.value), '.2~r') : '10^' + format(datum.value, '.3~r')"
    # its own description would call these logarithms numbers
    return alt.Axis(labelExpr=label, tickMinStep=1, tickCount=8, aria=False)
