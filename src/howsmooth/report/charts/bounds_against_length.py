"""Bounds on the worst case, explicit inputs and ascent against the number of tokens, at one radius."""

from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.worst_case import commonest, worst_chart, worst_table
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("worst",), 10, False
ABOUT = (
    "What is proven about the worst case, what explicit inputs attain and what a search finds, against the number of "
    "tokens, at one radius: the paper's bounds dashed, ours as lines, inputs as dots."
)


def wanted(section: Section) -> bool:
    """Tell whether there is anything to draw."""
    return len({r.ask.length for r in _records(section)}) > 0


def draw(section: Section) -> Chart:
    """Draw every length at the commonest radius."""
    fixed = commonest(section.of_kind("bounds", "ascent"), "radius")
    return worst_chart(_records(section), "length", across="number of tokens n", at=f"R = {number(fixed)}")


def table(section: Section) -> Numbers:
    """Return a row for each length."""
    return worst_table(_records(section))


def _records(section: Section) -> list[Record]:
    found = section.of_kind("bounds", "ascent")
    fixed = commonest(found, "radius") if found else None
    return [r for r in found if r.ask.radius == fixed]
