"""Windows of a text: the constant against the length and the radius, certificates, and growth in place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median
from typing import Any

import altair as alt
import numpy as np

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing import palette
from howsmooth.report.drawing.palette import FEW_TO_MANY, GREY, YELLOW
from howsmooth.report.drawing.panels import PANEL, Mark, Style, Styles, panels, points, series_panels
from howsmooth.report.drawing.scales import drawable, length_axis, log_axis, log_scale, span_of
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell, ends, extent
from howsmooth.report.drawing.token_text import running_text
from howsmooth.report.sections import Section
from howsmooth.report.sentences import NO_LAW, law_in_words, laws_in_words
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.summary import LayerSummary, mean_constant, typical_of
from howsmooth.theory.results import Side
from howsmooth.wording import at_most, interval, number, percent

TOKENS, CONSTANT = "number of tokens n", "local Lipschitz constant"
WINDOW, LAW, TYPICAL, RELEASED = "a window", "power law", "random perturbations", "released quantity"
MEAN_OF_NO_LAW, MEAN = f"mean ({NO_LAW})", "geometric mean"
MEASURED, CERTIFIED = "measured", "certificate"
LENGTH_STYLES: Styles = {
    TYPICAL: Style(mark="line", colour=palette.TYPICAL, width=1.0),
    RELEASED: Style(mark="line", colour=YELLOW, dash=(5, 3), width=1.5),
    LAW: Style(mark="line", colour=palette.FIT),
    MEAN_OF_NO_LAW: Style(mark="line", colour=palette.FIT, dash=(2, 2)),
    # on top, so that a pointer finds them
    WINDOW: Style(mark="points", colour=palette.MEASURED, side=Side.LOWER),
}
CERTIFICATE_STYLES: Styles = {
    CERTIFIED: Style(mark="dotted line", colour=palette.CERTIFICATE, dash=(5, 3), side=Side.UPPER),
    MEASURED: Style(mark="dotted line", colour=palette.MEASURED),
}
# Enough for a law to look smooth on linear axes too.
STEPS = 25
# Radii that differ by less than this factor are drawn as equal.
FLAT = 1.02
TOLD = (
    alt.Tooltip("layer:Q", title="layer"),
    alt.Tooltip("error:N", title="error bar"),
    alt.Tooltip("radius:Q", title="mean radius", format=",.4~r"),
    alt.Tooltip("window:Q", title="window"),
    alt.Tooltip("begins:N", title="sequence"),
)
# What is drawn of a window.
WindowValue = Callable[[TextRecord], float | None]


def described(measurement: Measurement, record: TextRecord) -> dict[str, Any]:
    """Return what is told of one window: the error bar of its constant, and which sequence it is."""
    answer = record.answer
    opening = measurement.openings.get((record.ask.length, record.ask.window.index), ())
    worth = "" if answer.upper is None else f" ({percent(record.ask.solver.confidence)})"
    return {
        "layer": record.ask.layer,
        "window": record.ask.window.index,
        "error": f"{interval(answer.lower, answer.upper, 5)}{worth}",
        "radius": answer.mean_radius,
        "begins": f"{running_text(opening)} …" if opening else "—",
    }


@dataclass(frozen=True, kw_only=True)
class MeasuredLayer:
    """A layer that was measured."""

    name: str  # what to call it
    measurement: Measurement  # where its numbers come from
    summary: LayerSummary  # the answer for it
    records: tuple[TextRecord, ...]  # every window, shorter ones first

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured there."""
        return sorted({record.ask.length for record in self.records})

    def at(self, length: int) -> list[TextRecord]:
        """Return the windows of one length."""
        return [record for record in self.records if record.ask.length == length]

    def means(self, value: WindowValue) -> list[tuple[int, float]]:
        """Return the geometric mean over windows of something at each length that has it."""
        found = []
        for n in self.lengths:
            positive = [v for r in self.at(n) if (v := value(r)) is not None and drawable(v)]
            found += [(n, geometric_mean(positive))] if positive else []
        return found


