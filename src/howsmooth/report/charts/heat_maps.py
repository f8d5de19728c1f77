"""Grids of numbers in coloured cells: layers by length, by head and by training step."""

import math
from collections import defaultdict
from collections.abc import Iterable

import altair as alt

from howsmooth.models.map_names import MapName
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import ON_DARK, ON_LIGHT, PLAIN
from howsmooth.report.drawing.panels import titled
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.tables import Chart, Numbers, Rows, ends
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import least_smooth
from howsmooth.studies.runs.summary import mean_constant
from howsmooth.wording import number

# Where viridis becomes light enough for dark text.
LIGHT = 0.45
# Colours tell constants apart that differ by this factor or more: cells that are alike look alike.
LEAST_RANGE = 1.25
# A wider map of training steps does not fit a page.
MOST_STEPS = 16
# A record with its layer and its column.
Placed = tuple[int, int, TextRecord]


def cells(records: Iterable[Placed], *, digits: int) -> Rows:
    """Return one row for each layer and column; dark or light text, as the colour of the cell asks for."""
    groups: dict[tuple[int, int], list[TextRecord]] = defaultdict(list)
    for layer, column, record in records:
        groups[layer, column].append(record)
    values = {place: mean_constant(group) for place, group in groups.items()}
    low, high = _domain(values.values())
    rows: Rows = []
    for (layer, column), value in sorted(values.items()):
        light = value == 0 or math.log(value / low) > LIGHT * math.log(high / low)
        group = groups[layer, column]
        found = {"layer": layer, "column": column, "value": value, "number": number(value, digits), "light": light}
        rows.append(found | {"windows": len(group), "ends": " – ".join(ends(group))})
    return rows


def heat_map(rows: Rows, *, columns: str, step: int, title: str) -> Chart:
    """Draw cells, each with its number."""
    # The gaps between cells show the page, whatever its colour.
    gaps = alt.Scale(paddingInner=0.03, paddingOuter=0)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("column:O", title=columns, axis=alt.Axis(labelAngle=0), scale=gaps),
        y=alt.Y("layer:O", title="layer", scale=gaps),
        tooltip=[
            alt.Tooltip("layer:O"),
            alt.Tooltip("column:O", title=columns),
            alt.Tooltip("value:Q", title="mean constant", format=",.5~r"),
            alt.Tooltip("ends:N", title="error bars of all windows"),
            alt.Tooltip("windows:Q"),
        ],
    )
    # Every cell says its number, so there is no legend.
    scale = alt.Scale(type="log", scheme="viridis", domain=_domain(row["value"] for row in rows))
    colour = alt.Color("value:Q", scale=scale, legend=None)
    numbers = base.mark_text(fontSize=12).encode(
        text="number:N", color=alt.condition("datum.light", alt.value(ON_LIGHT), alt.value(ON_DARK))
    )
    width = step * len({row["column"] for row in rows})
    # A constant of zero has no place on a logarithmic scale: its cell stays plain.
    rects = base.mark_rect().encode(color=alt.condition("datum.value > 0", colour, alt.value(PLAIN)))
    return alt.layer(rects, numbers).properties(width=alt.Step(step), height=alt.Step(24), title=titled(title, width))


def grid(rows: Rows, *, column: str) -> Numbers:
    """Return the numbers of the cells as a table."""
    columns = sorted({row["column"] for row in rows})
    found = {(row["layer"], row["column"]): number(row["value"], 4) for row in rows}
    layers = sorted({row["layer"] for row in rows})
    return Numbers(
        head=("layer", *(column.format(number(name)) for name in columns)),
        rows=[(k, (str(k), *(found.get((k, name), "—") for name in columns))) for k in layers],
    )


def _domain(values: Iterable[float]) -> list[float]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    widen = max(1.0, LEAST_RANGE * low / high) if low < high else 4.0
    return [low / math.sqrt(widen), high * math.sqrt(widen)]


def _by_length(section: Section) -> Rows:
    records = (r for m in section.measurements for r in m.records)
    return cells(((r.ask.layer, r.ask.length, r) for r in records), digits=3)


def draw_by_length(section: Section) -> Chart:
    """Draw the geometric mean of the constants of each layer at each length, the number in its cell."""
    (measured,) = section.measurements
    worst = least_smooth(measured.layers)
    title = f"Layer {worst.layer} is the least smooth at {number(worst.length)} tokens: {number(worst.constant)}"
    if not measured.comparable:
        title = "The layers have no length in common yet"
    return heat_map(_by_length(section), columns="number of tokens n", step=58, title=title)


def _longest(section: Section) -> int:
    return max(r.ask.length for m in section.measurements for r in m.heads)


def _by_head(section: Section) -> Rows:
    longest = _longest(section)
    records = (r for m in section.measurements for r in m.heads if r.ask.length == longest)
    return cells(((r.ask.layer, int(MapName.parse(r.ask.map).head or 0), r) for r in records), digits=2)


def draw_by_head(section: Section) -> Chart:
    """Draw the geometric mean of the constants of each head at the longest length, the number in its cell."""
    rows = _by_head(section)
    worst = max(rows, key=lambda row: row["value"])
    at = f"{number(_longest(section))} tokens: {number(worst['value'])}"
    title = f"Head {worst['column']} of layer {worst['layer']} is the least smooth at {at}"
    return heat_map(rows, columns="head", step=40, title=title)


def _by_step(section: Section, most: int = MOST_STEPS) -> Rows:
    records = [r for r in section.of_kind("monitor") if r.answer.lower is not None]
    steps = sorted({r.ask.step for r in records})
    every = -(-len(steps) // most)
    shown = {*steps[::-1][::every]}  # the last one always
    return cells(((r.ask.layer, r.ask.step, r) for r in records if r.ask.step in shown), digits=3)


def draw_by_step(section: Section) -> Chart:
    """Draw the constants at the steps that a monitor looked at, the number in its cell."""
    rows = _by_step(section)
    # it may be at a step that is not drawn
    worst = max(_by_step(section, most=len(section.records)), key=lambda row: row["value"])
    title = f"Layer {worst['layer']} is the least smooth, at step {number(worst['column'])}: {number(worst['value'])}"
    return heat_map(rows, columns="training step", step=58, title=title)


CHARTS = (
    ChartKind(
        name="layers_by_length",
        short="layers",
        sections=("measurement",),
        rank=30,
        about="A heat map: the mean constant of each layer at each number of tokens.",
        wanted=lambda section: any(m.records for m in section.measurements),
        # of one layer, the constant against the length says the same
        on_page=lambda section: len({r.ask.layer for m in section.measurements for r in m.records}) > 1,
        draw=draw_by_length,
        table=lambda section: grid(_by_length(section), column="n = {}"),
    ),
    ChartKind(
        name="heads_by_layer",
        short="heads",
        sections=("measurement",),
        rank=40,
        about="A heat map: the mean constant of each head of each layer at the longest windows.",
        wanted=lambda section: any(m.heads for m in section.measurements),
        on_page=lambda section: len(_by_head(section)) > 1,
        draw=draw_by_head,
        table=lambda section: grid(_by_head(section), column="head {}"),
    ),
    ChartKind(
        name="layers_by_step",
        sections=("monitor",),
        rank=20,
        about="A heat map: the constant of each layer at the training steps that were measured, at most sixteen.",
        wanted=lambda section: any(drawable(r.answer.lower) for r in section.of_kind("monitor")),
        on_page=lambda section: len({r.ask.layer for r in section.of_kind("monitor")}) > 1,
        draw=draw_by_step,
        table=lambda section: grid(_by_step(section), column="step {}"),
    ),
)
