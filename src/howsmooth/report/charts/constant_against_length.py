"""The constant against the length: every window, the fitted law, and what random perturbations do."""

from statistics import geometric_mean

import numpy as np

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, ORANGE
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.places import (
    NO_LAW,
    TOLD,
    MeasuredLayer,
    constant,
    described,
    law_in_words,
    laws_in_words,
    places,
    released,
)
from howsmooth.report.drawing.scales import drawable, length_axis
from howsmooth.report.drawing.tables import Chart, Numbers, Rows, ends
from howsmooth.report.sections import Section
from howsmooth.studies.runs.summary import Typical, mean_constant, typical_of
from howsmooth.theory.results import Side
from howsmooth.wording import number

WINDOW, LAW, MEAN, TYPICAL = "a window", "power law", f"mean ({NO_LAW})", "random perturbations"
RELEASED = "released quantity"
STYLES: Styles = {
    TYPICAL: Style(mark="line", colour=GREEN, width=1.0),
    RELEASED: Style(mark="line", colour=GREY, dash=(5, 3), width=1.5),
    LAW: Style(mark="line", colour=ORANGE),
    MEAN: Style(mark="line", colour=ORANGE, dash=(2, 2)),
    # on top, so that a pointer finds them
    WINDOW: Style(mark="points", colour=BLUE, side=Side.LOWER),
}
# Enough for a law to look smooth on linear axes too.
STEPS = 25


def draw(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = places(section)
    return series_panels(
        [row for place in found for row in _rows(place)],
        STYLES,
        across="number of tokens n",
        up="local Lipschitz constant",
        axis=length_axis(n for place in found for n in place.lengths),
        title=_title(found),
        told=TOLD,
        band=LAW,
    )


def table(section: Section) -> Numbers:
    """Return a row for each layer and length."""
    several = len(section.measurements) > 1
    rows = []
    for place in places(section):
        gains = dict(_typical(place))
        for n in place.lengths:
            here = [r for r in place.records if r.ask.length == n]
            low, high = ends(here)
            name = place.name if several else str(place.summary.layer)
            numbers = (number(n), str(len(here)), str(gains.get(n, "—")), low, number(mean_constant(here), 4), high)
            rows.append((place.summary.layer, (name, *numbers)))
    head = ("layer", "tokens", "windows", "typical", "smallest", "mean", "largest (upper end)")
    return Numbers(head=head, rows=rows)


def _rows(place: MeasuredLayer) -> Rows:
    at = {"panel": _heading(place), "layer": place.summary.layer}
    law = place.summary.growth
    # the first row keeps the panel of a layer that attains nothing
    rows: Rows = [dict(at)]
    for r in place.records:
        rows += points([(r.ask.length, r.answer.lower)], series=WINDOW, **at | described(place.measurement, r))
    if law is not None and law.doubted:
        rows += points(place.means(constant), series=MEAN, **at)
    rows += [row | at for row in _law(place)]
    rows += points(((n, gain.value) for n, gain in _typical(place)), series=TYPICAL, **at)
    return rows + points(place.means(released), series=RELEASED, **at)


def _law(place: MeasuredLayer) -> Rows:
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


def _typical(place: MeasuredLayer) -> list[tuple[int, Typical]]:
    """Return the root mean square gain of random perturbations at each length that has one."""
    found = ((n, typical_of([r for r in place.records if r.ask.length == n])) for n in place.lengths)
    return [(n, gain) for n, gain in found if gain is not None]


def _heading(place: MeasuredLayer) -> str:
    summary = place.summary
    first = f"{number(summary.constant)} at {number(summary.length)} tokens"
    growth = first if summary.growth is None else law_in_words(summary.growth)
    beside = f"released: {law_in_words(summary.released_growth)}" if summary.released_growth else ""
    cells = summary.cells
    bound = "" if summary.any_input is None else f", any tokens up to {cells['longest']}: ≤ {cells['any input']}"
    return "\n".join(line for line in (place.name, growth, beside, f"R ≈ {cells['R']}{bound}") if line)


def _title(found: list[MeasuredLayer]) -> str:
    said = laws_in_words((place.name, place.summary.growth) for place in found)
    beside = laws_in_words((place.name, place.summary.released_growth) for place in found)
    if not said:
        return "The constants that the windows attain"
    return f"The constant {said}" + (f". The released quantity {beside}" if beside else "")


CHARTS = (
    ChartKind(
        name="constant_against_length",
        short="length",
        sections=("measurement", "real"),
        rank=10,
        about="The local Lipschitz constant against the number of tokens, one panel for each layer: a dot for each "
        "window, the fitted power law with its 95 % band (or the mean, where no power law describes the windows), and "
        "as a thin line what random perturbations are multiplied by.",
        wanted=lambda section: any(drawable(r.answer.lower) for m in section.measurements for r in m.records),
        draw=draw,
        table=table,
    ),
)
