"""The worst constant from few tokens to measures: between the bound for so many tokens and what measures attain."""

import math
from collections.abc import Sequence

from howsmooth.report.drawing.cases import cases
from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, ORANGE
from howsmooth.report.drawing.panels import PANEL, Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers, cell
from howsmooth.report.sections import Section
from howsmooth.search.regimes import Regimes
from howsmooth.studies.kinds.regimes import Answer
from howsmooth.theory.results import Side
from howsmooth.wording import at_least, at_most, number, percent

SECTIONS, RANK, PER_LAYER = ("regimes",), 10, False
ABOUT = (
    "The worst constant that was found against the number of tokens, one panel for each head and radius: below the "
    "bound for so many tokens, and from the crossing n* on near what measures attain."
)
UPPER, FOUND, PLATEAU, CROSSING = "worst-case bound", "worst found", "measures attain", "crossing n*"
STYLES: Styles = {
    UPPER: Style(mark="line", colour=BLUE),
    PLATEAU: Style(mark="line", colour=GREEN, dash=(5, 3)),
    CROSSING: Style(mark="rule", colour=GREY, dash=(2, 3)),
    FOUND: Style(mark="dotted line", colour=ORANGE, side=Side.LOWER),
}
ACROSS = "number of tokens n"
ALONE = {"width": 480, "height": 300}


def wanted(section: Section) -> bool:
    """Tell whether anything was found."""
    return any(drawable(r.answer.lower) for r in section.of_kind("regimes"))


def draw(section: Section) -> Chart:
    """Draw a panel for each head and radius."""
    records = section.of_kind("regimes")
    shares = [r.answer.lower / r.answer.upper for r in records if r.answer.upper] or [0.0]
    title = f"The worst found lies between {percent(min(shares))} and {percent(max(shares))} of the worst-case bound"
    found = {case: [(r.ask.length, r.answer) for r in some] for case, some in cases(records).items()}
    return _panels(found, title=title, size=PANEL)


def regimes_chart(found: Regimes) -> Chart:
    """Draw the regimes of one head by itself."""
    plateau = None if found.lower is None else found.lower.value
    answers = [
        (
            row.n,
            Answer(
                lower=row.found, upper=row.upper.value, crossing=found.crossing, plateau=plateau, measures_upper=None
            ),
        )
        for row in found.rows
    ]
    case = f"R = {number(found.radius)}"
    if found.crossing is None:  # no theorem says where it stops
        title = "The worst constant that a search found, below the bound for so many tokens"
        return series_panels(_lines(case, answers), STYLES, across=ACROSS, title=title, size=ALONE)
    title = "The worst constant rises with the number of tokens until measures attain it"
    return _panels({case: answers}, title=title, size=ALONE)


def table(section: Section) -> Numbers:
    """Return a row for each head, radius and length."""
    rows: list[NumberRow] = []
    for case, found in cases(section.of_kind("regimes")).items():
        for r in found:
            answer = r.answer
            attained, plateau = (cell(value, written=at_least) for value in (answer.lower, answer.plateau))
            numbers = (attained, cell(answer.upper, written=at_most), plateau, cell(answer.crossing))
            rows.append((None, (case, number(r.ask.length), *numbers)))
    return Numbers(head=("head and radius", "tokens", FOUND, UPPER, PLATEAU, CROSSING), rows=tuple(rows))


def _panels(found: dict[str, list[tuple[int, Answer]]], *, title: str, size: dict[str, int]) -> Chart:
    rows = [row for case, answers in found.items() for row in _rows(case, answers)]
    return series_panels(rows, STYLES, across=ACROSS, title=title, size=size)


def _lines(panel: str, answers: Sequence[tuple[int, Answer]]) -> Rows:
    rows: Rows = points(((n, a.upper) for n, a in answers), panel=panel, series=UPPER)
    rows += points(((n, a.plateau) for n, a in answers), panel=panel, series=PLATEAU)
    rows += points(((n, a.lower) for n, a in answers), panel=panel, series=FOUND)
    return rows


def _rows(case: str, answers: Sequence[tuple[int, Answer]]) -> Rows:
    # none where it does not fit a float
    crossing = answers[0][1].crossing or math.inf
    panel = f"{case}: n* ≈ {number(crossing)}"
    rows = _lines(panel, answers)
    # where the lengths reach it
    if answers[0][0] <= crossing <= answers[-1][0]:
        rows.append({"x": crossing, "panel": panel, "series": CROSSING})
    return rows
