"""What a set of inputs is: tokens can be brought back to it, moved along it, and drawn from it."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Domain(Protocol):
    """A set of inputs ``(n, d)``. :class:`~howsmooth.Ball` is one; so is anything with these methods."""

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """How many tokens an input has, and of which dimension; ``None`` where any will do."""

    @property
    def scale(self) -> float:
        """The distance by which the step of one token is measured."""

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Bring inputs back into the domain."""

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Turn the gradient ``G`` at ``X`` into a direction of ascent that does not leave the domain to first order."""

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw ``count`` inputs of ``n`` tokens with the dimension, dtype and device of ``like``."""

    def describe(self, n: int) -> str:
        """Say what an input of ``n`` tokens is, in words."""


def tokens(n: int) -> str:
    """Say how many tokens."""
    return f"{n} token{'s' if n > 1 else ''}"
