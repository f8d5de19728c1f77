"""A run as results again: from its records alone, without any model."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from howsmooth.errors import FileError
from howsmooth.studies.measure import plan_fact, sharp_fact, window_key
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.records import Record
from howsmooth.studies.store import FILE, Store
from howsmooth.studies.summary import summarise


def open_run(folder: str | os.PathLike[str]) -> Store:
    """Open a run that is there.

    Raises:
        FileError: If the folder holds no run.
    """
    if not (Path(folder) / FILE).is_file():
        raise FileError(
            f"{os.fspath(folder)!r} holds no run: there is no {FILE}; howsmooth runs lists those there are."
        )
    return Store(folder)


def measurements(store: Store) -> list[Measurement]:
    """Return the measurements on text that a run holds: one for each model, text, map and solver setting."""
    groups: dict[str, list[Record]] = {}
    for record in store.records():
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
    return found


def _measurement(store: Store, records: Sequence[Record], heads: Sequence[Record], complete: bool) -> Measurement:
    ordered = sorted(records, key=_place)
    first = ordered[0].task
    longest = max(ordered, key=lambda record: (record.task.length, -record.task.window)).task
    bare = summarise(ordered, lambda _layer, _length, _radius: None)
    bounds = {layer.layer: store.fact(sharp_fact(first.model, first.map, layer)) for layer in bare}
    known = {layer: None if value is None else json.loads(value) for layer, value in bounds.items()}
    return Measurement(
        model=first.model,
        text=first.text,
        map=first.map,
        records=tuple(ordered),
        heads=tuple(sorted(heads, key=_place)),
        layers=summarise(ordered, lambda layer, _length, _radius: known[layer]),
        notes=tuple(json.loads(store.fact(f"notes on {first.model}") or "[]")),
        tokens=store.window(window_key(longest)),
        run=str(store.folder),
        complete=complete,
    )


def _place(record: Record) -> tuple[int, int, int, str]:
    task = record.task
    return task.layer, task.length, task.window, task.map
