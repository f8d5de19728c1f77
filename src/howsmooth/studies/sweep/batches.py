"""Asks in batches that share their resources and cells that are answered in one piece."""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from howsmooth.studies.asks import Ask
from howsmooth.studies.kinds import kind_named
from howsmooth.studies.machines import here
from howsmooth.studies.records import Failure, Outcome, Record
from howsmooth.studies.resources import Resources
from howsmooth.studies.values import from_json


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is done in one piece, by one worker.

    Attributes:
        batch: The asks that share a run of the model.
        cell: Those of them that are to be answered.
    """

    batch: tuple[Ask, ...]
    cell: tuple[Ask, ...]

    @property
    def cost(self) -> float:
        """The work of its cell."""
        return sum(ask.cost for ask in self.cell)

    @property
    def alone(self) -> bool:
        """Whether it wants the whole machine."""
        return any(ask.alone for ask in self.cell)


def units(asks: Iterable[Ask], finished: frozenset[str]) -> list[Unit]:
    """Return the work that is left: a cell is done whole or not at all, so that its answers never depend on when."""
    return [
        Unit(batch=batch, cell=cell)
        for batch in batches(asks)
        for cell in cells(batch)
        if not all(ask.key in finished for ask in cell)
    ]


def batches(asks: Iterable[Ask]) -> list[tuple[Ask, ...]]:
    """Sort asks into batches."""
    return _grouped(asks, lambda ask: (ask.kind, ask.batch))


def cells(batch: Iterable[Ask]) -> list[tuple[Ask, ...]]:
    """Sort the asks of a batch into cells; within a cell their order does not depend on who asked."""
    ordered = sorted(batch, key=lambda ask: ask.rank)
    return _grouped(ordered, lambda ask: ask.cell)


def _grouped(asks: Iterable[Ask], by: Callable[[Ask], Hashable]) -> list[tuple[Ask, ...]]:
    found: dict[Hashable, list[Ask]] = {}
    for ask in asks:
        found.setdefault(by(ask), []).append(ask)
    return [tuple(group) for group in found.values()]


def attempt(unit: Unit, resources: Resources) -> list[Outcome]:
    """Do a unit; if it fails, say so for each of its asks."""
    try:
        return [*answered(unit.batch, unit.cell, resources)]
    except Exception as error:  # whatever an ask does must not stop the others
        return [Failure(ask=ask, error=sentence(error)) for ask in unit.cell]


def answered(batch: Sequence[Ask], cell: Sequence[Ask], resources: Resources) -> list[Record]:
    """Answer the asks of one cell of a batch. Nothing but these asks decides what comes of them."""
    started = time.perf_counter()
    kind = kind_named(cell[0].kind)
    answers = kind.run(batch, cell, resources)
    seconds = (time.perf_counter() - started) / len(cell)
    return [
        # as it will be read back: an answer that cannot be (a number without end where one is needed) is a failure
        Record(ask=ask, answer=from_json(answer.to_json(), kind.answer), machine=here(), seconds=seconds)
        for ask, answer in zip(cell, answers, strict=True)
    ]


def sentence(error: BaseException) -> str:
    """Say an error in one line, in letters that can be kept: names of files may hold others."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return said.encode("utf-8", "replace").decode()
