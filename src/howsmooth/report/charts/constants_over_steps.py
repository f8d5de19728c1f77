"""Constants while a model is trained: one line for each layer, and where there was an alarm."""

from collections.abc import Sequence
from typing import Any

from howsmooth.report.drawing.palette import GREY, HUES, INK
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.specs import Chart, Rows
from howsmooth.report.drawing.tables import NumberRow, Numbers, cell
from howsmooth.report.sections import Section
from howsmooth.wording import at_least, count, number

SECTIONS, RANK, PER_LAYER, SHORT = ("training",), 10, False, "steps"
ABOUT = (
    "The constant of each layer against the training step, on logarithmic axes: one line for each layer, dashed "
    "vertical lines at alarms, and the loss where it is known; one panel for each training."
)
ALARM, LOSS = "alarm", "loss"
SIZE = {"width": 330, "height": 220}
# One training at one step: what the panel says, the step, the loss, the constant of each layer, the alarm.
Point = tuple[str, float, float | None, dict[int, float | None], str]


def wanted(section: Section) -> bool:
    """Tell whether anything was watched."""
    return any(drawable(value) for *_rest, values, _alarm in _points(section) for value in values.values())


def draw(section: Section) -> Chart:
    """Draw a panel for each training."""
    found = _points(section)
    layers = sorted({layer for *_rest, values, _alarm in found for layer in values})
    styles: Styles = {ALARM: Style(mark="rule", colour=GREY, dash=(4, 3))}
    styles |= {LOSS: Style(mark="line", colour=INK, dash=(2, 2))}
    styles |= {_name(layer): Style(mark="line", colour=HUES[i % len(HUES)]) for i, layer in enumerate(layers)}
    rows: Rows = []
    for panel, step, loss, values, alarm in found:
        rows.append({"panel": panel})
        rows += points([(step, loss)], series=LOSS, panel=panel)
        for layer, value in values.items():
            rows += points([(step, value)], series=_name(layer), panel=panel)
        rows += [{"x": step, "series": ALARM, "panel": panel}] if alarm else []
    return series_panels(rows, styles, title=_title(found), across="training step", up="constant, loss", size=SIZE)


def table(section: Section) -> Numbers:
    """Return a row for each layer and step."""
    rows: list[NumberRow] = [
        (layer, (panel, number(step), str(layer), cell(value, written=at_least), cell(loss), alarm or "—"))
        for panel, step, loss, values, alarm in _points(section)
        for layer, value in values.items()
    ]
    return Numbers(head=("training", "step", "layer", "constant", "loss", ALARM), rows=tuple(rows))


def _points(section: Section) -> list[Point]:
    found: list[Point] = []
    for r in sorted(section.of_kind("monitor"), key=lambda r: (r.ask.training, r.ask.map, r.ask.rank)):
        values = {r.ask.layer: r.answer.lower}
        found.append((f"{r.ask.training}: {r.ask.map}", r.ask.step, None, values, r.answer.alarm))
    for r in section.of_kind("training"):
        found += [_traced(r.ask, r.answer, row) for row in r.answer.trace]
    return found


def _traced(ask: Any, answer: Any, row: Sequence[float | None]) -> Point:
    step, loss, *constants = row
    at = 0.0 if step is None else step
    alarm = "the monitor's first alarm" if at == answer.alarm_step else ""
    return f"learning rate up to {number(ask.strength)}", at, loss, dict(enumerate(constants)), alarm


def _name(layer: int) -> str:
    return f"layer {layer}"


def _title(found: Sequence[Point]) -> str:
    alarms = sum(bool(alarm) for *_rest, alarm in found)
    return f"Constants of layers while they are trained: {count(alarms, 'alarm')}"
