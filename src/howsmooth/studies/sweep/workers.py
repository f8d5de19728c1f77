"""Who does the work: this process, others on this machine that are fed through pipes, or a cluster that Dask runs."""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool
from typing import TypeVar

import torch

from howsmooth.errors import AssumptionError, ClusterError
from howsmooth.studies.asks import Ask
from howsmooth.studies.records import Failure, Outcome, grouped
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.sweep import Executor, WorkUnit, attempt, preparing, sentence, units

# How many processes a unit may lose before it is called a failure.
LOSSES = 3
# A unit is timed beforehand only if it takes fewer seconds than this.
SOON = 10.0
SPAWN = multiprocessing.get_context("spawn")
T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def executor(
    *,
    workers: int = 0,
    scheduler: str | None = None,
    tls: str | os.PathLike[str] | None = None,
    threads: int | None = 1,
    resources: Resources | None = None,
) -> Iterator[Executor]:
    """Provide who does the work of a sweep: processes, a Dask scheduler, or this process with what it has loaded.

    With ``tls``, a folder with ``ca.pem``, ``cert.pem`` and ``key.pem``, the scheduler must show a certificate of that
    authority, and all that is sent is encrypted; otherwise Dask's own configuration decides. ``threads`` is that of
    each process; none leaves torch's own choice. What was loaded is released at the end.
    """
    if workers and scheduler is not None:
        raise AssumptionError("give a number of workers to start, or the address of a scheduler, not both.")
    if tls is not None and scheduler is None:
        raise AssumptionError("tls is for a scheduler, and none was given; leave it out.", field="tls")
    if scheduler is not None:
        try:
            import distributed  # noqa: F401 - asked for by itself, as the next line may have been imported before

            from howsmooth.studies.sweep.dask_cluster import cluster
        except ImportError as error:
            raise ClusterError(
                "work on a cluster needs Dask, which is not installed; run: pip install 'howsmooth[cluster]'"
            ) from error
        with cluster(scheduler, tls, threads) as execute:
            yield execute
    elif workers:
        with processes(workers, threads) as execute:
            yield execute
    else:
        held = Resources() if resources is None else resources
        try:
            yield lambda work: in_process(work, held, threads)
        finally:
            held.release()


def in_process(work: Sequence[WorkUnit], resources: Resources, threads: int | None) -> Iterator[list[Outcome]]:
    """Do units in this process and yield what comes of each, in no particular order.

    Why not every product on all threads, one unit after another: threads that share a product wait for each other many
    thousand times a second, which costs a fifth of the time where cores are free, and most of it where other programs
    want them too. Units that are done side by side never wait. Only long inputs have the machine to themselves: their
    products are large, and memory may be short. Threads take turns in loading.
    """
    count = torch.get_num_threads() if threads is None else threads
    resources.expect([unit.batch for unit in work])
    together = [unit for unit in work if not unit.alone]
    if count == 1 or len(together) == 1:
        together = []
    # threads that a later Ctrl-C need not wait for; those of concurrent.futures are joined before Python ends
    with using_threads(1), ThreadPool(count, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap_unordered(lambda unit: attempt(unit, resources), together)
    with using_threads(count):
        for unit in work:
            if unit.alone or not together:
                yield attempt(unit, resources)


def side_by_side(function: Callable[[T], R], items: Sequence[T], *, count: int) -> Generator[R, None, None]:
    """Apply a function to items in so many threads, each of which has one for its products; in their order."""
    if count <= 1:
        yield from map(function, items)
        return
    with using_threads(1), ThreadPool(count, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap(function, items)


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """A process that does one unit after another."""

    def __init__(self, threads: int | None) -> None:
        self._pipe, other = SPAWN.Pipe()
        self._process = SPAWN.Process(target=serve, args=(other, threads), daemon=True)
        with _deaf_to_interrupts():
            self._process.start()
        other.close()

    def attempt(self, unit: WorkUnit) -> list[Outcome]:
        """Do a unit; raise ``OSError`` or ``EOFError`` if the process is lost."""
        self._pipe.send(unit)
        found = self._pipe.recv()
        return [Failure(ask=ask, error=found) for ask in unit.cell] if isinstance(found, str) else found

    def kill(self) -> None:
        """End the process, whatever it does: records are stored elsewhere."""
        self._process.kill()
        self._process.join()


def serve(pipe: Connection, threads: int | None) -> None:
    """Do units as they come through a pipe, until nobody is at its other end; models stay loaded between units."""
    if threads is not None:
        torch.set_num_threads(threads)
    resources = Resources()
    with contextlib.suppress(EOFError, OSError):
        while True:
            try:
                unit = pipe.recv()
            except (EOFError, OSError):
                raise
            except Exception as error:  # a kind of question that this process cannot import
                pipe.send(sentence(error))
            else:
                pipe.send(attempt(unit, resources))


@contextlib.contextmanager
def processes(count: int, threads: int | None) -> Iterator[Executor]:
    """Start processes that share the work; one that is lost is replaced, and its unit done again."""
    workers = [Worker(threads) for _ in range(count)]
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(count):
        free.put(place)
    over, replacing = threading.Event(), threading.Lock()

    def replace(place: int) -> None:
        with replacing:
            if not over.is_set():
                workers[place].kill()
                workers[place] = Worker(threads)

    def done(unit: WorkUnit) -> list[Outcome]:
        place = free.get()
        try:
            for _attempt in range(LOSSES):
                try:
                    return workers[place].attempt(unit)
                except (EOFError, OSError):
                    replace(place)
            return [Failure(ask=ask, error=f"{LOSSES} processes were lost with it") for ask in unit.cell]
        finally:
            free.put(place)

    with ThreadPool(count) as pool:  # whose threads wait for one process each
        try:
            yield lambda work: pool.imap_unordered(done, work)
        finally:
            with replacing:
                over.set()
                for worker in workers:
                    worker.kill()


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let a process that is started now never see Ctrl-C, which a terminal sends to all: the first one ends the others.

    What is blocked at its start stays blocked; a handler would be set only after its imports, which take seconds.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which is started beside the first process, and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def expected_seconds(asks: Sequence[Ask], resources: Resources) -> float:
    """Estimate the wall time of asks on one process from two units of each kind and model; store nothing.

    The smallest one and a larger one, up to the median, that is sure to be done soon: what every unit takes, however
    small, is told apart from what grows with its cost.
    """
    groups = grouped(asks, lambda ask: (ask.kind, str(getattr(ask, "model", ""))))
    total = 0.0
    for _which, some in sorted(groups.items(), key=lambda group: group[0]):
        work = units(some, frozenset())
        by_cost = sorted(work, key=lambda unit: unit.cost)[: len(work) // 2 + 1]
        smallest = by_cost[0]
        with using_threads(1):
            attempt(smallest, resources)  # what is loaded once does not count
            least = _seconds(smallest, resources)
            pace, every = least / smallest.cost, 0.0
            larger = [unit for unit in by_cost if smallest.cost < unit.cost and pace * unit.cost < SOON]
            if larger:
                pace = max(0.0, _seconds(larger[-1], resources) - least) / (larger[-1].cost - smallest.cost)
                every = max(0.0, least - pace * smallest.cost)
        total += every * len(work) + pace * (sum(unit.cost for unit in work) + sum(preparing(work).values()))
    return total


def _seconds(unit: WorkUnit, resources: Resources) -> float:
    started = time.perf_counter()
    attempt(unit, resources)
    return time.perf_counter() - started
