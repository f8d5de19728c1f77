"""Charts of measured layers: constants, radii and certificates against the length, on text and on built inputs."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean, geometric_mean, median

import altair as alt

from howsmooth.report.charts import BLUE, GREEN, GREY, INK, LARGE_NUMBERS, ORANGE, Chart, Rows
from howsmooth.report.panels import grouped, log_panels, marked, points, room, series_panels, told
from howsmooth.report.scales import drawable, span_of
from howsmooth.report.wording import exponent_digits
from howsmooth.studies.growth import DOUBTFUL, Growth
from howsmooth.studies.records import Record
from howsmooth.studies.summary import growth_of

Value = Callable[[Record], float | None]
TOKENS, CONSTANT = "number of tokens n", "local Lipschitz constant"
WINDOW, MEAN = "a window", "geometric mean"
LAW, RELEASED, MEASURED, CERTIFICATE = "power law", "released quantity", "measured", "certificate"
DASHES, HUES = {LAW: [1, 0], RELEASED: [5, 3]}, {LAW: ORANGE, RELEASED: GREY}
BUILT = {"two_point": ("two points", ORANGE), "tied_pair": ("tied pairs", BLUE)}
# What is drawn of a record.
_constant, _radius, _released, _certificate = map(attrgetter, ("lower", "radius", "released", "local_upper"))


def constant_against_length(records: Sequence[Record]) -> Chart:
    """Draw every window's constant against the length, the fitted law, and what the released scripts compute."""
    rows: Rows = []
    for place, found in _places(records).items():
        law, released, radius = _law(found), _law(found, _released), fmean(r.radius or 0.0 for r in found)
        beside = f"released n^{exponent_digits(released.exponent)}, " if released else ""
        panel = "\n".join([place, _exponent(law) if law else "no exponent", f"{beside}R ≈ {radius:.3g}"])
        at = {"panel": panel, "layer": found[0].task.layer}
        for r in found:
            relative = r.radius / radius if r.radius else 1.0
            rows += points([(r.task.length, r.lower)], **at, series=WINDOW, radius=relative, told=told(r))
        rows += points(((n, law.at(n)) for n in _lengths(found)), **at, series=LAW) if law else []
        rows += points(_means(found, _released), **at, series=RELEASED)
    legend = alt.Legend(orient="top", labelFontSize=12, symbolStrokeColor=INK, symbolSize=400)
    drawn = [name for name in DASHES if any(row["series"] == name for row in rows)]
    kinds = alt.Scale(domain=drawn, range=[DASHES[name] for name in drawn])
    dash = alt.StrokeDash("series:N", title=None, scale=kinds, legend=legend)
    lines = [marked("line", series=name).encode(color=alt.value(HUES[name]), strokeDash=dash) for name in drawn]
    shade = _shade("radius", "radius / mean", rows, log=False)
    layers = [marked("points", series=WINDOW).encode(color=shade), *lines]
    return log_panels(layers, rows, across=TOKENS, up=CONSTANT, title=_growth_title(records))


def constant_against_radius(records: Sequence[Record]) -> Chart:
    """Draw every window's constant against the mean radius of its tokens, coloured by the length."""
    rows: Rows = []
    for place, found in _places([r for r in records if r.radius]).items():
        at = {"panel": place, "layer": found[0].task.layer}
        for r in found:
            rows += points([(r.radius or 0.0, r.lower)], **at, series=WINDOW, tokens=r.task.length, told=told(r))
    layer = marked("points", series=WINDOW).encode(color=_shade("tokens", "tokens", rows, log=True))
    x = alt.X("x:Q", title="mean radius", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=4))
    radius, constant = (max(_spreads(records, value), default=1.0) for value in (_radius, _constant))
    title = f"Within a layer the radius varies up to {radius:.2f}-fold, the constant up to {constant:.2f}-fold"
    return log_panels([layer], rows + room(rows, "x"), across=x, up=CONSTANT, title=title).resolve_scale(
        x="independent", y="independent"
    )


