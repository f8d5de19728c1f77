"""The mean radius of the tokens against the length: do longer windows hold larger tokens?"""

from howsmooth.report.drawing.places import factors, places, radius
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.window_panels import window_panels, window_table
from howsmooth.report.sections import Section

SECTIONS, RANK, PER_LAYER = ("real",), 30, False
ABOUT = (
    "The mean radius of the tokens against their number, one panel for each layer: a dot for each window, and the "
    "geometric mean of all windows of a length."
)


def wanted(section: Section) -> bool:
    """Tell whether a window has a radius."""
    return any(drawable(r.answer.mean_radius) for m in section.measurements for r in m.records)


def draw(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = places(section)
    change = factors([factor for place in found for factor in place.change(radius)])
    title = f"From the shortest to the longest windows the radius changes by {change}"
    return window_panels(found, radius, mark="points", up="mean radius", title=title)


def table(section: Section) -> Numbers:
    """Return a row for each layer and length."""
    return window_table(places(section), radius, "radius")
