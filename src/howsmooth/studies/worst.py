"""How bad it can get: theorems, searches, and the way from few tokens to measures."""

import time
from collections.abc import Callable, Sequence

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.ellipsoids import Ball
from howsmooth.search.ascent import maximise
from howsmooth.search.regimes import regimes
from howsmooth.studies.local import seeded
from howsmooth.studies.records import Record
from howsmooth.studies.resources import attention_of
from howsmooth.studies.setting import here
from howsmooth.studies.tasks import Task
from howsmooth.theory.discrete import discrete_lower, discrete_upper, sharp_lower, sharp_upper
from howsmooth.theory.extremal import tied_pair, two_point
from howsmooth.theory.results import Witness

Numbers = dict[str, float]
Found = tuple[float, float | None, Numbers]


def bounds(_batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Find the paper's bounds and ours, and what explicit inputs attain."""
    return [_written(task, _bounds) for task in cell]


def ascent(_batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Search a ball for the worst sequence."""
    return [_written(task, _ascent) for task in cell]


def measure(_batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Search a ball for the worst measure with so many atoms."""
    return [_written(task, _measure) for task in cell]


def regime(_batch: Sequence[Task], cell: Sequence[Task]) -> list[Record]:
    """Find the worst constant at one length between few tokens and measures."""
    return [_written(task, _regime) for task in cell]


def _written(task: Task, find: Callable[[Task, Attention], Found]) -> Record:
    started = time.perf_counter()
    lower, upper, numbers = find(task, attention_of(task))
    return Record(
        task=task,
        lower=lower,
        upper=upper,
        radius=task.radius,
        numbers=tuple(numbers.items()),
        seconds=time.perf_counter() - started,
        setting=here(),
    )


def _bounds(task: Task, f: Attention) -> Found:
    n, radius = task.length, task.radius
    theorems = (discrete_lower, sharp_lower, sharp_upper, discrete_upper)
    numbers = {theorem.__name__: theorem(f, n=n, radius=radius).value for theorem in theorems if _applies(theorem, f)}
    inputs: tuple[Callable[[Attention, int, float], Witness], ...] = (two_point, tied_pair)
    attained = {build.__name__: build(f, n, radius).value for build in inputs if n > 2 and _exists(build, f)}
    return max(attained.values(), default=0.0), numbers["sharp_upper"], numbers | attained


def _applies(theorem: Callable[..., object], f: Attention) -> bool:
    try:
        theorem(f, n=3, radius=1.0)
    except AssumptionError:
        return False
    return True


def _exists(build: Callable[[Attention, int, float], Witness], f: Attention) -> bool:
    try:
        build(f, 3, 1.0)
    except AssumptionError:
        return False
    return True


def _ascent(task: Task, f: Attention) -> Found:
    found = maximise(f, n=task.length, domain=Ball(task.radius), starts=2, steps=task.climb, generator=seeded([task]))
    return found.value, None, {}


def _measure(task: Task, f: Attention) -> Found:
    found = maximise(
        f, n=task.length, domain=Ball(task.radius), steps=task.climb, generator=seeded([task]), weights=True
    )
    return found.value, None, _atoms(found)


def _atoms(found: Witness) -> Numbers:
    """Write places on the line and masses down, the heaviest atom first."""
    atoms = found.measure
    order = atoms.weights.argsort(descending=True).tolist()
    numbers: Numbers = {}
    for place, i in enumerate(order):
        numbers |= {f"mass {place}": float(atoms.weights[i]), f"place {place}": float(atoms.points[i].norm())}
        numbers[f"coordinate {place}"] = float(atoms.points[i][0])
    return numbers


def _regime(task: Task, f: Attention) -> Found:
    found = regimes(f, task.radius, [task.length])
    (row,) = found.rows
    numbers = {"crossing": found.crossing, "plateau": found.lower.value, "measures": found.upper.value}
    return row.found, row.upper.value, numbers
