"""What derivatives of maps that treat each token alone have in common."""

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.validation import require_like


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenwiseJacobian:
    """A derivative that acts on each token alone: ``n`` matrices of one shape for every entry of the batch.

    Attributes:
        like: A tensor with the numbers and the device of the operator.
        batch: The batch axes.
        n: How many tokens there are.
        d: The dimension of a perturbation.
        out: The dimension of a response.
    """

    like: Tensor
    batch: tuple[int, ...]
    n: int
    d: int
    out: int

    @property
    def domain(self) -> tuple[int, ...]:
        """The shape of one perturbation."""
        return (self.n, self.d)

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape of one response."""
        return (self.n, self.out)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.like.device

    def check_perturbation(self, E: Tensor) -> None:
        """Refuse what the operator cannot be applied to."""
        require_like(E, self.like, (*self.batch, self.n, self.d), "the perturbation")

    def check_cotangent(self, G: Tensor) -> None:
        """Refuse what the transpose cannot be applied to."""
        require_like(G, self.like, (*self.batch, self.n, self.out), "the cotangent")
