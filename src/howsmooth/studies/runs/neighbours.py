r"""Neighbouring windows of a text are alike: how much, and what a mean of them is worth.

The model is the simplest one: windows i and j of one length are correlated by :math:`\rho^{|i-j|}`, with one
:math:`\rho` for all lengths. Everything else follows exactly. With :math:`C_{ij} = \rho^{|i-j|}`, :math:`M` the matrix
that subtracts the mean and :math:`g = 1^\top C1/m`, the mean of m windows has the variance :math:`\sigma^2g/m`, while
their scatter is :math:`\sigma^2\,\mathrm{tr}(MC)/(m-1) = \sigma^2(m-g)/(m-1)` on average: too small.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A larger correlation than this cannot be told from a drift by a handful of windows.
LARGEST = 0.9
HALVINGS = 40


class Worth(NamedTuple):
    r"""What m windows say about their mean.

    Attributes:
        inflation: How many times larger the variance of the mean is than scatter/m: :math:`g(m-1)/(m-g)`.
        freedom: The degrees of freedom of the scatter, :math:`\mathrm{tr}(MC)^2/\mathrm{tr}(MCMC)`.
    """

    inflation: float
    freedom: float


def worth(m: int, rho: float) -> Worth:
    """Return what m windows are worth whose neighbours have the correlation rho; m is at least 2.

    Example:
        >>> worth(10, 0.0)
        Worth(inflation=1.0, freedom=9.0)
        >>> round(worth(10, 0.5).inflation, 2), round(worth(10, 0.5).freedom, 1)
        (3.16, 6.2)
    """
    if rho == 0:
        return Worth(1.0, m - 1.0)
    rows = _rows(m, rho)
    g = float(rows.mean())
    apart = np.arange(1, m)
    squares = m + 2 * float((m - apart) @ rho ** (2 * apart)) - 2 * float(rows @ rows) / m + g**2
    return Worth(g * (m - 1) / (m - g), (m - g) ** 2 / squares)


def correlation(logs: Sequence[NDArray]) -> float:
    r"""Estimate the correlation of neighbouring windows from all lengths together: between 0 and 0.9.

    The sum of products of neighbours over the sum of squares, around the mean of each length, is far below
    :math:`\rho` for few windows, as means follow the windows (−1/m where they are independent). So we return the
    :math:`\rho` for which the expectations have the ratio that was found. Two windows say nothing.
    """
    around = [log - log.mean() for log in logs if len(log) > 2]
    squares = sum(float(e @ e) for e in around)
    if not squares > 0:
        return 0.0
    found = sum(float(e[:-1] @ e[1:]) for e in around) / squares
    counts = Counter(len(e) for e in around)
    low, high = 0.0, LARGEST
    if found <= _expected(counts, low):
        return low
    for _halving in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _expected(counts, middle) < found else (low, middle)
    return high


def _expected(counts: Counter[int], rho: float) -> float:
    """Return the expected products of neighbours over the expected squares."""
    products = squares = 0.0
    for m, times in counts.items():
        rows = _rows(m, rho)
        g = float(rows.mean())
        products += times * ((m - 1) * (rho + g / m) - 2 * g + 2 * float(rows[0]) / m)
        squares += times * (m - g)
    return products / squares


def _rows(m: int, rho: float) -> NDArray:
    """Return the sums of the rows of C."""
    i = np.arange(m)
    return (1 + rho - rho ** (i + 1.0) - rho ** (m - i)) / (1 - rho)
