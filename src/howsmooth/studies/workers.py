"""Work on many processes: on this machine, or on a cluster that Dask already runs."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from howsmooth.errors import AssumptionError, ClusterError
from howsmooth.studies.records import Failure
from howsmooth.studies.sweep import Executor, Outcome, Unit, attempt, in_process

# How long to wait for a scheduler before giving up.
PATIENCE = 30.0
# How many workers a unit may lose before it is called a failure.
LOSSES = 3
# Dask makes its workers give memory back after every tensor, which doubles the time of small tasks: let them keep it.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**30, "MALLOC_MMAP_THRESHOLD_": 2**30, "MALLOC_TOP_PAD_": 2**28}


@contextlib.contextmanager
def executor(*, workers: int = 0, scheduler: str | None = None, threads: int | None = 1) -> Iterator[Executor]:
    """Provide who does the work of a sweep.

    Args:
        workers: How many processes to start here; none does the work in this one.
        scheduler: The address of a Dask scheduler to use instead.
        threads: How many threads a product uses, everywhere the same: sums in another order differ in the last bit.
            None leaves torch's own choice.
    """
    if workers and scheduler is not None:
        raise AssumptionError("give a number of workers to start, or the address of a scheduler, not both.")
    if not workers and scheduler is None:
        with using_threads(threads):
            yield in_process
        return
    with _client(workers, scheduler) as client:
        yield lambda work: _spread(client, work, threads)


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def attempt_on_worker(unit: Unit, threads: int | None) -> list[Outcome]:
    """Do a unit on a worker; models stay loaded between units."""
    with using_threads(threads):
        return attempt(unit)


@contextlib.contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    distributed = _distributed()
    if scheduler is not None:
        try:
            # a client waits for ever for a listener that says nothing, and complains at exit about an odd address
            asyncio.run(asyncio.wait_for(_greet(distributed, scheduler), PATIENCE))
            client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
        except (OSError, TimeoutError, ValueError, TypeError, AttributeError) as error:
            raise ClusterError(
                f"no Dask scheduler answers at {scheduler!r}; start one, or check the address."
            ) from error
        with client:
            yield client
        return
    import dask

    with (
        dask.config.set({f"distributed.nanny.pre-spawn-environ.{name}": size for name, size in KEEP_MEMORY.items()}),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            # without an address of its own it would listen to everyone, on a port that may be taken
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


async def _greet(distributed: Any, address: str) -> None:
    trust = distributed.Security().get_connection_args("client")
    async with distributed.rpc(address, connection_args=trust) as other:
        who = await other.identity()
    if who["type"] != "Scheduler":
        raise ValueError(f"{address} is a {who['type']}")


def _spread(client: Any, work: Sequence[Unit], threads: int | None) -> Iterator[list[Outcome]]:
    """Hand out units and yield what comes back, as it comes; a unit whose worker dies goes to another one."""
    distributed = _distributed()
    waiting = {client.submit(attempt_on_worker, unit, threads, pure=False, retries=LOSSES): unit for unit in work}
    try:
        for future in distributed.as_completed(list(waiting), loop=client.loop):
            unit = waiting.pop(future)
            if future.cancelled():  # by the client itself, when its scheduler is gone
                raise ClusterError(
                    f"the Dask scheduler at {client.scheduler.address!r} was lost; what is done is kept, and the same "
                    "command goes on from there."
                )
            yield _collected(future, unit)
    finally:
        if client.status == "running":
            client.cancel(list(waiting), force=True)


def _collected(future: Any, unit: Unit) -> list[Outcome]:
    error = future.exception()
    if error is None:
        return future.result()
    sentence = " ".join(f"{type(error).__name__}: {error}".split())
    return [Failure(task=task, error=f"the worker was lost, {sentence}") for task in unit.cell]


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ClusterError(
            "work on several processes needs Dask, which is not installed; run: pip install 'howsmooth[cluster]'"
        ) from error
    return distributed
