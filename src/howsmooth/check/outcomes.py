"""What comes of a check, and numbers of a file: finite ones, or nothing is proven."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


class Refuted(Exception):  # noqa: N818
    """An inequality of a file does not hold, or not provably so.

    Attributes:
        stage: The stage, from 0 on; the number of all stages for the claim itself.
    """

    def __init__(self, stage: int, why: str) -> None:
        super().__init__(why)
        self.stage = stage


class CannotCheck(Exception):  # noqa: N818
    """A file that says nothing which could be checked here."""


@dataclass(frozen=True)
class CheckOutcome:
    """What came of one claim.

    Attributes:
        status: ``checked``, ``refuted``, or ``cannot check``; ``replayed`` if chance has a part in it.
        claim: The claim, in words.
        why: What was found, where it is not checked.
        stage: The stage that is refuted.
        assumed: What remains assumed.
        asked: In words, what the claim is about and with what it was compared.
        question: The same in full: boxes, unsafe sets, tokens.
    """

    status: Literal["checked", "replayed", "refuted", "cannot check"]
    claim: str
    why: str = ""
    stage: int | None = None
    assumed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    question: dict[str, Any] | None = None

    def __str__(self) -> str:
        """Return one line."""
        where = "" if self.stage is None else f" at stage {self.stage}"
        return f"{self.status}{where}: {self.claim}" + (f" ({self.why})" if self.why else "")


def number(fields: dict[str, Any], name: str) -> float:
    """Return a finite number of a file.

    Raises:
        CannotCheck: If it is not there, or is something else.
    """
    found = fields.get(name)
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) <= 2**53:
        return float(found)
    if not isinstance(found, float) or not math.isfinite(found):
        raise CannotCheck(f"{name} must be a finite number, got {str(found)[:40]}")
    return found


def numbers(fields: dict[str, Any], name: str) -> np.ndarray:
    """Return an array of finite numbers that is not empty; see :func:`number`."""
    flat, left = list[Any](), [fields.get(name)]
    while left:  # lists of lists; what stands in them must be a number, and no string or boolean
        part = left.pop()
        (left if isinstance(part, list) else flat).extend(part if isinstance(part, list) else [part])
    if not flat or not all(type(x) in (int, float) for x in flat):
        raise CannotCheck(f"{name} must be numbers, and some of them")
    try:
        found = np.array(fields[name], dtype=np.float64)
    except (ValueError, OverflowError) as error:
        raise CannotCheck(f"{name} must be numbers in the shape of an array") from error
    if not found.ndim or not np.isfinite(found).all():
        raise CannotCheck(f"{name} must be finite numbers")
    return found


def listed(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of objects that is not empty; see :func:`number`."""
    found = fields.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(x, dict) for x in found):
        raise CannotCheck(f"{name} must be a list of objects, and hold some")
    return found
