"""A run as results again: from its records alone, without any model."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group

from howsmooth.markup import paragraph
from howsmooth.studies.asks import AtText
from howsmooth.studies.records import Failure, Record, RunPlan
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.run_metadata import first_of_the_longest, kept_ladder, kept_notes, opening_key, window_key
from howsmooth.studies.runs.store import Store, open_run
from howsmooth.studies.runs.summary import NO_BOUNDS, summarise
from howsmooth.wording import count

OUTDATED_BOUNDS = (
    "the bounds for any input that are kept here were computed by another version of howsmooth, and are not shown; the "
    "command that made the run computes them anew, and nothing else"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """Everything that a run holds.

    Attributes:
        records: Every record, in the order of their keys.
        failures: What nothing came of.
        plans: What was asked for.
        measurements: What was measured at texts: one for each model, text, map and setting.
        commands: What makes such a run again.
    """

    records: tuple[Record, ...]
    failures: tuple[Failure, ...]
    plans: tuple[RunPlan, ...]
    measurements: tuple[Measurement, ...]
    commands: tuple[str, ...]

    @property
    def figures(self) -> dict[str, tuple[Record, ...]]:
        """The records of each figure of the paper that was asked for."""
        known = {record.ask.key: record for record in self.records}
        # a figure of several kinds or models has a plan for each; asked for twice, it has its keys twice
        found: dict[str, dict[str, Record]] = {}
        for plan in self.plans:
            if plan.figure:
                found.setdefault(plan.figure, {}).update((key, known[key]) for key in plan.keys if key in known)
        return {name: tuple(records.values()) for name, records in found.items()}

    @property
    def in_order(self) -> dict[str, Record]:
        """Every record by its key, in the order in which they were asked for."""
        known = {record.ask.key: record for record in self.records}
        keys = dict.fromkeys((*(key for plan in self.plans for key in plan.keys), *known))
        return {key: known[key] for key in keys if key in known}

    @property
    def planned(self) -> int:
        """How many records there will be when all is done."""
        keys = {key for plan in self.plans for key in (*plan.keys, *plan.beside)}
        return len(keys | {record.ask.key for record in self.records})

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
        missing = self.planned - len(self.records)
        left = f" of {self.planned} planned" if missing else ""
        figures = f"; figures: {', '.join(self.figures)}" if self.figures else ""
        return f"Run: {count(len(self.records), 'record')}{left}{failed}{figures}"


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run back: its records, what they say about each layer, and how they were asked for.

    Raises:
        FileError: If the folder holds no run, or its records are damaged.
    """
    with open_run(folder) as store:
        records, plans = store.records(), store.plans()
        return Run(
            records=tuple(records),
            failures=tuple(store.failures()),
            plans=tuple(plans),
            measurements=tuple(measurements(store, records, plans)),
            commands=tuple(dict.fromkeys(plan.command for plan in plans if plan.command)),
        )


def measurements(store: Store, records: Sequence[Record], plans: Sequence[RunPlan]) -> list[Measurement]:
    """Return the measurements at texts: plans that differ in layers and windows alone make one of them."""
    known = {record.ask.key: record for record in records if record.ask.kind == "text"}
    merged: dict[AtText, list[RunPlan]] = {}
    # a record that no plan speaks of was kept by hand
    spoken = {key for plan in plans for key in (*plan.keys, *plan.beside)}
    for plan in (*plans, *(RunPlan(kind="text", keys=(key,)) for key in known if key not in spoken)):
        if plan.kind == "text" and (first := next((known[key] for key in plan.keys if key in known), None)):
            merged.setdefault(first.ask.group, []).append(plan)
    found = [measurement(store, some, known) for some in merged.values()]
    return sorted(found, key=lambda m: (m.model, m.text, m.map, m.metric, m.records[0].ask.window.stride))


def measurement(store: Store, plans: Sequence[RunPlan], known: dict[str, Record]) -> Measurement:
    """Build what is known of some plans that belong together; at least one of their records is there."""
    keys = {key for plan in plans for key in plan.keys}
    beside = {key for plan in plans for key in plan.beside} - keys

    def place(record: Record) -> tuple[int, ...]:
        layer, _name, head, index = record.ask.rank
        # sequences that are measured whole stay in the order of their file
        return layer, 0 if record.ask.window.whole else record.ask.length, head, index

    records, heads = (sorted((known[key] for key in some if key in known), key=place) for some in (keys, beside))
    first = records[0].ask
    longest = first_of_the_longest(record.ask for record in records)
    bounds = functools.partial(kept_ladder, store, first)
    layers = summarise(records, bounds)
    # the ball of earlier versions had the mean norm as its radius: it need not hold the text they stand beside
    outdated = any(
        bounds(layer.layer, layer.length, radius, outdated=True).bounds
        for layer in layers
        if layer.ladder is NO_BOUNDS
        for radius in (layer.ball, layer.radius)
    )
    places = {(record.ask.length, record.ask.window.index): record.ask for record in records}
    return Measurement(
        model=first.model,
        text=first.window.text,
        map=first.map,
        records=tuple(records),
        heads=tuple(heads),
        layers=layers,
        notes=kept_notes(store, first.model) + ((OUTDATED_BOUNDS,) if outdated else ()),
        tokens=store.window(window_key(longest)),
        openings={place: store.window(opening_key(ask)) for place, ask in places.items()},
        run=None if store.folder is None else str(store.folder),
        planned=len(keys | beside),
        commands=tuple(dict.fromkeys(plan.command for plan in plans if plan.command)),
    )
