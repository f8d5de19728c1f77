"""All regimes in one: the constant in units of its plateau against the length in units of the crossing."""

from collections.abc import Sequence
from statistics import median

from howsmooth.report.drawing.cases import cases
from howsmooth.report.drawing.palette import GREY, HUES
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.studies.runs.summary import growth_of
from howsmooth.wording import exponent, number

SECTIONS, RANK, PER_LAYER = ("transition",), 20, False
ABOUT = (
    "The worst constant that was found in units of what measures attain, against the number of tokens in units of the "
    "crossing n*: a line for each head and radius, and √(n/n*), then 1, as a guide."
)
GUIDE = "√(n/n*), then 1"
# How far from the crossing the transition is drawn, and how far its two laws are read off.
FAR, CLEAR = 1e4, 10.0


def wanted(section: Section) -> bool:
    """Tell whether a length is near its crossing."""
    return bool(_scaled(_records(section)))


def draw(section: Section) -> Chart:
    """Draw a line for each head and radius."""
    records = _records(section)
    rows: Rows = []
    for case, found in cases(records).items():
        rows += points(_scaled(found), panel="", series=case)
    hues = {case: HUES[i % len(HUES)] for i, case in enumerate(dict.fromkeys(row["series"] for row in rows))}
    along = sorted({1.0, *(row["x"] for row in rows)})
    rows += points(((x, min(x, 1.0) ** 0.5) for x in along), panel="", series=GUIDE)
    styles: Styles = {GUIDE: Style(mark="line", colour=GREY, dash=(5, 3), width=1.5)}
    styles |= {case: Style(mark="dotted line", colour=hue, width=1.5) for case, hue in hues.items()}
    size, up = {"width": 460, "height": 280}, "constant / plateau"
    return series_panels(rows, styles, across="n / n*", up=up, title=_title(records), size=size)


def table(section: Section) -> Numbers:
    """Return a row for each head, radius and length near its crossing."""
    rows: list[NumberRow] = []
    for case, found in cases(_records(section)).items():
        rows += [(None, (case, number(x), number(y))) for x, y in _scaled(found)]
    return Numbers(head=("head and radius", "n / n*", "constant / plateau"), rows=tuple(rows))


def _scaled(records: Sequence[Record]) -> list[tuple[float, float]]:
    pairs = [(r.ask.length / r.answer.crossing, r.answer.lower / r.answer.plateau) for r in records]
    return [(x, y) for x, y in pairs if 1 / FAR <= x <= FAR and drawable(y)]


def _records(section: Section) -> list[Record]:
    """Return what has a crossing and a plateau that fit a float."""
    return [r for r in section.of_kind("regimes") if r.answer.crossing and r.answer.plateau]


def _title(records: Sequence[Record]) -> str:
    before = [
        growth_of((r.ask.length, r.answer.lower) for r in found if r.ask.length * CLEAR < r.answer.crossing)
        for found in cases(records).values()
    ]
    slopes = [law.exponent for law in before if law is not None]
    after = [r.answer.lower / r.answer.plateau for r in records if r.ask.length > CLEAR * r.answer.crossing]
    ends = " to ".join(dict.fromkeys(f"n^{exponent(end)}" for end in (min(slopes), max(slopes)))) if slopes else ""
    said = [f"well below n* the constant grows like {ends}"] if slopes else []
    said += [f"well above it is {number(median(after), 2)} of the plateau"] if after else []
    words = "; ".join(said) or "the constant around the crossing"
    return words[0].upper() + words[1:]
