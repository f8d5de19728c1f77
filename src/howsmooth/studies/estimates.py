"""How long a sweep will take: time one small piece of each model, and extrapolate."""

import time
from collections.abc import Sequence

from howsmooth.studies.costs import cost
from howsmooth.studies.sweep import Unit, attempt, units
from howsmooth.studies.tasks import Task
from howsmooth.studies.workers import using_threads


def expected_seconds(tasks: Sequence[Task]) -> float:
    """Estimate the wall time of tasks on one process, from the smallest unit of every model; nothing is stored."""
    total = 0.0
    for model in sorted({task.model for task in tasks}):
        work = units([task for task in tasks if task.model == model], frozenset())
        smallest = min(work, key=_cost)
        with using_threads(1):
            attempt(smallest)  # what is loaded once does not count
            started = time.perf_counter()
            attempt(smallest)
            pace = (time.perf_counter() - started) / _cost(smallest)
        total += pace * sum(_cost(unit) for unit in work)
    return total


def _cost(unit: Unit) -> float:
    return sum(cost(task) for task in unit.cell)
