"""Work on many processes: on this machine, or on a cluster that Dask already runs."""

import asyncio
import concurrent.futures
import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from howsmooth.errors import AssumptionError, ClusterError
from howsmooth.studies.records import Failure, Outcome
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.batches import Unit, attempt, sentence
from howsmooth.studies.sweep.here import done_here, using_threads
from howsmooth.studies.sweep.sweep import Executor

# How long to wait for a scheduler before giving up.
PATIENCE = 30.0
# How many workers a unit may lose before it is called a failure.
LOSSES = 3
# Dask makes its workers give memory back after every tensor, which doubles the time of small tasks: let them keep it.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**30, "MALLOC_MMAP_THRESHOLD_": 2**30, "MALLOC_TOP_PAD_": 2**28}


@contextlib.contextmanager
def executor(
    *,
    workers: int = 0,
    scheduler: str | None = None,
    threads: int | None = 1,
    resources: Resources | None = None,
) -> Iterator[Executor]:
    """Provide who does the work of a sweep; what it has loaded is released at the end.

    Args:
        workers: How many processes to start here; none does the work in this one.
        scheduler: The address of a Dask scheduler to use instead.
        threads: How many threads to use in this process, or in each of the others: see :func:`done_here`. None leaves
            torch's own choice.
        resources: What is loaded already, for the work in this process.
    """
    if workers and scheduler is not None:
        raise AssumptionError("give a number of workers to start, or the address of a scheduler, not both.")
    if not workers and scheduler is None:
        held = Resources() if resources is None else resources
        try:
            yield lambda work: done_here(work, held, threads)
        finally:
            held.release()
        return
    with _client(workers, scheduler) as client, _equipped(client) as name:
        yield lambda work: _spread(client, work, threads, name)


@contextlib.contextmanager
def _equipped(client: Any) -> Iterator[str]:
    """Give every worker, also one that joins later, resources of its own; take them back at the end."""
    from howsmooth.studies.sweep.equipment import Equipment

    name = f"howsmooth-{uuid.uuid4().hex}"
    client.register_plugin(Equipment(), name=name)
    try:
        yield name
    finally:
        if client.status == "running":
            client.unregister_worker_plugin(name)


def attempt_on_worker(unit: Unit, threads: int | None, equipment: str) -> list[Outcome]:
    """Do a unit on a worker; models stay loaded between units."""
    plugin = _distributed().get_worker().plugins[equipment]
    with using_threads(threads):
        return attempt(unit, plugin.resources)


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


def _spread(client: Any, work: Sequence[Unit], threads: int | None, equipment: str) -> Iterator[list[Outcome]]:
    """Hand out units and yield what comes back, as it comes; a unit whose worker dies goes to another one."""
    distributed = _distributed()
    waiting = {
        client.submit(attempt_on_worker, unit, threads, equipment, pure=False, retries=LOSSES): unit for unit in work
    }
    try:
        for future in distributed.as_completed(list(waiting), loop=client.loop):
            unit = waiting.pop(future)
            try:
                outcomes = _collected(future, unit)
            # raised by the client itself, when its scheduler is gone
            except (concurrent.futures.CancelledError, OSError) as error:
                raise ClusterError(
                    f"the Dask scheduler at {client.scheduler.address!r} was lost; what is done is kept, and the same "
                    "command goes on from there."
                ) from error
            yield outcomes
    finally:
        if client.status == "running":
            client.cancel(list(waiting), force=True)


def _collected(future: Any, unit: Unit) -> list[Outcome]:
    if future.cancelled():
        raise concurrent.futures.CancelledError
    error = future.exception()
    if error is None:
        return future.result()
    return [Failure(ask=ask, error=f"the worker was lost, {sentence(error)}") for ask in unit.cell]


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ClusterError(
            "work on several processes needs Dask, which is not installed; run: pip install 'howsmooth[cluster]'"
        ) from error
    return distributed
