"""What methods that keep a network smooth give and cost: its roughness against how often it is right."""

from collections.abc import Iterable
from statistics import mean
from typing import Any

from howsmooth.report.drawing.palette import BLUE, GREEN, INK, ORANGE, PINK
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers, cell
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import number, percent

SECTIONS, RANK, PER_LAYER, SHORT = ("training",), 5, False, "methods"
ABOUT = (
    "Classifiers that were trained for equal time: the constant of the whole network, of its attention layers, and "
    "what attacks attain, against the accuracy on held-out sentences; one colour for each method, a dot for each "
    "training. Lower and further right is better."
)
STYLES: Styles = {
    "plain": Style(colour=INK),
    "penalty": Style(colour=BLUE),
    "Frobenius": Style(colour=ORANGE),
    "spectral normalisation": Style(colour=PINK),
    "weight decay": Style(colour=GREEN),
}
PANELS = {
    "network": "constant of the network",
    "attention": "constant of attention layers",
    "attained": "scores moved by pgd / ε",
}
# Of each method and strength the mean over seeds: what the table has.
COLUMNS = ("accuracy", "network", "attention", "attained", "flipped", "swapped", "steps")


def wanted(section: Section) -> bool:
    """Tell whether anything was trained."""
    return any(drawable(r.answer.network) for r in _judged(section))


def draw(section: Section) -> Chart:
    """Draw a panel for each measure of roughness."""
    rows: Rows = []
    for field, panel in PANELS.items():
        for r in _judged(section):
            rows += points([(r.answer.accuracy, getattr(r.answer, field))], series=r.ask.method, panel=panel)
    return series_panels(rows, STYLES, title=_title(section), across="accuracy on held-out sentences", up="roughness")


def table(section: Section) -> Numbers:
    """Return a row for each method and strength."""
    rows: list[NumberRow] = []
    for (method, strength), some in grouped(_judged(section)).items():
        means = {name: mean(getattr(r.answer, name) for r in some) for name in COLUMNS}
        told = [percent(means["accuracy"]), *(cell(means[name], 3) for name in ("network", "attention", "attained"))]
        told += [percent(means["flipped"]), percent(means["swapped"]), number(round(means["steps"]))]
        rows.append((None, (method, number(strength) if strength else "—", str(len(some)), *told)))
    head = ("method", "strength", "seeds", "accuracy", *PANELS.values(), "flipped by pgd", "flipped by a swap", "steps")
    return Numbers(head=head, rows=tuple(rows))


def grouped(records: Iterable[Record[Any, Any]]) -> dict[tuple[str, float], list[Record[Any, Any]]]:
    """Return trainings by method and strength, in the order of the methods."""
    found: dict[tuple[str, float], list[Record[Any, Any]]] = {}
    order = list(STYLES)
    for r in sorted(records, key=lambda r: (order.index(r.ask.method), r.ask.strength, r.ask.seed)):
        found.setdefault((r.ask.method, r.ask.strength), []).append(r)
    return found


def _judged(section: Section) -> list[Record[Any, Any]]:
    return [r for r in section.of_kind("training") if r.ask.method in STYLES and r.answer.accuracy is not None]


def _title(section: Section) -> str:
    groups = grouped(_judged(section))
    right, where = max((mean(r.answer.accuracy for r in some), key) for key, some in groups.items())
    return f"The best accuracy, {percent(right)}, is that of {where[0]}{f' {number(where[1])}' if where[1] else ''}"
