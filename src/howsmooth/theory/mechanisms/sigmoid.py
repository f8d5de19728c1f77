"""Sigmoid attention: the published bound at an input, and on a ball."""

import math
from typing import Any

from howsmooth.theory.mechanisms.layers import MechanismHead, coarse_norm, layer_upper, length_upper, require_plain


def sigmoid(u: float) -> float:
    """Return 1/(1 + e^(-u)) without overflow."""
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


def slope(low: float, high: float) -> float:
    """Return the largest slope of the sigmoid between two numbers; it is largest at zero."""
    nearest = min(max(0.0, low), high)
    return sigmoid(nearest) * sigmoid(-nearest)


def sigmoid_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound sigmoid attention on n tokens in a ball.

    .. math:: \mathrm{Lip}\le n\bigl(\|V\|\,\sigma(b+c) + Y\,\sigma'_{\max}\,(p_q+p_k)\bigr)

    with c the largest score, :math:`\sigma'_{\max}` over scores from −c to c, :math:`p_q, p_k` the slopes of scores and
    Y the largest value. Attained by equal tokens while :math:`b+c\le0`, for a symmetric A and V = I.
    """
    require_plain(f, "this bound on sigmoid attention")
    count = float(n if f.count is None else f.count)
    return layer_upper(f, lambda part: _head(part, n, radius, -math.log(count) if f.bias is None else f.bias, count))


def _head(part: MechanismHead, n: int, radius: float, bias: float, count: float) -> float:
    query_gradient, key_gradient = part.score_gradient_bounds(radius)
    s = abs(part.scale)
    reach = part.norm_A * radius**2 + s * radius * (
        length_upper(part.key_bias @ part.Q) + length_upper(part.query_bias @ part.K)
    )
    middle = bias + part.scale * float(part.query_bias @ part.key_bias)
    # σ increases, and a few units in the last place of a score are as much of σ
    safely = 1 + 64 * 2.0**-52 * (1 + abs(middle) + reach)
    top, steep = sigmoid(middle + reach) * safely, slope(middle - reach, middle + reach) * safely
    norm_V = coarse_norm(part.B)
    most = norm_V * radius + length_upper(part.value_bias)
    return count * (norm_V * top + most * steep * (query_gradient + key_gradient))
