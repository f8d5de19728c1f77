r"""Upper bounds on the largest eigenvalues of many matrices, without decomposing them (for Theorem 3 and Theorem 5).

By traces of powers, :func:`largest_eigenvalues`; for matrices without negative entries, :func:`collatz_wielandt`; by
products with a few vectors, :func:`deflated_eigenvalues`; by Cholesky factors, :class:`CholeskyCertificate`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg.lapack import dpotrf
from torch import Tensor

from howsmooth.theory.linalg.matrix_norms import UNIT, norm_upper

# Each squaring brings the bound nearer; after three it is within about one part in a thousand.
SQUARINGS = 3
# Power steps of Collatz and Wielandt's bound.
COLLATZ_STEPS = 4
# So many for the norm of one matrix, to about one part in a thousand.
NORM_STEPS = 12
# A guess comes from so many columns, after so many products.
COLUMNS, POWER_STEPS = 8, 2
# So many matrices, at least, are added up to begin with.
SAMPLE = 8
# How far above its guess an eigenvalue is tried to be proven, in turn.
ABOVE = (1.03, 1.1, 1.5, 4.0)
# Below this nothing is tried: products of such numbers leave the range of floats.
SMALL = 1e-250


def largest_eigenvalues(M: Float[Tensor, "*batch v v"], *, squarings: int = SQUARINGS) -> Float[Tensor, "*batch"]:
    r"""Bound the largest absolute eigenvalue of every symmetric matrix from above.

    .. math:: \lambda_{\max}(Y) \le \frac{t_1}v + \Bigl((v-1)\bigl(\frac{t_2}v - \frac{t_1^2}{v^2}\bigr)\Bigr)^{1/2},
              \qquad t_1 = \mathrm{tr}\,Y,\; t_2 = \mathrm{tr}\,Y^2

    for :math:`Y = M^8`, whose eigenvalues stand further apart [wolkowicz1980]; with fewer ``squarings`` for a lower
    power, cheaper and a little larger.

    Example:
        >>> float(largest_eigenvalues(torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)))) < 3.0001
        True
    """
    v = M.shape[-1]
    # Why not take M as it comes: what is left of a difference may be rounding alone, which is not symmetric, and the
    # trace of its square may be negative.
    M = (M + M.mT) / 2
    scale = M.abs().amax((-2, -1), keepdim=True) * v  # at least the largest eigenvalue
    Y = M / torch.where(scale > 0, scale, 1.0)  # its largest eigenvalue is at least 1/v: so high powers are floats
    # Why squarings and not power steps: those give lower bounds, traces of powers give upper ones.
    for _ in range(squarings):
        Y = Y @ Y
    first = Y.diagonal(dim1=-2, dim2=-1).sum(-1) / v
    second = Y.square().sum((-2, -1)) / v
    eps = torch.finfo(M.dtype).eps
    # where all eigenvalues are nearly alike, their scatter drowns in the rounding of what it is the difference of
    scatter = (second - first.square()).clamp_min(0) + 4 * v * eps * second
    top = first + ((v - 1) * scatter).sqrt()
    rounding = 1 + 32 * v * eps
    return rounding * top ** (1 / 2**squarings) * scale[..., 0, 0]


def largest_norms(x: Float[Tensor, "*batch a b"], *, squarings: int = SQUARINGS) -> Float[Tensor, "*batch"]:
    """Bound the largest singular value of every matrix from above, as closely."""
    # The smaller Gram matrix has the same largest eigenvalue.
    y = x.mT if x.shape[-1] < x.shape[-2] else x
    scale = y.abs().amax((-2, -1), keepdim=True)
    y = y / torch.where(scale > 0, scale, 1.0)
    return largest_eigenvalues(y @ y.mT, squarings=squarings).sqrt() * scale[..., 0, 0]


def collatz_wielandt(times: Callable[[Tensor], Tensor], z: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch n"]:
    r"""Bound spectral radii of matrices without negative entries: :math:`\max_i(Mz)_i/z_i` for any positive z."""
    best = torch.full_like(z[..., 0, :], torch.inf)
    for _ in range(COLLATZ_STEPS):
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


def deflated_eigenvalues(
    times: Callable[[Tensor], Tensor],
    space: Float[Tensor, "size k"],
    *,
    trace: Float[Tensor, " rows"],
    error: Float[Tensor, " rows"],
    steps: int,
) -> Float[Tensor, " rows"]:
    r"""Bound :math:`\lambda_{\max}(S)` for positive matrices S from above, closely where few eigenvalues are large.

    With U an orthonormal basis of some space, :math:`A = U^\top SU` and :math:`B = SU - UA`, S is at most

    .. math:: \begin{pmatrix}\lambda_{\max}(A) & \|B\|\\ \|B\| & \mathrm{tr}\,S-\mathrm{tr}\,A\end{pmatrix},

    since outside of the space no eigenvalue exceeds the sum of them all. The space is what power steps make of the
    given one; any is right.

    Args:
        times: Multiplies a batch of matrices by every S; one matrix counts as many.
        space: Columns that span a space, not necessarily independent.
        trace: At least the traces.
        error: A bound on the errors of ``times``, for columns of length one.
        steps: How many power steps there are.
    """
    # The space is spanned by power steps, so most of the trace lies inside, and the rest is bounded by its trace.
    size, k = space.shape
    x = space[None]
    for _ in range(steps):
        x = times(x)
        x = x / x.abs().amax((1, 2), keepdim=True).clamp_min(1e-250)
    U = torch.linalg.qr(x).Q
    SU = times(U)
    A = U.mT @ SU
    # What rounding did to the products and to the basis, as a multiple of what a column may be wrong by.
    margin = k * (error + 64 * k * size * UNIT * trace)
    inside = _largest(A) + margin
    outside = (trace - A.diagonal(dim1=1, dim2=2).sum(-1)).clamp_min(0) + k * margin
    across = (SU - U @ A).flatten(1).norm(dim=-1) + margin
    return (inside + outside) / 2 + torch.hypot((inside - outside) / 2, across)


def _largest(A: Float[Tensor, "rows k k"]) -> Float[Tensor, " rows"]:
    """Return the largest eigenvalue of every matrix; what is no number has none."""
    invalid = ~A.flatten(1).isfinite().all(-1)
    A = (A + A.mT) / 2
    return torch.linalg.eigvalsh(torch.where(invalid[:, None, None], 0.0, A))[:, -1].masked_fill(invalid, torch.nan)


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
        # σ is so large that the inverse exists in floats, and so small that norm_bound exceeds one by little.
        gram, one, sigma = W.mT @ W, torch.eye(m, dtype=W.dtype), 128 * UNIT * m**2 * (m + 32)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(gram + sigma * one), one, upper=False)
        size = float((W.square().sum(0) * half.square().sum(0)).sum())
        stretch = norm_upper(half @ W.mT) + UNIT * m * math.sqrt(m * size)
        return cls(gram=gram, M=half.mT @ half, norm_bound=stretch**2 + UNIT * m * (m + 32) * size)

    def eigenvalues(self, R: Float[Tensor, "rows m m"], error: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        r"""Bound :math:`\lambda_{\max}(WRW^\top)` for matrices R that are positive but for rounding.

        ``error`` bounds the rounding errors of :math:`WRW^\top`. If no Cholesky factorisation succeeds, the trace
        bound is used.
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
        values[left] = (R[left] * self.gram).sum((1, 2)).clamp_min(0) + len(M) * error[left]
        return values + error

    def ritz_values(self, R: Float[Tensor, "rows m m"]) -> Float[Tensor, " rows"]:
        r"""Estimate :math:`\lambda_{\max}(WRW^\top)` from below: Ritz values of a space after some power steps."""
        x = R @ self._start(R[:: max(1, len(R) // SAMPLE)].sum(0).nan_to_num(0.0, 0.0, 0.0))
        for _ in range(POWER_STEPS - 1):
            x = R @ (self.gram @ _to_unit_size(x))
        x = _to_unit_size(x)
        Gx = self.gram @ x
        inner, outer = x.mT @ Gx, Gx.mT @ (R @ Gx)
        invalid = ~(inner + outer).flatten(1).isfinite().all(-1)
        inner[invalid], outer[invalid] = 0.0, 0.0
        values, vectors = torch.linalg.eigh(inner)
        # directions that are rounding alone would be any size
        real = values > 1e-12 * values[:, -1:]
        basis = vectors * torch.where(real, values, torch.inf).rsqrt()[:, None]
        return torch.linalg.eigvalsh(basis.mT @ outer @ basis)[:, -1]

    def _start(self, total: Float[Tensor, "m m"]) -> Float[Tensor, "m k"]:
        """Return a space that sees most of the sum of some matrices: theirs are alike."""
        x = torch.randn(len(total), COLUMNS, dtype=total.dtype, generator=torch.Generator().manual_seed(0))
        for _ in range(POWER_STEPS):
            x = torch.linalg.qr(self.gram @ (total @ x)).Q
        return x


def _to_unit_size(x: Float[Tensor, "*rows m k"]) -> Float[Tensor, "*rows m k"]:
    return x / x.abs().amax((-2, -1), keepdim=True).clamp_min(SMALL)


def _proves(M: np.ndarray, value: float, R: np.ndarray, difference: np.ndarray) -> bool:
    """Say whether ``value * M - R`` has a Cholesky factor; it is written over ``difference``."""
    if not SMALL < value < math.inf:
        return False
    # Into one buffer: a new page of memory for every matrix would take longer than its factor.
    np.multiply(M, value, out=difference)
    difference -= R
    _factor, failed = dpotrf(difference.T, lower=True, clean=False, overwrite_a=True)
    return bool(failed == 0)
