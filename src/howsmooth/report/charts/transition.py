"""From few tokens to measures: the worst constant of each head, all in units of the crossing, the worst measures."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, BOUND, GREY, HUES, INK, MEASURED, WITNESS
from howsmooth.report.drawing.panels import PANEL, Style, Styles, panels, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell, extent
from howsmooth.report.sections import Section
from howsmooth.search.length_regimes import Regimes
from howsmooth.studies.asks import AboutHead, Matrix
from howsmooth.studies.kinds.tokens_in_ball import RegimesAnswer, by_head
from howsmooth.studies.records import Record
from howsmooth.studies.runs.summary import growth_of
from howsmooth.theory.results import Side
from howsmooth.wording import at_least, at_most, count, exponent, number, percent

UPPER, FOUND, PLATEAU, CROSSING = "worst-case bound", "worst found", "measures attain", "crossing n*"
STYLES: Styles = {
    UPPER: Style(mark="line", colour=BOUND, side=Side.UPPER),
    PLATEAU: Style(mark="line", colour=WITNESS, dash=(5, 3), side=Side.LOWER),
    CROSSING: Style(mark="rule", colour=GREY, dash=(2, 3)),
    FOUND: Style(mark="dotted line", colour=MEASURED, side=Side.LOWER),
}
ACROSS = "number of tokens n"
ALONE = {"width": 480, "height": 300}
GUIDE = "√(n/n*), then 1"
# How far from the crossing the transition is drawn, and how far its two laws are read off.
FAR, CLEAR = 1e4, 10.0
# Atoms lighter than this are drawn alike; atoms nearer than this share of the radius are one.
LIGHT, NEAR = 1e-4, 1e-3


def cases(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each head and radius by what to call them, shorter ones first."""
    heads = by_head(records)
    names = [_case_name(found[0].ask) for found in heads]
    # matrices of one size have one name
    return {
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})": found
        for i, (name, found) in enumerate(zip(names, heads, strict=True))
    }


def _case_name(ask: AboutHead) -> str:
    head = f"{ask.model}, layer {ask.layer}, {ask.map}" if ask.model else f"A = {_matrix(ask.A)}"
    return f"{head}, R = {number(ask.radius)}"


def _matrix(A: Matrix) -> str:
    """Write a multiple of the identity as such, and of any other matrix its size."""
    d = len(A)
    a = A[0][0] if A else 0.0
    multiple = all(value == (a if i == j else 0.0) for i, row in enumerate(A) for j, value in enumerate(row))
    return number(a) if d == 1 else f"{number(a)}·I ({d}×{d})" if multiple else f"{d}×{d}"


def draw_regimes(section: Section) -> Chart:
    """Draw a panel for each head and radius."""
    records = section.of_kind("regimes")
    shares = [r.answer.lower / r.answer.upper for r in records if r.answer.upper]
    title = "The worst constant that was found"
    if shares:
        title += f" is {extent(shares, percent)} of the worst-case bound"
    found = {case: [(r.ask.length, r.answer) for r in some] for case, some in cases(records).items()}
    rows = [row for case, answers in found.items() for row in _rows(case, answers)]
    return series_panels(rows, STYLES, across=ACROSS, title=title, size=PANEL)


def regimes_chart(found: Regimes) -> Chart:
    """Draw the regimes of one head by itself."""
    plateau = None if found.lower is None else found.lower.value
    known = {"crossing": found.crossing, "plateau": plateau, "measures_upper": None}
    ordered = sorted(found.rows, key=lambda row: row.n)
    answers = [(row.n, RegimesAnswer(lower=row.found, upper=row.upper.value, **known)) for row in ordered]
    rows = _rows(f"R = {number(found.radius)}", answers)
    return series_panels(rows, STYLES, across=ACROSS, title=found.headline, size=ALONE)


