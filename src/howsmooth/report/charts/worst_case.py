"""Bounds on the worst case, explicit inputs and ascent, against the number of tokens or the radius."""

from collections.abc import Callable

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, INK, PINK, YELLOW
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.theory.results import Side
from howsmooth.wording import at_least, at_most, number

# What an answer holds, what readers call it, and how it is drawn.
BOUNDS: dict[str, tuple[str, Style]] = {
    "discrete_upper": ("the paper's bound", Style(mark="line", colour=GREY, dash=(5, 3), width=1.5)),
    "sharp_upper": ("worst-case bound", Style(mark="line", colour=BLUE)),
    "tied_pair": ("tied pair attains", Style(mark="dotted line", colour=GREEN, side=Side.LOWER)),
    "two_point": ("two points attain", Style(mark="dotted line", colour=YELLOW, side=Side.LOWER)),
    "discrete_lower": ("the paper's lower bound", Style(mark="line", colour=PINK, dash=(5, 3), width=1.5)),
}
ASCENT = "search"
STYLES: Styles = dict(BOUNDS.values()) | {ASCENT: Style(mark="points", colour=INK, side=Side.LOWER)}
SIZE = {"width": 430, "height": 280}
AXES = {"length": "number of tokens n", "radius": "radius R"}
ABOUT = (
    "What is proven about the worst case, what explicit inputs attain and what a search finds, against {}: the paper's "
    "bounds dashed, ours as lines, inputs as dots."
)


def at_commonest(section: Section, field: str) -> list[Record]:
    """Return the bounds and searches at the length or the radius that most bounds are about."""
    records = section.of_kind("bounds", "ascent")
    values = [getattr(r.ask, field) for r in records if r.ask.kind == "bounds"]
    values = values or [getattr(r.ask, field) for r in records]
    most = max(sorted(set(values)), key=values.count, default=None)
    return [r for r in records if getattr(r.ask, field) == most]


def worst_chart(section: Section, x: str, other: str) -> Chart:
    """Draw what is known against ``x``, the length or the radius, at the commonest value of the other one."""
    records = at_commonest(section, other)
    across, letter = AXES[x], AXES[other][-1]
    at = f"{letter} = {number(getattr(records[0].ask, other))}"
    rows: Rows = points(
        ((getattr(r.ask, x), r.answer.lower) for r in records if r.ask.kind == "ascent"), series=ASCENT, panel=at
    )
    bounds = sorted((r for r in records if r.ask.kind == "bounds"), key=lambda r: getattr(r.ask, x))
    for name, (series, _style) in BOUNDS.items():
        rows += points(((getattr(r.ask, x), getattr(r.answer, name)) for r in bounds), series=series, panel=at)
    title = _gap(bounds[-1]) if bounds else "The worst case: what is attained"
    return series_panels(rows, STYLES, across=across, title=title, size=SIZE)


def worst_table(section: Section, other: str) -> Numbers:
    """Return a row for each length or radius."""
    found: dict[tuple[int, float], dict[str, float | None]] = {}
    for r in at_commonest(section, other):
        here = found.setdefault((r.ask.length, r.ask.radius), {})
        here |= {ASCENT: r.answer.lower} if r.ask.kind == "ascent" else {n: getattr(r.answer, n) for n in BOUNDS}
    rows: list[NumberRow] = [
        (
            None,
            (number(n), number(radius), *(cell(here.get(name), written=_written(name)) for name in (*BOUNDS, ASCENT))),
        )
        for (n, radius), here in sorted(found.items())
    ]
    return Numbers(head=("tokens", "radius", *(series for series, _style in BOUNDS.values()), ASCENT), rows=rows)


def _written(name: str) -> Callable[[float, int], str]:
    return at_most if name.endswith("_upper") else at_least


def _gap(record: Record) -> str:
    """Say how far the bounds on the worst constant are apart."""
    answer = record.answer
    paper = answer.discrete_upper, answer.discrete_lower
    pairs = {"ours": (answer.sharp_upper, answer.tied_pair), "the paper's": paper}
    gaps = [f"{whose} a factor {number(high / low)}" for whose, (high, low) in pairs.items() if high and low]
    said = f"At n = {number(record.ask.length)} and R = {number(record.ask.radius)} bounds leave: {', '.join(gaps)}"
    return said if gaps else "The worst case: what is attained"


def _chart(x: str, other: str, at: str, *, rank: int, fewest: int) -> ChartKind:
    return ChartKind(
        name=f"bounds_against_{x}",
        sections=("worst",),
        rank=rank,
        about=ABOUT.format(at),
        wanted=lambda section: len({getattr(r.ask, x) for r in at_commonest(section, other)}) >= fewest,
        draw=lambda section: worst_chart(section, x, other),
        table=lambda section: worst_table(section, other),
    )


CHARTS = (
    _chart("length", "radius", "the number of tokens, at one radius", rank=10, fewest=1),
    _chart("radius", "length", "the radius, at one number of tokens", rank=20, fewest=2),
)
