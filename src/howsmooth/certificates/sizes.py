r"""Sizes of linear and of quadratic images of a ball: of numbers by dual norms, of vectors by norms of matrices."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.blocks import block_norms, form_norms
from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms

# So many numbers are unpacked at once.
NUMBERS = 2**23


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
        if columns.shape[1] == 1:
            return columns[:, 0].norm(dim=-1)
        if self.p == 2.0:
            return block_norms(columns)
        # the cube lies in a ball of radius √r; a sum over its axes may be shorter
        around = columns.shape[1] ** 0.5 * block_norms(columns)
        return torch.minimum(around, columns.norm(dim=-1).sum(1))


@dataclass(frozen=True)
class Squares(Ball):
    r"""All :math:`\xi\otimes\xi` for :math:`|\xi|_p\le1`, in the coordinates :math:`\xi_a^2, \sqrt2\xi_a\xi_b`, a < b.

    Columns are those of quadratic maps, packed: B(a, a) and :math:`\sqrt2B(a, b)`, as :meth:`packed` makes them.
    """

    def packed(self, r: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return both places a ≤ b of every column, and what a symmetric form has to be multiplied by there."""
        a, b = torch.triu_indices(r, r)
        # in double precision: a root of two in single precision is shorter by more than proofs allow for
        return a, b, torch.where(a == b, 1, 2).double().sqrt()

    def numbers(self, columns: Float[Tensor, "groups pairs *more"]) -> Float[Tensor, "groups *more"]:
        r"""Bound :math:`\sup|\xi^\top H\xi|`: by the largest absolute eigenvalue in a round ball."""
        forms = [self._number(self._forms(part)) for part in columns.flatten(2).split(_at_once(columns), dim=2)]
        return torch.cat(forms, dim=1).unflatten(1, columns.shape[2:])

    def vectors(self, columns: Float[Tensor, "groups pairs *more m"]) -> Float[Tensor, "groups *more"]:
        r"""Bound :math:`\sup|H(\xi,\xi)|_2` for forms with values in m dimensions.

        :math:`|\xi\otimes\xi|_F = 1`, so the norm of H as a matrix of m rows bounds it; and
        :math:`|H(\xi,\xi)|^2\le\xi^\top\sum_mH_m^2\,\xi`.
        """
        flat = columns.flatten(2, -2)
        parts = flat.split(max(1, _at_once(columns) // columns.shape[-1]), dim=2)
        return torch.cat([self._vector(part) for part in parts], dim=1).unflatten(1, columns.shape[2:-1])

    def _number(self, H: Float[Tensor, "groups k r r"]) -> Float[Tensor, "groups k"]:
        if self.p == 1.0:
            return H.abs().amax((-2, -1))
        scale = H.abs().amax((-2, -1), keepdim=True)
        scaled = (H / torch.where(scale > 0, scale, 1.0)).contiguous()
        round_ = form_norms(scaled.flatten(0, 1)).view(H.shape[:2]) * scale[..., 0, 0]
        return round_ if self.p == 2.0 else torch.minimum(H.shape[-1] * round_, H.abs().sum((-2, -1)))

    def _vector(self, columns: Float[Tensor, "groups pairs k m"]) -> Float[Tensor, "groups k"]:
        H = self._forms(columns)  # groups, k, m, r, r
        if self.p == 1.0:
            return H.norm(dim=-3).amax((-2, -1))
        matrix = largest_norms(columns.movedim(1, -2))
        stacked = largest_norms(H.movedim(-1, -3).flatten(-2))
        round_ = torch.minimum(matrix, stacked)
        return round_ if self.p == 2.0 else torch.minimum(H.shape[-1] * round_, H.norm(dim=-3).sum((-2, -1)))

    def _forms(self, columns: Float[Tensor, "groups pairs *more"]) -> Float[Tensor, "groups *more r r"]:
        """Unpack columns to symmetric matrices."""
        r = round((2 * columns.shape[1] + 0.25) ** 0.5 - 0.5)
        a, b, times = self.packed(r)
        place = torch.empty(r, r, dtype=torch.long)
        place[a, b] = place[b, a] = torch.arange(len(a))
        weighted = columns / times.view(-1, *[1] * (columns.ndim - 2))
        return weighted.index_select(1, place.flatten()).unflatten(1, (r, r)).movedim((1, 2), (-2, -1))


def _at_once(columns: Tensor) -> int:
    """Count the forms that are unpacked at once."""
    return max(1, NUMBERS // (2 * columns.shape[0] * columns.shape[1]))


ROUND = Ball()
