"""Bounds on the worst case, explicit inputs and ascent against the radius, at one number of tokens."""

from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.worst_case import commonest, worst_chart, worst_table
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("worst",), 20, False
ABOUT = (
    "What is proven about the worst case, what explicit inputs attain and what a search finds, against the radius, "
    "at one number of tokens: the paper's bounds dashed, ours as lines, inputs as dots."
)


def wanted(section: Section) -> bool:
    """Tell whether there are several radii."""
    return len({r.ask.radius for r in _records(section)}) > 1


def draw(section: Section) -> Chart:
    """Draw every radius at the commonest length."""
    fixed = commonest(section.of_kind("bounds", "ascent"), "length")
    return worst_chart(_records(section), "radius", across="radius R", at=f"n = {number(fixed)}")


def table(section: Section) -> Numbers:
    """Return a row for each radius."""
    return worst_table(_records(section))


def _records(section: Section) -> list[Record]:
    found = section.of_kind("bounds", "ascent")
    fixed = commonest(found, "length") if found else None
    return [r for r in found if r.ask.length == fixed]
