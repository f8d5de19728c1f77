"""Metrics, methods and budgets of attacks, checked without torch."""

import math
from numbers import Integral, Real

from howsmooth.errors import AssumptionError, nearest
from howsmooth.spectral.solver_settings import check_metric

METHODS = ("random", "fgsm", "pgd", "singular", "ascent")
BUDGET = 200
# Lanczos needs one step, and a direction and its negative have to be tried.
LEAST = 8


def check_attack(*, eps: object, metric: object, method: object, budget: object) -> None:
    """Refuse what no attack can work with."""
    if isinstance(eps, bool) or not isinstance(eps, Real) or not 0 < float(eps) < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.", field="eps")
    check_metric(metric)
    if method not in METHODS:
        raise AssumptionError(f"there is no method {method!r}{nearest(str(method), METHODS)}", field="method")
    if isinstance(budget, bool) or not isinstance(budget, Integral) or budget < LEAST:
        raise AssumptionError(
            f"budget must be a whole number of passes, at least {LEAST}, got {budget}.", field="budget"
        )
