"""The constant at inputs that are built from the weights: the paper's two points, and tied pairs."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.studies.local import record, seeded
from howsmooth.studies.records import Record
from howsmooth.studies.resources import attention_of
from howsmooth.studies.tasks import Task
from howsmooth.theory.extremal import tied_pair, two_point
from howsmooth.theory.results import Witness

POINTS: dict[str, Callable[[Attention, int, float], Witness]] = {"two_point": two_point, "tied_pair": tied_pair}


def run(_batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Measure every task by itself."""
    return [_measure(task) for task in cell]


def _measure(task: Task) -> Record:
    """Build the input from one head without its biases, as the paper does; measure the map that the task names."""
    if task.points not in POINTS:
        raise AssumptionError(f"points must be one of {', '.join(POINTS)}, got {task.points!r}.")
    started = time.perf_counter()
    f = attention_of(task)
    X = _tokens(dataclasses.replace(task, map=f"head:{task.head}", biases=False)).to(f.dtype)
    estimate = local_lipschitz(
        f, X, rtol=task.rtol, confidence=task.confidence, certify=task.certify, generator=seeded([task])
    )
    return record(task, estimate, X, seconds=time.perf_counter() - started)


# the head and the whole layer are measured at the same input
@functools.lru_cache(maxsize=8)
def _tokens(task: Task) -> Float[Tensor, "n d"]:
    return POINTS[task.points](attention_of(task), task.length, task.radius).tokens
