"""The worst case: bounds, searches, and inputs that are built from one head to attain it."""

import math
from collections.abc import Sequence
from statistics import geometric_mean

from howsmooth.models.map_names import MapName
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BOUND, INK, MEASURED, WITNESS, YELLOW
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable, length_axis
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell
from howsmooth.report.sections import Section
from howsmooth.report.sentences import law_in_words, laws_in_words
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.summary import growth_of
from howsmooth.theory.results import Side
from howsmooth.wording import at_least, at_most, interval, number

# What an answer holds, what readers call it, and how it is drawn.
BOUNDS: dict[str, tuple[str, Style]] = {
    "discrete_upper": ("the paper's bound", Style(mark="line", colour=BOUND, dash=(5, 3), width=1.5, side=Side.UPPER)),
    "sharp_upper": ("worst-case bound", Style(mark="line", colour=BOUND, side=Side.UPPER)),
    "tied_pair": ("tied pair attains", Style(mark="dotted line", colour=WITNESS, side=Side.LOWER)),
    "two_point": ("two points attain", Style(mark="dotted line", colour=YELLOW, side=Side.LOWER)),
    "discrete_lower": (
        "the paper's lower bound",
        Style(mark="line", colour=INK, dash=(5, 3), width=1.5, side=Side.LOWER),
    ),
}
ASCENT = "search"
STYLES: Styles = dict(BOUNDS.values()) | {ASCENT: Style(mark="points", colour=MEASURED, side=Side.LOWER)}
SIZE = {"width": 430, "height": 280}
AXES = {"length": "number of tokens n", "radius": "radius R"}
BOUNDS_ABOUT = (
    "What is proven about the worst case, what explicit inputs attain and what a search finds, against {}: the paper's "
    "bounds dashed, ours as lines, inputs as dots."
)
BUILT_ABOUT = (
    "The constant of {}, against the number of tokens: the paper's two points and tied pairs, each with the multiple "
    "of √n that fits best, one panel for each head."
)
BUILT = {"two_point": ("two points", YELLOW), "tied_pair": ("tied pairs", WITNESS)}


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
    title = "The worst case: what is attained"
    if bounds:  # how far the bounds on the worst constant are apart
        ask, answer = bounds[-1].ask, bounds[-1].answer
        ours, paper = (answer.sharp_upper, answer.tied_pair), (answer.discrete_upper, answer.discrete_lower)
        pairs = {"ours": ours, "the paper's": paper}
        gaps = [f"{whose} a factor {number(high / low)}" for whose, (high, low) in pairs.items() if high and low]
        where = f"At n = {number(ask.length)} and R = {number(ask.radius)}"
        title = f"{where} bounds leave: {', '.join(gaps)}" if gaps else title
    return series_panels(rows, STYLES, across=across, title=title, size=SIZE)


def worst_table(section: Section, other: str) -> Numbers:
    """Return a row for each length or radius."""
    found: dict[tuple[int, float], dict[str, float | None]] = {}
    for r in at_commonest(section, other):
        here = found.setdefault((r.ask.length, r.ask.radius), {})
        here |= {ASCENT: r.answer.lower} if r.ask.kind == "ascent" else {n: getattr(r.answer, n) for n in BOUNDS}
    written = {name: at_most if name.endswith("_upper") else at_least for name in (*BOUNDS, ASCENT)}
    rows: list[NumberRow] = [
        (None, (number(n), number(radius), *(cell(here.get(name), written=write) for name, write in written.items())))
        for (n, radius), here in sorted(found.items())
    ]
    return Numbers(head=("tokens", "radius", *(series for series, _style in BOUNDS.values()), ASCENT), rows=rows)


def _bounds_chart(x: str, other: str, at: str, *, rank: int, fewest: int) -> ChartKind:
    return ChartKind(
        name=f"bounds_against_{x}",
        sections=("worst",),
        rank=rank,
        about=BOUNDS_ABOUT.format(at),
        wanted=lambda section: len({getattr(r.ask, x) for r in at_commonest(section, other)}) >= fewest,
        draw=lambda section: worst_chart(section, x, other),
        table=lambda section: worst_table(section, other),
    )


