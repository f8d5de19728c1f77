"""Theorem 5 along a path: how far the output can move on a ball around one input."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.theory.around_input.head_on_ball import PRODUCT, TINY, distances
from howsmooth.theory.around_input.neighbourhood import ConstantsOnBalls, token_unit
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.rescaling import Rescaled
from howsmooth.theory.heads import log
from howsmooth.theory.results import Bound, upper_bound


def displacement_upper(attention: Attention, X: Float[Tensor, "n d"], *, eps: float, per_token: bool = False) -> Bound:
    r"""Bound how far the output moves when the input moves by at most ``eps``: a distance, not a slope.

    .. math:: \sup_{\|Z-X\|\le\varepsilon}\|f(Z)-f(X)\| \le \int_0^\varepsilon g(t)\,dt,\qquad
              g(t) \ge \sup_{\|Z-X\|\le t}\|D_Zf\|

    with g as in :func:`neighbourhood_upper`; each token within ``eps``: :math:`\sqrt n` times that. It is never more
    than the values allow, since a row stays in their hull:
    :math:`(\sum_i(\sum_h\max_j|y^h_j-\bar y^h_i| + \|W_hV_h\|\varepsilon)^2)^{1/2}`.

    Args:
        attention: The map.
        X: The centre, one sequence.
        eps: The radius.
        per_token: Whether ``eps`` bounds the movement of each token instead of :math:`\|Z-X\|_F`.

    Raises:
        AssumptionError: As :func:`neighbourhood_upper`.
    """
    found = ConstantsOnBalls.of(attention, X, eps=eps, per_token=per_token)
    # a straight path, at the right end of every interval as for the constant
    step = eps / len(found.values) * (math.sqrt(len(X)) if per_token else 1.0)
    along = float(found.values.sum()) * step * (1 + PRODUCT)
    unit = Rescaled.of(attention, X)
    size = token_unit(X, unit)
    value = min(along, size * unit.in_original_units(_hull(unit, eps / size)))
    source = "ours: second derivative along a path, or the hull of values"
    return upper_bound(log(value), "displacement_upper", found.domain, source, found.confidence)


def _hull(unit: Rescaled, eps: float) -> float:
    """Bound the movement by the hull of values, which no row leaves."""
    rows = torch.zeros(len(unit.X), dtype=torch.float64)
    for view in (alone.mixed() for alone in heads_at_input(unit.attention, unit.X)):
        error = 4 * view.errors.value * view.value_norm / max(view.head.norm_V, TINY)
        distance = distances(view.mean, view.y) + error
        # the mean itself is known up to the rounding errors of its weights
        distance = distance + (view.errors.change * (2 * view.value_radius + error))[:, None]
        rows += torch.where(view.log_P > -torch.inf, distance, 0.0).amax(-1) + view.value_norm * eps
    return float(rows.norm()) * (1 + PRODUCT)
