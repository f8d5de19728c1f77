"""Who does the work: this process, others on this machine, or a cluster that Dask already runs."""

import asyncio
import concurrent.futures
import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

import torch

from howsmooth.errors import AssumptionError, ClusterError, FileError
from howsmooth.files import require_size
from howsmooth.studies.records import Failure, Outcome
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.processes import LOSSES, processes
from howsmooth.studies.sweep.sweep import Executor, Unit, attempt, sentence

# How long to wait for a scheduler before giving up.
PATIENCE = 30.0
# What a folder for TLS holds: the authority that signed the cluster's certificates, ours, and its key.
TLS = {"tls_ca_file": "ca.pem", "tls_client_cert": "cert.pem", "tls_client_key": "key.pem"}


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
        threads: How many threads to use in this process, or in each of the others: see :func:`done_here`. None leaves
            torch's own choice.
        resources: What is loaded already, for the work in this process.
    """
    if workers and scheduler is not None:
        raise AssumptionError("give a number of workers to start, or the address of a scheduler, not both.")
    if tls is not None and scheduler is None:
        raise AssumptionError("tls is for a scheduler, and none was given; leave it out.", field="tls")
    if not workers and scheduler is None:
        held = Resources() if resources is None else resources
        try:
            yield lambda work: done_here(work, held, threads)
        finally:
            held.release()
        return
    if scheduler is None:
        with processes(workers, threads) as execute:
            yield execute
        return
    with _client(scheduler, tls) as client, _equipped(client) as name:
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
def _client(scheduler: str, tls: str | os.PathLike[str] | None) -> Iterator[Any]:
    distributed = _distributed()
    try:
        security = _security(distributed, tls)
        # a client waits for ever for a listener that says nothing, and complains at exit about an odd address
        asyncio.run(asyncio.wait_for(_greet(distributed, scheduler, security), PATIENCE))
        client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False, security=security)
    except FileError:
        raise
    except (OSError, TimeoutError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        how = " in plain text" if tls is None else f" with a certificate that {os.fspath(tls)!r} trusts"
        raise ClusterError(
            f"no Dask scheduler answers at {scheduler!r}{how}; start one, or check the address and tls."
        ) from error
    with client:
        yield client


def _security(distributed: Any, tls: str | os.PathLike[str] | None) -> Any:
    """Return how to speak to a scheduler; plain text is refused where TLS was asked for."""
    if tls is None:
        return distributed.Security()
    files = {name: os.path.join(tls, file) for name, file in TLS.items()}
    for file in files.values():
        require_size(file, "a file of tls", field="tls", missing=False)
    return distributed.Security(require_encryption=True, **files)


async def _greet(distributed: Any, address: str, security: Any) -> None:
    async with distributed.rpc(address, connection_args=security.get_connection_args("client")) as other:
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
            "work on a cluster needs Dask, which is not installed; run: pip install 'howsmooth[cluster]'"
        ) from error
    return distributed


def done_here(work: Sequence[Unit], resources: Resources, threads: int | None) -> Iterator[list[Outcome]]:
    """Do units and yield what comes of each, in no particular order.

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
    yield from _side_by_side(together, resources, count)
    with using_threads(count):
        for unit in work:
            if unit.alone or not together:
                yield attempt(unit, resources)


def _side_by_side(work: Sequence[Unit], resources: Resources, threads: int) -> Iterator[list[Outcome]]:
    # threads that a later Ctrl-C need not wait for; those of concurrent.futures are joined before Python ends
    with using_threads(1), ThreadPool(threads, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap_unordered(lambda unit: attempt(unit, resources), work)


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
