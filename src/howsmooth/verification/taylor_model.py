r"""Theorem 15: second-order Taylor models of a network on a box.

What a stage puts out is :math:`z = c + L(y,\eta) + q(y,\eta) + r`: a centre, a linear part, the exact second order of
attention in that linear part, and a remainder. Only c and L are kept. A linear function of z pulls q and r back
through the stages before, where they are one quadratic form and one sum of products of ranges: bounding the form as a
whole, and not its summands, is what makes the bound sharp.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.verification.box_symbols import BoxSymbols

# Functionals that are pulled back at once, when their quadratic forms are built.
BATCH = 32


@dataclass(frozen=True, eq=False)
class Range:
    r"""What linear functions of a stage's tokens do on the box, about their values at the centre.

    Attributes:
        linear: Their coefficients on :math:`(y,\eta)`.
        below: How far the second order goes below zero.
        above: How far it goes above.
        remainder: A bound on the absolute value of all that is left.
    """

    linear: Float[Tensor, "f r"]
    below: Float[Tensor, " f"]
    above: Float[Tensor, " f"]
    remainder: Float[Tensor, " f"]

    @property
    def beyond_linear(self) -> Float[Tensor, " f"]:
        """A bound on the absolute value of everything but the linear part."""
        return torch.maximum(self.below, self.above) + self.remainder


class ExpandedStage(ABC):
    """One stage of a network, expanded at its centre."""

    @abstractmethod
    def pull_back(self, functionals: Float[Tensor, "f n d"], forms: "Forms") -> Float[Tensor, "f n d"]:
        """Pull linear functions of the tokens behind back to those before; add second orders and remainders."""


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

    def range(self, linear: Float[Tensor, "f r"]) -> Range:
        """Return the range of the functionals whose linear parts these are."""
        if self.matrices is None:
            below = above = self.products
        else:
            below, above = self.symbols.quadratic_range((self.matrices + self.matrices.mT) / 2)
        return Range(linear, below, above, self.remainder)


class TaylorModel:
    r"""The tokens behind the stages so far, on a box.

    Attributes:
        symbols: The symbols of the box.
        centre: c.
        derivative: L, in the coordinates y and the symbols that stages have added.
        stages: The stages so far.
    """

    def __init__(self, symbols: BoxSymbols, centre: Float[Tensor, "n d"], derivative: Float[Tensor, "n d r"]) -> None:
        self.symbols, self.centre, self.derivative = symbols, centre, derivative
        self.stages: list[ExpandedStage] = []

    def append(self, stage: ExpandedStage, centre: Float[Tensor, "n d"], derivative: Float[Tensor, "n d r"]) -> None:
        """Go on behind one more stage."""
        self.stages.append(stage)
        self.centre, self.derivative = centre, derivative

    def range(
        self,
        functionals: Float[Tensor, "f n d"],
        *,
        forms: bool,
        start: Callable[[slice, Forms], None] | None = None,
    ) -> Range:
        """Bound linear functions of the tokens.

        Args:
            functionals: Their coefficients.
            forms: Whether second orders are bounded as quadratic forms; by products of ranges otherwise, which is
                cheap and far larger.
            start: Adds second orders that the functions themselves have, for those in a slice.
        """
        found = []
        for first in range(0, max(len(functionals), 1), BATCH if forms else 512):
            part = slice(first, first + (BATCH if forms else 512))
            pulled = functionals[part]
            size = self.derivative.shape[-1] if forms else None
            sums = Forms(self.symbols, len(pulled), size, pulled)
            linear = torch.einsum("fnd,ndr->fr", pulled, self.derivative)
            if start is not None:
                start(part, sums)
            for stage in reversed(self.stages):
                pulled = stage.pull_back(pulled, sums)
            found.append(sums.range(linear))
        return Range(*(torch.cat([getattr(r, name) for r in found]) for name in Range.__dataclass_fields__))
