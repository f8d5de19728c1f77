"""The true ratios of distances that an attack attains against those that the derivative predicts."""

from collections.abc import Iterable

from howsmooth.report.drawing.palette import BLUE, GREY, PINK
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import span_of
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import at_least, percent

SECTIONS, RANK, PER_LAYER = ("splitting",), 30, False
ABOUT = (
    "The ratios of distances that an explicit attack attains, against those that the derivative predicts: a dot for "
    "each window, moving all tokens and splitting one; on the dashed line they are equal."
)
EQUAL, SPLIT, MOVE = "equal", "split one token", "move all tokens"
STYLES: Styles = {
    EQUAL: Style(mark="line", colour=GREY, dash=(5, 3), width=1.5),
    MOVE: Style(mark="points", colour=BLUE),
    SPLIT: Style(mark="points", colour=PINK),
}


def wanted(section: Section) -> bool:
    """Tell whether an attack attains anything."""
    return bool(_rows(section))


def draw(section: Section) -> Chart:
    """Draw both kinds of attack in one panel."""
    rows = _rows(section)
    worst = max(abs(row["y"] / row["x"] - 1) for row in rows)
    ends = span_of([row[name] for row in rows for name in ("x", "y")])
    rows += points(((end, end) for end in ends), panel="", series=EQUAL)
    title = f"The attack attains what the derivative predicts, within {percent(worst)}"
    size = {"width": 340, "height": 340}
    return series_panels(rows, STYLES, across="predicted", up="attained", title=title, size=size)


def table(section: Section) -> Numbers:
    """Return a row for each window."""
    rows: list[NumberRow] = []
    for r in section.of_kind("splitting"):
        numbers = (at_least(value) for _series, *pair in _pairs(r) for value in pair)
        where = (r.ask.model, str(r.ask.layer), r.ask.map, str(r.ask.window.index))
        rows.append((r.ask.layer, (*where, *numbers)))
    head = ("model", "layer", "map", "window", "move: predicted", "attained", "split: predicted", "attained")
    return Numbers(head=head, rows=tuple(rows))


def _rows(section: Section) -> Rows:
    found = ((r, pair) for r in section.of_kind("splitting") for pair in _pairs(r))
    return [
        row
        for r, (series, *pair) in found
        for row in points([(pair[0], pair[1])], panel="", series=series, layer=r.ask.layer)
    ]


def _pairs(record: Record) -> Iterable[tuple[str, float, float]]:
    answer = record.answer
    return (MOVE, answer.move, answer.move_ratio), (SPLIT, answer.split, answer.split_ratio)
