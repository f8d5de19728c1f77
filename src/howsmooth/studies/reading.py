"""A run as results again: from its records alone, without any model."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group

from howsmooth.errors import FileError
from howsmooth.markup import paragraph
from howsmooth.studies.context import kept_ladder, kept_notes
from howsmooth.studies.measure import opening_key, plan_fact, window_key
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.provenance import commands_for, kept_commands, kept_figures
from howsmooth.studies.records import Failure, Record
from howsmooth.studies.store import FILE, Store
from howsmooth.studies.summary import summarise
from howsmooth.theory.results import Ladder

# Records that no figure was asked for belong to the figure that draws their kind.
DRAWN_BY = {
    "extremal": "adversarial",
    "bounds": "worst",
    "ascent": "worst",
    "regime": "regimes",
    "splitting": "splitting",
    "measure": "measures",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """Everything that a run holds.

    Attributes:
        records: What came of every task, in the order of their keys.
        failures: What nothing came of.
        measurements: What was measured at texts: one for each model, text, map and solver setting.
        figures: The records of each figure of the paper, by its name.
        commands: What makes such a run again.
    """

    records: tuple[Record, ...]
    failures: tuple[Failure, ...]
    measurements: tuple[Measurement, ...]
    figures: dict[str, tuple[Record, ...]]
    commands: tuple[str, ...]

    def __repr__(self) -> str:
        """Show the answers one after the other."""
        return "\n".join((self._summary, *map(repr, self.measurements)))

    def __rich__(self) -> Group:
        """Render in a rich console."""
        return Group(self._summary, *self.measurements)

    def _repr_html_(self) -> str:
        return paragraph(self._summary) + "".join(m._repr_html_() for m in self.measurements)

    @property
    def _summary(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        figures = f"; figures: {', '.join(self.figures)}" if self.figures else ""
        return f"Run: {len(self.records)} records{failed}{figures}"


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run back: its records, what they say about each layer, and how they were asked for.

    Raises:
        FileError: If the folder holds no run, or its records are damaged.
    """
    with open_run(folder) as store:
        records = store.records()
        measured = _measurements(store, records)
        told = kept_commands(store) or [command for found in measured for command in commands_for(found)]
        return Run(
            records=tuple(records),
            failures=tuple(store.failures()),
            measurements=tuple(measured),
            figures=_figures(records, kept_figures(store)),
            commands=tuple(told),
        )


def open_run(folder: str | os.PathLike[str]) -> Store:
    """Open a run that is there.

    Raises:
        FileError: If the folder holds no run.
    """
    path = Path(folder)
    if path.is_file():
        raise FileError(f"{os.fspath(folder)!r} holds no run: it is a file; give its folder, {str(path.parent)!r}?")
    if not (path / FILE).is_file():
        missing = f"there is no {FILE} in it" if path.is_dir() else "there is no such folder"
        raise FileError(f"{os.fspath(folder)!r} holds no run: {missing}; howsmooth runs lists those there are.")
    return Store(folder)


def measurements(store: Store) -> list[Measurement]:
    """Return the measurements on text that a run holds: one for each model, text, map and solver setting."""
    return _measurements(store, store.records())


def _measurements(store: Store, kept: Sequence[Record]) -> list[Measurement]:
    groups: dict[str, list[Record]] = {}
    for record in kept:
        if record.task.kind == "local":
            groups.setdefault(plan_fact(record.task), []).append(record)
    plans = {name: frozenset(json.loads(store.fact(name) or "[]")) for name in groups}
    known = {record.task.key: record for records in groups.values() for record in records}
    # heads that were measured beside a layer belong to it, unless they were asked for by themselves
    beside = {key for planned in plans.values() for key in planned}
    found = []
    for name, records in groups.items():
        if not plans[name] and all(record.task.key in beside for record in records):
            continue
        mine = {record.task.key for record in records}
        heads = [known[key] for key in plans[name] - mine if key in known]
        complete = plans[name] <= known.keys() if plans[name] else not store.failures()
        found.append(_measurement(store, records, heads, complete))
    return sorted(found, key=lambda m: (m.model, m.text, m.map, m.records[0].task.stride))


def _measurement(store: Store, records: Sequence[Record], heads: Sequence[Record], complete: bool) -> Measurement:
    ordered = sorted(records, key=_place)
    first = ordered[0].task
    longest = max(ordered, key=lambda record: (record.task.length, -record.task.window)).task

    def bounds(layer: int, length: int, radius: float) -> Ladder:
        return kept_ladder(store, first.model, first.map, layer, length, radius)

    places = {(record.task.length, record.task.window): record.task for record in ordered}
    return Measurement(
        model=first.model,
        text=first.text,
        map=first.map,
        records=tuple(ordered),
        heads=tuple(sorted(heads, key=_place)),
        layers=summarise(ordered, bounds),
        notes=kept_notes(store, first.model),
        tokens=store.window(window_key(longest)),
        openings={place: store.window(opening_key(task)) for place, task in places.items()},
        run=str(store.folder),
        complete=complete,
    )


def _figures(records: Sequence[Record], kept: dict[str, list[str]]) -> dict[str, tuple[Record, ...]]:
    """Return the records of each figure: those it was kept for, or all of its kinds if none was."""
    if kept:
        known = {record.task.key: record for record in records}
        drawn = {name: tuple(known[key] for key in keys if key in known) for name, keys in kept.items()}
        return {name: found for name, found in drawn.items() if found}
    by_kind: dict[str, list[Record]] = {}
    for record in records:
        if record.task.kind in DRAWN_BY:
            by_kind.setdefault(DRAWN_BY[record.task.kind], []).append(record)
    return {name: tuple(found) for name, found in sorted(by_kind.items())}


def _place(record: Record) -> tuple[int, int, int, str]:
    task = record.task
    return task.layer, task.length, task.window, task.map