def radius_against_length(records: Sequence[Record]) -> Chart:
    """Draw the mean radius of the tokens of every window against the length."""
    title = f"From the shortest to the longest windows the radius changes by {_range(_changes(records, _radius))}"
    return _windows(records, _radius, mark="points", up="mean radius", title=title)


def relative_growth(records: Sequence[Record]) -> Chart:
    """Draw how the constant of each window changes as it grows at its place, relative to its shortest length."""
    relative: list[Record] = []
    for found in _places(records).values():
        first = {r.task.window: r.lower for r in found if r.task.length == found[0].task.length and drawable(r.lower)}
        kept = [r for r in found if r.task.window in first]
        relative += [dataclasses.replace(r, lower=r.lower / first[r.task.window]) for r in kept]
    title = f"As windows grow in place, the constant changes by {_range(_changes(relative, _constant))}"
    return _windows(relative, _constant, mark="thread", up="relative to the shortest", title=title)


def concentration(records: Sequence[Record]) -> Chart:
    """Draw on how many tokens the worst perturbation rests, 1/Σs² for shares s, against the length."""
    longest = max(r.task.length for r in records)
    numbers = [_effective(r) for r in records if r.task.length == longest]
    title = f"At n = {longest} the worst perturbation rests on {min(numbers):.3g} to {max(numbers):.3g} tokens"
    return _windows(records, _effective, mark="thread", up="effective number of tokens", title=title)


def certificates(records: Sequence[Record]) -> Chart:
    """Draw the measured constant, and the certificate that needs no iteration, against the length."""
    rows: Rows = []
    for place, found in _places(records).items():
        measured, certified = _means(found, _constant), _means(found, _certificate)
        ratios = [bound / dict(measured)[n] for n, bound in certified if n in dict(measured)]
        panel = f"{place}\n{f'certificate looser by {_range(ratios)}' if ratios else 'no certificate'}"
        at = {"panel": panel, "layer": found[0].task.layer}
        rows += points(measured, **at, series=MEASURED) + points(certified, **at, series=CERTIFICATE)
    each = [r.local_upper / r.lower for r in records if r.local_upper and drawable(r.lower)]
    title = f"The certificate is {median(each):.3g} times the constant (median)" if each else "No certificates"
    styles = {CERTIFICATE: ("dotted line", GREEN), MEASURED: ("dotted line", BLUE)}
    return series_panels(rows, styles, across=TOKENS, up=CONSTANT, title=title)


def adversarial(records: Sequence[Record]) -> Chart:
    """Draw the constant at inputs built from one head against the length, with the multiple of √n that fits best."""
    rows: Rows = []
    for place, found in _heads(records).items():
        heading, drawn = [place], list[Rows]()
        for name, (series, _colour) in BUILT.items():
            chosen = [r for r in found if r.task.points == name and drawable(r.lower)]
            if not chosen:
                continue
            c = geometric_mean(r.lower / math.sqrt(r.task.length) for r in chosen)
            law = _law(chosen)
            heading.append(f"{series}: {c:.3g}√n" + (f" (fit {_exponent(law)})" if law else ""))
            drawn += [points([(r.task.length, r.lower)], series=series, told=told(r)) for r in chosen]
            drawn.append(points(((n, c * math.sqrt(n)) for n in _lengths(chosen)), series=f"c√n, {series}"))
        rows += [row | {"panel": "\n".join(heading)} for part in drawn for row in part]
    styles = {series: ("points", colour) for series, colour in BUILT.values()}
    styles |= {f"c√n, {series}": ("dashes", colour) for series, colour in BUILT.values()}
    return series_panels(rows, styles, across=TOKENS, up=CONSTANT, title=_built_title(records))


def _windows(records: Sequence[Record], value: Value, *, mark: str, up: str, title: str) -> Chart:
    rows: Rows = []
    for place, found in _places(records).items():
        at = {"panel": place, "layer": found[0].task.layer}
        for r in found:
            rows += points([(r.task.length, value(r))], **at, series=WINDOW, window=r.task.window, told=told(r))
        rows += points(_means(found, value), **at, series=MEAN)
    return series_panels(rows, {WINDOW: (mark, BLUE), MEAN: ("line", ORANGE)}, across=TOKENS, up=up, title=title)