def built_panels(records: Sequence[Record]) -> Chart:
    """Draw a panel for each head that inputs are built from."""
    rows = [row for place, found in heads(records).items() for row in _built_rows(place, found)]
    styles: Styles = {f"c√n, {series}": Style(mark="line", colour=c, dash=(5, 3)) for series, c in BUILT.values()}
    styles |= {series: Style(mark="points", colour=colour) for series, colour in BUILT.values()}
    axis = length_axis(r.ask.length for r in records)
    across, up = "number of tokens n", "local Lipschitz constant"
    said = []
    for name, (series, _colour) in BUILT.items():
        each = heads([r for r in records if r.ask.points == name])
        law = laws_in_words((place, _law(found)) for place, found in each.items())
        said += [f"At {series} the constant {law}"] if law else []
    title = ". ".join(said) or "Inputs built from one head"
    return series_panels(rows, styles, across=across, up=up, axis=axis, title=title)


def built_table(records: Sequence[Record]) -> Numbers:
    """Return a row for each input."""
    rows: list[NumberRow] = []
    for place, found in heads(records).items():
        for r in found:
            bracket = interval(r.answer.lower, r.answer.upper)
            cells = (BUILT[r.ask.points][0], number(r.ask.length), number(r.ask.radius), bracket)
            rows.append((None, (place, *cells)))
    return Numbers(head=("where", "input", "tokens", "radius", "constant"), rows=rows)


def heads(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of inputs that are built from each head, shorter ones first."""
    ordered = sorted(records, key=lambda r: r.ask.length)
    groups = grouped(ordered, lambda r: (r.ask.model, r.ask.layer, r.ask.head))
    return {f"{model}, layer {layer}, head {head}": found for (model, layer, head), found in sorted(groups.items())}


def _built_rows(place: str, found: Sequence[Record]) -> Rows:
    heading, rows = [place], list[dict]()
    for name, (series, _colour) in BUILT.items():
        chosen = [r for r in found if r.ask.points == name and drawable(r.answer.lower)]
        if chosen:
            c = geometric_mean(r.answer.lower / math.sqrt(r.ask.length) for r in chosen)
            law = _law(chosen)
            heading.append(f"{series}: {number(c)}√n" + (f", fit {law_in_words(law)}" if law else ""))
            rows += points(((r.ask.length, r.answer.lower) for r in chosen), series=series)
            lengths = sorted({r.ask.length for r in chosen})
            rows += points(((n, c * math.sqrt(n)) for n in lengths), series=f"c√n, {series}")
    return [row | {"panel": "\n".join(heading)} for row in rows]


def _law(records: Sequence[Record]) -> Growth | None:
    return growth_of((r.ask.length, r.answer.lower) for r in records)


def _built(section: Section, *, on_head: bool) -> list[Record]:
    return [r for r in section.of_kind("extremal") if (MapName.parse(r.ask.map).kind == "head") == on_head]


def _built_chart(name: str, about: str, *, on_head: bool, rank: int) -> ChartKind:
    return ChartKind(
        name=name,
        sections=("adversarial",),
        rank=rank,
        about=BUILT_ABOUT.format(about),
        wanted=lambda section: any(drawable(r.answer.lower) for r in _built(section, on_head=on_head)),
        draw=lambda section: built_panels(_built(section, on_head=on_head)),
        table=lambda section: built_table(_built(section, on_head=on_head)),
    )


CHARTS = (
    _bounds_chart("length", "radius", "the number of tokens, at one radius", rank=10, fewest=1),
    _bounds_chart("radius", "length", "the radius, at one number of tokens", rank=20, fewest=2),
    _built_chart("single_head", "a single head at inputs that are built from it", on_head=True, rank=10),
    _built_chart("whole_layer", "a whole layer at inputs that are built from one of its heads", on_head=False, rank=20),
)
