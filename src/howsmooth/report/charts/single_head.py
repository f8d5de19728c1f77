"""Inputs that are built from one head, on that head alone."""

from howsmooth.report.drawing.built_inputs import built_panels, built_table
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record

SECTIONS, RANK, PER_LAYER = ("adversarial",), 10, False
ABOUT = (
    "The constant of a single head at inputs that are built from it, against the number of tokens: the paper's two "
    "points and tied pairs, each with the multiple of √n that fits best, one panel for each head."
)


def wanted(section: Section) -> bool:
    """Tell whether an input attains anything on a head."""
    return any(drawable(r.answer.lower) for r in _records(section))


def draw(section: Section) -> Chart:
    """Draw a panel for each head."""
    return built_panels(_records(section))


def table(section: Section) -> Numbers:
    """Return a row for each input."""
    return built_table(_records(section))


def _records(section: Section) -> list[Record]:
    return [r for r in section.of_kind("extremal") if r.ask.map.startswith("head:")]
