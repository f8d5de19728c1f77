"""Something of every window against its length, with its mean: one panel for each layer."""

from collections.abc import Sequence

from howsmooth.report.drawing.palette import BLUE, ORANGE
from howsmooth.report.drawing.panels import Mark, Style, points, series_panels
from howsmooth.report.drawing.places import Place, Value
from howsmooth.report.drawing.scales import length_axis
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers
from howsmooth.report.drawing.windows import TOLD, described
from howsmooth.wording import number

WINDOW, MEAN = "a window", "geometric mean"


def window_panels(found: Sequence[Place], value: Value, *, mark: Mark, up: str, title: str) -> Chart:
    """Draw a panel for each layer."""
    rows: Rows = []
    for place in found:
        at = {"panel": place.name, "layer": place.summary.layer}
        for r in place.records:
            rows += points([(r.ask.length, value(r))], series=WINDOW, **at | described(place.measurement, r))
        rows += points(place.means(value), series=MEAN, **at)
    styles = {WINDOW: Style(mark=mark, colour=BLUE, width=1.0), MEAN: Style(mark="line", colour=ORANGE)}
    axis = length_axis(n for place in found for n in place.lengths)
    return series_panels(rows, styles, across="number of tokens n", up=up, axis=axis, title=title, told=TOLD)


def window_table(found: Sequence[Place], value: Value, what: str) -> Numbers:
    """Return a row for each layer and length that has the value."""
    rows: list[NumberRow] = []
    for place in found:
        for n, mean in place.means(value):
            here = [v for r in place.records if r.ask.length == n and (v := value(r))]
            numbers = (number(end, 4) for end in (min(here), mean, max(here)))
            rows.append((place.summary.layer, (place.name, number(n), str(len(here)), *numbers)))
    return Numbers(
        head=("where", "tokens", "windows", f"smallest {what}", f"mean {what}", f"largest {what}"), rows=tuple(rows)
    )
