"""Layers of models that were measured on texts: their windows, what is told of each, and means over windows."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import altair as alt

from howsmooth.report.drawing.scales import drawable
from howsmooth.report.drawing.token_text import running_text
from howsmooth.report.sections import Section
from howsmooth.studies.kinds.text import TextRecord
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.summary import LayerSummary
from howsmooth.wording import interval, percent

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
            name=", ".join((*(_short(getattr(m, part)) for part in told), f"layer {summary.layer}")),
            measurement=m,
            summary=summary,
            records=tuple(sorted(m.at(layer=summary.layer), key=lambda r: (r.ask.length, r.ask.window.index))),
        )
        for m in section.measurements
        for summary in m.layers
    ]


def _short(name: str) -> str:
    """Return the last part of a path or of a name on a hub."""
    return name.rstrip("/").rpartition("/")[2] or name
