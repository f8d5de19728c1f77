"""The constant against the mean radius of the tokens, window by window."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import FEW_TO_MANY, GREY
from howsmooth.report.drawing.panels import PANEL, panels
from howsmooth.report.drawing.places import TOLD, MeasuredLayer, described, places
from howsmooth.report.drawing.scales import drawable, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Chart, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.summary import mean_constant
from howsmooth.wording import number

# Radii that differ by less than this factor are drawn as equal.
FLAT = 1.02
TOKENS, CONSTANT = alt.Tooltip("n:Q", title="tokens"), alt.Tooltip("y:Q", title="constant", format=",.5~r")


def wanted(section: Section) -> bool:
    """Tell whether a window attains anything, at a radius."""
    return any(drawable(r.answer.lower) and r.answer.mean_radius for m in section.measurements for r in m.records)


def draw(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = places(section)
    rows = [_row(place, record) for place in found for record in place.records]
    heights = span_of([row["y"] for row in rows if "y" in row])
    lengths = sorted({row["n"] for row in rows})
    x = alt.X("x:Q", title="mean radius", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=3))
    plain = alt.Chart().encode(
        x=x,
        y=alt.Y("y:Q", title="local Lipschitz constant", scale=log_scale(heights), axis=log_axis(heights)),
    )
    dots = plain.mark_point(filled=True, size=28, opacity=0.9).encode(
        color=_length_colour(lengths), tooltip=[TOKENS, CONSTANT, *TOLD]
    )
    # zero has no place on a logarithmic axis: it is written at the foot
    foot = plain.mark_text(text="0", color=GREY, baseline="bottom").encode(
        y=alt.value(PANEL["height"]), tooltip=[TOKENS, *TOLD]
    )
    unseen = alt.Chart().mark_point(opacity=0, aria=False).encode(x=x, y=alt.value(0))
    layers = [
        dots.transform_filter("isValid(datum.y)"),
        foot.transform_filter("!isValid(datum.y) && !datum.room"),
        unseen.transform_filter("datum.room"),
    ]
    chart = panels(alt.LayerChart(layer=layers).properties(**PANEL), rows + _room(rows), title=_title(found))
    return chart.resolve_scale(x="independent")


def table(section: Section) -> Numbers:
    """Return a row for each layer and length."""
    several = len(section.measurements) > 1
    rows = []
    for place in places(section):
        for n in place.lengths:
            here = [r for r in place.records if r.ask.length == n]
            radii = [r.answer.mean_radius for r in here]
            numbers = (number(value, 4) for value in (min(radii), fmean(radii), max(radii), mean_constant(here)))
            name = place.name if several else str(place.summary.layer)
            rows.append((place.summary.layer, (name, number(n), *numbers)))
    head = ("layer", "tokens", "smallest radius", "mean radius", "largest radius", "mean constant")
    return Numbers(head=head, rows=rows)


def _row(place: MeasuredLayer, record: TextRecord) -> dict[str, Any]:
    answer = record.answer
    row = described(place.measurement, record) | {"panel": place.name, "n": record.ask.length, "x": answer.mean_radius}
    return row | ({"y": answer.lower} if drawable(answer.lower) else {})


def _room(rows: Rows) -> Rows:
    """Return two unseen points for each panel whose radii hardly differ: rounding is not blown up."""
    radii: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        radii.setdefault((row["panel"], row["layer"]), []).append(row["x"])
    return [
        {"panel": panel, "layer": layer, "x": end, "room": True}
        for (panel, layer), found in radii.items()
        if max(found) < FLAT * min(found)
        for end in (min(found) / FLAT, max(found) * FLAT)
    ]


def _length_colour(lengths: Sequence[int]) -> alt.Color:
    scale = alt.Scale(type="log", range=list(FEW_TO_MANY), interpolate="rgb", domain=span_of(lengths, room=1.0))
    legend = alt.Legend(values=list(lengths), format="d") if len(lengths) > 1 else None
    return alt.Color("n:Q", title="tokens", scale=scale, legend=legend)


def _title(found: Sequence[MeasuredLayer]) -> str:
    attained = [[r.answer for r in place.records if drawable(r.answer.lower)] for place in found]
    radius = _widest([a.mean_radius for a in answers if drawable(a.mean_radius)] for answers in attained)
    constant = _widest([a.lower for a in answers] for answers in attained)
    if constant == 1:
        return "The constants of the windows against the radius of their tokens"
    return f"Within a layer the radius varies up to {radius:.2f}-fold, the constant up to {constant:.2f}-fold"


def _widest(values: Iterable[Sequence[float]]) -> float:
    return max((max(v) / min(v) for v in values if v), default=1.0)


CHARTS = (
    ChartKind(
        name="constant_against_radius",
        short="radius",
        sections=("measurement", "real"),
        rank=20,
        about="The local Lipschitz constant against the mean radius of the tokens, one panel for each layer: a dot for "
        "each window, coloured by its number of tokens.",
        wanted=wanted,
        draw=draw,
        table=table,
    ),
)
