"""Norms of matrices without negative entries: bounded from above by any positive vector."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

# Power steps of Collatz and Wielandt's bound.
STEPS = 4
# So many for the norm of one matrix, to about one part in a thousand.
NORM_STEPS = 12


def collatz_wielandt(times: Callable[[Tensor], Tensor], z: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch n"]:
    r"""Bound spectral radii of matrices without negative entries: :math:`\max_i(Mz)_i/z_i` for any positive z."""
    best = torch.full_like(z[..., 0, :], torch.inf)
    for _ in range(STEPS):
        moved = times(z)
        best = torch.minimum(best, (moved / z).amax(-2))
        z = (moved / moved.amax(-2, keepdim=True).clamp_min(1e-300)).clamp_min(1e-3)
    return best


def nonnegative_norm(N: Float[Tensor, "m n"]) -> float:
    r"""Bound :math:`\|N\|_2` by :math:`\|N\|^2 \le \max_j(N^\top Nz)_j/z_j`; z comes from a few power steps.

    Example:
        >>> round(nonnegative_norm(torch.ones(4, 4, dtype=torch.float64)), 9)
        4.0
    """
    size = float(N.max())
    unit, z, best = N / (size if size > 0 else 1.0), N.new_ones(N.shape[1]), torch.inf
    for _ in range(NORM_STEPS):
        moved = unit.mT @ (unit @ z)
        best = min(best, float((moved / z).max()))
        z = (moved / moved.max().clamp_min(1e-300)).clamp_min(1e-12)  # any positive vector will do
    return size * best**0.5 * (1 + 4 * sum(N.shape) * torch.finfo(N.dtype).eps)
