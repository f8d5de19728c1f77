"""L-BFGS that returns the best point it has evaluated (for Theorems 1 and 2)."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def lowest_point(
    loss: Loss, start: np.ndarray, *, iterations: int, bounds: Sequence[tuple[float | None, float | None]] | None = None
) -> np.ndarray:
    """Minimise a loss with its gradient; return the point with the lowest finite value of all that were evaluated.

    Why not the point that the optimiser returns: a line search that fails, which depends on the rounding of the
    processor, may leave it with the value of another point, or with none.
    """
    best, lowest = start, math.inf

    def evaluated(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, lowest
        value, gradient = loss(x)
        if math.isfinite(value) and value < lowest:
            best, lowest = x.copy(), value
        return value, gradient

    minimize(evaluated, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations})
    return best
