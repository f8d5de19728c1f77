"""What is told of one window when a pointer rests on it."""

from typing import Any

import altair as alt

from howsmooth.report.drawing.token_text import running_text
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.wording import interval, percent

TOLD = (
    alt.Tooltip("layer:Q", title="layer"),
    alt.Tooltip("error:N", title="error bar"),
    alt.Tooltip("radius:Q", title="mean radius", format=",.4~r"),
    alt.Tooltip("window:Q", title="window"),
    alt.Tooltip("begins:N", title="sequence"),
)


def described(measurement: Measurement, record: TextRecord) -> dict[str, Any]:
    """Return what is told of one window: the error bar of its constant, and which sequence it is."""
    opening = measurement.openings.get((record.ask.length, record.ask.window.index), ())
    return {
        "layer": record.ask.layer,
        "window": record.ask.window.index,
        "error": error_bar(record),
        "radius": record.answer.mean_radius,
        "begins": f"{running_text(opening)} …" if opening else "—",
    }


def error_bar(record: TextRecord) -> str:
    """Write both ends of one constant, and with which probability the upper one holds."""
    answer = record.answer
    worth = "" if answer.upper is None else f" ({percent(record.ask.solver.confidence)})"
    return f"{interval(answer.lower, answer.upper, 5)}{worth}"
