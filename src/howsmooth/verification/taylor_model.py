r"""Theorem 15: second-order Taylor models of a network on a box.

What a stage puts out is :math:`z = c + L(y,\eta) + q(y,\eta) + r`: a centre, a linear part, the exact second order of
attention in that linear part, and a remainder. Only c and L are kept. A linear function of z pulls q and r back
through the stages before, where they are one quadratic form and one sum of products of ranges: bounding the form as a
whole, and not its summands, is what makes the bound sharp.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.verification.box_symbols import BoxSymbols

if TYPE_CHECKING:
    from howsmooth.verification.float32 import Execution

# Functionals that are pulled back at once, when their quadratic forms are built.
BATCH = 32


class OutOfTimeError(Exception):
    """The deadline has passed; it never leaves :func:`howsmooth.verify`."""


@dataclass(frozen=True)
class Deadline:
    """When to stop, by a clock."""

    at: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Deadline":
        """Return the deadline in so many seconds."""
        return cls(clock() + seconds, clock)

    @property
    def passed(self) -> bool:
        """Whether it is later."""
        return self.clock() > self.at

    def check(self) -> None:
        """Raise an error if it has passed."""
        if self.passed:
            raise OutOfTimeError


NEVER = Deadline()


@dataclass(frozen=True, eq=False)
class Range:
    """What linear functions of a stage's tokens do on the box, beyond their linear parts."""

    below: Float[Tensor, " f"]  # how far the second order goes below zero
    above: Float[Tensor, " f"]  # how far it goes above
    remainder: Float[Tensor, " f"]  # a bound on the absolute value of all that is left

    @property
    def size(self) -> Float[Tensor, " f"]:
        """A bound on the absolute value of all of it."""
        return torch.maximum(self.below, self.above) + self.remainder


class ExpandedStage(ABC):
    """One stage of a network, expanded at its centre."""

    value: Float[Tensor, "m out"]  # the tokens behind it, at the centre
    linear: Float[Tensor, "m out r"]  # their linear parts

    @abstractmethod
    def pull_back(self, functionals: Float[Tensor, "f m out"], forms: "Forms") -> Float[Tensor, "f n d"]:
        """Pull linear functions of the tokens behind back to those before; add second orders and remainders."""

    @property
    def parts(self) -> "tuple[ExpandedStage, ...]":
        """The stages that it consists of."""
        return (self,)


class Forms:
    """The second orders and the remainders of pulled-back functionals.

    Args:
        symbols: The symbols of the box.
        count: How many functionals there are.
        size: How many coordinates and symbols there are; none if products of ranges are to stand in for forms.
        like: A tensor with the dtype and device.
    """

    def __init__(self, symbols: BoxSymbols, count: int, size: int | None, like: Tensor) -> None:
        self.symbols = symbols
        self.matrices = None if size is None else like.new_zeros(count, size, size)
        self.products = like.new_zeros(count)
        self.remainder = like.new_zeros(count)

    def add(
        self,
        left: Float[Tensor, "terms r"],
        right: Callable[[], Float[Tensor, "f terms r"]],
        ranges: Float[Tensor, " f"],
    ) -> None:
        r"""Add :math:`\sum_c\langle a_c,y\rangle\langle b_c,y\rangle` with these factors; ``ranges`` bounds it too."""
        if self.matrices is None:
            self.products += ranges
        else:
            r = left.shape[-1]
            self.matrices[:, :r, :r] += left.mT @ right()

    def add_remainder(self, size: Float[Tensor, " f"]) -> None:
        """Add what is bounded only in size; what is no number has no bound."""
        self.remainder += torch.nan_to_num(size, nan=torch.inf, posinf=torch.inf)

    def add_rounding(self, size: Float[Tensor, " f"]) -> None:
        """Add what floats are off by."""
        self.add_remainder(size)

    def range(self) -> Range:
        """Return the range of the functionals."""
        if self.matrices is None:
            return Range(self.products, self.products, self.remainder)
        return Range(*self.symbols.quadratic_range((self.matrices + self.matrices.mT) / 2), self.remainder)


@dataclass(frozen=True, eq=False)
class TaylorModel:
    """The tokens behind the stages so far, on a box."""

    symbols: BoxSymbols
    centre: Float[Tensor, "n d"]
    derivative: Float[Tensor, "n d r"]  # L, in the coordinates y and the symbols that stages have added
    stages: tuple[ExpandedStage, ...] = ()
    deadline: Deadline = NEVER
    execution: "Execution | None" = None  # that of the network in floats, whose errors are remainders too

    def then(self, stage: ExpandedStage) -> "TaylorModel":
        """Go on behind one more stage."""
        behind = replace(self, centre=stage.value, derivative=stage.linear, stages=(*self.stages, stage))
        return behind if self.execution is None else self.execution.behind(behind)

    def beyond_linear(
        self,
        functionals: Float[Tensor, "f n d"],
        *,
        forms: bool,
        start: Callable[[slice, Forms], None] | None = None,
    ) -> Range:
        """Bound what linear functions of the tokens do beyond their linear parts.

        Args:
            functionals: Their coefficients.
            forms: Whether second orders are bounded as quadratic forms; by products of ranges otherwise, which is
                cheap and far larger.
            start: Adds second orders that the functions themselves have, for those in a slice.
        """
        found, at_once = [], BATCH if forms else 512
        for first in range(0, max(len(functionals), 1), at_once):
            self.deadline.check()
            part = slice(first, first + at_once)
            pulled = functionals[part]
            sums = Forms(self.symbols, len(pulled), self.derivative.shape[-1] if forms else None, pulled)
            if start is not None:
                start(part, sums)
            for stage in reversed(self.stages):
                pulled = stage.pull_back(pulled, sums)
            found.append(sums.range())
        return Range(*(torch.cat([getattr(r, name) for r in found]) for name in Range.__dataclass_fields__))

    def coordinates(self) -> Float[Tensor, "nd n d"]:
        """Return every coordinate of every token as a linear function of the tokens."""
        return torch.eye(self.centre.numel(), dtype=self.centre.dtype).unflatten(1, self.centre.shape)
