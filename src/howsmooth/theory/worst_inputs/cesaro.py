"""The averaging of a causal mask over equal tokens."""

import math

import numpy as np
from scipy.linalg import eigh_tridiagonal


def cesaro_norm(n: int) -> float:
    r"""Return the norm of :math:`x\mapsto(\tfrac1i\sum_{j\le i}x_j)_i`, which tends to 2.

    The inverse is bidiagonal, with i on the diagonal and −i beside it; its smallest singular value is the root of the
    smallest eigenvalue of a tridiagonal matrix.

    Example:
        >>> round(cesaro_norm(10), 4)
        1.4101
    """
    i = np.arange(1.0, n + 1)
    smallest = eigh_tridiagonal(i**2 + (i - 1) ** 2, -(i[:-1] ** 2), eigvals_only=True, select="i", select_range=(0, 0))
    return 1 / math.sqrt(float(smallest[0]))
