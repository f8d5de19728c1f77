"""The mean constant of each layer at each length."""

from howsmooth.report.drawing.heat_map import cells, grid, heat_map
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.runs.measurement import least_smooth
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER, SHORT = ("measurement",), 30, False, "layers"
ABOUT = "A heat map: the mean constant of each layer at each number of tokens."


def wanted(section: Section) -> bool:
    """Tell whether anything was measured."""
    return any(m.records for m in section.measurements)


def draw(section: Section) -> Chart:
    """Draw the geometric mean of the constants of each layer at each length, the number in its cell."""
    (measured,) = section.measurements
    worst = least_smooth(measured.layers)
    title = f"Layer {worst.layer} is the least smooth at {number(worst.length)} tokens: {number(worst.constant)}"
    if not measured.comparable:
        title = "The layers have no length in common yet"
    return heat_map(_cells(section), columns="number of tokens n", step=58, title=title)


def table(section: Section) -> Numbers:
    """Return a row for each layer."""
    return grid(_cells(section), column="n = {}")


def _cells(section: Section) -> Rows:
    records = (r for m in section.measurements for r in m.records)
    return cells(((r.ask.layer, r.ask.length, r) for r in records), digits=3)
