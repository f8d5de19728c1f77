"""On how many tokens the worst perturbation rests."""

from howsmooth.report.drawing.places import Place, places
from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.window_panels import window_panels, window_table
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.wording import number

SECTIONS, RANK, PER_LAYER = ("robustness",), 20, False
ABOUT = (
    "On how many tokens the worst perturbation rests, 1/Σs² for shares s, against the number of tokens: a thread for "
    "each window, and their geometric mean, one panel for each layer."
)


def wanted(section: Section) -> bool:
    """Tell whether the shares of the tokens are kept."""
    return any(effective(r) for m in section.measurements for r in m.records)


def draw(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = places(section)
    return window_panels(found, effective, mark="threads", up="effective number of tokens", title=_title(found))


def table(section: Section) -> Numbers:
    """Return a row for each layer and length."""
    return window_table(places(section), effective, "number of tokens")


def effective(record: TextRecord) -> float | None:
    """Return how many equal shares would be as spread out, if shares are kept."""
    squares = sum(share**2 for share in record.answer.sensitivity)
    return 1 / squares if squares else None


def _title(found: list[Place]) -> str:
    records = [r for place in found for r in place.records if effective(r)]
    longest = max(r.ask.length for r in records)
    numbers = [v for r in records if r.ask.length == longest and (v := effective(r))]
    ends = " to ".join(dict.fromkeys(number(end) for end in (min(numbers), max(numbers))))
    return f"At n = {number(longest)} the worst perturbation rests on {ends} tokens"
