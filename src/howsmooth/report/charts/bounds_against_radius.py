"""Bounds on the worst case, explicit inputs and ascent against the radius, at one number of tokens."""

from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.worst_case import at_commonest, worst_chart, worst_table
from howsmooth.report.sections import Section
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("worst",), 20, False
ABOUT = (
    "What is proven about the worst case, what explicit inputs attain and what a search finds, against the radius, "
    "at one number of tokens: the paper's bounds dashed, ours as lines, inputs as dots."
)


def wanted(section: Section) -> bool:
    """Tell whether there are several radii."""
    return len({r.ask.radius for r in at_commonest(section, "length")}) > 1


def draw(section: Section) -> Chart:
    """Draw every radius at the commonest length."""
    records = at_commonest(section, "length")
    return worst_chart(records, "radius", across="radius R", at=f"n = {number(records[0].ask.length)}")


def table(section: Section) -> Numbers:
    """Return a row for each radius."""
    return worst_table(at_commonest(section, "length"))
