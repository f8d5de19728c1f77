"""How the constant of each window changes as it grows at its place."""

from howsmooth.report.drawing.places import Place, Value, factors, places
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.window_panels import window_panels, window_table
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord

SECTIONS, RANK, PER_LAYER = ("robustness",), 10, False
ABOUT = (
    "How the constant changes as windows grow at the same places of a text, relative to the shortest: a thread for "
    "each window, and their geometric mean, one panel for each layer."
)


def wanted(section: Section) -> bool:
    """Tell whether a window attains something at its shortest length."""
    found = places(section)
    relative = relative_to_the_shortest(found)
    return any(relative(r) is not None for place in found for r in place.records)


def draw(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = places(section)
    relative = relative_to_the_shortest(found)
    change = factors([factor for place in found for factor in place.change(relative)])
    title = f"As windows grow in place, the constant changes by {change}"
    return window_panels(found, relative, mark="threads", up="relative to the shortest", title=title)


def table(section: Section) -> Numbers:
    """Return a row for each layer and length."""
    found = places(section)
    return window_table(found, relative_to_the_shortest(found), "ratio")


def relative_to_the_shortest(found: list[Place]) -> Value:
    """Return what divides the constant of a window by that of the same window at the shortest length of its layer."""
    first = {_window(r): r.answer.lower for place in found for r in place.records if r.ask.length == place.lengths[0]}

    def relative(record: TextRecord) -> float | None:
        start = first.get(_window(record))
        return record.answer.lower / start if start is not None and drawable(start) else None

    return relative


def _window(record: TextRecord) -> tuple[str, str, int, int]:
    return record.ask.model, record.ask.map, record.ask.layer, record.ask.window.index
