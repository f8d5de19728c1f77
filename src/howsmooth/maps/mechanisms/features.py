"""Positive features of queries and keys."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.protocols import take


@dataclass(frozen=True, eq=False)
class EluPlusOne:
    r"""The features :math:`\phi(x) = \mathrm{elu}(x)+1`: :math:`e^x` below zero, :math:`x+1` above."""

    def apply(self, X: Tensor) -> Tensor:
        """Return the features."""
        # Why not elu(x) + 1: far below zero that would be zero, and there would be nothing to divide by
        return torch.where(X > 0, X + 1, X.clamp_max(0).exp())

    def linearise(self, X: Tensor) -> "EntrywiseJacobian":
        """Differentiate."""
        return EntrywiseJacobian(X.clamp_max(0).exp())


@dataclass(frozen=True, eq=False)
class EntrywiseJacobian:
    """A derivative that multiplies every coordinate by its own slope."""

    slopes: Float[Tensor, "*batch n k"]

    def jvp(self, E: Tensor) -> Tensor:
        """Multiply."""
        return self.slopes * E

    vjp = jvp

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "EntrywiseJacobian":
        """Pick entries of the batch."""
        return EntrywiseJacobian(take(self.slopes, batch, index, event=event))
