"""Who does the work: this process, others on this machine, or a cluster that Dask already runs."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing.pool import ThreadPool

import torch

from howsmooth.errors import AssumptionError, ClusterError
from howsmooth.studies.asks import Ask
from howsmooth.studies.records import Outcome
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.processes import processes
from howsmooth.studies.sweep.sweep import Executor, WorkUnit, attempt, units


@contextlib.contextmanager
def executor(
    *,
    workers: int = 0,
    scheduler: str | None = None,
    tls: str | os.PathLike[str] | None = None,
    threads: int | None = 1,
    resources: Resources | None = None,
) -> Iterator[Executor]:
    """Provide who does the work of a sweep; what it has loaded is released at the end.

    Args:
        workers: How many processes to start here; none does the work in this one.
        scheduler: The address of a Dask scheduler to use instead.
        tls: A folder with ``ca.pem``, ``cert.pem`` and ``key.pem``: the scheduler must show a certificate of that
            authority, and all that is sent is encrypted. Without it Dask's own configuration decides.
        threads: How many threads to use in this process, or in each of the others: see :func:`in_process`. None leaves
            torch's own choice.
        resources: What is loaded already, for the work in this process.
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
    products are large, and memory may be short.

    Args:
        work: What to do.
        resources: What is loaded already; threads take turns in loading.
        threads: How many threads; none for torch's own choice.
    """
    count = torch.get_num_threads() if threads is None else threads
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


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def expected_seconds(asks: Sequence[Ask], resources: Resources) -> float:
    """Estimate the wall time of asks on one process from the smallest unit of each kind and model; store nothing."""
    groups: dict[tuple[str, str], list[Ask]] = {}
    for ask in asks:
        groups.setdefault((ask.kind, str(getattr(ask, "model", ""))), []).append(ask)
    total = 0.0
    for _which, some in sorted(groups.items(), key=lambda group: group[0]):
        work = units(some, frozenset())
        smallest = min(work, key=lambda unit: unit.cost)
        with using_threads(1):
            attempt(smallest, resources)  # what is loaded once does not count
            started = time.perf_counter()
            attempt(smallest, resources)
            pace = (time.perf_counter() - started) / smallest.cost
        total += pace * sum(unit.cost for unit in work)
    return total