def measured_layers(section: Section) -> list[MeasuredLayer]:
    """Return every layer of every measurement of a section; models and maps are named where there are several."""
    told = [part for part in ("model", "map", "text") if len({getattr(m, part) for m in section.measurements}) > 1]
    return [
        MeasuredLayer(
            name=", ".join((*(_last_part(getattr(m, part)) for part in told), f"layer {summary.layer}")),
            measurement=m,
            summary=summary,
            records=tuple(sorted(m.at(layer=summary.layer), key=lambda r: (r.ask.length, r.ask.window.index))),
        )
        for m in section.measurements
        for summary in m.layers
    ]


def _last_part(name: str) -> str:
    """Return the last part of a path or of a name on a hub."""
    return name.rstrip("/").rpartition("/")[2] or name


def _windows(section: Section) -> list[TextRecord]:
    return [record for m in section.measurements for record in m.records]


def _drawable(section: Section, value: WindowValue) -> int:
    """Count the windows that can be drawn; a single dot shows nothing on a page."""
    return sum(drawable(value(r)) for r in _windows(section))


def _constant(record: TextRecord) -> float:
    return record.answer.lower


def _certificate(record: TextRecord) -> float | None:
    return record.answer.local_upper


def _over_lengths(rows: Rows, styles: Styles, found: Sequence[MeasuredLayer], title: str, **options: Any) -> Chart:
    axis = length_axis(n for place in found for n in place.lengths)
    return series_panels(rows, styles, across=TOKENS, axis=axis, title=title, **{"up": CONSTANT} | options)


def _factors(found: Sequence[float]) -> str:
    return f"a factor {extent(found)}" if found else "an unknown factor"


