"""Linear operators without matrices: the protocol, and dense matrices dressed as one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import ShapeError
from howsmooth.validation import require_finite, require_floating

# Too coarse to measure in: computed in float32 instead.
HALF = (torch.float16, torch.bfloat16)


@runtime_checkable
class LinearOperator(Protocol):
    """A batch of linear operators from vectors of shape ``domain`` to vectors of shape ``codomain``.

    An operator may also have ``compress() -> (smaller, isometry)``: an operator with the same singular values on a
    smaller space, and the isometry from that space into its own; and ``take(index) -> operator``: some operators of the
    batch, so that a solver need not go on with those that are done; and ``guess() -> vector``: a direction that the
    operator is likely to stretch, for one product.
    """

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""

    @property
    def domain(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape of one output."""

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def jvp(self, E: Float[Tensor, "*shape"]) -> Float[Tensor, "*other"]:
        """Apply the operator to ``(*batch, *domain)``."""

    def vjp(self, G: Float[Tensor, "*other"]) -> Float[Tensor, "*shape"]:
        """Apply the transpose to ``(*batch, *codomain)``."""


@dataclass(frozen=True, eq=False)
class Dense:
    """A matrix, or a batch of matrices, as an operator; half precision becomes float32."""

    matrix: Float[Tensor, "*batch m n"]

    def __post_init__(self) -> None:
        """Check the numbers once."""
        require_floating(self.matrix, "matrix")
        if self.matrix.ndim < 2:
            raise ShapeError(f"matrix must have the shape (*batch, m, n), got {tuple(self.matrix.shape)}.")
        require_finite(self.matrix, "matrix")
        if self.matrix.dtype in HALF:
            object.__setattr__(self, "matrix", self.matrix.float())

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return tuple(self.matrix.shape[:-2])

    @property
    def domain(self) -> tuple[int, ...]:
        """The number of columns."""
        return (self.matrix.shape[-1],)

    @property
    def codomain(self) -> tuple[int, ...]:
        """The number of rows."""
        return (self.matrix.shape[-2],)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.matrix.device

    def jvp(self, E: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """Multiply by the matrix."""
        return (self.matrix @ E.unsqueeze(-1)).squeeze(-1)

    def vjp(self, G: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n"]:
        """Multiply by the transpose."""
        return (self.matrix.mT @ G.unsqueeze(-1)).squeeze(-1)

    def take(self, index: Tensor) -> "Dense":
        """Pick some matrices of the batch."""
        return Dense(self.matrix.flatten(0, -3)[index])


def compressed(op: LinearOperator) -> tuple[LinearOperator, Callable[[Tensor], Tensor]]:
    """Return an operator with the same singular values, the smallest it knows of, and the isometry back."""
    compress = getattr(op, "compress", None)
    return (op, lambda E: E) if compress is None else compress()
