"""What is proven at each window without iterating, beside what is measured there."""

from statistics import median

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREEN
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.places import MeasuredLayer, certificate, constant, factors, places
from howsmooth.report.drawing.scales import drawable, length_axis
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell
from howsmooth.report.sections import Section
from howsmooth.theory.results import Side
from howsmooth.wording import at_most, number

MEASURED, CERTIFIED = "measured", "certificate"
STYLES: Styles = {
    CERTIFIED: Style(mark="dotted line", colour=GREEN, dash=(5, 3), side=Side.UPPER),
    MEASURED: Style(mark="dotted line", colour=BLUE),
}


def wanted(section: Section) -> bool:
    """Tell whether a certificate was asked for, and there is something to compare it with."""
    records = [r for m in section.measurements for r in m.records]
    return any(certificate(r) and drawable(constant(r)) for r in records)


def draw(section: Section) -> Chart:
    """Draw a panel for each layer."""
    found = places(section)
    rows: Rows = []
    for place in found:
        ratios = [ratio for _n, _measured, _certified, ratio in _means(place) if ratio is not None]
        said = f"looser by {factors(ratios)}" if ratios else "no certificate"
        at = {"panel": f"{place.name}\n{said}", "layer": place.summary.layer}
        rows += points(place.means(constant), series=MEASURED, **at)
        rows += points(place.means(certificate), series=CERTIFIED, **at)
    return series_panels(
        rows,
        STYLES,
        across="number of tokens n",
        up="local Lipschitz constant",
        axis=length_axis(n for place in found for n in place.lengths),
        title=_title(found),
    )


def table(section: Section) -> Numbers:
    """Return a row for each layer and length."""
    rows: list[NumberRow] = []
    for place in places(section):
        for n, measured, certified, ratio in _means(place):
            numbers = (cell(measured), cell(certified, written=at_most), cell(ratio))
            rows.append((place.summary.layer, (place.name, number(n), *numbers)))
    return Numbers(head=("where", "tokens", "measured", "certificate", "certificate / measured"), rows=rows)


def _means(place: MeasuredLayer) -> list[tuple[int, float | None, float | None, float | None]]:
    measured, certified = dict(place.means(constant)), dict(place.means(certificate))
    return [
        (n, measured.get(n), certified.get(n), certified[n] / measured[n] if n in measured and n in certified else None)
        for n in place.lengths
    ]


def _title(found: list[MeasuredLayer]) -> str:
    proven = ((certificate(r), constant(r)) for place in found for r in place.records)
    each = [bound / value for bound, value in proven if bound and drawable(value)]
    return f"The certificate is {number(median(each))} times the constant (median)"


CHARTS = (
    ChartKind(
        name="certificates",
        sections=("measurement", "bounds"),
        rank=45,
        about="The mean constant that was measured and the mean certificate, a bound that is proven at each window, "
        "against the number of tokens, one panel for each layer.",
        wanted=wanted,
        draw=draw,
        table=table,
    ),
)
