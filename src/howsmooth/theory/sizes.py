"""Which numbers of tokens and which radii theorems take; checked without torch, before anything is loaded."""

import math

from howsmooth.errors import AssumptionError

# Beyond these, products of a few norms leave the range of the numbers.
SMALLEST_RADIUS, LARGEST_RADIUS = 1e-50, 1e50
# Beyond this the formulas leave the range of the numbers too; what fits into memory is far less.
LARGEST_LENGTH = 10**300


def require_size(n: int, radius: float, *, least: int = 1) -> None:
    """Refuse numbers of tokens and radii that a theorem cannot take."""
    require_length(n, least=least)
    require_radius(radius)


def require_length(n: int, *, least: int = 1) -> None:
    """Refuse a number of tokens that is not a whole one, or is too small or too large."""
    if not (isinstance(n, int) and not isinstance(n, bool) and n >= least):
        raise AssumptionError(f"n must be a whole number, at least {least}, got {n}.", field="n")
    if n > LARGEST_LENGTH:
        raise AssumptionError("n must be at most 10^300, or its square root is no float; got more.", field="n")


def require_radius(radius: float) -> None:
    """Refuse a radius that is not positive and finite, or whose square is not."""
    if not 0 < radius < math.inf:
        raise AssumptionError(f"radius must be positive and finite, got {radius}.", field="radius")
    if not SMALLEST_RADIUS <= radius <= LARGEST_RADIUS:
        raise AssumptionError(
            f"radius must lie between {SMALLEST_RADIUS:g} and {LARGEST_RADIUS:g}, got {radius}; rescale the tokens.",
            field="radius",
        )
