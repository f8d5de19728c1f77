"""Charts of worst cases: bounds and inputs that attain them, regimes, worst measures, mass that splits."""

from collections.abc import Callable, Sequence
from statistics import median

import altair as alt

from howsmooth.report.charts import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, YELLOW, Chart, Rows, splitting_chart
from howsmooth.report.panels import Styles, grouped, log_ticks, panels, points, series_panels
from howsmooth.report.scales import drawable, span_of
from howsmooth.search.splitting_map import splitting_map
from howsmooth.studies.records import Record
from howsmooth.studies.summary import growth_of
from howsmooth.studies.tasks import Matrix

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
# Atoms lighter than this are drawn alike; atoms nearer than this share of the radius are one.
LIGHT, NEAR = 1e-4, 1e-3
WINDOW, EQUAL, SPLIT, MOVE = "a window", "equal", "split one token", "move all tokens"


def worst_case(records: Sequence[Record]) -> Chart:
    """Draw bounds, explicit inputs and ascent: against the length at one radius, against the radius at one length."""
    bounds = [r for r in records if r.task.kind == "bounds"] or records
    radius, fixed_radius = _commonest(bounds, lambda r: r.task.radius)
    length, _fixed_length = _commonest(bounds, lambda r: r.task.length)
    rows = [
        *_bounds(
            records, lambda r: r.task.radius == radius, lambda r: r.task.length, f"number of tokens n (R = {radius:g})"
        ),
        *_bounds(records, lambda r: r.task.length == length, lambda r: r.task.radius, f"radius R (n = {length})"),
    ]
    styles: Styles = {name: (mark, colour) for name, mark, colour in BOUNDS.values()} | {ASCENT: ("points", INK)}
    x = alt.X("x:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=8), axis=log_ticks(rows, "x"))
    title = _gap(max(fixed_radius, key=lambda r: r.task.length))
    chart = series_panels(rows, styles, across=x, title=title, size={"width": 310, "height": 260}, shared=True)
    return chart.resolve_scale(x="independent")


def regimes_panels(records: Sequence[Record]) -> Chart:
    """Draw, for each head and radius, the worst constant found against the length, between bounds and plateau."""
    rows: Rows = []
    for case, found in _cases(records).items():
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
    shares = [r.lower / r.upper for r in records if r.upper] or [0.0]
    title = f"The worst found lies between {min(shares):.1%} and {max(shares):.0%} of the upper bound"
    return series_panels(rows, REGIMES, across="number of tokens n", title=title)


def transition(records: Sequence[Record]) -> Chart:
    """Draw all regimes in one: the constant in units of its plateau against the length in units of the crossing."""
    rows: Rows = []
    for case, found in _cases(records).items():
        scaled = ((r.task.length / r.number("crossing"), r.lower / r.number("plateau")) for r in found)
        rows += points(((x, y) for x, y in scaled if 1 / FAR <= x <= FAR), panel="", series=case)
    cases = list(dict.fromkeys(row["series"] for row in rows))
    guide = sorted({1.0, *(row["x"] for row in rows)}) if rows else []
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
    for case, found in _cases(records).items():
        for r in found:
            row = {"panel": case, "row": f"{r.task.length} atoms: {r.lower:.4g}", "atoms": r.task.length}
            rows += [row | atom for atom in _merged(r)]
    heaviest = [max(atom["mass"] for atom in _merged(r)) for r in records]
    title = f"The worst measures are unbalanced: one place holds {_share(min(heaviest))} of the mass or more"
    return _atoms(rows, title=title)


def splitting_on_text(records: Sequence[Record]) -> Chart:
    """Draw, for each map and layer, what splitting one token gains over moving them all; above 1 a window splits."""
    rows: Rows = []
    for (model, _head, _digits, part), found in grouped(records, _part).items():
        panel = f"{model}, {part}"
        rows += points(((r.task.layer, _gain(r)) for r in found), panel=panel, series=WINDOW)
        rows += points(((layer, 1.0) for layer in sorted({r.task.layer for r in found})), panel=panel, series=EQUAL)
    splits = sum(r.number("splits") > 0 for r in records)
    title = f"Splitting one token beats moving all in {splits} of {len(records)} cases"
    x = alt.X("x:O", title="layer", axis=alt.Axis(labelAngle=0))
    styles = {EQUAL: ("dashes", GREY), WINDOW: ("points", BLUE)}
    return series_panels(rows, styles, across=x, up="split / move", title=title, shared=True)


def attack(records: Sequence[Record]) -> Chart:
    """Draw the true ratios of distances that the attack attains against those that the derivative predicts."""
    rows: Rows = []
    for series, predicted, attained in ((MOVE, "move", "move_ratio"), (SPLIT, "split", "split_ratio")):
        pairs = [(r.number(predicted), r.number(attained)) for r in records if attained in dict(r.numbers)]
        rows += points(((x, y) for x, y in pairs if drawable(x)), panel="", series=series)
    errors = [abs(row["y"] / row["x"] - 1) for row in rows]
    ends = span_of([row[name] for row in rows for name in ("x", "y")])
    rows += points(((end, end) for end in ends), panel="", series=EQUAL)
    title = f"The attack attains what the derivative predicts, within {max(errors, default=0.0):.2%}"
    styles = {EQUAL: ("dashes", GREY), MOVE: ("points", BLUE), SPLIT: ("points", PINK)}
    size = {"width": 340, "height": 340}
    return series_panels(rows, styles, across="predicted", up="attained", title=title, size=size)


def _part(record: Record) -> tuple[str, bool, int, str]:
    """Order whole layers before heads, and heads by their number."""
    part = record.task.map
    return record.task.model, part.startswith("head"), len(part), part


def _gain(record: Record) -> float | None:
    return record.number("split") / record.number("move") if record.number("move") else None


def splitting_on_the_line(_records: Sequence[Record]) -> Chart:
    """Draw which pairs of equal masses on the line split; the formula needs no records."""
    return splitting_chart(splitting_map(A=-1.0, V=1.0))


def _commonest(records: Sequence[Record], key: Callable[[Record], float]) -> tuple[float, list[Record]]:
    return max(grouped(records, key).items(), key=lambda item: len(item[1]))


def _bounds(records: Sequence[Record], at: Callable[[Record], bool], x: Callable[[Record], float], panel: str) -> Rows:
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
    said = f"Bounds on the worst case at n = {record.task.length} leave: {', '.join(gaps)}"
    return said if gaps else "The worst case: what is attained"


def _transition_title(records: Sequence[Record]) -> str:
    before = [
        growth_of((r.task.length, r.lower) for r in found if r.task.length * CLEAR < r.number("crossing"))
        for found in _cases(records).values()
    ]
    slopes = [law.exponent for law in before if law is not None]
    after = [r.lower / r.number("plateau") for r in records if r.task.length > CLEAR * r.number("crossing")]
    said = [f"well below n* the constant grows like n^{min(slopes):.2f} to n^{max(slopes):.2f}"] if slopes else []
    said += [f"well above it is {median(after):.2f} of the plateau"] if after else []
    return "; ".join(said).capitalize() or "The constant around the crossing"


def _merged(record: Record) -> Rows:
    """Return the places of a measure with their masses; atoms at one place are one."""
    numbers, places = dict(record.numbers), list[dict[str, float]]()
    for k in range(record.task.length):
        place, mass = numbers.get(f"coordinate {k}", 0.0), numbers.get(f"mass {k}", 0.0)
        same = [atom for atom in places if abs(atom["place"] - place) <= NEAR * record.task.radius]
        if same:
            same[0]["mass"] += mass
        elif mass > 0:
            places.append({"place": place, "mass": mass})
    return [atom | {"label": f"{atom['mass']:.1g}".replace("e-0", "e-")} for atom in places]


def _share(mass: float) -> str:
    return f"{mass:.2%}" if mass < 0.9999 else "99.99 %"


def _atoms(rows: Rows, *, title: str) -> Chart:
    sizes = alt.Scale(type="log", domain=[LIGHT, 1], range=[12, 420], clamp=True)
    base = alt.Chart().encode(
        x=alt.X(
            "place:Q", title="place on the line", scale=alt.Scale(padding=18, nice=False), axis=alt.Axis(tickCount=5)
        ),
        y=alt.Y("row:N", title=None, sort=alt.SortField("atoms"), axis=alt.Axis(grid=True, labelLimit=200)),
    )
    dots = base.mark_point(filled=True, color=BLUE, opacity=0.75).encode(
        size=alt.Size("mass:Q", scale=sizes, legend=alt.Legend(values=[1, 0.1, 0.01, 0.001, 1e-4], format="~g"))
    )
    masses = base.mark_text(dy=-15, fontSize=10, color=INK).encode(text="label:N")
    chart = alt.LayerChart(layer=[dots, masses]).properties(width=170, height=alt.Step(46))
    return panels(chart, rows, title=title).resolve_scale(x="independent", y="independent")


def _cases(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each head and radius, by what to call them."""
    cases = grouped(records, lambda r: (len(r.task.A), r.task.A, r.task.radius))
    return {f"A = {_written(A)}, R = {radius:g}": found for (_d, A, radius), found in cases.items()}


def _written(A: Matrix) -> str:
    """Write a multiple of the identity as such, and of any other matrix its size."""
    d = len(A)
    a = A[0][0] if A else 0.0
    multiple = all(value == (a if i == j else 0.0) for i, row in enumerate(A) for j, value in enumerate(row))
    number = f"{a:g}".replace("-", "−")
    return number if d == 1 else f"{number}·I ({d}×{d})" if multiple else f"{d}×{d}"