def draw_lengths(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = measured_layers(section)
    rows = [row for place in found for row in _length_rows(place)]
    said = laws_in_words((place.name, place.summary.growth) for place in found)
    beside = laws_in_words((place.name, place.summary.released_growth) for place in found)
    title = f"The constant {said}" if said else "The constants that the windows attain"
    title += f". The released quantity {beside}" if said and beside else ""
    return _over_lengths(rows, LENGTH_STYLES, found, title, told=TOLD, band=LAW)


def _table(
    section: Section, head: tuple[str, ...], cells: Callable[[MeasuredLayer, int], Sequence[str]], *, named: bool = True
) -> Numbers:
    """Return a row for each layer and length that has cells; layers go by their names, or by their numbers alone."""
    rows: list[NumberRow] = []
    for place in measured_layers(section):
        name = place.name if named or len(section.measurements) > 1 else str(place.summary.layer)
        found = ((n, cells(place, n)) for n in place.lengths)
        rows += [(place.summary.layer, (name, number(n), *numbers)) for n, numbers in found if numbers]
    return Numbers(head=head, rows=rows)


def table_lengths(section: Section) -> Numbers:
    """Return a row for each layer and length."""

    def cells(place: MeasuredLayer, n: int) -> Sequence[str]:
        here, gain = place.at(n), typical_of(place.at(n))
        low, high = ends(here)
        return str(len(here)), str(gain or "—"), low, number(mean_constant(here), 4), high

    head = ("layer", "tokens", "windows", "typical", "smallest", "mean", "largest (upper end)")
    return _table(section, head, cells, named=False)


def _length_rows(place: MeasuredLayer) -> Rows:
    at = {"panel": _heading(place), "layer": place.summary.layer}
    law = place.summary.growth
    # the first row keeps the panel of a layer that attains nothing
    rows: Rows = [dict(at)]
    for r in place.records:
        rows += points([(r.ask.length, r.answer.lower)], series=WINDOW, **at | described(place.measurement, r))
    if law is not None and law.doubted:
        rows += points(place.means(_constant), series=MEAN_OF_NO_LAW, **at)
    rows += [row | at for row in _law_rows(place)]
    gains = [(n, gain.value) for n in place.lengths if (gain := typical_of(place.at(n))) is not None]
    rows += points(gains, series=TYPICAL, **at)
    return rows + points(place.means(lambda r: r.answer.released_quantity), series=RELEASED, **at)


def _law_rows(place: MeasuredLayer) -> Rows:
    law = place.summary.growth
    if law is None or law.doubted:
        return []
    lengths = [r.ask.length for r in place.records]
    # Least squares passes through the mean of log n, taken over windows: the slopes turn around that point.
    centre = geometric_mean(lengths)
    rows: Rows = []
    for n in sorted({centre, *np.geomspace(min(lengths), max(lengths), STEPS).tolist()}):
        turned = [law.at(centre) * (n / centre) ** slope for slope in (law.low, law.high)]
        rows.append({"series": LAW, "x": n, "y": law.at(n), "low": min(turned), "high": max(turned)})
    return rows


def _heading(place: MeasuredLayer) -> str:
    summary = place.summary
    first = f"{number(summary.constant)} at {number(summary.length)} tokens"
    growth = first if summary.growth is None else law_in_words(summary.growth)
    beside = f"released: {law_in_words(summary.released_growth)}" if summary.released_growth else ""
    cells = summary.cells
    bound = "" if summary.any_input is None else f", any tokens up to {cells['longest']}: ≤ {cells['any input']}"
    return "\n".join(line for line in (place.name, growth, beside, f"R ≈ {cells['R']}{bound}") if line)


def draw_radii(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = measured_layers(section)
    rows: Rows = []
    for place in found:
        for r in place.records:
            at = {"panel": place.name, "n": r.ask.length, "x": r.answer.mean_radius}
            height = {"y": r.answer.lower} if drawable(r.answer.lower) else {}
            rows.append(described(place.measurement, r) | at | height)
    heights = span_of([row["y"] for row in rows if "y" in row])
    lengths = sorted({row["n"] for row in rows})
    x = alt.X("x:Q", title="mean radius", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=3))
    plain = alt.Chart().encode(x=x, y=alt.Y("y:Q", title=CONSTANT, scale=log_scale(heights), axis=log_axis(heights)))
    tokens = alt.Tooltip("n:Q", title="tokens")
    scale = alt.Scale(type="log", range=list(FEW_TO_MANY), interpolate="rgb", domain=span_of(lengths, room=1.0))
    legend = alt.Legend(values=list(lengths), format="d") if len(lengths) > 1 else None
    colour = alt.Color("n:Q", title="tokens", scale=scale, legend=legend)
    dots = plain.mark_point(filled=True, size=28, opacity=0.9).encode(
        color=colour, tooltip=[tokens, alt.Tooltip("y:Q", title="constant", format=",.5~r"), *TOLD]
    )
    # zero has no place on a logarithmic axis: it is written at the foot
    foot = plain.mark_text(text="0", color=GREY, baseline="bottom").encode(
        y=alt.value(PANEL["height"]), tooltip=[tokens, *TOLD]
    )
    unseen = alt.Chart().mark_point(opacity=0, aria=False).encode(x=x, y=alt.value(0))
    layers = [
        dots.transform_filter("isValid(datum.y)"),
        foot.transform_filter("!isValid(datum.y) && !datum.room"),
        unseen.transform_filter("datum.room"),
    ]
    attained = [[r.answer for r in place.records if drawable(r.answer.lower)] for place in found]
    radius, constant = (
        max((max(v) / min(v) for v in values if v), default=1.0)
        for values in (
            [[a.mean_radius for a in answers if drawable(a.mean_radius)] for answers in attained],
            [[a.lower for a in answers] for answers in attained],
        )
    )
    title = "The constants of the windows against the radius of their tokens"
    if constant > 1 and max(radius, constant) < FLAT:
        title = "Within a layer neither radius nor constant varies by more than 2 %"
    elif constant > 1:
        ends = at_most(radius, 3), at_most(constant, 3)
        title = f"Within a layer the radius varies up to {ends[0]}-fold, the constant up to {ends[1]}-fold"
    chart = panels(alt.LayerChart(layer=layers).properties(**PANEL), rows + _room(rows), title=title)
    return chart.resolve_scale(x="independent")


def table_radii(section: Section) -> Numbers:
    """Return a row for each layer and length."""

    def cells(place: MeasuredLayer, n: int) -> Sequence[str]:
        radii = [r.answer.mean_radius for r in place.at(n)]
        values = (min(radii), fmean(radii), max(radii), mean_constant(place.at(n)))
        return [number(value, 4) for value in values]

    head = ("layer", "tokens", "smallest radius", "mean radius", "largest radius", "mean constant")
    return _table(section, head, cells, named=False)


def _room(rows: Rows) -> Rows:
    """Return two unseen points for each panel whose radii hardly differ: rounding is not blown up."""
    radii: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        radii.setdefault((row["panel"], row["layer"]), []).append(row["x"])
    return [
        {"panel": panel, "layer": layer, "x": end, "room": True}
        for (panel, layer), found in radii.items()
        if max(found) < FLAT * min(found)
        for end in (min(found) / FLAT, max(found) * FLAT)
    ]


def draw_certificates(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = measured_layers(section)
    rows: Rows = []
    for place in found:
        measured, certified = dict(place.means(_constant)), dict(place.means(_certificate))
        ratios = [certified[n] / measured[n] for n in place.lengths if n in measured and n in certified]
        said = f"looser by {_factors(ratios)}" if ratios else "no certificate"
        at = {"panel": f"{place.name}\n{said}", "layer": place.summary.layer}
        rows += points(measured.items(), series=MEASURED, **at)
        rows += points(certified.items(), series=CERTIFIED, **at)
    pairs = ((_certificate(r), _constant(r)) for r in _windows(section))
    middle = median(bound / value for bound, value in pairs if bound and drawable(value))
    title = f"The certificate is {number(middle)} times the constant (median)"
    return _over_lengths(rows, CERTIFICATE_STYLES, found, title)


def table_certificates(section: Section) -> Numbers:
    """Return a row for each layer and length."""

    def cells(place: MeasuredLayer, n: int) -> Sequence[str]:
        measured, certified = dict(place.means(_constant)).get(n), dict(place.means(_certificate)).get(n)
        ratio = certified / measured if measured and certified else None
        return cell(measured), cell(certified, written=at_most), cell(ratio)

    return _table(section, ("where", "tokens", "measured", "certificate", "certificate / measured"), cells)


def relative_to_the_shortest(found: list[MeasuredLayer]) -> WindowValue:
    """Return what divides the constant of a window by that of the same window at the shortest length of its layer."""

    def window(r: TextRecord) -> tuple[str, str, int, int]:
        return r.ask.model, r.ask.map, r.ask.layer, r.ask.window.index

    first = {window(r): r.answer.lower for place in found for r in place.at(place.lengths[0])}

    def relative(record: TextRecord) -> float | None:
        start = first.get(window(record))
        return record.answer.lower / start if start is not None and drawable(start) else None

    return relative


def effective_tokens(record: TextRecord) -> float | None:
    """Return how many equal shares would be as spread out, if shares are kept."""
    squares = sum(share**2 for share in record.answer.sensitivity)
    return 1 / squares if squares else None


def _changes(said: str) -> Callable[[list[MeasuredLayer], WindowValue], str]:
    def title(found: list[MeasuredLayer], value: WindowValue) -> str:
        means = [[mean for _n, mean in place.means(value)] for place in found]
        return said + _factors([some[-1] / some[0] for some in means if len(some) > 1])

    return title


def _rests(found: list[MeasuredLayer], value: WindowValue) -> str:
    records = [r for place in found for r in place.records if value(r)]
    longest = max(r.ask.length for r in records)
    numbers = [v for r in records if r.ask.length == longest and (v := value(r))]
    return f"At n = {number(longest)} the worst perturbation rests on {extent(numbers)} tokens"


def _value_rows(found: Sequence[MeasuredLayer], value: WindowValue) -> Rows:
    rows: Rows = []
    for place in found:
        at = {"panel": place.name, "layer": place.summary.layer}
        for r in place.records:
            rows += points([(r.ask.length, value(r))], series=WINDOW, **at | described(place.measurement, r))
        rows += points(place.means(value), series=MEAN, **at)
    return rows


def _value_table(section: Section, value: WindowValue, what: str) -> Numbers:
    def cells(place: MeasuredLayer, n: int) -> Sequence[str]:
        here, means = [v for r in place.at(n) if (v := value(r))], dict(place.means(value))
        ends = (min(here), means[n], max(here)) if n in means else ()
        return [str(len(here)), *(number(end, 4) for end in ends)] if ends else ()

    head = ("where", "tokens", "windows", f"smallest {what}", f"mean {what}", f"largest {what}")
    return _table(section, head, cells)


def _window_chart(
    name: str,
    section: str,
    about: str,
    value: Callable[[list[MeasuredLayer]], WindowValue],
    *,
    rank: int,
    mark: Mark,
    up: str,
    title: Callable[[list[MeasuredLayer], WindowValue], str],
    column: str,
) -> ChartKind:
    def there(section: Section) -> int:
        return _drawable(section, value(measured_layers(section)))

    def draw(section: Section) -> Chart:
        found = measured_layers(section)
        each = value(found)
        styles = {
            WINDOW: Style(mark=mark, colour=palette.MEASURED, width=1.0),
            MEAN: Style(mark="line", colour=palette.FIT),
        }
        return _over_lengths(_value_rows(found, each), styles, found, title(found, each), up=up, told=TOLD)

    return ChartKind(
        name=name,
        sections=(section,),
        rank=rank,
        about=about,
        wanted=lambda section: there(section) > 0,
        on_page=lambda section: there(section) > 1,
        draw=draw,
        table=lambda section: _value_table(section, value(measured_layers(section)), column),
    )


CHARTS = (
    ChartKind(
        name="constant_against_length",
        short="length",
        sections=("measurement", "real"),
        rank=10,
        about="The local Lipschitz constant against the number of tokens, one panel for each layer: a dot for each "
        "window, the fitted power law with its 95 % band (or the mean, where no power law describes the windows), and "
        "as a thin line what random perturbations are multiplied by.",
        wanted=lambda section: _drawable(section, _constant) > 0,
        on_page=lambda section: _drawable(section, _constant) > 1,
        draw=draw_lengths,
        table=table_lengths,
    ),
    ChartKind(
        name="constant_against_radius",
        short="radius",
        sections=("measurement", "real"),
        rank=20,
        about="The local Lipschitz constant against the mean radius of the tokens, one panel for each layer: a dot for "
        "each window, coloured by its number of tokens.",
        wanted=lambda section: _drawable(section, lambda r: r.answer.mean_radius and r.answer.lower) > 0,
        on_page=lambda section: _drawable(section, _constant) > 1,
        draw=draw_radii,
        table=table_radii,
    ),
    ChartKind(
        name="certificates",
        sections=("measurement", "bounds"),
        rank=45,
        about="The mean constant that was measured and the mean certificate, a bound that is proven at each window, "
        "against the number of tokens, one panel for each layer.",
        wanted=lambda section: _drawable(section, lambda r: _certificate(r) and _constant(r)) > 0,
        on_page=lambda section: _drawable(section, _certificate) > 1,
        draw=draw_certificates,
        table=table_certificates,
    ),
    _window_chart(
        "radius_against_length",
        "real",
        "The mean radius of the tokens against their number, one panel for each layer: a dot for each window, and the "
        "geometric mean of all windows of a length.",
        lambda _found: lambda record: record.answer.mean_radius,
        rank=30,
        mark="points",
        up="mean radius",
        title=_changes("From the shortest to the longest windows the radius changes by "),
        column="radius",
    ),
    _window_chart(
        "relative_growth",
        "robustness",
        "How the constant changes as windows grow at the same places of a text, relative to the shortest: a thread for "
        "each window, and their geometric mean, one panel for each layer.",
        relative_to_the_shortest,
        rank=10,
        mark="threads",
        up="relative to the shortest",
        title=_changes("As windows grow in place, the constant changes by "),
        column="ratio",
    ),
    _window_chart(
        "concentration",
        "robustness",
        "On how many tokens the worst perturbation rests, 1/Σs² for shares s, against the number of tokens: a thread "
        "for each window, and their geometric mean, one panel for each layer.",
        lambda _found: effective_tokens,
        rank=20,
        mark="threads",
        up="effective number of tokens",
        title=_rests,
        column="number of tokens",
    ),
)
