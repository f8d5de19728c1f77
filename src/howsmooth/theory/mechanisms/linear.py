"""Linear attention with elu + 1: weights whose logarithms have slopes of at most one."""

import math
from typing import Any

from howsmooth.theory.mechanisms.layers import MechanismHead, coarse_norm, layer_upper, length_upper, require_plain


def linear_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound linear attention on n tokens in a ball.

    Normalised: :math:`\|V\|\bigl(\sqrt n + R\,(\|Q\|/\sqrt2 + \sqrt{n/2}\,\|K\|)\bigr)`: it grows like R, not like R².

    Without the denominator, with :math:`p = \sqrt k+\|Q\|R+|b_q|`, :math:`r = \sqrt k+\|K\|R+|b_k|` and Y the largest
    value: :math:`N\bigl(\|V\|pr + Y(r\|Q\| + p\|K\|)\bigr)`, N the ``count``, n by default.
    """
    require_plain(f, "this bound on linear attention")
    # without a denominator each of the n tokens counts for count / n
    return layer_upper(f, lambda part: _head(part, n, radius, None if f.normalised else float(f.count or n)))


def _head(part: MechanismHead, n: int, radius: float, count: float | None) -> float:
    norm_Q, norm_K, norm_V = coarse_norm(part.Q), coarse_norm(part.K), coarse_norm(part.B)
    if count is None:
        return norm_V * (math.sqrt(n) + radius * (norm_Q / math.sqrt(2) + math.sqrt(n / 2) * norm_K))
    root = math.sqrt(len(part.Q))
    p = root + norm_Q * radius + length_upper(part.query_bias)
    r = root + norm_K * radius + length_upper(part.key_bias)
    most = norm_V * radius + length_upper(part.value_bias)
    return count * (norm_V * p * r + most * (r * norm_Q + p * norm_K))
