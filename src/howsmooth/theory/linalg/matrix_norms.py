"""Largest singular values, with bounds on the rounding errors of their computation (for all from Theorem 1 on)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.rounding import NORM_UNITS

UNIT = torch.finfo(torch.float64).eps
# Weights below this are zero: far below the rounding of the largest weight in their row, which is at least 1/n.
NOTHING = 1e-140
# Beyond this a factor is as good as infinite; infinity itself would turn zero into no number.
MOST = 1e300


def matrix_norm(x: Float[Tensor, "a b"]) -> float:
    """Return the largest singular value."""
    x = x.detach()
    scale = x.abs().max()
    if not bool(torch.isfinite(scale)):
        return math.inf  # a product overflowed: what is no number is no small one
    if scale == 0:
        return 0.0
    y = x / scale  # squares stay in the range of the numbers
    y = y.mT if y.shape[-1] < y.shape[-2] else y
    # the largest one loses nothing by the squaring, and the smaller side is all that has to be decomposed
    return math.sqrt(float(torch.linalg.eigvalsh(y @ y.mT)[-1])) * float(scale)


def norm_upper(x: Float[Tensor, "a b"]) -> float:
    """Bound the largest singular value, its rounding error included."""
    # A Gram matrix sums so many products, and eigenvalues of symmetric matrices move by no more than its error.
    return matrix_norm(x) * (1 + NORM_UNITS * sum(x.shape) * torch.finfo(x.dtype).eps)


def product_norm(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> float:
    r"""Return :math:`\|ab\|_2` from the small triangular factors: ab has the norm of :math:`R_a\,R_{b^\top}^\top`."""
    return matrix_norm(triangular_factor(a.mT).mT @ triangular_factor(b))


def triangular_factor(x: Float[Tensor, "k d"]) -> Float[Tensor, "k r"]:
    """Return a matrix with the left singular vectors and values of ``x`` and at most k columns."""
    return torch.linalg.qr(x.mT).R.mT if x.shape[0] < x.shape[1] else x
