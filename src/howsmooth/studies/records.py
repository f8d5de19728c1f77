"""What came of an ask: the typed answer, and all that is needed to repeat it."""

from typing import Any, Generic, TypeVar

from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.machines import Machine
from howsmooth.studies.values import Value

A = TypeVar("A", bound=Ask)
B = TypeVar("B", bound=Answer)


class Record(Value, Generic[A, B], frozen=True, kw_only=True):
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


class Failure(Value, frozen=True, kw_only=True):
    """An ask that nothing came of.

    Attributes:
        ask: What was asked for.
        error: Why nothing came of it.
    """

    ask: Ask
    error: str


Outcome = Record[Any, Any] | Failure
