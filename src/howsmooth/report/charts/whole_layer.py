"""Inputs that are built from one head, on the whole layer."""

from howsmooth.report.drawing.built_inputs import built_panels, built_table
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record

SECTIONS, RANK, PER_LAYER = ("adversarial",), 20, False
ABOUT = (
    "The constant of a whole layer at inputs that are built from one of its heads, against the number of tokens: the "
    "paper's two points and tied pairs, each with the multiple of √n that fits best, one panel for each head."
)


def wanted(section: Section) -> bool:
    """Tell whether an input attains anything on a layer."""
    return any(drawable(r.answer.lower) for r in _records(section))


def draw(section: Section) -> Chart:
    """Draw a panel for each head."""
    return built_panels(_records(section))


def table(section: Section) -> Numbers:
    """Return a row for each input."""
    return built_table(_records(section))


def _records(section: Section) -> list[Record]:
    return [r for r in section.of_kind("extremal") if not r.ask.map.startswith("head:")]
