"""What every map has in common: the protocols Map and Jacobian, and entries of a batch."""

from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)


def take(x: T, batch: tuple[int, ...], index: Tensor, *, event: int) -> T:
    """Pick entries ``index`` of the flattened batch axes; what has no batch axes serves every entry.

    Args:
        x: A tensor whose batch axes broadcast to ``batch``, or ``None``.
        batch: The batch axes.
        index: Which entries.
        event: How many trailing axes are not batch axes.
    """
    if x is None or x.ndim <= event:
        return x
    return x.expand(*batch, *x.shape[x.ndim - event :]).flatten(0, len(batch) - 1)[index]


@runtime_checkable
class Jacobian(Protocol):
    """The derivative of a map at one input: a linear operator on ``(*batch, *domain)``."""

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""

    @property
    def domain(self) -> tuple[int, ...]:
        """The shape of one perturbation."""

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape of one response."""

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push the perturbation ``E`` of the tokens forward: J E."""

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull the cotangent ``G`` of the output back: Jᵀ G."""

    def take(self, index: Tensor) -> "Jacobian":
        """Pick some operators of the batch, as a batch with one axis."""


@runtime_checkable
class Map(Protocol):
    """A map on sequences of tokens that knows its derivative."""

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply the map to every sequence of the batch."""

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> Jacobian:
        """Differentiate the map at ``X``."""

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Map":
        """Return the same map in another dtype or on another device."""


@runtime_checkable
class Linearisable(Protocol):
    """A map whose value comes with its derivative: together they cost less than one after the other."""

    def value_and_jacobian(
        self, X: Float[Tensor, "*batch n d"], *, memory: int
    ) -> tuple[Float[Tensor, "*batch n out"], Jacobian]:
        """Return the value and the derivative at ``X``; ``memory`` bytes may be kept for quicker products."""
