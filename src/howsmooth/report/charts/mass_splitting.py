"""Where splitting one token beats moving all: on the line, on text, and by an explicit attack."""

import altair as alt

from howsmooth.models.map_names import MapName
from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREY, PINK
from howsmooth.report.drawing.panels import PANEL, Style, Styles, panels, points, series_panels, titled
from howsmooth.report.drawing.scales import drawable, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows
from howsmooth.report.sections import Section
from howsmooth.search.mass_splitting import SplittingMap, splitting_map
from howsmooth.studies.records import Record, grouped
from howsmooth.wording import at_least, at_most, number, percent

EQUAL, SPLIT, MOVE = "equal", "split one token", "move all tokens"
# What the derivative predicts of each attack, and what it attains.
ATTACKS = {MOVE: ("move", "move_ratio"), SPLIT: ("split", "split_ratio")}
STYLES: Styles = {
    EQUAL: Style(mark="line", colour=GREY, dash=(5, 3), width=1.5),
    MOVE: Style(mark="points", colour=BLUE),
    SPLIT: Style(mark="points", colour=PINK),
}


def table_line(_section: Section) -> Numbers:
    """Return how many pairs split, and what is gained at most."""
    found = splitting_map(A=-1.0, V=1.0)
    gain = float((found.split / found.move - 1).clamp_min(0).max())
    cells = (number(found.A), number(found.V), number(found.split.numel()), percent(found.share), percent(gain))
    return Numbers(head=("A", "V", "pairs", "split", "largest gain"), rows=((None, cells),))


def splitting_chart(found: SplittingMap) -> Chart:
    """Draw the plane of two atoms on the line: where splitting beats moving, and by how much."""
    places, gain = found.grid.tolist(), (found.split / found.move - 1).clamp_min(0)
    step = float(found.grid[1] - found.grid[0])
    rows = [
        {"x": x - step / 2, "x2": x + step / 2, "y": y - step / 2, "y2": y + step / 2, "gain": float(gain[i, j])}
        for i, x in enumerate(places)
        for j, y in enumerate(places)
        if gain[i, j] > 0
    ]
    scale = alt.Scale(domain=[places[0] - step / 2, places[-1] + step / 2], nice=False)
    colour = alt.Color("gain:Q", title="gain", scale=alt.Scale(scheme="oranges"), legend=alt.Legend(format="%"))
    cells = (
        alt.Chart(alt.Data(values=rows))
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


def draw_text(section: Section) -> Chart:
    """Draw a panel for each map."""
    records = section.of_kind("splitting")
    rows: Rows = [
        {"panel": _panel(r), "layer": r.ask.layer, "window": r.ask.window.index, "y": gain(r)}
        for r in sorted(records, key=_order)
        if drawable(gain(r))
    ]
    heights = span_of([1.0, *(row["y"] for row in rows)])
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:Q", title="split / move", scale=log_scale(heights), axis=log_axis(heights))
    told = ["layer:Q", "window:Q", alt.Tooltip("y:Q", title="split / move", format=",.4~r")]
    dots = alt.Chart().mark_point(filled=True, size=28, opacity=0.85, color=BLUE).encode(x=x, y=y, tooltip=told)
    equal = alt.Chart().mark_rule(color=GREY, strokeDash=[5, 3], strokeWidth=1.2)
    equal = equal.encode(y=alt.Y(datum=1, type="quantitative", scale=log_scale(heights)))
    splits = sum(r.answer.splits and r.answer.decided for r in records)
    title = f"Splitting one token beats moving all in {number(splits)} of {number(len(records))} cases"
    return panels(alt.LayerChart(layer=[equal, dots]).properties(**PANEL), rows, title=title)


def table_text(section: Section) -> Numbers:
    """Return a row for each map and layer."""
    groups = grouped(sorted(section.of_kind("splitting"), key=_order), lambda r: (_panel(r), r.ask.layer))
    rows: list[NumberRow] = []
    for (panel, layer), found in groups.items():
        gains = [value for r in found if (value := gain(r)) is not None]
        splits = sum(r.answer.splits and r.answer.decided for r in found)
        numbers = (number(min(gains), 4), number(max(gains), 4)) if gains else ("—", "—")
        rows.append((layer, (panel, str(layer), str(len(found)), str(splits), *numbers)))
    head = ("where", "layer", "windows", "split", "smallest split / move", "largest split / move")
    return Numbers(head=head, rows=rows)


def gain(record: Record) -> float | None:
    """Return how many times more splitting moves the output."""
    return record.answer.split / record.answer.move if record.answer.move else None


def _panel(record: Record) -> str:
    return f"{record.ask.model}, {record.ask.map.replace(':', ' ')}"


def _order(record: Record) -> tuple[str, str, int, int]:
    """Order whole layers before heads, and heads by their number."""
    name = MapName.parse(record.ask.map)
    return record.ask.model, name.kind, name.head or 0, record.ask.layer


def draw_attack(section: Section) -> Chart:
    """Draw both kinds of attack in one panel."""
    rows = _attack_rows(section)
    worst = max(abs(row["y"] / row["x"] - 1) for row in rows)
    ends = span_of([row[name] for row in rows for name in ("x", "y")])
    rows += points(((end, end) for end in ends), panel="", series=EQUAL)
    title = f"The attack attains what the derivative predicts, within {at_most(round(100 * worst, 9), 2)} %"
    size = {"width": 340, "height": 340}
    return series_panels(rows, STYLES, across="predicted", up="attained", title=title, size=size)


def table_attack(section: Section) -> Numbers:
    """Return a row for each window."""
    rows: list[NumberRow] = []
    for r in section.of_kind("splitting"):
        numbers = (at_least(getattr(r.answer, name)) for pair in ATTACKS.values() for name in pair)
        where = (r.ask.model, str(r.ask.layer), r.ask.map, str(r.ask.window.index))
        rows.append((r.ask.layer, (*where, *numbers)))
    head = ("model", "layer", "map", "window", "move: predicted", "attained", "split: predicted", "attained")
    return Numbers(head=head, rows=rows)


def _attack_rows(section: Section) -> Rows:
    rows: Rows = []
    for r in section.of_kind("splitting"):
        for series, (predicted, attained) in ATTACKS.items():
            pair = getattr(r.answer, predicted), getattr(r.answer, attained)
            rows += points([pair], panel="", series=series, layer=r.ask.layer)
    return rows


CHARTS = (
    ChartKind(
        name="splitting_on_the_line",
        sections=("splitting",),
        rank=10,
        about="The plane of two equal masses on the line: coloured where cutting one of them in two moves the output "
        "more than moving both does, the darker the more is gained.",
        wanted=lambda section: bool(section.of_kind("splitting")),
        draw=lambda _section: splitting_chart(splitting_map(A=-1.0, V=1.0)),
        table=table_line,
    ),
    ChartKind(
        name="splitting_on_text",
        sections=("splitting",),
        rank=20,
        about="What splitting one token gains over moving all of them, layer by layer, one panel for each map: a dot "
        "for each window; above the dashed line at 1 it splits.",
        wanted=lambda section: any(drawable(gain(r)) for r in section.of_kind("splitting")),
        draw=draw_text,
        table=table_text,
    ),
    ChartKind(
        name="split_attack",
        sections=("splitting",),
        rank=30,
        about="The ratios of distances that an explicit attack attains, against those that the derivative predicts: a "
        "dot for each window, moving all tokens and splitting one; on the dashed line they are equal.",
        wanted=lambda section: bool(_attack_rows(section)),
        draw=draw_attack,
        table=table_attack,
    ),
)
