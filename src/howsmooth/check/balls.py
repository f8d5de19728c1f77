r"""Ball arithmetic: arrays of float64 whose true values lie within a known radius, and functions of them by arb.

A :class:`BallArray` stands for every array :math:`x` with :math:`|x - \text{mid}|\le\text{rad}`, entry by entry. With
:math:`u = 2^{-53}` and :math:`\gamma_k = ku/(1-ku)`, sums and products of floats obey

.. math:: |\mathrm{fl}(a\circ b) - a\circ b|\le u\,|\mathrm{fl}(a\circ b)|,\qquad
          |\mathrm{fl}(AB) - AB|\le\gamma_k\,|A||B|

for matrices with k products in every entry, summed in any order, fused or not (Higham, *Accuracy and Stability of
Numerical Algorithms*, Section 3.5). Radii are sums of numbers that are not negative, so that they are off by
:math:`\gamma_k` of themselves and are raised by more; ``TINY`` covers underflow. A radius that is no number or infinite
proves nothing: every comparison with it fails.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flint
import numpy as np

Array = Any  # arrays of numpy, and its scalars
UNIT = 2.0**-53
TINY = 2.0**-1000
# Radii are raised by this and by two units for every summand, more than their own rounding errors.
RAISED = 1 + 2.0**-48


@dataclass(frozen=True, eq=False)
class BallArray:
    """An array that is known up to a radius for every entry."""

    mid: Array
    rad: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.mid.shape

    @property
    def T(self) -> "BallArray":
        """The last two axes exchanged."""
        return BallArray(np.swapaxes(self.mid, -1, -2), np.swapaxes(self.rad, -1, -2))

    @property
    def upper(self) -> Array:
        """An upper bound of every entry."""
        return _up(self.mid + self.rad)

    @property
    def lower(self) -> Array:
        """A lower bound of every entry."""
        return -_up(-self.mid + self.rad)

    @property
    def size(self) -> Array:
        """An upper bound of every absolute value."""
        return _up(np.abs(self.mid) + self.rad)

    def __getitem__(self, index: Any) -> "BallArray":
        return BallArray(self.mid[index], self.rad[index])

    def reshape(self, *shape: int) -> "BallArray":
        """Return the entries in another shape."""
        return BallArray(self.mid.reshape(*shape), self.rad.reshape(*shape))

    def moved(self, axis: int, to: int) -> "BallArray":
        """Move an axis to another place."""
        return BallArray(np.moveaxis(self.mid, axis, to), np.moveaxis(self.rad, axis, to))

    def __neg__(self) -> "BallArray":
        return BallArray(-self.mid, self.rad)

    def __add__(self, other: "BallArray | Array | float") -> "BallArray":
        other = ball(other)
        mid = self.mid + other.mid
        return BallArray(mid, raised(self.rad + other.rad + UNIT * np.abs(mid)))

    def __sub__(self, other: "BallArray | Array | float") -> "BallArray":
        return self + -ball(other)

    def __mul__(self, other: "BallArray | Array | float") -> "BallArray":
        other = ball(other)
        mid = self.mid * other.mid
        rad = np.abs(self.mid) * other.rad + self.rad * (np.abs(other.mid) + other.rad) + UNIT * np.abs(mid)
        return BallArray(mid, raised(rad))

    def __matmul__(self, other: "BallArray | Array") -> "BallArray":
        other, k = ball(other), self.shape[-1]
        gamma = k * UNIT / (1 - k * UNIT) * RAISED
        rad = np.abs(self.mid) @ (other.rad + gamma * np.abs(other.mid))
        if self.rad.any():
            rad = rad + self.rad @ (np.abs(other.mid) + other.rad)
        return BallArray(self.mid @ other.mid, raised(rad, k))

    def sum(self, axis: int = -1, *, keepdims: bool = False) -> "BallArray":
        """Add up along an axis."""
        k = self.shape[axis]
        rad = (self.rad + k * UNIT * RAISED * np.abs(self.mid)).sum(axis, keepdims=keepdims)
        return BallArray(self.mid.sum(axis, keepdims=keepdims), raised(rad, k))

    def sqrt(self) -> "BallArray":
        """Return square roots of numbers that are known not to be negative, whatever their balls say."""
        low = np.sqrt(np.maximum(self.lower, 0))
        return between(np.maximum(-_up(-low), 0), _up(np.sqrt(self.upper)))

    def inverse(self) -> "BallArray":
        """Return reciprocals; no number where an entry may be zero or negative."""
        low = np.where(self.lower > 0, self.lower, np.nan)
        return between(-_up(-1 / self.upper), _up(1 / low))

    def map(self, function: Callable[[Any], Any]) -> "BallArray":
        """Apply a function of arb's balls to every entry."""
        pairs = zip(self.mid.ravel().tolist(), self.rad.ravel().tolist(), strict=True)
        found = [_floats(function(flint.arb(mid, rad))) for mid, rad in pairs]
        mid, rad = np.array(found, dtype=np.float64).reshape(*self.shape, 2).transpose(-1, *range(self.mid.ndim))
        return BallArray(mid, rad)


