"""Entmax attention: sparse weights have steeper slopes the more tokens tie."""

import math
from typing import Any

from howsmooth.theory.mechanisms.layers import MechanismHead, coarse_norm, layer_upper, require_plain


def entmax_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound entmax attention on n tokens in a ball.

    .. math:: \|V\|\Bigl(\sqrt n + R\,p_q\,N^{\alpha-1} + (N/n)^{\alpha-1}\sqrt n\,\kappa_nR\,p_k\Bigr)

    with N the ``count``, n by default (slopes are :math:`g_j = m_j^{\alpha-1}P_j^{2-\alpha}`, :math:`m_j = N/n`),
    :math:`p_q, p_k` the slopes of scores, :math:`\kappa_n = \sqrt n` for the sparsemax (α = 2) and
    :math:`\kappa_n = 2\sqrt n\,(1+(n-1)^{1/3})^{-3/2} < 2` for α = 1.5.
    """
    require_plain(f, "this bound on entmax attention")
    count = float(n if f.count is None else f.count)
    return layer_upper(f, lambda part: _head(part, n, radius, f.alpha, count))


def _head(part: MechanismHead, n: int, radius: float, alpha: float, count: float) -> float:
    query_gradient, key_gradient = part.score_gradient_bounds(radius)
    if alpha == 2:
        slopes, moment = count, math.sqrt(n) * (count / n)
    else:
        slopes, moment = math.sqrt(count), entmax_deviation(n) * math.sqrt(count / n)
    return coarse_norm(part.B) * (
        math.sqrt(n) + radius * query_gradient * slopes + math.sqrt(n) * moment * radius * key_gradient
    )


def entmax_deviation(n: int) -> float:
    r"""Bound :math:`(\sum_lP_l(t_l-\bar t)^2)^{1/2}`, :math:`|t|\le1`, :math:`\bar t` the mean under :math:`\sqrt P`.

    It is :math:`2\sqrt n\,(1+(n-1)^{1/3})^{-3/2}`: one for two tokens, two in the limit.

    Example:
        >>> round(entmax_deviation(2), 12), round(entmax_deviation(28), 12)
        (1.0, 1.322875655532)
    """
    return 2 * math.sqrt(n) / (1 + (n - 1) ** (1 / 3)) ** 1.5
