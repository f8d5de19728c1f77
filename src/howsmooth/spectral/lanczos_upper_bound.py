r"""An upper bound on the largest singular value that holds with a stated probability.

Golub–Kahan–Lanczos started at a random unit vector :math:`v_1` builds orthonormal vectors :math:`v_1,\dots,v_{k+1}`.
The top right singular vector :math:`y` has the components :math:`\langle v_{j+1},y\rangle = \gamma\,p_j(\sigma)` on
them, where :math:`\gamma = \langle v_1, y\rangle` and the polynomials :math:`p_j` are known from the bidiagonal matrix.
By Bessel's inequality

.. math:: \gamma^2\sum_{j=0}^k p_j(\sigma_{\max})^2 \le 1,

and a random start has :math:`|\gamma| \ge \delta` with probability :math:`1-\varepsilon`. Above the largest Ritz value
the sum increases, so :math:`\sigma_{\max}` lies below the point where it reaches :math:`1/\delta^2`.
:cite:`hochstenbach2013` uses the last term of the sum alone; all of them together cost nothing and are sharper.
One event, :math:`|\gamma|\ge\delta`, serves every ``k``: stopping when the bound is good enough costs no confidence.

Nor do restarts: one takes place only where the bound would have been wrong (docs, :ref:`restarts`).
"""

import numpy as np
from scipy.special import betaincinv

Array = np.ndarray
# So many operators are evaluated one after another: calls for arrays of a few numbers are nearly all overhead.
FEW = 8


def least_overlap(dimension: int, confidence: float) -> float:
    r"""Return :math:`\delta` with :math:`|\langle v, y\rangle| \ge \delta` for a random unit ``v``, at the confidence.

    :math:`\langle v,y\rangle^2` has the Beta(1/2, (N−1)/2) distribution; for large N,
    :math:`\delta\approx\varepsilon\sqrt{\pi/(2N)}`.

    >>> round(least_overlap(3, 0.9), 6)  # uniform on [-1, 1] in three dimensions
    0.1
    """
    if dimension == 1:
        return 1.0
    # Why not the approximation for large N: it is too small for small N, which makes bounds wider than need be.
    return float(np.sqrt(betaincinv(0.5, (dimension - 1) / 2, 1 - confidence)))


def component_sums(sigma: Array, alphas: Array, betas: Array, threshold: float) -> Array:
    r"""Return :math:`\sum_{j\le k} p_j(\sigma)^2`, or as much of it as first reaches ``threshold``.

    The components :math:`w_j` on the left vectors and :math:`p_j` on the right ones follow from one row of
    :math:`JV = UB` and one of :math:`J^\top U = VB^\top` at a time:
    :math:`\alpha_j w_j = \sigma p_{j-1} - \beta_{j-1}w_{j-1}` and :math:`\beta_j p_j = \sigma w_j - \alpha_j p_{j-1}`.
    Evaluate at ``sigma``, ``(…, batch)``, above the largest Ritz value.
    """
    size = alphas.max(axis=1)  # only ratios matter; in this unit no product leaves the range of the numbers
    sigma, alphas, betas = sigma / size, alphas / size[:, None], betas / size[:, None]
    if sigma.shape == size.shape and _few(alphas, betas):
        rows = zip(sigma.tolist(), alphas.tolist(), betas.tolist(), strict=True)
        return np.array([_sum_of_one(*row, threshold) for row in rows])
    p, w, total = np.ones_like(sigma), np.zeros_like(sigma), np.ones_like(sigma)
    before = np.zeros_like(alphas[:, 0])
    for alpha, beta in zip(alphas.T, betas.T, strict=True):
        w = (sigma * p - before * w) / alpha
        p = (sigma * w - alpha * p) / beta
        total = total + p * p
        # what has passed the threshold stays there; freezing it keeps the numbers finite
        passed = total >= threshold
        p, w = np.where(passed, 0.0, p), np.where(passed, 0.0, w)
        before = beta
    return total


def exceeds(sigma: Array, alphas: Array, betas: Array, threshold: float) -> Array:
    """Tell where :func:`component_sums` reach ``threshold``."""
    return component_sums(sigma, alphas, betas, threshold) >= threshold


def _few(alphas: Array, betas: Array) -> bool:
    """Tell whether to evaluate operators one after another: they are few, and no division is by zero."""
    return bool(len(alphas) <= FEW and alphas.all() and betas.all())


def _sum_of_one(sigma: float, alphas: list[float], betas: list[float], threshold: float) -> float:
    """Return the sum of one operator; arrays of one number take twenty times as long."""
    p, w, before, total = 1.0, 0.0, 0.0, 1.0
    for alpha, beta in zip(alphas, betas, strict=True):
        w = (sigma * p - before * w) / alpha
        p = (sigma * w - alpha * p) / beta
        total += p * p
        if total >= threshold:
            break
        before = beta
    return total


def upper_bound(ritz: Array, alphas: Array, betas: Array, delta: float) -> Array:
    """Return the smallest proven upper bound on the largest singular value, one for each batch element."""
    # Why bisection on many points and not Newton's method: the sum is a polynomial of degree 4k in σ, which overflows
    # where Newton would step, and all elements of a batch are evaluated in one pass.
    threshold = delta**-2
    if _few(alphas, betas):
        size = alphas.max(axis=1)
        below, diagonal, beside = ritz / size, alphas / size[:, None], betas / size[:, None]
        rows = zip(below.tolist(), diagonal.tolist(), beside.tolist(), strict=True)
        return size * np.array([_bound_of_one(*row, threshold) for row in rows])
    low, high = ritz.copy(), ritz * (1 + 1e-3)
    while not np.all(done := exceeds(high, alphas, betas, threshold)):
        high = np.where(done, high, ritz + 4 * (high - ritz))
    fractions = np.linspace(0, 1, 33)[1:, None]
    for _round in range(12):
        if np.all(high - low <= 1e-4 * (high - ritz)):
            break
        points = low + fractions * (high - low)
        reached = exceeds(points, alphas, betas, threshold)
        reached[-1] = True  # known; rounding of the last point must not undo it
        first = np.argmax(reached, axis=0)
        step = (high - low) / 32
        low, high = low + first * step, low + (first + 1) * step
    return high


def _bound_of_one(ritz: float, alphas: list[float], betas: list[float], threshold: float) -> float:
    """Return the bound of one operator, by halving: plain numbers take a sixth of the time of arrays of 32."""

    def excluded(sigma: float) -> bool:  # what is no number excludes nothing
        return _sum_of_one(sigma, alphas, betas, threshold) >= threshold

    low, high = ritz, ritz * (1 + 1e-3)
    while not excluded(high):
        high = ritz + 4 * (high - ritz)
    for _halving in range(60):
        if high - low <= 1e-4 * (high - ritz):
            break
        middle = (low + high) / 2
        low, high = (low, middle) if excluded(middle) else (middle, high)
    return high
