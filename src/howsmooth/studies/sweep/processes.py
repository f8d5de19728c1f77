"""Work on other processes of this machine: each is fed through a pipe, and no port is opened."""

import contextlib
import multiprocessing
import queue
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool

import torch

from howsmooth.studies.records import Failure, Outcome
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.sweep import Executor, WorkUnit, attempt, sentence

# How many processes a unit may lose before it is called a failure.
LOSSES = 3
SPAWN = multiprocessing.get_context("spawn")


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
    """Start processes that share the work; one that is lost is replaced, and its unit done again. They end with this.

    Args:
        count: How many.
        threads: How many threads each of them uses; none leaves torch's own choice.
    """
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
