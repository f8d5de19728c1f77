"""The mean constant of each head at the longest windows."""

from howsmooth.report.drawing.heat_map import cells, grid, heat_map
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.sections import Section
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER, SHORT = ("measurement",), 40, False, "heads"
ABOUT = "A heat map: the mean constant of each head of each layer at the longest windows."


def wanted(section: Section) -> bool:
    """Tell whether single heads were measured."""
    return any(m.heads for m in section.measurements)


def draw(section: Section) -> Chart:
    """Draw the geometric mean of the constants of each head at the longest length, the number in its cell."""
    rows = _cells(section)
    worst = max(rows, key=lambda row: row["value"])
    which = (
        f"Head {worst['column']} of layer {worst['layer']} is the least smooth at {number(_longest(section))} tokens"
    )
    return heat_map(rows, columns="head", step=40, title=f"{which}: {number(worst['value'])}")


def table(section: Section) -> Numbers:
    """Return a row for each layer."""
    return grid(_cells(section), column="head {}")


def _cells(section: Section) -> Rows:
    longest = _longest(section)
    records = (r for m in section.measurements for r in m.heads if r.ask.length == longest)
    return cells(((r.ask.layer, int(r.ask.map.removeprefix("head:")), r) for r in records), digits=2)


def _longest(section: Section) -> int:
    return max(r.ask.length for m in section.measurements for r in m.heads)
