"""Heat maps of a measured model: layers by lengths, layers by heads."""

import math
from collections import defaultdict
from collections.abc import Iterable

import altair as alt

from howsmooth.report.charts import Chart, Rows
from howsmooth.report.wording import ends
from howsmooth.studies.measurement import Measurement, mean_constant
from howsmooth.studies.records import Record

PLAIN = "#e6e6e6"
# On a light cell, whatever the colours around the chart are.
DARK_TEXT = "#1a1a1a"
# Where viridis becomes light enough for dark text.
LIGHT = 0.45


def layers_by_length(measurement: Measurement) -> Chart:
    """Draw the geometric mean of the constants of each layer at each length, the number in its cell."""
    rows = _cells(((r.task.layer, r.task.length, r) for r in measurement.records), digits=3)
    length = max(row["column"] for row in rows)
    worst = max((row for row in rows if row["column"] == length), key=lambda row: row["value"])
    title = f"Layer {worst['layer']} is the least smooth at {length} tokens: {worst['value']:.3g}"
    return _heat_map(rows, columns="number of tokens n", step=58, title=title)


def heads_by_layer(measurement: Measurement) -> Chart:
    """Draw the geometric mean of the constants of each head at the longest length, the number in its cell."""
    length = max(r.task.length for r in measurement.heads)
    rows = _cells(((r.task.layer, _head(r), r) for r in measurement.heads if r.task.length == length), digits=2)
    worst = max(rows, key=lambda row: row["value"])
    title = (
        f"Head {worst['column']} of layer {worst['layer']} is the least smooth at {length} tokens: {worst['value']:.3g}"
    )
    return _heat_map(rows, columns="head", step=36, title=title)


def _head(record: Record) -> int:
    _kind, _colon, number = record.task.map.partition(":")
    return int(number)


def _cells(records: Iterable[tuple[int, int, Record]], *, digits: int) -> Rows:
    """Return one row for each layer and column; dark or light text, as the colour of the cell asks for."""
    groups: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for layer, column, record in records:
        groups[layer, column].append(record)
    values = {place: mean_constant(group) for place, group in groups.items()}
    low, high = _domain(values.values())
    rows: Rows = []
    for (layer, column), value in sorted(values.items()):
        light = value == 0 or math.log(value / low) > LIGHT * math.log(high / low)
        # Through a float, so that 1234 is written as 1230 and not as 1.23e+03.
        number = f"{float(f'{value:.{digits}g}'):g}"
        group = groups[layer, column]
        found = {"layer": layer, "column": column, "value": value, "number": number, "light": light}
        rows.append(found | {"windows": len(group), "ends": " – ".join(ends(group))})
    return rows


def _heat_map(rows: Rows, *, columns: str, step: int, title: str) -> Chart:
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("column:O", title=columns, axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0)),
        y=alt.Y("layer:O", title="layer", scale=alt.Scale(padding=0)),
        tooltip=[
            alt.Tooltip("layer:O"),
            alt.Tooltip("column:O", title=columns),
            alt.Tooltip("value:Q", title="mean constant", format=".5~r"),
            alt.Tooltip("ends:N", title="error bars of all windows"),
            alt.Tooltip("windows:Q"),
        ],
    )
    # Every cell says its number, so there is no legend.
    scale = alt.Scale(type="log", scheme="viridis", domain=_domain(row["value"] for row in rows))
    colour = alt.Color("value:Q", scale=scale, legend=None)
    rects = base.mark_rect(stroke="white", strokeWidth=1)
    numbers = base.mark_text(fontSize=11).encode(
        text="number:N", color=alt.condition("datum.light", alt.value(DARK_TEXT), alt.value("white"))
    )
    # A constant of zero has no place on a logarithmic scale: its cell stays plain.
    cells = rects.encode(color=alt.condition("datum.value > 0", colour, alt.value(PLAIN)))
    return alt.layer(cells, numbers).properties(width=alt.Step(step), height=alt.Step(24), title=title)


def _domain(values: Iterable[float]) -> list[float]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    return [low, high] if low < high else [low / 2, high * 2]
