"""Work on a cluster that Dask already runs; imported only where Dask is."""

import asyncio
import concurrent.futures
import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import distributed

from howsmooth.errors import ClusterError, FileError
from howsmooth.files import require_size
from howsmooth.studies.records import Failure, Outcome
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.sweep import Executor, WorkUnit, attempt, sentence
from howsmooth.studies.sweep.workers import LOSSES, using_threads

# How long to wait for a scheduler before giving up.
PATIENCE = 30.0
# What a folder for TLS holds: the authority that signed the cluster's certificates, ours, and its key.
TLS = {"tls_ca_file": "ca.pem", "tls_client_cert": "cert.pem", "tls_client_key": "key.pem"}


class WorkerResources(distributed.WorkerPlugin):
    """Models and texts of one executor on one worker; taken back, they are released."""

    def setup(self, worker: Any) -> None:
        """Begin with nothing."""
        self.resources = Resources()

    def teardown(self, worker: Any) -> None:
        """Forget everything."""
        self.resources.release()


@contextlib.contextmanager
def cluster(scheduler: str, tls: str | os.PathLike[str] | None, threads: int | None) -> Iterator[Executor]:
    """Give every worker, also one that joins later, resources of its own; take them back at the end."""
    with _client(scheduler, tls) as client:
        name = f"howsmooth-{uuid.uuid4().hex}"
        client.register_plugin(WorkerResources(), name=name)
        try:
            yield lambda work: _spread(client, work, threads, name)
        finally:
            if client.status == "running":
                client.unregister_worker_plugin(name)


def attempt_on_worker(unit: WorkUnit, threads: int | None, plugin: str) -> list[Outcome]:
    """Do a unit on a worker; models stay loaded between units."""
    held: Any = distributed.get_worker().plugins[plugin]
    with using_threads(threads):
        return attempt(unit, held.resources)


@contextlib.contextmanager
def _client(scheduler: str, tls: str | os.PathLike[str] | None) -> Iterator[Any]:
    try:
        security = _security(tls)
        # a client waits for ever for a listener that says nothing, and complains at exit about an odd address
        asyncio.run(asyncio.wait_for(_greet(scheduler, security), PATIENCE))
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


def _security(tls: str | os.PathLike[str] | None) -> Any:
    """Return how to speak to a scheduler; plain text is refused where TLS was asked for."""
    if tls is None:
        return distributed.Security()
    files = {name: os.path.join(tls, file) for name, file in TLS.items()}
    for file in files.values():
        require_size(file, "a file of tls", field="tls", missing=False)
    return distributed.Security(require_encryption=True, **files)


async def _greet(address: str, security: Any) -> None:
    async with distributed.rpc(address, connection_args=security.get_connection_args("client")) as other:
        who = await other.identity()
    if who["type"] != "Scheduler":
        raise ValueError(f"{address} is a {who['type']}")


def _spread(client: Any, work: Sequence[WorkUnit], threads: int | None, plugin: str) -> Iterator[list[Outcome]]:
    """Hand out units and yield what comes back, as it comes; a unit whose worker dies goes to another one."""
    waiting = {
        client.submit(attempt_on_worker, unit, threads, plugin, pure=False, retries=LOSSES): unit for unit in work
    }
    try:
        for future in distributed.as_completed(list(waiting), loop=client.loop):
            unit = waiting.pop(future)
            try:
                if future.cancelled():
                    raise concurrent.futures.CancelledError
                error = future.exception()
                lost = f"the worker was lost, {sentence(error)}" if error is not None else ""
                outcomes = [Failure(ask=ask, error=lost) for ask in unit.cell] if lost else future.result()
            # raised by the client itself, when its scheduler is gone
            except (concurrent.futures.CancelledError, OSError) as gone:
                raise ClusterError(
                    f"the Dask scheduler at {client.scheduler.address!r} was lost; what is done is kept, and the same "
                    "command goes on from there."
                ) from gone
            yield outcomes
    finally:
        if client.status == "running":
            client.cancel(list(waiting), force=True)
