"""Answer what has no answer yet: what is stored is skipped, what fails is written down, and nothing is lost."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from howsmooth.studies.asks import Ask
from howsmooth.studies.records import Failure, Outcome
from howsmooth.studies.runs.store import Store
from howsmooth.studies.sweep.batches import Unit, units
from howsmooth.wording import visible


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How far a sweep is.

    Attributes:
        done: How many asks have a record.
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


Progress = Callable[[Tally], None]
# Does units of work in any order, and yields what comes of each.
Executor = Callable[[Sequence[Unit]], Iterator[list[Outcome]]]


def sweep(
    asks: Iterable[Ask],
    store: Store,
    *,
    execute: Executor,
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> Tally:
    """Answer every ask that has no record yet; keep each record as it comes.

    Args:
        asks: What to find out.
        store: Where records are kept.
        execute: Who does the work: see :mod:`howsmooth.studies.sweep.workers`.
        retry_failed: Whether to try again what failed before.
        progress: Called whenever something was stored.
    """
    asks = tuple({ask.key: ask for ask in asks}.values())
    done = store.done(asks)
    failed = frozenset[str]() if retry_failed else store.failed(asks) - done
    finished = done | failed
    total = sum(ask.cost for ask in asks) or 1.0
    ahead = sum(ask.cost for ask in asks if ask.key not in finished)
    tally = Tally(done=len(done), failed=len(failed), left=len(asks) - len(finished), share=1 - ahead / total)
    for outcomes in execute(units(asks, finished)):
        new = [outcome for outcome in outcomes if outcome.ask.key not in finished]
        store.add(new)
        ahead -= sum(outcome.ask.cost for outcome in new)
        tally = _counted(tally, new, 1 - max(ahead, 0.0) / total)
        if progress is not None:
            progress(tally)
    return tally


def _counted(tally: Tally, new: Sequence[Outcome], share: float) -> Tally:
    failed = sum(isinstance(outcome, Failure) for outcome in new)
    last = visible(new[0].ask.label) if new else tally.last
    done = tally.done + len(new) - failed
    return Tally(done=done, failed=tally.failed + failed, left=tally.left - len(new), share=share, last=last)
