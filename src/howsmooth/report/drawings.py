"""Every chart of a run, with what a reader who cannot see it needs: a sentence, a description and the numbers."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.errors import AssumptionError
from howsmooth.report.charts import Chart
from howsmooth.report.ladder_chart import bounds_ladder
from howsmooth.report.measurement_charts import figures
from howsmooth.report.numbers import TABLES, Numbers, study_table
from howsmooth.report.paper_charts import CHARTS
from howsmooth.report.token_chart import sensitive_tokens
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.paper import title_and_protocol
from howsmooth.studies.reading import Run
from howsmooth.studies.records import Record

# A page stays below five megabytes.
MOST_DOTS = 8000


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart and its words.

    Attributes:
        name: What ``howsmooth figure`` calls it.
        kind: Its name among the charts of one measurement or study.
        chart: The chart.
        about: What is drawn, for those who do not see it.
        numbers: The same as a table.
    """

    name: str
    kind: str
    chart: Chart
    about: str
    numbers: Numbers

    @functools.cached_property
    def spec(self) -> dict[str, Any]:
        """The specification of the chart, with its data."""
        return self.chart.to_dict(validate=False)

    @property
    def caption(self) -> str:
        """What the chart shows, in a sentence: its title."""
        title = self.spec.get("title", "")
        text = title["text"] if isinstance(title, dict) else title
        return " ".join(text) if isinstance(text, list) else text


ABOUT = {
    "constant_against_length": (
        "The local Lipschitz constant against the number of tokens, one panel for each layer: a dot for each window, "
        "the fitted power law with its 95 % band, and the mean certificate above."
    ),
    "constant_against_radius": (
        "The local Lipschitz constant against the mean radius of the tokens, one panel for each layer: a dot for each "
        "window, the darker the shorter."
    ),
    "layers_by_length": "A heat map: the mean constant of each layer at each number of tokens.",
    "heads_by_layer": "A heat map: the mean constant of each head of each layer at the longest windows.",
    "bounds_ladder": (
        "What is known about one layer, from the lowest to the highest number: inputs that attain a value, what was "
        "measured on the text, and what no input exceeds."
    ),
}


def measurement_drawings(measurement: Measurement, prefix: str = "") -> list[Drawing]:
    """Return every chart of a measurement; the ladder holds all layers, the tables all windows."""
    drawn = figures(thinned(measurement)) | {"bounds_ladder": bounds_ladder(measurement)}
    return [
        Drawing(name=prefix + kind, kind=kind, chart=drawn[kind], about=ABOUT[kind], numbers=table(measurement))
        for kind, table in TABLES.items()
        if kind in drawn
    ]


def thinned(measurement: Measurement) -> Measurement:
    """Return a measurement with as many windows of each length as a page can carry; the summaries stay those of all."""
    windows = len({record.task.window for record in measurement.records})
    kept = max(1, windows * MOST_DOTS // max(MOST_DOTS, len(measurement.records)))
    if kept == windows:
        return measurement
    return dataclasses.replace(measurement, records=tuple(r for r in measurement.records if r.task.window < kept))


def study_drawings(figure: str, records: Sequence[Record]) -> list[Drawing]:
    """Return every chart of one figure of the paper."""
    about, numbers = f"{title_and_protocol(figure)[0]}, drawn from {len(records)} records.", study_table(records)
    return [
        Drawing(name=f"{figure}-{kind}", kind=kind, chart=chart, about=about, numbers=numbers)
        for kind, chart in CHARTS[figure](records).items()
    ]


def prefixes(measurements: Sequence[Measurement]) -> list[str]:
    """Return what names the charts of each measurement apart: nothing if there is one, else its model and map."""
    if len(measurements) < 2:
        return ["" for _ in measurements]
    names: list[str] = []
    for m in measurements:
        name = f"{_slug(m.model)}-{_slug(m.map)}"
        count = sum(other == name or other.startswith(f"{name}~") for other in names)
        names.append(f"{name}~{count + 1}" if count else name)
    return [f"{name}." for name in names]


def own_measurements(run: Run) -> list[Measurement]:
    """Return the measurements that no figure of the paper draws."""
    drawn = {record.task.key for records in run.figures.values() for record in records}
    return [m for m in run.measurements if any(record.task.key not in drawn for record in m.records)]


def chart_named(run: Run, name: str, layer: int | None = None) -> Chart:
    """Return one chart of a run; of a layer, where a chart shows one.

    Raises:
        AssumptionError: If the run has no such chart, or no such layer.
    """
    known: dict[str, Chart] = {}
    measured = own_measurements(run)
    for m, prefix in zip(measured, prefixes(measured), strict=True):
        known |= {prefix + kind: chart for kind, chart in figures(m).items()}
        if layer is not None and name in (f"{prefix}bounds_ladder", f"{prefix}sensitive_tokens"):
            if layer not in {summary.layer for summary in m.layers}:
                raise AssumptionError(f"layer {layer} was not measured; the run has {_layers(m)}.")
            known[name] = bounds_ladder(m, layer) if name.endswith("ladder") else sensitive_tokens(m, layer)
            layer = None
    for figure, records in run.figures.items():
        known |= {f"{figure}-{kind}": chart for kind, chart in CHARTS[figure](records).items()}
    if name not in known:
        raise AssumptionError(f"the run has no figure {name!r}; it has {', '.join(known) or 'none'}.")
    if layer is not None:
        raise AssumptionError(f"{name} shows all layers, got --layer {layer}; leave it out.")
    return known[name]


def _layers(m: Measurement) -> str:
    return ", ".join(str(layer.layer) for layer in m.layers)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-") or "model"