def table_regimes(section: Section) -> Numbers:
    """Return a row for each head, radius and length."""
    rows: list[NumberRow] = []
    for case, found in cases(section.of_kind("regimes")).items():
        for r in found:
            answer = r.answer
            attained, plateau = (cell(value, written=at_least) for value in (answer.lower, answer.plateau))
            numbers = (attained, cell(answer.upper, written=at_most), plateau, cell(answer.crossing))
            rows.append((None, (case, number(r.ask.length), *numbers)))
    return Numbers(head=("head and radius", "tokens", FOUND, UPPER, PLATEAU, CROSSING), rows=rows)


def _rows(case: str, answers: Sequence[tuple[int, RegimesAnswer]]) -> Rows:
    # none where it is not known, or does not fit a float
    crossing = answers[0][1].crossing or math.inf
    panel = f"{case}: n* ≈ {number(crossing)}" if crossing < math.inf else case
    rows: Rows = []
    for name, field in ((UPPER, "upper"), (PLATEAU, "plateau"), (FOUND, "lower")):
        rows += points([(n, getattr(answer, field)) for n, answer in answers], panel=panel, series=name)
    # where the lengths reach it
    if answers[0][0] <= crossing <= answers[-1][0]:
        rows.append({"x": crossing, "panel": panel, "series": CROSSING})
    return rows


def draw_transition(section: Section) -> Chart:
    """Draw a line for each head and radius."""
    records = _crossing(section)
    rows: Rows = []
    for case, found in cases(records).items():
        rows += points(_scaled(found), panel="", series=case)
    hues = {case: HUES[i % len(HUES)] for i, case in enumerate(dict.fromkeys(row["series"] for row in rows))}
    along = sorted({1.0, *(row["x"] for row in rows)})
    rows += points(((x, min(x, 1.0) ** 0.5) for x in along), panel="", series=GUIDE)
    styles: Styles = {GUIDE: Style(mark="line", colour=GREY, dash=(5, 3), width=1.5)}
    styles |= {case: Style(mark="dotted line", colour=hue, width=1.5) for case, hue in hues.items()}
    size, up = {"width": 460, "height": 280}, "constant / plateau"
    return series_panels(rows, styles, across="n / n*", up=up, title=_transition_title(records), size=size)


def table_transition(section: Section) -> Numbers:
    """Return a row for each head, radius and length near its crossing."""
    groups = cases(_crossing(section))
    rows = [(None, (case, number(x), number(y))) for case, found in groups.items() for x, y in _scaled(found)]
    return Numbers(head=("head and radius", "n / n*", "constant / plateau"), rows=rows)


def _scaled(records: Sequence[Record]) -> list[tuple[float, float]]:
    pairs = [(r.ask.length / r.answer.crossing, r.answer.lower / r.answer.plateau) for r in records]
    return [(x, y) for x, y in pairs if 1 / FAR <= x <= FAR and drawable(y)]


def _crossing(section: Section) -> list[Record]:
    """Return what has a crossing and a plateau that fit a float."""
    every = (r for found in by_head(section.of_kind("regimes")) for r in found)
    return [r for r in every if r.answer.crossing and r.answer.plateau]


def _transition_title(records: Sequence[Record]) -> str:
    before = [
        growth_of((r.ask.length, r.answer.lower) for r in found if r.ask.length * CLEAR < r.answer.crossing)
        for found in cases(records).values()
    ]
    slopes = [law.exponent for law in before if law is not None]
    after = [r.answer.lower / r.answer.plateau for r in records if r.ask.length > CLEAR * r.answer.crossing]
    said = []
    if slopes:
        ends = extent(slopes, lambda slope: f"n^{exponent(slope)}")
        said.append(f"well below n* the worst found {'grows' if min(slopes) > 0 else 'changes'} like {ends}")
    said += [f"well above it is {extent(after, functools.partial(number, digits=2))} of the plateau"] if after else []
    words = "; ".join(said) or "the constant around the crossing"
    return words[0].upper() + words[1:]


