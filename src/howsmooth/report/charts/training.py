"""Training: what a monitor read of each layer, over steps."""

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import GREY, HUES
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import at_least, count, number

ALARM = "alarm"
SIZE = {"width": 330, "height": 220}


def draw_steps(section: Section) -> Chart:
    """Draw a panel for each training."""
    found = _readings(section)
    layers = sorted({r.ask.layer for r in found})
    styles: Styles = {ALARM: Style(mark="rule", colour=GREY, dash=(4, 3))}
    styles |= {f"layer {layer}": Style(mark="line", colour=HUES[i % len(HUES)]) for i, layer in enumerate(layers)}
    rows: Rows = []
    for r in found:
        panel = f"{r.ask.training}: {r.ask.map}"
        rows.append({"panel": panel})
        rows += points([(r.ask.step, r.answer.lower)], series=f"layer {r.ask.layer}", panel=panel)
        rows += [{"x": r.ask.step, "series": ALARM, "panel": panel}] if r.answer.alarm else []
    alarms = sum(bool(r.answer.alarm) for r in found)
    title = f"Constants of layers while they are trained: {count(alarms, 'alarm')}"
    return series_panels(rows, styles, title=title, across="training step", up="constant", size=SIZE)


def table_steps(section: Section) -> Numbers:
    """Return a row for each layer and step."""
    rows: list[NumberRow] = []
    for r in _readings(section):
        place = (f"{r.ask.training}: {r.ask.map}", number(r.ask.step), str(r.ask.layer))
        rows.append((r.ask.layer, (*place, cell(r.answer.lower, written=at_least), r.answer.alarm or "—")))
    return Numbers(head=("training", "step", "layer", "constant", ALARM), rows=rows)


def _readings(section: Section) -> list[Record]:
    return sorted(section.of_kind("monitor"), key=lambda r: (r.ask.training, r.ask.map, r.ask.rank))


def _seen(section: Section) -> int:
    return sum(drawable(r.answer.lower) for r in _readings(section))


CHARTS = (
    ChartKind(
        name="constants_over_steps",
        short="steps",
        sections=("monitor",),
        rank=10,
        about="The constant of each layer against the training step, on logarithmic axes: one line for each layer, "
        "dashed vertical lines at alarms; one panel for each training.",
        wanted=lambda section: _seen(section) > 0,
        on_page=lambda section: _seen(section) > 1,
        draw=draw_steps,
        table=table_steps,
    ),
)