def _shade(field: str, title: str, rows: Rows, *, log: bool) -> alt.Color:
    domain = span_of([row[field] for row in rows if field in row], room=1.0 + 1e-9)
    shades = alt.Scale(scheme="viridis", reverse=True, domain=domain, type="log" if log else "linear")
    return alt.Color(f"{field}:Q", title=title, scale=shades, legend=alt.Legend(tickCount=4, labelExpr=LARGE_NUMBERS))


def _means(records: Sequence[Record], value: Value) -> list[tuple[int, float]]:
    """Return the geometric mean over windows at each length that has one."""
    means = []
    for n, here in grouped(records, lambda r: r.task.length).items():
        positive = [v for r in here if (v := value(r)) is not None and drawable(v)]
        means += [(n, geometric_mean(positive))] if positive else []
    return means


def _changes(records: Sequence[Record], value: Value) -> list[float]:
    """Return, for each place, the mean at the longest length over that at the shortest."""
    means = [_means(found, value) for found in _places(records).values()]
    return [found[-1][1] / found[0][1] for found in means if len(found) > 1]


def _spreads(records: Sequence[Record], value: Value) -> list[float]:
    """Return, for each place, the largest value over the smallest."""
    each = [[v for r in found if (v := value(r)) and drawable(v)] for found in _places(records).values()]
    return [max(values) / min(values) for values in each if values]


def _range(factors: Sequence[float]) -> str:
    if not factors:
        return "an unknown factor"
    return "a factor " + " to ".join(dict.fromkeys(f"{end:.3g}" for end in (min(factors), max(factors))))


def _law(records: Sequence[Record], value: Value = _constant) -> Growth | None:
    values = ((r.task.length, value(r)) for r in records)
    return growth_of((n, v) for n, v in values if v is not None)


def _exponent(law: Growth) -> str:
    """Write an exponent with its interval, where the interval shows any scatter."""
    interval = (
        ""
        if math.isclose(law.low, law.high, abs_tol=1e-9)
        else f" [{exponent_digits(law.low)}, {exponent_digits(law.high)}]"
    )
    doubt = ", no power law" if law.lack_of_fit is not None and law.lack_of_fit < DOUBTFUL else ""
    return f"n^{exponent_digits(law.exponent)}{interval}{doubt}"


def _exponents(laws: Sequence[Growth | None]) -> str:
    found = [law.exponent for law in laws if law is not None]
    return " to ".join(dict.fromkeys(f"n^{exponent_digits(end)}" for end in (min(found), max(found))))


def _growth_title(records: Sequence[Record]) -> str:
    said = []
    for what, value in (("The constant grows", _constant), ("the released quantity", _released)):
        laws = [_law(found, value) for found in _places(records).values()]
        said += [f"{what} like {_exponents(laws)}"] if any(laws) else []
    return ", ".join(said) or "The constants that windows attain"


def _built_title(records: Sequence[Record]) -> str:
    said = []
    for name, (series, _colour) in BUILT.items():
        chosen = [r for r in records if r.task.points == name]
        laws = [_law(found) for found in _heads(chosen).values()]
        said += [f"{series} grow like {_exponents(laws)}"] if any(laws) else []
    return ", ".join(said).capitalize() or "Inputs built from one head"


def _places(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each model and layer, by what to call it."""
    places = grouped(records, lambda r: (r.task.model, r.task.layer))
    return {f"{model}, layer {layer}": found for (model, layer), found in places.items()}


def _heads(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of inputs that are built from each head."""
    heads = grouped(records, lambda r: (r.task.model, r.task.layer, r.task.head))
    return {f"{model}, layer {layer}, from head {head}": found for (model, layer, head), found in heads.items()}


def _lengths(records: Sequence[Record]) -> list[int]:
    return sorted({r.task.length for r in records})


def _effective(record: Record) -> float:
    return 1 / sum(share**2 for share in record.sensitivity)
