"""What is too much for this machine or for its numbers, in one sentence."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from howsmooth.errors import AssumptionError
from howsmooth.files import require_memory
from howsmooth.wording import number

if TYPE_CHECKING:
    from howsmooth.theory.results import Witness

# Tokens, a direction, a response, and what a solver keeps of each: a computation holds at least so many copies.
COPIES = 4
FLOAT = 8


def require_room(n: int, d: int = 1) -> None:
    """Refuse more tokens than fit into memory: nothing smaller than this can be measured."""
    require_memory(COPIES * FLOAT * n * d, f"a computation with n = {number(n)} tokens", field="n")


def too_large(error: BaseException) -> str | None:
    """Say what was too large where the machine gave up; ``None`` for errors of another kind."""
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read; flatten it."
    if isinstance(error, OverflowError):
        return f"a number is too large to compute with ({error}); take a smaller one."
    # torch tells these apart by their text alone, and some say how much was asked for
    about_memory = re.search(
        "allocate|size calculation|out of memory|bad_alloc|Storage size", str(error), re.IGNORECASE
    )
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and about_memory):
        found = re.search(r"allocate (\d[\d.]* ?(?:bytes|[KMGTPE]iB))", str(error))
        asked = f" ({found[1]} were asked for)" if found else ""
        return f"this does not fit into the memory of this machine{asked}; ask for fewer or shorter inputs."
    return None


@contextmanager
def within_reach(n: int, radius: float) -> Iterator[None]:
    """Say it with the numbers of the task if it is too much for this machine or for its numbers."""
    try:
        yield
    except ArithmeticError as error:
        raise AssumptionError(_out_of_range(n, radius)) from error
    except (MemoryError, RuntimeError) as error:
        if "linalg." in str(error):
            raise AssumptionError(_out_of_range(n, radius)) from error
        if too_large(error) is None or isinstance(error, RecursionError):
            raise
        raise AssumptionError(f"n = {number(n)} tokens do not fit into memory; take fewer.", field="n") from error


def require_range(witness: "Witness") -> None:
    """Refuse a lower bound that has overflowed: it would claim more than was shown."""
    if not math.isfinite(witness.value):
        raise OverflowError(f"the value of {witness.name} is {witness.value}")


def _out_of_range(n: int, radius: float) -> str:
    given = f"n = {number(n)} and radius = {number(radius)}"
    return f"the numbers leave the range of floats for {given}; rescale tokens or weights."
