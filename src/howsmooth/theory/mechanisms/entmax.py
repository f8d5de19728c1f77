"""Entmax attention: sparse weights have steeper slopes the more tokens tie."""

import math
from typing import Any

from howsmooth.errors import AssumptionError
from howsmooth.theory.mechanisms.layers import Part, layer_upper, require_plain, safe


def entmax_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound entmax attention on n tokens in a ball.

    .. math:: \|V\|\Bigl(\sqrt n + R\,p_q\,n^{\alpha-1} + \sqrt n\,\kappa_nR\,p_k\Bigr)

    with :math:`p_q, p_k` the slopes of scores, :math:`\kappa_n = \sqrt n` for the sparsemax (α = 2) and
    :math:`\kappa_n = 2\sqrt n\,(1+(n-1)^{1/3})^{-3/2} < 2` for α = 1.5.
    """
    require_plain(f, "this bound on entmax attention")
    count = n if f.count is None else f.count
    if count != n:
        raise AssumptionError("this bound on entmax attention needs count to be n, or left out.", field="attention")
    return layer_upper(f, lambda part: _head(part, n, radius, f.alpha))


def _head(part: Part, n: int, radius: float, alpha: float) -> float:
    pull_q, pull_k = part.pulls(radius)
    if alpha == 2:
        slopes, moment = float(n), math.sqrt(n)
    else:
        slopes, moment = math.sqrt(n), pushed(n)
    return safe(part.B) * (math.sqrt(n) + radius * pull_q * slopes + math.sqrt(n) * moment * radius * pull_k)


def pushed(n: int) -> float:
    r"""Bound :math:`(\sum_lP_l(t_l-\bar t)^2)^{1/2}`, :math:`|t|\le1`, :math:`\bar t` the mean under :math:`\sqrt P`.

    It is :math:`2\sqrt n\,(1+(n-1)^{1/3})^{-3/2}`: one for two tokens, two in the limit.

    Example:
        >>> round(pushed(2), 12), round(pushed(28), 12)
        (1.0, 1.322875655532)
    """
    return 2 * math.sqrt(n) / (1 + (n - 1) ** (1 / 3)) ** 1.5