def ball(x: "BallArray | Array | float") -> BallArray:
    """Return numbers as balls of radius zero, and balls as they are."""
    if isinstance(x, BallArray):
        return x
    mid = np.asarray(x, dtype=np.float64)
    return BallArray(mid, np.zeros_like(mid))


def between(low: Array, high: Array) -> BallArray:
    """Return balls that hold the numbers between two."""
    mid = low + (high - low) / 2
    return BallArray(mid, raised(np.maximum(high - mid, mid - low) + 2 * UNIT * np.abs(mid)))


def concatenated(parts: list[BallArray], axis: int) -> BallArray:
    """Join arrays along an axis."""
    return BallArray(np.concatenate([x.mid for x in parts], axis), np.concatenate([x.rad for x in parts], axis))


def contracted(spec: str, a: BallArray | Array, b: BallArray | Array) -> BallArray:
    """Return sums of products over the letters of a sum of Einstein's; see :func:`numpy.einsum`."""
    a, b = ball(a), ball(b)
    inputs, left = spec.split("->")
    sizes = dict(zip(inputs.replace(",", ""), a.shape + b.shape, strict=True))
    k = int(np.prod([size for letter, size in sizes.items() if letter not in left]))

    def product(x: Array, y: Array) -> Array:
        return np.einsum(spec, x, y, optimize=True)

    gamma = k * UNIT / (1 - k * UNIT) * RAISED
    rad = product(np.abs(a.mid), b.rad + gamma * np.abs(b.mid))
    if a.rad.any():
        rad = rad + product(a.rad, np.abs(b.mid) + b.rad)
    return BallArray(product(a.mid, b.mid), raised(rad, k))


def product_by_lengths(a: BallArray, b: BallArray) -> BallArray:
    """Return a product of matrices at the cost of one: radii are products of the lengths of rows and columns."""
    k = a.shape[-1]
    gamma = k * UNIT / (1 - k * UNIT) * RAISED
    rows, row_radii = (length(ball(x)).upper[..., :, None] for x in (a.mid, a.rad))
    columns, column_radii = (length(ball(x), -2).upper[..., None, :] for x in (b.mid, b.rad))
    rad = rows * (column_radii + gamma * columns) + row_radii * (columns + column_radii)
    return BallArray(a.mid @ b.mid, raised(rad, k))


def length(x: BallArray, axis: int = -1) -> BallArray:
    """Return Euclidean lengths along an axis."""
    return (x * x).sum(axis).sqrt()


def norm_at_most(x: BallArray, bound: float) -> bool:
    r"""Tell whether it is proven that a matrix has a norm of at most ``bound``.

    By a Cholesky factor of :math:`t^2I - XX^\top - cI`, X turned so that it has no more rows than columns. If the
    factorisation of an m × m matrix M runs to its end in floats, then :math:`M + \Delta\succeq0` with
    :math:`\|\Delta\|\le\frac{\gamma_{m+1}}{1-\gamma_{m+1}}\mathrm{tr}\,M` (Higham, Theorem 10.3); c is at least that,
    and the radii of :math:`XX^\top`.
    """
    if not 0 <= bound < np.inf or not np.isfinite(x.size).all():
        return False
    largest = float(x.size.max(initial=0.0))
    if largest == 0:
        return True
    if bound < largest:  # no entry exceeds the norm
        return False
    x = x * ball(2.0 ** -np.floor(np.log2(largest)))  # a power of two, so that squares stay in the range of floats
    bound = bound * float(2.0 ** -np.floor(np.log2(largest)))
    x = x.T if x.shape[0] > x.shape[1] else x
    return semidefinite(-(x @ x.T), square_below(bound))


