"""Which pairs of equal masses on the line split: from the formula, so it needs no records."""

import altair as alt

from howsmooth.report.drawing.palette import GREY
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import Numbers
from howsmooth.report.drawing.titles import titled
from howsmooth.report.sections import Section
from howsmooth.search.splitting_map import SplittingMap, splitting_map
from howsmooth.wording import number, percent

SECTIONS, RANK, PER_LAYER = ("splitting",), 10, False
ABOUT = (
    "The plane of two equal masses on the line: coloured where cutting one of them in two moves the output more than "
    "moving both does, the darker the more is gained."
)


def wanted(section: Section) -> bool:
    """Tell whether splitting was looked at."""
    return bool(section.of_kind("splitting"))


def draw(_section: Section) -> Chart:
    """Draw the plane for A = −1."""
    return splitting_chart(_map())


def table(_section: Section) -> Numbers:
    """Return how many pairs split, and what is gained at most."""
    found = _map()
    gain = float((found.split / found.move - 1).clamp_min(0).max())
    cells = (number(found.A), number(found.V), number(found.split.numel()), percent(found.share), percent(gain))
    return Numbers(head=("A", "V", "pairs", "split", "largest gain"), rows=((None, cells),))


def splitting_chart(found: SplittingMap) -> Chart:
    """Draw the plane of two atoms on the line: where splitting beats moving, and by how much."""
    places = found.grid.tolist()
    step = float(found.grid[1] - found.grid[0])
    scale = alt.Scale(domain=[places[0] - step / 2, places[-1] + step / 2], nice=False)
    colour = alt.Color("gain:Q", title="gain", scale=alt.Scale(scheme="oranges"), legend=alt.Legend(format="%"))
    cells = (
        alt.Chart(alt.Data(values=_cells(found, step)))
        .mark_rect()
        .encode(
            x=alt.X("x:Q", title="first atom", scale=scale),
            x2="x2:Q",
            y=alt.Y("y:Q", title="second atom", scale=scale),
            y2="y2:Q",
            color=colour,
        )
    )
    axes = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color=GREY, strokeWidth=0.7)
    cross = (axes.encode(x=alt.X("zero:Q", scale=scale)), axes.encode(y=alt.Y("zero:Q", scale=scale)))
    # a line may not end between a letter and its number
    head = f"(A = {number(found.A)}, V = {number(found.V)})".replace(" ", "\u00a0")
    title = f"Splitting wins for {percent(found.share)} of the pairs {head}"
    return alt.layer(cells, *cross).properties(width=340, height=340, title=titled(title, 340))


def _cells(found: SplittingMap, step: float) -> Rows:
    gain = (found.split / found.move - 1).clamp_min(0)
    places = found.grid.tolist()
    return [
        {"x": x - step / 2, "x2": x + step / 2, "y": y - step / 2, "y2": y + step / 2, "gain": float(gain[i, j])}
        for i, x in enumerate(places)
        for j, y in enumerate(places)
        if gain[i, j] > 0
    ]


def _map() -> SplittingMap:
    return splitting_map(A=-1.0, V=1.0)
