"""How long a sweep will take: time one small piece of each model and kind, and extrapolate."""

import time
from collections.abc import Sequence

from howsmooth.studies.asks import Ask
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.batches import attempt, units
from howsmooth.studies.sweep.here import using_threads


def expected_seconds(asks: Sequence[Ask], resources: Resources) -> float:
    """Estimate the wall time of asks on one process, from the smallest unit of each; nothing is stored."""
    total = 0.0
    for which in sorted({_alike(ask) for ask in asks}):
        work = units([ask for ask in asks if _alike(ask) == which], frozenset())
        smallest = min(work, key=lambda unit: unit.cost)
        with using_threads(1):
            attempt(smallest, resources)  # what is loaded once does not count
            started = time.perf_counter()
            attempt(smallest, resources)
            pace = (time.perf_counter() - started) / smallest.cost
        total += pace * sum(unit.cost for unit in work)
    return total


def _alike(ask: Ask) -> tuple[str, str]:
    return ask.kind, str(getattr(ask, "model", ""))