def norms_upper(x: BallArray) -> Array:
    """Return upper bounds on the norms of many matrices, as :func:`norm_at_most` proves them; they are close."""
    largest = np.abs(x.mid).max((-2, -1))
    finite = np.isfinite(largest)
    shift = np.frexp(np.where(finite, np.maximum(largest, TINY), 1.0))[1]  # squares stay in the range of floats
    y = np.ldexp(np.where(finite[..., None, None], x.mid, 0.0), -shift[..., None, None])
    y = y if y.shape[-2] <= y.shape[-1] else np.swapaxes(y, -1, -2)
    m, k = y.shape[-2:]
    gram = y @ np.swapaxes(y, -1, -2)
    frobenius = np.trace(gram, axis1=-2, axis2=-1) * (1 + 2 * (k + m + 4) * UNIT) + 2.0**-200
    square = frobenius
    if m > 1:
        # off by at most γ_k times the square of the Frobenius norm; what is off in the diagonal, and Δ, likewise
        shifted = 2 * (k + m * (m + 8) + 16) * UNIT * frobenius
        guess = np.linalg.eigvalsh(gram)[..., -1] * (1 + 1e-10) + 3 * shifted
        square = np.where(_factored((guess - shifted)[..., None, None] * np.eye(m) - gram), guess, frobenius)
    radii = np.sqrt((np.where(x.rad == 0, 0, x.rad + 2.0**-400) ** 2).sum((-2, -1)))  # squares do not vanish
    return np.where(finite, up(np.ldexp(np.sqrt(square), shift) + up(radii)), np.nan)


def _factored(matrices: Array) -> Array:
    """Tell which symmetric matrices have a Cholesky factor in floats."""
    try:
        return np.isfinite(np.linalg.cholesky(matrices)).all((-2, -1))
    except np.linalg.LinAlgError:
        if matrices.ndim == 2:
            return np.array(False)
        return np.array([_factored(one) for one in matrices])


def up(x: Array) -> Array:
    """Raise a formula of fewer than 2^15 operations on numbers that are not negative above its rounding errors."""
    return x * (1 + 2.0**-36) + TINY


def square_below(x: float) -> float:
    """Return a float that is at most a square."""
    return float(-_up(np.float64(-x * x)))


def semidefinite(x: BallArray, added: float) -> bool:
    """Tell whether it is proven that a symmetric matrix plus a multiple of the unit has no negative eigenvalue."""
    if not np.isfinite(added) or not np.isfinite(x.size).all():
        return False
    m, diagonal = len(x.mid), np.diagonal(x.mid)
    trace = np.maximum(diagonal + added, 0).sum() + m * UNIT * (abs(added) + np.abs(diagonal).max())
    gamma = (m + 2) * UNIT / (1 - (m + 2) * UNIT)
    moved = 4 * UNIT * (abs(added) + np.abs(diagonal).max())  # rounding of the diagonal below
    radii = np.sqrt((np.maximum(x.rad, x.rad.T) ** 2).sum()) + m * 2.0**-500  # squares below that underflow
    shift = float(raised(radii + gamma / (1 - gamma) * raised(trace, m) + moved, m * m))
    matrix = x.mid.copy()  # of which the lower half is factored
    matrix[np.diag_indices(m)] += added - shift
    try:
        return bool(np.isfinite(np.linalg.cholesky(matrix)).all())
    except np.linalg.LinAlgError:
        return False


def largest_eigenvalue(x: BallArray) -> float:
    """Return an upper bound on the eigenvalues of a symmetric matrix, zero at least; it is close."""
    if not np.isfinite(x.size).all():
        return np.nan
    m, values = len(x.mid), np.linalg.eigvalsh(x.mid)
    size = float(np.abs(values).max())
    apart = 2 * float(np.sqrt((np.maximum(x.rad, x.rad.T) ** 2).sum())) + 16 * (m + 8) * UNIT * m * size
    guess = float(raised(np.maximum(values[-1], 0.0) * (1 + 1e-12) + apart))
    return guess if semidefinite(-x, guess) else np.nan


def _up(x: Array) -> Array:
    """Return the next float above."""
    return np.nextafter(x, np.inf)


def raised(x: Array, summands: int = 0) -> Array:
    """Raise a radius above its own rounding errors."""
    return x * (RAISED + 4 * (summands + 2) * UNIT) + (summands + 1) * TINY


def _floats(x: Any) -> tuple[float, float]:
    """Return a ball of arb as a float and a radius."""
    if not x.is_finite():
        return float("nan"), float("nan")
    mid = float(x.mid())
    return mid, float((x - flint.arb(mid)).abs_upper()) * (1 + 2.0**-40) + TINY


def at_tokens(blocks: BallArray) -> BallArray:
    """Return directions ``(n, r, d)`` of every token as columns ``(n, r, n, d)``."""
    n, r, d = blocks.shape
    mid, rad = np.zeros((2, n, r, n, d))
    every = np.arange(n)
    mid[every, :, every], rad[every, :, every] = blocks.mid, blocks.rad
    return BallArray(mid, rad)
