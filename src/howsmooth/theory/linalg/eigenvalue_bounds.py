r"""The largest eigenvalues of many matrices :math:`WRW^\top`: guessed by a few products, proven by Cholesky."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg.lapack import dpotrf
from torch import Tensor

from howsmooth.theory.at_input.head_errors import UNIT, norm_upper

# A guess comes from so many columns, after so many products.
COLUMNS, STEPS = 8, 2
# So many matrices, at least, are added up to begin with.
SAMPLE = 8
# How far above its guess an eigenvalue is tried to be proven, in turn.
ABOVE = (1.03, 1.1, 1.5, 4.0)
# Below this nothing is tried: products of such numbers leave the range of floats.
SMALL = 1e-250


@dataclass(frozen=True, kw_only=True, eq=False)
class CholeskyCertificate:
    r"""Turns :math:`\lambda_{\max}(WRW^\top)` into a question about R alone.

    For any M, :math:`\lambda M - R\succeq0` gives :math:`WRW^\top\preceq\lambda WMW^\top`. With
    :math:`M = (W^\top W + \sigma I)^{-1}` nothing is lost but what :math:`\sigma` takes, and no product with W is
    needed, which would cost six times as much as a Cholesky factor.

    *Rounding.* A factor that exists proves :math:`\lambda M - R\succeq-m\gamma\lambda\,\mathrm{diag}(M)`, where
    :math:`\gamma = (m+1)u` for its sums of products; what rounding did to M and to the difference is of that form too.
    So the bound is :math:`\lambda` times ``norm_bound``, :math:`\|WMW^\top\|` and the rounding's share of
    :math:`\mathrm{tr}\,W\mathrm{diag}(M)W^\top`. :math:`\sigma` keeps that share below a hundredth, W singular or not.

    Attributes:
        gram: :math:`W^\top W`.
        M: The inverse.
        norm_bound: What the norm of :math:`WMW^\top` is at most, and what rounding may hide.
    """

    gram: Float[Tensor, "m m"]
    M: Float[Tensor, "m m"]
    norm_bound: float

    @classmethod
    def of(cls, W: Float[Tensor, "out m"]) -> "CholeskyCertificate":
        """Look at a matrix whose columns are of length about one, or zero."""
        m = W.shape[1]
        gram, one, sigma = W.mT @ W, torch.eye(m, dtype=W.dtype), 128 * UNIT * m**2 * (m + 32)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(gram + sigma * one), one, upper=False)
        size = float((W.square().sum(0) * half.square().sum(0)).sum())
        stretch = norm_upper(half @ W.mT) + UNIT * m * math.sqrt(m * size)
        return cls(gram=gram, M=half.mT @ half, norm_bound=stretch**2 + UNIT * m * (m + 32) * size)

    def eigenvalues(self, R: Float[Tensor, "rows m m"], lost: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        r"""Bound :math:`\lambda_{\max}(WRW^\top)` for matrices R that are positive but for rounding.

        ``lost`` bounds what rounding did to :math:`WRW^\top`. What no factor proves keeps its trace.
        """
        # R grows where its diagonal was rounded below zero
        R.diagonal(dim1=1, dim2=2).clamp_min_(0)
        M, difference = self.M.numpy(), np.empty(self.M.shape)
        found = []
        for matrix, guess in zip(R.numpy(), self.ritz_values(R).tolist(), strict=True):
            value = next((x for x in (guess * above for above in ABOVE) if _proves(M, x, matrix, difference)), None)
            found.append(math.nan if value is None else value * self.norm_bound)
        values = torch.tensor(found, dtype=R.dtype)
        left = values.isnan()
        values[left] = (R[left] * self.gram).sum((1, 2)).clamp_min(0) + len(M) * lost[left]
        return values + lost

    def ritz_values(self, R: Float[Tensor, "rows m m"]) -> Float[Tensor, " rows"]:
        r"""Estimate :math:`\lambda_{\max}(WRW^\top)` from below: Ritz values of a space after some power steps."""
        x = R @ self._start(R[:: max(1, len(R) // SAMPLE)].sum(0).nan_to_num(0.0, 0.0, 0.0))
        for _ in range(STEPS - 1):
            x = R @ (self.gram @ _of_size_one(x))
        x = _of_size_one(x)
        seen = self.gram @ x
        inner, outer = x.mT @ seen, seen.mT @ (R @ seen)
        wrong = ~(inner + outer).flatten(1).isfinite().all(-1)
        inner[wrong], outer[wrong] = 0.0, 0.0
        values, vectors = torch.linalg.eigh(inner)
        # directions that are rounding alone would be any size
        real = values > 1e-12 * values[:, -1:]
        basis = vectors * torch.where(real, values, torch.inf).rsqrt()[:, None]
        return torch.linalg.eigvalsh(basis.mT @ outer @ basis)[:, -1]

    def _start(self, total: Float[Tensor, "m m"]) -> Float[Tensor, "m k"]:
        """Return a space that sees most of the sum of some matrices: theirs are alike."""
        x = torch.randn(len(total), COLUMNS, dtype=total.dtype, generator=torch.Generator().manual_seed(0))
        for _ in range(STEPS):
            x = torch.linalg.qr(self.gram @ (total @ x)).Q
        return x


def _of_size_one(x: Float[Tensor, "*rows m k"]) -> Float[Tensor, "*rows m k"]:
    return x / x.abs().amax((-2, -1), keepdim=True).clamp_min(SMALL)


def _proves(M: np.ndarray, value: float, R: np.ndarray, difference: np.ndarray) -> bool:
    """Say whether ``value * M - R`` has a Cholesky factor; it is written over ``difference``."""
    if not SMALL < value < math.inf:
        return False
    np.multiply(M, value, out=difference)
    difference -= R
    _factor, failed = dpotrf(difference.T, lower=True, clean=False, overwrite_a=True)
    return bool(failed == 0)
