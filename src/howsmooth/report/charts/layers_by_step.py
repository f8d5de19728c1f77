"""The constant of each layer at each step that a monitor looked at."""

from howsmooth.report.drawing.heat_map import cells, grid, heat_map
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.sections import Section
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("training",), 20, False
ABOUT = "A heat map: the constant of each layer at each training step that was looked at, at most sixteen of them."
# A wider map does not fit a page.
MOST = 16


def wanted(section: Section) -> bool:
    """Tell whether a monitor measured anything."""
    return any(drawable(r.answer.lower) for r in section.of_kind("monitor"))


def draw(section: Section) -> Chart:
    """Draw the constants, the number in its cell."""
    rows = _cells(section)
    worst = max(rows, key=lambda row: row["value"])
    title = f"Layer {worst['layer']} is the least smooth, at step {number(worst['column'])}: {number(worst['value'])}"
    return heat_map(rows, columns="training step", step=58, title=title)


def table(section: Section) -> Numbers:
    """Return a row for each layer."""
    return grid(_cells(section), column="step {}")


def _cells(section: Section) -> Rows:
    records = [r for r in section.of_kind("monitor") if r.answer.lower is not None]
    steps = sorted({r.ask.step for r in records})
    every = -(-len(steps) // MOST)
    shown = {*steps[::-1][::every]}  # the last one always
    return cells(((r.ask.layer, r.ask.step, r) for r in records if r.ask.step in shown), digits=3)
