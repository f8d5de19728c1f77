"""A grid of numbers in coloured cells: layers by something."""

import math
from collections import defaultdict
from collections.abc import Iterable

import altair as alt

from howsmooth.report.drawing.palette import ON_DARK, ON_LIGHT, PLAIN
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import Numbers, ends
from howsmooth.report.drawing.titles import titled
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.summary import mean_constant
from howsmooth.wording import number

# Where viridis becomes light enough for dark text.
LIGHT = 0.45
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
    numbers = base.mark_text(fontSize=11).encode(
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
        rows=tuple((k, (str(k), *(found.get((k, name), "—") for name in columns))) for k in layers),
    )


def _domain(values: Iterable[float]) -> list[float]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    return [low, high] if low < high else [low / 2, high * 2]
