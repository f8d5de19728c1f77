"""Bounds on the worst case, explicit inputs and ascent against the number of tokens, at one radius."""

from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.worst_case import at_commonest, worst_chart, worst_table
from howsmooth.report.sections import Section
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("worst",), 10, False
ABOUT = (
    "What is proven about the worst case, what explicit inputs attain and what a search finds, against the number of "
    "tokens, at one radius: the paper's bounds dashed, ours as lines, inputs as dots."
)


def wanted(section: Section) -> bool:
    """Tell whether there is anything to draw."""
    return len({r.ask.length for r in at_commonest(section, "radius")}) > 0


def draw(section: Section) -> Chart:
    """Draw every length at the commonest radius."""
    records = at_commonest(section, "radius")
    return worst_chart(records, "length", across="number of tokens n", at=f"R = {number(records[0].ask.radius)}")


def table(section: Section) -> Numbers:
    """Return a row for each length."""
    return worst_table(at_commonest(section, "radius"))
