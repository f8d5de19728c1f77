"""A run in sections: one for each measurement, and one for each figure of the paper."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from howsmooth.studies.kinds import kind_named
from howsmooth.studies.plans.paper import ALSO, FIGURES, title_and_protocol
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run import Run

# The section of what was measured on a text.
MEASUREMENT = "measurement"
# In which section records stand whose kind no figure is called by.
BY_KIND = {
    **{"bounds": "worst", "ascent": "worst", "extremal": "adversarial"},
    **{"recipe": "budget", "verified": "budget", "probe": "monitor"},
}


# Told apart by which it is, not by what it holds: charts are kept by their section.
@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """What is drawn together."""

    name: str  # which charts it has: those that name it
    title: str  # what it shows
    protocol: str = ""  # what the paper did for it, and what differs here; nothing if it is of no figure of the paper
    measurements: tuple[Measurement, ...] = ()  # what was measured at texts, summed up
    records: tuple[Record, ...] = ()  # everything that was found
    prefix: str = ""  # what its charts are called by, before their names

    def of_kind(self, *kinds: str) -> list[Record]:
        """Return the records of some kinds."""
        return [record for record in self.records if record.ask.kind in kinds]


def sections(run: Run) -> list[Section]:
    """Return a section for each measurement that no figure draws, for each figure, and for other kinds of records."""
    drawn = {record.ask.key for records in run.figures.values() for record in records}
    own = [m for m in run.measurements if any(record.ask.key not in drawn for record in m.records)]
    measured = [section_of(m, prefix) for m, prefix in zip(own, prefixes(own), strict=True)]
    others = list(_others(run))
    # of a model as a whole, how its blocks work together is the answer; its own constant is a detail
    first = [section for section in others if section.name == "whole"]
    return [*first, *measured, *_figures(run), *(section for section in others if section not in first)]


def section_of(measurement: Measurement, prefix: str = "") -> Section:
    """Return the section of one measurement."""
    return Section(
        name=MEASUREMENT,
        title=f"{measurement.model} on {measurement.text}: {measurement.map}",
        measurements=(measurement,),
        records=(*measurement.records, *measurement.heads),
        prefix=prefix,
    )


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


def _figures(run: Run) -> Iterable[Section]:
    for name, records in run.figures.items():
        title, protocol = title_and_protocol(name)
        keys = {record.ask.key for record in records}
        measured = tuple(m for m in run.measurements if any(r.ask.key in keys for r in m.records))
        yield Section(
            name=name, title=title, protocol=protocol, measurements=measured, records=records, prefix=f"{name}-"
        )


def _others(run: Run) -> Iterable[Section]:
    """Yield what was swept over without being called a figure; measurements at texts have their own sections."""
    drawn = {record.ask.key for records in run.figures.values() for record in records}
    others = (record for record in run.in_order.values() if record.ask.kind != "text" and record.ask.key not in drawn)
    found = grouped(others, lambda record: BY_KIND.get(record.ask.kind, record.ask.kind))
    # a figure of the same name has its section already: its charts draw these as well as they can
    taken = set(run.figures)
    for name, records in found.items():
        known = name in FIGURES or name in ALSO
        title = title_and_protocol(name)[0] if known else kind_named(name).about.rstrip(".")
        prefix = f"{name}~2-" if name in taken else f"{name}-"
        yield Section(name=name, title=title, records=tuple(records), prefix=prefix)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name).strip("-") or "model"
