"""The atoms of the worst measures that were found, on the line."""

from typing import Any

import altair as alt

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, INK
from howsmooth.report.drawing.panels import panels
from howsmooth.report.drawing.places import cases
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import at_least, count, number, percent

# Atoms lighter than this are drawn alike; atoms nearer than this share of the radius are one.
LIGHT, NEAR = 1e-4, 1e-3


def draw(section: Section) -> Chart:
    """Draw a panel for each head and radius."""
    rows: Rows = []
    for case, found in cases(section.of_kind("measures")).items():
        for r in found:
            name = f"{count(r.ask.length, 'atom')}: {at_least(r.answer.lower, 4)}"
            at = {"panel": case, "row": name, "atoms": r.ask.length}
            rows += [at | atom | {"label": _label(atom["mass"])} for atom in merged(r)]
    heaviest = min(max(atom["mass"] for atom in merged(r)) for r in section.of_kind("measures") if merged(r))
    title = f"The worst measures are unbalanced: one place holds {percent(heaviest)} of the mass or more"
    chart = alt.LayerChart(layer=_layers()).properties(width=170, height=alt.Step(46))
    return panels(chart, rows, title=title).resolve_scale(x="independent", y="independent")


def table(section: Section) -> Numbers:
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


def _label(mass: float) -> str:
    """Write a mass that is worth a word; the numbers of light atoms would cover each other."""
    return number(mass, 1) if mass >= LIGHT else ""


def _layers() -> list[Any]:
    sizes = alt.Scale(type="log", domain=[LIGHT, 1], range=[12, 420], clamp=True)
    across = alt.Scale(padding=18, nice=False)
    base = alt.Chart().encode(
        x=alt.X("place:Q", title="place on the line", scale=across, axis=alt.Axis(tickCount=5)),
        y=alt.Y("row:N", title=None, sort=alt.SortField("atoms"), axis=alt.Axis(grid=True, labelLimit=200)),
    )
    legend = alt.Legend(values=[1, 0.1, 0.01, 0.001, 1e-4], format="~g", symbolFillColor=BLUE, symbolStrokeWidth=0)
    size = alt.Size("mass:Q", scale=sizes, legend=legend)
    dots = base.mark_point(filled=True, color=BLUE, opacity=0.75).encode(size=size)
    return [dots, base.mark_text(dy=-15, fontSize=10, color=INK).encode(text="label:N")]


CHARTS = (
    ChartKind(
        name="worst_measures",
        sections=("measures",),
        rank=10,
        about="The atoms of the worst measures that were found on the line, one panel for each head and radius and one "
        "row for each measure: a disc at each place, the larger the heavier; those without a number hold less than "
        "10⁻⁴.",
        wanted=lambda section: any(merged(r) for r in section.of_kind("measures")),
        draw=draw,
        table=table,
    ),
)
