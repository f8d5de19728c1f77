"""Tasks are done by kind, and those that share a run of the model together."""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from howsmooth.errors import AssumptionError
from howsmooth.studies.records import Record
from howsmooth.studies.tasks import Task

# kind → the function that does its tasks, loaded on first use
KINDS = {
    "local": "local:run",  # the constant at a window of a text
    "splitting": "splits:run",  # whether a window of a text splits
    "extremal": "extremal:run",  # the constant at an input built from the weights
    "bounds": "worst:bounds",  # theorems at a length and a radius
    "ascent": "worst:ascent",  # the worst input that a search finds
    "measure": "worst:measure",  # the worst measure that a search finds
    "regime": "worst:regime",  # one length on the way from few tokens to measures
}
# So many tokens of a text go through the model together: enough to be fast, few enough for the memory of a laptop.
TOKENS = 4096

# Does the tasks of one cell; the batch says with which other windows they go through the model.
Run = Callable[[Sequence[Task], Sequence[Task]], list[Record]]


def run(task: Task) -> Record:
    """Do one task by itself."""
    (record,) = run_cell((task,), (task,))
    return record


def run_cell(batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Do the tasks of one cell of a batch. Nothing but these tasks decides what comes of them."""
    return runner(cell[0].kind)(batch, cell)


def batches(tasks: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Sort tasks into batches; in which one a task is does not depend on how many there are."""
    found: dict[Task, list[Task]] = {}
    for task in tasks:
        found.setdefault(_shared(task), []).append(task)
    return [tuple(group) for group in found.values()]


def cells(tasks: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Return the tasks of each layer and map, which one iteration measures."""

    def place(task: Task) -> tuple[int, str]:
        return task.layer, task.map

    ordered = sorted(tasks, key=lambda task: (*place(task), task.window))
    return [tuple(cell) for _, cell in itertools.groupby(ordered, key=place)]


@functools.cache
def runner(kind: str) -> Run:
    """Return the function that does tasks of a kind."""
    if kind not in KINDS:
        raise AssumptionError(f"a task is of one of the kinds {', '.join(KINDS)}, got {kind!r}.")
    module, function = KINDS[kind].split(":")
    return getattr(importlib.import_module(f"howsmooth.studies.{module}"), function)


def _shared(task: Task) -> Task:
    """Return what tasks that share a run of the model have in common."""
    if not task.text:
        return task
    return replace(task, layer=0, map="", window=task.window // max(1, TOKENS // task.length))
