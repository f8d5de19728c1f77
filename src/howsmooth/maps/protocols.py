"""What every map has in common: the protocols Map and Jacobian."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import LinearOperator


@runtime_checkable
class Jacobian(LinearOperator, Protocol):
    """The derivative of a map at one input: a linear operator on ``(*batch, *domain)``."""

    def take(self, index: Tensor) -> "Jacobian":
        """Pick some operators of the batch, as a batch with one axis."""


@runtime_checkable
class Map(Protocol):
    """A map on sequences of tokens that knows its derivative."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its parameters and outputs."""

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply the map to every sequence of the batch."""

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> Jacobian:
        """Differentiate the map at ``X``."""

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Map":
        """Return the same map in another dtype or on another device."""


@runtime_checkable
class Linearisable(Protocol):
    """A map that returns its value and its derivative together, at less cost than one after the other."""

    def value_and_jacobian(
        self, X: Float[Tensor, "*batch n d"], *, memory: int
    ) -> tuple[Float[Tensor, "*batch n out"], Jacobian]:
        """Return the value and the derivative at ``X``; ``memory`` bytes may be kept for quicker products."""
