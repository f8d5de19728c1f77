r"""Sizes of linear images of a ball: of single numbers by dual norms, of vectors by norms of matrices."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.traces import largest_norms


@dataclass(frozen=True)
class Ball:
    r"""The unit ball :math:`|\xi|_p\le1` whose images are measured, p = 1, 2 or ∞."""

    p: float = 2.0

    def numbers(self, columns: Float[Tensor, "groups r *more"]) -> Float[Tensor, "groups *more"]:
        r"""Return :math:`\sup|f\cdot\xi|` for functionals f whose coefficients are along r."""
        dual = {1.0: torch.inf, 2.0: 2.0, torch.inf: 1.0}[self.p]
        return torch.linalg.vector_norm(columns, dual, dim=1)

    def vectors(self, columns: Float[Tensor, "groups r *more m"]) -> Float[Tensor, "groups *more"]:
        r"""Bound :math:`\sup|M\xi|_2` for matrices M, whose columns are along r and whose rows are along m."""
        if self.p == 1.0:
            return columns.norm(dim=-1).amax(1)
        matrices = columns.movedim(1, -2)
        if matrices.shape[-2] == 1:
            return matrices[..., 0, :].norm(dim=-1)
        if self.p == 2.0:
            return largest_norms(matrices)
        # the cube lies in a ball of radius √r; a sum over its axes may be shorter
        around = matrices.shape[-2] ** 0.5 * largest_norms(matrices)
        return torch.minimum(around, matrices.norm(dim=-1).sum(-1))


ROUND = Ball()
