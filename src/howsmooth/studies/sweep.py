"""Many tasks, one store: what is stored is skipped, what fails is written down, and nothing is lost."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from howsmooth.studies.costs import cost
from howsmooth.studies.kinds import batches, cells, run_cell
from howsmooth.studies.records import Failure, Record
from howsmooth.studies.store import Store
from howsmooth.studies.tasks import Task

Outcome = Record | Failure


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How far a sweep is.

    Attributes:
        done: How many tasks have a record.
        failed: How many have an error instead.
        left: How many wait.
        share: How much of the work is behind, from 0 to 1: long inputs count for more.
        last: What was done last, in a few words.
    """

    done: int
    failed: int
    left: int
    share: float
    last: str = ""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is done in one piece, by one worker.

    Attributes:
        batch: The tasks that share a run of the model.
        cell: Those of them that are to be done.
    """

    batch: tuple[Task, ...]
    cell: tuple[Task, ...]


Progress = Callable[[Tally], None]
# Does units of work in any order, and yields what comes of each.
Executor = Callable[[Sequence[Unit]], Iterator[list[Outcome]]]


def sweep(
    tasks: Iterable[Task],
    store: Store,
    *,
    execute: Executor | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> Tally:
    """Do every task that has no record yet; keep each record as it comes.

    Args:
        tasks: What to find out.
        store: Where records are kept.
        execute: Who does the work; this process by default. See :mod:`howsmooth.studies.workers` for others.
        retry_failed: Whether to try again what failed before.
        progress: Called whenever something was stored.
    """
    tasks = tuple({task.key: task for task in tasks}.values())
    done = store.done(tasks)
    failed = frozenset[str]() if retry_failed else store.failed(tasks) - done
    finished = done | failed
    total = sum(cost(task) for task in tasks) or 1.0
    ahead = sum(cost(task) for task in tasks if task.key not in finished)
    tally = Tally(done=len(done), failed=len(failed), left=len(tasks) - len(finished), share=1 - ahead / total)
    for outcomes in (execute or in_process)(units(tasks, finished)):
        new = [outcome for outcome in outcomes if outcome.task.key not in finished]
        store.add(new)
        ahead -= sum(cost(outcome.task) for outcome in new)
        tally = _counted(tally, new, 1 - max(ahead, 0.0) / total)
        if progress is not None:
            progress(tally)
    return tally


def units(tasks: Iterable[Task], finished: frozenset[str]) -> list[Unit]:
    """Return the work that is left: a cell is done whole or not at all, so that its records never depend on when."""
    return [
        Unit(batch=batch, cell=cell)
        for batch in batches(tasks)
        for cell in cells(batch)
        if not all(task.key in finished for task in cell)
    ]


def in_process(work: Sequence[Unit]) -> Iterator[list[Outcome]]:
    """Do the work here."""
    return (attempt(unit) for unit in work)


def attempt(unit: Unit) -> list[Outcome]:
    """Do a unit; if it fails, say so for each of its tasks."""
    try:
        return [*run_cell(unit.batch, unit.cell)]
    except Exception as error:  # whatever a task does must not stop the others
        return [Failure(task=task, error=_sentence(error)) for task in unit.cell]


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _counted(tally: Tally, new: Sequence[Outcome], share: float) -> Tally:
    failed = sum(isinstance(outcome, Failure) for outcome in new)
    last = f"{new[0].task.model} layer {new[0].task.layer}, {new[0].task.length} tokens" if new else tally.last
    done = tally.done + len(new) - failed
    return Tally(done=done, failed=tally.failed + failed, left=tally.left - len(new), share=share, last=last)
