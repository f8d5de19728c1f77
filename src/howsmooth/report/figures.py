"""Charts of a run, a measurement or a section: each drawn once, with its words and its numbers; or one by its name."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.errors import AssumptionError
from howsmooth.report.charts import ChartKind, charts_of
from howsmooth.report.drawing.tables import Chart, Numbers
from howsmooth.report.sections import Section, section_of, sections
from howsmooth.studies.runs.measurement import Measurement, least_smooth
from howsmooth.studies.runs.run import Run

__all__ = ["Drawing", "Section", "chart_names", "draw", "drawings", "section_of", "sections", "thinned"]

# A page stays below five megabytes.
MOST_DOTS = 8000


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart and its words."""

    name: str  # what ``howsmooth figure`` calls it
    chart_name: str  # its name among the charts of one section
    chart: Chart  # the chart; of all layers, if it is for one at a time
    about: str  # what is drawn, for those who do not see it
    numbers: Numbers  # the same as a table
    per_layer: bool  # whether it shows one layer at a time: rows of the others are to be left out

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


def drawings(section: Section) -> list[Drawing]:
    """Draw every chart of a section that a page shows, with as many windows as it can carry; tables hold all."""
    fewer = dataclasses.replace(section, measurements=tuple(map(thinned, section.measurements)))
    return [
        Drawing(
            name=section.prefix + kind.name,
            chart_name=kind.name,
            chart=kind.draw(fewer, None) if kind.per_layer else kind.draw(fewer),
            about=kind.about,
            numbers=kind.table(section),
            per_layer=kind.per_layer,
        )
        for kind in charts_of(section)
        if kind.on_page(section)
    ]


def chart_names(section: Section) -> list[str]:
    """Return the names of all charts of a section, as :func:`draw` takes them."""
    return [section.prefix + kind.name for kind in charts_of(section)]


def draw(subject: Measurement | Section | Run, name: str = "length", *, layer: int | None = None) -> Chart:
    """Draw one chart: a part of its name is enough, if no other has it; of one layer the least smooth by default."""
    if isinstance(subject, Measurement):
        subject = section_of(subject)
    section, kind = _chosen(sections(subject) if isinstance(subject, Run) else [subject], name)
    if kind.layers is None:
        if layer is not None:
            raise AssumptionError(f"{kind.name} shows all layers, got layer {layer}; leave it out.", field="layer")
        return kind.draw(section)
    known = kind.layers(section)
    if layer is not None and layer not in {summary.layer for summary in known}:
        there = ", ".join(str(summary.layer) for summary in known)
        raise AssumptionError(f"layer {layer} was not measured; there are {there}.", field="layer")
    return kind.draw(section, least_smooth(known).layer if layer is None else layer)


def thinned(measurement: Measurement) -> Measurement:
    """Return a measurement with as many windows of each length as a page can carry; the summaries stay those of all."""
    windows = len({record.ask.window.index for record in measurement.records})
    kept = max(1, windows * MOST_DOTS // max(MOST_DOTS, len(measurement.records)))
    if kept == windows:
        return measurement
    few = tuple(record for record in measurement.records if record.ask.window.index < kept)
    return dataclasses.replace(measurement, records=few)


def _chosen(parts: Sequence[Section], name: str) -> tuple[Section, ChartKind]:
    """Find a chart by its name, by what is quicker to type, or by a part of its name."""
    known = [(section, kind) for section in parts for kind in charts_of(section)]
    for fits in (
        lambda section, kind: name == section.prefix + kind.name,
        lambda section, kind: name in (kind.name, kind.short or kind.name, section.prefix + (kind.short or kind.name)),
        lambda section, kind: name in section.prefix + kind.name,
    ):
        found = [pair for pair in known if fits(*pair)]
        if len(found) == 1:
            return found[0]
        if found and name:
            raise AssumptionError(f"{name!r} may be {_listed(found)}; which one?", field="name")
    raise AssumptionError(f"there is no figure {name!r}; there are {_listed(known) or 'none'}.", field="name")


def _listed(found: Sequence[tuple[Section, ChartKind]]) -> str:
    return ", ".join(section.prefix + kind.name for section, kind in found)


def straightened(chart: Chart) -> Chart:
    """Return a chart with linear axes in place of logarithmic ones."""
    spec = chart.to_dict()
    straight = linear(spec)
    if straight == spec:
        raise AssumptionError("this figure has no axes that can be linear; leave linear= out.", field="linear")
    return type(chart).from_dict(straight)


def linear(spec: Any) -> Any:
    """Return a specification with linear axes in place of logarithmic ones."""
    if isinstance(spec, list):
        return [linear(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    return {name: _straight(part) if name in ("x", "y") else linear(part) for name, part in spec.items()}


def _straight(channel: Any) -> Any:
    scale = channel.get("scale") if isinstance(channel, dict) else None
    if not isinstance(scale, dict) or scale.get("type") != "log":
        return channel
    # ticks and labels were chosen for decades
    domain = {"domain": [0, scale["domain"][1]]} if "domain" in scale else {"zero": True}
    return channel | {"scale": {"type": "linear", "nice": False} | domain, "axis": {"tickCount": 5}}
