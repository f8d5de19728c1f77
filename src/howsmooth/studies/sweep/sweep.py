"""Answer what has no record yet, in cells that share their resources; failures are recorded, and nothing is lost."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from howsmooth.studies.asks import Ask, AtText
from howsmooth.studies.json_values import from_json
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.records import Failure, Outcome, Record, grouped, this_machine
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.store import Store
from howsmooth.wording import visible

# To read a block and to send windows through it takes a tenth of what measuring one of its maps there takes.
WALK = 0.1


@dataclass(frozen=True, kw_only=True)
class WorkUnit:
    """What is done in one piece, by one worker."""

    batch: tuple[Ask, ...]  # the asks that share a run of the model
    cell: tuple[Ask, ...]  # those of them that are to be answered

    @property
    def cost(self) -> float:
        """The work of its cell."""
        return sum(ask.cost for ask in self.cell)

    @property
    def alone(self) -> bool:
        """Whether it wants the whole machine."""
        return any(ask.alone for ask in self.cell)

    @property
    def streamed(self) -> bool:
        """Whether its windows go through blocks that come from their files."""
        first = self.cell[0]
        return isinstance(first, AtText) and bool(first.where.streamed) and not first.map_name.spans_layers


def units(asks: Iterable[Ask], finished: frozenset[str]) -> list[WorkUnit]:
    """Return the work that is left: a cell is done whole or not at all, so that its answers never depend on when."""
    work = [
        WorkUnit(batch=batch, cell=cell)
        for batch in batches(asks)
        for cell in cells(batch)
        if not all(ask.key in finished for ask in cell)
    ]
    return sorted(work, key=lambda unit: unit.cell[0].turn)


def preparing(work: Sequence[WorkUnit]) -> dict[str, float]:
    """Return what some units do beside their own cell, by the key of their first ask.

    The first of several cells prepares them all. Where a model is streamed, all windows go through the blocks up to the
    one that is measured next: a share of what measuring it takes.
    """
    found: dict[str, float] = {}
    for some in grouped(work, lambda unit: (id(unit.batch), unit.cell[0].prepared[0])).values():
        if cost := sum(cost for *_what, cost in {ask.prepared for unit in some for ask in unit.cell}):
            found[some[0].cell[0].key] = cost
    turns = grouped(work, lambda unit: unit.cell[0].turn)
    for before, (turn, some) in zip([-1, *turns], turns.items(), strict=False):
        if any(unit.streamed for unit in some):
            cells = {unit.cell[0].cell for unit in some}
            each = sum(unit.cost for unit in some) / len(cells)
            first = some[0].cell[0].key
            found[first] = found.get(first, 0.0) + WALK * (turn - before) * each
    return found


def batches(asks: Iterable[Ask]) -> list[tuple[Ask, ...]]:
    """Sort asks into batches."""
    return [tuple(batch) for batch in grouped(asks, lambda ask: (ask.kind, ask.batch)).values()]


def cells(batch: Iterable[Ask]) -> list[tuple[Ask, ...]]:
    """Sort the asks of a batch into cells; within a cell their order does not depend on who asked."""
    ordered = sorted(batch, key=lambda ask: ask.rank)
    return [tuple(cell) for cell in grouped(ordered, lambda ask: ask.cell).values()]


def attempt(unit: WorkUnit, resources: Resources) -> list[Outcome]:
    """Do a unit; if it fails, say so for each of its asks."""
    try:
        return [*answered(unit.batch, unit.cell, resources)]
    except Exception as error:  # whatever an ask does must not stop the others
        return [Failure(ask=ask, error=sentence(error)) for ask in unit.cell]
    finally:
        resources.under_way.pop(threading.get_ident(), None)


def answered(batch: Sequence[Ask], cell: Sequence[Ask], resources: Resources) -> list[Record]:
    """Answer the asks of one cell of a batch. Nothing but these asks decides what comes of them."""
    started = time.perf_counter()
    kind = kind_named(cell[0].kind)
    answers = kind.run(batch, cell, resources)
    seconds = (time.perf_counter() - started) / len(cell)
    return [
        # as it will be read back: an answer that cannot be (a number without end where one is needed) is a failure
        Record(ask=ask, answer=from_json(answer.to_json(), kind.answer), machine=this_machine(), seconds=seconds)
        for ask, answer in zip(cell, answers, strict=True)
    ]


def sentence(error: BaseException) -> str:
    """Say an error in one line, in letters that can be kept: names of files may hold others."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return said.encode("utf-8", "replace").decode()


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How far a sweep is."""

    done: int  # how many asks have a record
    failed: int  # how many have an error instead
    left: int  # how many wait
    share: float  # how much of the work is behind, from 0 to 1: long inputs count for more
    last: str = ""  # what was done last, in a few words

    @property
    def finished(self) -> int:
        """How many asks have a record or an error."""
        return self.done + self.failed

    @property
    def failures(self) -> str:
        """How many failed, behind how many are done."""
        return f", {self.failed} failed" if self.failed else ""


Progress = Callable[[Tally], None]
# Does units of work in any order, and yields what comes of each.
Executor = Callable[[Sequence[WorkUnit]], Iterator[list[Outcome]]]


def sweep(
    asks: Iterable[Ask],
    store: Store,
    *,
    execute: Executor,
    retry_failed: bool = False,
    progress: Progress | None = None,
    resources: Resources | None = None,
) -> Tally:
    """Answer every ask that has no record yet, keep each record as it comes, and call ``progress`` then.

    With the resources of who does the work, it is also called where a long unit reports how far it is.
    """
    asks = tuple({ask.key: ask for ask in asks}.values())
    done = store.done(asks)
    failed = frozenset[str]() if retry_failed else store.failed(asks) - done
    finished = done | failed
    work = units(asks, finished)
    before = preparing(work)
    total = sum(ask.cost for ask in asks) + sum(before.values()) or 1.0
    ahead = sum(ask.cost for ask in asks if ask.key not in finished) + sum(before.values())
    tally = Tally(done=len(done), failed=len(failed), left=len(asks) - len(finished), share=1 - ahead / total)
    if resources is not None and progress is not None:
        resources.watch = lambda cost: progress(replace(tally, share=1 - max(ahead - cost, 0.0) / total))
    for outcomes in execute(work):
        new = [outcome for outcome in outcomes if outcome.ask.key not in finished]
        store.add(new)
        ahead -= sum(outcome.ask.cost + before.get(outcome.ask.key, 0.0) for outcome in new)
        failures = sum(isinstance(outcome, Failure) for outcome in new)
        tally = Tally(
            done=tally.done + len(new) - failures,
            failed=tally.failed + failures,
            left=tally.left - len(new),
            share=1 - max(ahead, 0.0) / total,
            last=visible(new[0].ask.label) if new else tally.last,
        )
        if progress is not None:
            progress(tally)
    return tally
