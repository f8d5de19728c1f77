"""Training: constants over steps, and what methods that keep a network smooth give and cost."""

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from howsmooth.report.charts import ChartKind
from howsmooth.report.drawing.palette import BLUE, GREEN, GREY, HUES, INK, ORANGE, PINK
from howsmooth.report.drawing.panels import Style, Styles, points, series_panels
from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.tables import Chart, NumberRow, Numbers, Rows, cell
from howsmooth.report.sections import Section
from howsmooth.studies.records import Record
from howsmooth.wording import at_least, count, number, percent

ALARM, LOSS = "alarm", "loss"
SIZE = {"width": 330, "height": 220}
METHODS: Styles = {
    "plain": Style(colour=INK),
    "penalty": Style(colour=BLUE),
    "Frobenius": Style(colour=ORANGE),
    "spectral normalisation": Style(colour=PINK),
    "weight decay": Style(colour=GREEN),
}
PANELS = {
    "network": "constant of the network",
    "attention": "constant of attention layers",
    "attained": "scores moved by pgd / ε",
}
# Of each method and strength the mean over seeds: what the table has.
COLUMNS = ("accuracy", "network", "attention", "attained", "flipped", "swapped", "steps")
# One training at one step: what the panel says, the step, the loss, the constant of each layer, the alarm.
Point = tuple[str, float, float | None, dict[int, float | None], str]


def seen(section: Section) -> int:
    """Count the numbers that were seen."""
    return sum(drawable(value) for *_rest, values, _alarm in _points(section) for value in values.values())


def draw_steps(section: Section) -> Chart:
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


def table_steps(section: Section) -> Numbers:
    """Return a row for each layer and step."""
    rows: list[NumberRow] = [
        (layer, (panel, number(step), str(layer), cell(value, written=at_least), cell(loss), alarm or "—"))
        for panel, step, loss, values, alarm in _points(section)
        for layer, value in values.items()
    ]
    return Numbers(head=("training", "step", "layer", "constant", "loss", ALARM), rows=rows)


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


def draw_methods(section: Section) -> Chart:
    """Draw a panel for each measure of roughness."""
    rows: Rows = []
    for field, panel in PANELS.items():
        for r in _judged(section):
            rows += points([(r.answer.accuracy, getattr(r.answer, field))], series=r.ask.method, panel=panel)
    return series_panels(rows, METHODS, title=_best(section), across="accuracy on held-out sentences", up="roughness")


def table_methods(section: Section) -> Numbers:
    """Return a row for each method and strength."""
    rows: list[NumberRow] = []
    for (method, strength), some in grouped(_judged(section)).items():
        means = {name: mean(getattr(r.answer, name) for r in some) for name in COLUMNS}
        told = [percent(means["accuracy"]), *(cell(means[name], 3) for name in ("network", "attention", "attained"))]
        told += [percent(means["flipped"]), percent(means["swapped"]), number(round(means["steps"]))]
        rows.append((None, (method, number(strength) if strength else "—", str(len(some)), *told)))
    head = ("method", "strength", "seeds", "accuracy", *PANELS.values(), "flipped by pgd", "flipped by a swap", "steps")
    return Numbers(head=head, rows=rows)


def grouped(records: Iterable[Record[Any, Any]]) -> dict[tuple[str, float], list[Record[Any, Any]]]:
    """Return trainings by method and strength, in the order of the methods."""
    found: dict[tuple[str, float], list[Record[Any, Any]]] = {}
    order = list(METHODS)
    for r in sorted(records, key=lambda r: (order.index(r.ask.method), r.ask.strength, r.ask.seed)):
        found.setdefault((r.ask.method, r.ask.strength), []).append(r)
    return found


def _judged(section: Section) -> list[Record[Any, Any]]:
    return [r for r in section.of_kind("training") if r.ask.method in METHODS and r.answer.accuracy is not None]


def _best(section: Section) -> str:
    groups = grouped(_judged(section))
    right, where = max((mean(r.answer.accuracy for r in some), key) for key, some in groups.items())
    return f"The best accuracy, {percent(right)}, is that of {where[0]}{f' {number(where[1])}' if where[1] else ''}"


CHARTS = (
    ChartKind(
        name="constants_over_steps",
        short="steps",
        sections=("training",),
        rank=10,
        about="The constant of each layer against the training step, on logarithmic axes: one line for each layer, "
        "dashed vertical lines at alarms, and the loss where it is known; one panel for each training.",
        wanted=lambda section: seen(section) > 0,
        on_page=lambda section: seen(section) > 1,
        draw=draw_steps,
        table=table_steps,
    ),
    ChartKind(
        name="training_methods",
        short="methods",
        sections=("training",),
        rank=5,
        about="Classifiers that were trained for equal time: the constant of the whole network, of its attention "
        "layers, and what attacks attain, against the accuracy on held-out sentences; one colour for each method, a "
        "dot for each training. Lower and further right is better.",
        wanted=lambda section: any(drawable(r.answer.network) for r in _judged(section)),
        draw=draw_methods,
        table=table_methods,
    ),
)
