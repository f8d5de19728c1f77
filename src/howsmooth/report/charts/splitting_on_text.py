"""What splitting one token gains over moving them all, window by window."""

from typing import Any

import altair as alt

from howsmooth.report.drawing.palette import BLUE, GREY
from howsmooth.report.drawing.panels import PANEL, panels
from howsmooth.report.drawing.scales import drawable, log_axis, log_scale, span_of
from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import NumberRow, Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("splitting",), 20, False
ABOUT = (
    "What splitting one token gains over moving all of them, layer by layer, one panel for each map: a dot for each "
    "window; above the dashed line at 1 it splits."
)


def wanted(section: Section) -> bool:
    """Tell whether a window has a ratio that can be drawn."""
    return any(drawable(gain(r)) for r in section.of_kind("splitting"))


def draw(section: Section) -> Chart:
    """Draw a panel for each map."""
    records = section.of_kind("splitting")
    rows = [_row(r) for r in sorted(records, key=_place) if drawable(gain(r))]
    heights = span_of([1.0, *(row["y"] for row in rows)])
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:Q", title="split / move", scale=log_scale(heights), axis=log_axis(heights))
    told = ["layer:Q", "window:Q", alt.Tooltip("y:Q", title="split / move", format=",.4~r")]
    dots = alt.Chart().mark_point(filled=True, size=28, opacity=0.85, color=BLUE).encode(x=x, y=y, tooltip=told)
    equal = alt.Chart().mark_rule(color=GREY, strokeDash=[5, 3], strokeWidth=1.2)
    equal = equal.encode(y=alt.Y(datum=1, type="quantitative", scale=log_scale(heights)))
    splits = sum(r.answer.splits for r in records)
    title = f"Splitting one token beats moving all in {number(splits)} of {number(len(records))} cases"
    return panels(alt.LayerChart(layer=[equal, dots]).properties(**PANEL), rows, title=title)


def table(section: Section) -> Numbers:
    """Return a row for each map and layer."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for r in sorted(section.of_kind("splitting"), key=_place):
        groups.setdefault((_panel(r), r.ask.layer), []).append(r)
    rows: list[NumberRow] = []
    for (panel, layer), found in groups.items():
        gains = [value for r in found if (value := gain(r)) is not None] or [0.0]
        splits = sum(r.answer.splits for r in found)
        numbers = (number(min(gains), 4), number(max(gains), 4))
        rows.append((layer, (panel, str(layer), str(len(found)), str(splits), *numbers)))
    head = ("where", "layer", "windows", "split", "smallest split / move", "largest split / move")
    return Numbers(head=head, rows=tuple(rows))


def gain(record: Record) -> float | None:
    """Return how many times more splitting moves the output."""
    return record.answer.split / record.answer.move if record.answer.move else None


def _row(record: Record) -> dict[str, Any]:
    return {"panel": _panel(record), "layer": record.ask.layer, "window": record.ask.window.index, "y": gain(record)}


def _panel(record: Record) -> str:
    return f"{record.ask.model}, {record.ask.map.replace(':', ' ')}"


def _place(record: Record) -> tuple[str, bool, int, str, int]:
    """Order whole layers before heads, and heads by their number."""
    part = record.ask.map
    return record.ask.model, part.startswith("head"), len(part), part, record.ask.layer
