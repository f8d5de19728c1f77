"""What came of asks: the typed answer, all that is needed to repeat it, and what was planned together."""

import functools
import os
import platform
from collections.abc import Callable, Hashable, Iterable
from importlib import metadata
from typing import Any, Generic, TypeVar

from howsmooth import __version__
from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.json_values import JsonValue, fingerprint


class Machine(JsonValue, frozen=True, kw_only=True):
    """Versions, hardware and threads."""

    howsmooth: str  # the version of this library
    torch: str  # the version of torch
    transformers: str  # the version of transformers
    python: str  # the version of Python
    processor: str  # the kind of processor and how many cores it has
    threads: int  # how many threads a product used: sums in another order differ in the last bit


def this_machine() -> Machine:
    """Describe this process."""
    import torch

    return _described(torch.get_num_threads())


@functools.cache
def _described(threads: int) -> Machine:
    return Machine(
        howsmooth=__version__,
        torch=metadata.version("torch"),
        transformers=metadata.version("transformers"),
        python=platform.python_version(),
        processor=f"{platform.machine()}, {os.cpu_count()} cores",
        threads=threads,
    )


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound=Ask)
B = TypeVar("B", bound=Answer)


class Record(JsonValue, Generic[A, B], frozen=True, kw_only=True):
    """What came of an ask; of its kind by the types of its ask and answer.

    Attributes:
        ask: What was asked for.
        answer: What was found.
        machine: With what it was computed.
        seconds: The share of the wall time.
    """

    ask: A
    answer: B
    machine: Machine
    seconds: float = 0.0


class Failure(JsonValue, frozen=True, kw_only=True):
    """An ask that nothing came of.

    Attributes:
        ask: What was asked for.
        error: Why nothing came of it.
    """

    ask: Ask
    error: str


Outcome = Record[Any, Any] | Failure


class RunPlan(JsonValue, frozen=True, kw_only=True):
    """Some asks that were planned together."""

    kind: str  # the kind of its asks
    keys: tuple[str, ...]  # the keys of all of them, done or not
    beside: tuple[str, ...] = ()  # the keys of asks that go with them: single heads beside whole layers
    figure: str = ""  # the figure of the paper that they are for, if they are
    command: str = ""  # what to type to ask for them again
    number: int = 0  # the index of this plan within the run

    @property
    def key(self) -> str:
        """What tells plans apart: the same command makes the same plan."""
        return fingerprint([self.kind, self.figure, self.command, sorted(self.keys), sorted(self.beside)])

    @property
    def count(self) -> int:
        """How many asks there are."""
        return len(self.keys) + len(self.beside)


def grouped(items: Iterable[T], by: Callable[[T], K]) -> dict[K, list[T]]:
    """Sort items into lists by what they have in common, in the order in which they come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(by(item), []).append(item)
    return found


def plan_of(asks: "tuple[Ask, ...]", **others: object) -> RunPlan:
    """Return the plan of some asks of one kind."""
    return RunPlan(kind=asks[0].kind, keys=tuple(ask.key for ask in asks), **others)  # type: ignore[arg-type]