def draw_measures(section: Section) -> Chart:
    """Draw a panel for each head and radius."""
    rows: Rows = []
    for case, found in cases(section.of_kind("measures")).items():
        for r in found:
            name = f"{count(r.ask.length, 'atom')}: {at_least(r.answer.lower, 4)}"
            at = {"panel": case, "row": name, "atoms": r.ask.length}
            for atom in merged(r):  # the numbers of light atoms would cover each other
                rows.append(at | atom | {"label": number(atom["mass"], 1) if atom["mass"] >= LIGHT else ""})
    heaviest = min(max(atom["mass"] for atom in merged(r)) for r in section.of_kind("measures") if merged(r))
    share = at_least(round(100 * heaviest, 9), 4)
    title = f"In each of the worst measures one place holds at least {share} % of the mass"
    chart = alt.LayerChart(layer=_measure_layers()).properties(width=170, height=alt.Step(46))
    return panels(chart, rows, title=title).resolve_scale(x="independent", y="independent")


def table_measures(section: Section) -> Numbers:
    """Return a row for each atom of each measure."""
    rows: list[NumberRow] = []
    for case, found in cases(section.of_kind("measures")).items():
        for r in found:
            for atom in merged(r):
                cells = (number(r.ask.length), at_least(r.answer.lower, 4), number(atom["place"]), number(atom["mass"]))
                rows.append((None, (case, *cells)))
    return Numbers(head=("head and radius", "atoms", "constant", "place", "mass"), rows=rows)


def merged(record: Record) -> list[dict[str, float]]:
    """Return the places of a measure with their masses; atoms at one place are one."""
    places: list[dict[str, float]] = []
    for atom in record.answer.atoms:
        same = [known for known in places if abs(known["place"] - atom.coordinate) <= NEAR * record.ask.radius]
        if same:
            same[0]["mass"] += atom.mass
        elif atom.mass > 0:
            places.append({"place": atom.coordinate, "mass": atom.mass})
    return places


def _measure_layers() -> list[Any]:
    sizes = alt.Scale(type="log", domain=[LIGHT, 1], range=[12, 420], clamp=True)
    across = alt.Scale(padding=18, nice=False)
    base = alt.Chart().encode(
        x=alt.X("place:Q", title="place on the line", scale=across, axis=alt.Axis(tickCount=5)),
        y=alt.Y("row:N", title=None, sort=alt.SortField("atoms"), axis=alt.Axis(grid=True, labelLimit=200)),
    )
    legend = alt.Legend(values=[1, 0.1, 0.01, 0.001, 1e-4], format="~g", symbolFillColor=BLUE, symbolStrokeWidth=0)
    size = alt.Size("mass:Q", scale=sizes, legend=legend)
    dots = base.mark_point(filled=True, color=BLUE, opacity=0.75).encode(size=size)
    return [dots, base.mark_text(dy=-15, fontSize=11, color=INK).encode(text="label:N")]


CHARTS = (
    ChartKind(
        name="regimes",
        sections=("regimes",),
        rank=10,
        about="The worst constant that was found against the number of tokens, one panel for each head and radius: "
        "below the bound for so many tokens and what measures attain. At the crossing n* one token is the lightest "
        "atom of the measure that attains most.",
        wanted=lambda section: any(drawable(r.answer.lower) for r in section.of_kind("regimes")),
        draw=draw_regimes,
        table=table_regimes,
    ),
    ChartKind(
        name="transition",
        sections=("transition",),
        rank=20,
        about="The worst constant that was found in units of what measures attain, against the number of tokens in "
        "units of the crossing n*: a line for each head and radius, and √(n/n*), then 1, as a guide.",
        wanted=lambda section: bool(_scaled(_crossing(section))),
        draw=draw_transition,
        table=table_transition,
    ),
    ChartKind(
        name="worst_measures",
        sections=("measures",),
        rank=10,
        about="The atoms of the worst measures that were found on the line, one panel for each head and radius and one "
        "row for each measure: a disc at each place, the larger the heavier; those without a number hold less than "
        "10⁻⁴.",
        wanted=lambda section: any(merged(r) for r in section.of_kind("measures")),
        draw=draw_measures,
        table=table_measures,
    ),
)
