"""Logarithmic panels side by side, and what they show of worst cases: bounds, regimes, worst measures."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import altair as alt

from howsmooth.report.charts import BLUE, GREEN, GREY, INK, LARGE_NUMBERS, ORANGE, Chart, Rows
from howsmooth.report.measurement_charts import COLUMNS, PANEL, _drawable, _log, _round_ticks, _span
from howsmooth.studies.records import Record
from howsmooth.studies.summary import growth_of
from howsmooth.studies.tasks import Matrix

SKY, PINK, YELLOW = "#56b4e9", "#cc79a7", "#e69f00"
MARKS: dict[str, dict[str, Any]] = {
    "points": {"type": "point", "filled": True, "size": 28, "opacity": 0.8},
    "line": {"type": "line", "strokeWidth": 2},
    "dashes": {"type": "line", "strokeWidth": 1.5, "strokeDash": [5, 3]},
    "dotted line": {"type": "line", "strokeWidth": 1.5, "point": {"filled": True, "size": 28}},
    "rule": {"type": "rule", "strokeWidth": 1.2, "strokeDash": [2, 3]},
}
# How each series is drawn, by its name: mark and colour.
Styles = dict[str, tuple[str, str]]

BOUNDS: dict[str, tuple[str, str, str]] = {
    "discrete_upper": ("paper's upper", "dashes", GREY),
    "sharp_upper": ("sharp upper", "line", BLUE),
    "tied_pair": ("tied pair", "dotted line", GREEN),
    "two_point": ("two points", "dotted line", YELLOW),
    "discrete_lower": ("paper's lower", "dashes", PINK),
}
ASCENT = "ascent"
UPPER, FOUND, PLATEAU, CROSSING = "upper bound", "worst found", "measures attain", "crossing n*"
REGIMES: Styles = {
    UPPER: ("line", BLUE),
    PLATEAU: ("dashes", GREEN),
    CROSSING: ("rule", GREY),
    FOUND: ("dotted line", ORANGE),
}
HUES, GUIDE = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY), "√(n/n*), then 1"
# How far from the crossing the transition is drawn, and how far its two laws are read off.
FAR, CLEAR = 1e4, 10.0
LIGHT = 1e-4


def worst_case(records: Sequence[Record]) -> Chart:
    """Draw bounds, explicit inputs and ascent, against the length at one radius, and against the radius at one length."""
    bounds = [r for r in records if r.task.kind == "bounds"] or records
    radius, fixed_radius = _commonest(bounds, lambda r: r.task.radius)
    length, _fixed_length = _commonest(bounds, lambda r: r.task.length)
    rows = [
        *_bounds(records, lambda r: r.task.radius == radius, lambda r: r.task.length, f"against n, R = {radius:g}"),
        *_bounds(records, lambda r: r.task.length == length, lambda r: r.task.radius, f"against R, n = {length}"),
    ]
    styles: Styles = {name: (mark, colour) for name, mark, colour in BOUNDS.values()} | {ASCENT: ("points", INK)}
    ticks = alt.Axis(labelExpr=LARGE_NUMBERS, tickCount=5, labelOverlap="greedy")
    x = alt.X("x:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=8), axis=ticks)
    title = _gap(max(fixed_radius, key=lambda r: r.task.length))
    chart = series_panels(rows, styles, across=x, title=title, size={"width": 310, "height": 260}, shared=True)
    return chart.resolve_scale(x="independent")


def regimes_panels(records: Sequence[Record]) -> Chart:
    """Draw, for each head and radius, the worst constant found against the length, between bounds and plateau."""
    rows: Rows = []
    for case, found in grouped(records, _case).items():
        crossing = found[0].number("crossing")
        panel = f"{case}: n* ≈ {crossing:,.0f}"
        for series, value in (
            (UPPER, lambda r: r.upper),
            (PLATEAU, lambda r: r.number("plateau")),
            (FOUND, lambda r: r.lower),
        ):
            rows += points(((r.task.length, value(r)) for r in found), panel=panel, series=series)
        if found[0].task.length <= crossing <= found[-1].task.length:
            rows.append({"x": crossing, "panel": panel, "series": CROSSING})
    share = median(r.lower / r.upper for r in records if r.upper)
    title = f"The worst found is {share:.0%} of the upper bound (median); it rises to a plateau"
    return series_panels(rows, REGIMES, across="number of tokens n", title=title)


def transition(records: Sequence[Record]) -> Chart:
    """Draw all regimes in one: the constant in units of its plateau against the length in units of the crossing."""
    rows: Rows = []
    for case, found in grouped(records, _case).items():
        scaled = ((r.task.length / r.number("crossing"), r.lower / r.number("plateau")) for r in found)
        rows += points(((x, y) for x, y in scaled if 1 / FAR <= x <= FAR), panel="", series=case)
    cases = list(dict.fromkeys(row["series"] for row in rows))
    guide = sorted({1.0, *(row["x"] for row in rows)})
    rows += points(((x, min(x, 1.0) ** 0.5) for x in guide), panel="", series=GUIDE)
    styles: Styles = {case: ("dotted line", HUES[i % len(HUES)]) for i, case in enumerate(cases)}
    return series_panels(
        rows,
        {GUIDE: ("dashes", GREY)} | styles,
        across="n / n*",
        up="constant / plateau",
        title=_transition_title(records),
        size={"width": 460, "height": 280},
    )


def worst_measures(records: Sequence[Record]) -> Chart:
    """Draw the atoms of the worst measures found on the line, the larger the heavier, one row for each measure."""
    rows: Rows = []
    for r in sorted(records, key=lambda r: (r.task.A, r.task.radius, r.task.length)):
        numbers = dict(r.numbers)
        for k in range(r.task.length):
            if f"mass {k}" in numbers and numbers[f"mass {k}"] > 0:
                atom = {"place": numbers[f"coordinate {k}"], "mass": numbers[f"mass {k}"]}
                row = f"{r.task.length} atoms: {r.lower:.4g}"
                rows.append({"panel": _case(r), "row": row, "atoms": r.task.length, **atom})
    rows = [row | {"label": f"{row['mass']:.2g}"} for row in rows]
    return _atoms(rows, title=_light_title(rows))


def grouped(records: Iterable[Record], key: Callable[[Record], Any]) -> dict[Any, list[Record]]:
    """Return the records of each key, keys and lengths in their order."""
    groups: dict[Any, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.task.length, r.task.window)):
        groups.setdefault(key(record), []).append(record)
    return dict(sorted(groups.items()))


def points(pairs: Iterable[tuple[float, float | None]], **fields: Any) -> Rows:
    """Return a row for each pair that logarithmic axes can show."""
    return [{"x": x, "y": y, **fields} for x, y in pairs if y is not None and _drawable(x) and _drawable(y)]


def series_panels(
    rows: Rows,
    styles: Styles,
    *,
    title: str,
    across: str | alt.X,
    up: str = "Lipschitz constant",
    size: dict[str, int] = PANEL,
    shared: bool = False,
) -> alt.FacetChart:
    """Draw series of points and lines on logarithmic axes, one panel for each ``panel`` of the rows."""
    drawn = {name: style for name, style in styles.items() if any(row["series"] == name for row in rows)}
    colours = alt.Scale(domain=list(drawn), range=[colour for _mark, colour in drawn.values()])
    legend = alt.Legend(orient="top", labelFontSize=12, labelLimit=300, symbolOpacity=1) if len(drawn) > 1 else None
    colour = alt.Color("series:N", title=None, scale=colours, legend=legend)
    layers = [marked(mark, series=name).encode(color=colour) for name, (mark, _colour) in drawn.items()]
    return log_panels(layers, rows, across=across, up=up, title=title, size=size, shared=shared)


def log_panels(
    layers: Sequence[alt.Chart],
    rows: Rows,
    *,
    title: str,
    across: str | alt.X,
    up: str,
    size: dict[str, int] = PANEL,
    shared: bool = False,
) -> alt.FacetChart:
    """Draw layers over each other in every panel; heights are shared by all panels, or each has its own."""
    span = _span([row["x"] for row in rows])
    x = alt.X("x:Q", title=across, scale=_log(span), axis=_round_ticks(span)) if isinstance(across, str) else across
    ticks = alt.Axis(labelExpr=LARGE_NUMBERS, tickCount=4, labelOverlap="greedy")
    y = alt.Y("y:Q", title=up, scale=alt.Scale(type="log", nice=False, padding=8), axis=ticks)
    placed = [layer.encode(x=x) if layer.mark.type == "rule" else layer.encode(x=x, y=y) for layer in layers]
    chart = panels(alt.LayerChart(layer=placed).properties(**size), rows, title=title)
    return chart if shared else chart.resolve_scale(y="independent")


def panels(chart: alt.LayerChart, rows: Rows, *, title: str) -> alt.FacetChart:
    """Repeat a chart for each ``panel`` of the rows, in their order, under a label that may have several lines."""
    header = alt.Header(
        labelExpr="split(datum.value, '\\n')", labelFontSize=12, labelAnchor="start", labelLineHeight=15
    )
    facet = alt.Facet("panel:N", title=None, sort=list(dict.fromkeys(row["panel"] for row in rows)), header=header)
    return chart.facet(facet=facet, data=alt.Data(values=rows), columns=COLUMNS).properties(
        title=alt.TitleParams(title, offset=12)
    )


def marked(mark: str, *, series: str) -> alt.Chart:
    """Return one of our marks for the rows of one series."""
    return alt.Chart(mark=alt.MarkDef(**MARKS[mark])).transform_filter(alt.datum.series == series)


def _commonest(records: Sequence[Record], key: Callable[[Record], float]) -> tuple[float, list[Record]]:
    return max(grouped(records, key).items(), key=lambda item: len(item[1]))


def _bounds(
    records: Sequence[Record], at: Callable[[Record], bool], x: Callable[[Record], float], panel: str
) -> Rows:
    here = sorted((r for r in records if at(r)), key=x)
    rows = points(((x(r), r.lower) for r in here if r.task.kind == "ascent"), panel=panel, series=ASCENT)
    for name, (series, _mark, _colour) in BOUNDS.items():
        rows += points(((x(r), dict(r.numbers).get(name)) for r in here), panel=panel, series=series)
    return rows


def _gap(record: Record) -> str:
    """Say how far the bounds on the worst constant are apart."""
    numbers = dict(record.numbers)
    pairs = {"ours": ("sharp_upper", "tied_pair"), "the paper's": ("discrete_upper", "discrete_lower")}
    gaps = [
        f"{whose} a factor {numbers[upper] / numbers[lower]:.3g}"
        for whose, (upper, lower) in pairs.items()
        if upper in numbers and numbers.get(lower, 0) > 0
    ]
    return f"Bounds on the worst case at n = {record.task.length} leave: {', '.join(gaps) or 'no factor'}"


def _transition_title(records: Sequence[Record]) -> str:
    before = [
        growth_of((r.task.length, r.lower) for r in found if r.task.length * CLEAR < r.number("crossing"))
        for found in grouped(records, _case).values()
    ]
    slopes = [law.exponent for law in before if law is not None]
    after = [r.lower / r.number("plateau") for r in records if r.task.length > CLEAR * r.number("crossing")]
    said = [f"well below n* the constant grows like n^{median(slopes):.2f}"] if slopes else []
    said += [f"well above it is {median(after):.2f} of the plateau"] if after else []
    return "; ".join(said).capitalize() or "The constant around the crossing"


def _light_title(rows: Rows) -> str:
    heaviest = {(row["panel"], row["row"]): max(r["mass"] for r in rows if r["row"] == row["row"]) for row in rows}
    return f"The worst measures are unbalanced: one atom holds {min(heaviest.values()):.1%} or more of the mass"


def _atoms(rows: Rows, *, title: str) -> Chart:
    sizes = alt.Scale(type="log", domain=[LIGHT, 1], range=[12, 420], clamp=True)
    base = alt.Chart().encode(
        x=alt.X("place:Q", title="place on the line", scale=alt.Scale(padding=24, nice=False), axis=alt.Axis(tickCount=5)),
        y=alt.Y("row:N", title=None, sort=alt.SortField("atoms"), axis=alt.Axis(grid=True, labelLimit=200)),
    )
    dots = base.mark_point(filled=True, color=BLUE, opacity=0.75).encode(
        size=alt.Size("mass:Q", scale=sizes, legend=alt.Legend(values=[1, 0.1, 0.01, 0.001, 1e-4], format="~g"))
    )
    masses = base.mark_text(dy=-15, fontSize=10, color=INK).encode(text="label:N")
    chart = alt.LayerChart(layer=[dots, masses]).properties(width=PANEL["width"], height=alt.Step(46))
    return panels(chart, rows, title=title).resolve_scale(x="independent", y="independent")


def _case(record: Record) -> str:
    return f"A = {_written(record.task.A)}, R = {record.task.radius:g}"


def _written(A: Matrix) -> str:
    """Write a multiple of the identity as such, and of any other matrix its size."""
    d = len(A)
    a = A[0][0] if A else 0.0
    multiple = all(value == (a if i == j else 0.0) for i, row in enumerate(A) for j, value in enumerate(row))
    number = f"{a:g}".replace("-", "−")
    return number if d == 1 else f"{number}·I ({d}×{d})" if multiple else f"{d}×{d}"
