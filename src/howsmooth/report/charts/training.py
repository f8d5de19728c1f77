"""Training: what a monitor read of each layer and a probe of each head, over steps."""

from collections.abc import Sequence

from howsmooth.models.map_names import MapName
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
    curves = [(_panel(r), r.ask.layer, r.ask.step, r.answer.lower) for r in found]
    alarms = [(_panel(r), r.ask.step) for r in found if r.answer.alarm]
    return _draw(curves, alarms, "Constants", "constant")


def draw_logits(section: Section) -> Chart:
    """Draw a panel for each training: the largest logit among the heads of each layer."""
    found, largest = _probed(section), dict[tuple[str, int, int], float]()
    for r in found:
        place = r.ask.training, r.ask.layer, r.ask.step
        largest[place] = max(largest.get(place, 0.0), _logit(r))
    curves = [(*place, value) for place, value in largest.items()]
    return _draw(curves, [(r.ask.training, r.ask.step) for r in found if r.answer.alarm], "Largest logits", "logit")


def _draw(
    curves: Sequence[tuple[str, int, int, float | None]], alarms: Sequence[tuple[str, int]], what: str, up: str
) -> Chart:
    """Draw curves of layers, given as panel, layer, step and height, and lines at alarms."""
    layers = sorted({layer for _panel, layer, _step, _value in curves})
    styles: Styles = {ALARM: Style(mark="rule", colour=GREY, dash=(4, 3))}
    styles |= {f"layer {layer}": Style(mark="line", colour=HUES[i % len(HUES)]) for i, layer in enumerate(layers)}
    rows: Rows = [{"x": step, "series": ALARM, "panel": panel} for panel, step in alarms]
    for panel, layer, step, value in curves:
        rows.append({"panel": panel})
        rows += points([(step, value)], series=f"layer {layer}", panel=panel)
    title = f"{what} of layers while they are trained: {count(len(alarms), 'alarm')}"
    return series_panels(rows, styles, title=title, across="training step", up=up, size=SIZE)


def table_steps(section: Section) -> Numbers:
    """Return a row for each layer and step."""
    rows: list[NumberRow] = []
    for r in _readings(section):
        place = (f"{r.ask.training}: {r.ask.map}", number(r.ask.step), str(r.ask.layer))
        rows.append((r.ask.layer, (*place, cell(r.answer.lower, written=at_least), r.answer.alarm or "—")))
    return Numbers(head=("training", "step", "layer", "constant", ALARM), rows=rows)


def table_logits(section: Section) -> Numbers:
    """Return a row for each head and step."""
    rows: list[NumberRow] = []
    for r in _probed(section):
        numbers = (cell(x) for x in (r.answer.largest_logit, r.answer.entropy, r.answer.first_token))
        head = str(MapName.parse(r.ask.map).head)
        row = r.ask.training, number(r.ask.step), str(r.ask.layer), head, *numbers, r.answer.alarm or "—"
        rows.append((r.ask.layer, row))
    columns = ("training", "step", "layer", "head", "largest logit", "entropy", "weight on the first token", ALARM)
    return Numbers(head=columns, rows=rows)


def _readings(section: Section) -> list[Record]:
    return sorted(section.of_kind("monitor"), key=lambda r: (r.ask.training, r.ask.map, r.ask.rank))


def _probed(section: Section) -> list[Record]:
    return sorted(section.of_kind("probe"), key=lambda r: (r.ask.training, r.ask.rank))


def _logit(r: Record) -> float:
    return r.answer.largest_logit if drawable(r.answer.largest_logit) else 0.0


def _seen(section: Section) -> int:
    return sum(drawable(r.answer.lower) for r in _readings(section))


def _logits_seen(section: Section) -> int:
    return len({r.ask.step for r in _probed(section) if _logit(r) > 0})


def _panel(r: Record) -> str:
    return f"{r.ask.training}: {r.ask.map}"


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
    ChartKind(
        name="logits_over_steps",
        short="logits",
        sections=("monitor",),
        rank=11,
        about="The largest logit among the heads of each layer against the training step, on logarithmic axes: one "
        "line for each layer, dashed vertical lines at alarms; one panel for each training.",
        wanted=lambda section: _logits_seen(section) > 0,
        on_page=lambda section: _logits_seen(section) > 1,
        draw=draw_logits,
        table=table_logits,
    ),
)
