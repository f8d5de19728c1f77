"""Settings of solvers, checked without torch, so that a mistake is reported before anything is loaded."""

import sys
from numbers import Integral, Real

from howsmooth.errors import AssumptionError
from howsmooth.rounding import SOLVER_UNITS

# A bracket is as wide as the rounding of its two ends leaves it, and a little wider, so that it can be reached.
LEAST_WIDTH = 4 * SOLVER_UNITS
# Below this probability of error the random start says nothing: 1 − confidence has no digits left in float64.
LEAST_DOUBT = 1e-15
# Metrics that are known without torch; the others are looked up.
USUAL_METRICS = ("total", "token")


def check_solver(*, rtol: float = 1e-3, confidence: float = 0.999, max_steps: int = 200) -> None:
    """Refuse settings that no solver can work with, in any dtype.

    Args:
        rtol: The relative width of the bracket.
        confidence: The probability with which an upper bound holds.
        max_steps: When to give up.

    Example:
        >>> check_solver(rtol=1e-3, confidence=1 - 1e-9, max_steps=200)
    """
    check_rtol(rtol, sys.float_info.epsilon, "float64")
    check_confidence(confidence)
    if isinstance(max_steps, bool) or not (isinstance(max_steps, Integral) and max_steps >= 1):
        raise AssumptionError(f"max_steps must be a whole number, at least 1, got {max_steps!r}.", field="max_steps")


def check_rtol(rtol: float, eps: float, dtype: str) -> None:
    """Refuse a tolerance that numbers with a relative spacing of ``eps`` cannot reach, or that says nothing."""
    if not _is_number(rtol):
        raise AssumptionError(f"rtol must be a number between 0 and 1, such as 1e-3, got {rtol!r}.", field="rtol")
    least = LEAST_WIDTH * eps
    if not rtol >= least:
        more = "" if dtype == "float64" else "; use float64 for more digits"
        raise AssumptionError(f"rtol must be at least {least:.1e} in {dtype}, got {rtol}{more}.", field="rtol")
    if not rtol < 1:
        raise AssumptionError(f"rtol must be less than 1, got {rtol}; 1e-3 gives three digits.", field="rtol")


def check_confidence(confidence: float) -> None:
    """Refuse a probability that is none, or that cannot be told from one."""
    if not (_is_number(confidence) and 0 < confidence < 1):
        raise AssumptionError(
            f"confidence must lie strictly between 0 and 1, got {confidence!r}; 0.999 is usual.", field="confidence"
        )
    # the tenth is for the rounding of 1 − 1e-15 itself
    if 1 - confidence < 0.9 * LEAST_DOUBT:
        raise AssumptionError(
            f"confidence must be at most 1 - {LEAST_DOUBT:g}, got {confidence!r}: no random start excludes more.",
            field="confidence",
        )


def check_metric(metric: object) -> None:
    """Refuse what is no metric."""
    if not (isinstance(metric, str) and metric in USUAL_METRICS):
        from howsmooth.metrics import as_metrics

        as_metrics(metric)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
