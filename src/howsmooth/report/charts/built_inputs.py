"""The constant at inputs built from one head, with the best fitting multiple of √n: on the head, and on its layer."""

import math
from collections.abc import Sequence
from statistics import geometric_mean

from howsmooth.models.map_names import MapName
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, ORANGE
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.places import law_in_words, laws_in_words
from howsmooth.report.drawing.scales import drawable, length_axis
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.studies.runs.growth import Growth
from howsmooth.studies.runs.summary import growth_of
from howsmooth.wording import interval, number

ABOUT = (
    "The constant of {}, against the number of tokens: the paper's two points and tied pairs, each with the multiple "
    "of √n that fits best, one panel for each head."
)
BUILT = {"two_point": ("two points", ORANGE), "tied_pair": ("tied pairs", BLUE)}


def built_panels(records: Sequence[Record]) -> Chart:
    """Draw a panel for each head that inputs are built from."""
    rows = [row for place, found in heads(records).items() for row in _rows(place, found)]
    styles: Styles = {f"c√n, {series}": Style(mark="line", colour=c, dash=(5, 3)) for series, c in BUILT.values()}
    styles |= {series: Style(mark="points", colour=colour) for series, colour in BUILT.values()}
    axis = length_axis(r.ask.length for r in records)
    across, up = "number of tokens n", "local Lipschitz constant"
    return series_panels(rows, styles, across=across, up=up, axis=axis, title=_title(records))


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
    groups: dict[tuple[str, int, int], list[Record]] = {}
    for r in sorted(records, key=lambda r: r.ask.length):
        groups.setdefault((r.ask.model, r.ask.layer, r.ask.head), []).append(r)
    return {f"{model}, layer {layer}, head {head}": found for (model, layer, head), found in sorted(groups.items())}


def _rows(place: str, found: Sequence[Record]) -> Rows:
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


def _title(records: Sequence[Record]) -> str:
    said = []
    for name, (series, _colour) in BUILT.items():
        each = heads([r for r in records if r.ask.points == name])
        law = laws_in_words((place, _law(found)) for place, found in each.items())
        said += [f"At {series} the constant {law}"] if law else []
    return ". ".join(said) or "Inputs built from one head"


def _records(section: Section, *, on_head: bool) -> list[Record]:
    return [r for r in section.of_kind("extremal") if (MapName.parse(r.ask.map).kind == "head") == on_head]


def _chart(name: str, about: str, *, on_head: bool, rank: int) -> ChartKind:
    return ChartKind(
        name=name,
        sections=("adversarial",),
        rank=rank,
        about=ABOUT.format(about),
        wanted=lambda section: any(drawable(r.answer.lower) for r in _records(section, on_head=on_head)),
        draw=lambda section: built_panels(_records(section, on_head=on_head)),
        table=lambda section: built_table(_records(section, on_head=on_head)),
    )


CHARTS = (
    _chart("single_head", "a single head at inputs that are built from it", on_head=True, rank=10),
    _chart("whole_layer", "a whole layer at inputs that are built from one of its heads", on_head=False, rank=20),
)
