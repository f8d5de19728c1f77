"""Work in this process: as many units side by side as there are threads, each with one of them."""

import contextlib
from collections.abc import Iterator, Sequence
from multiprocessing.pool import ThreadPool

import torch

from howsmooth.studies.records import Outcome
from howsmooth.studies.resources import Resources
from howsmooth.studies.sweep.batches import Unit, attempt


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
