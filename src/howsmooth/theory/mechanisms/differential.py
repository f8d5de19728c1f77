"""Differential attention: two softmaxes, each with its own bound."""

import dataclasses
import math
from typing import Any

from howsmooth.theory.heads import on_cpu
from howsmooth.theory.mechanisms.layers import MechanismHead, coarse_norm, layer_upper, require_plain


def differential_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound differential attention on n tokens in a ball: the softmaxes add up, :math:`g_1 + |\lambda|g_2`."""
    require_plain(f, "this bound on differential attention")
    subtracted = [abs(float(x)) for x in on_cpu(f.subtracted).reshape(-1)]
    return layer_upper(f, lambda part: _head(part, n, radius, max(subtracted)))


def _head(part: MechanismHead, n: int, radius: float, subtracted: float) -> float:
    total = 0.0
    for one, factor in zip(halves(part), (1.0, subtracted), strict=True):
        c = one.norm_A * radius
        # a key bias adds the same to all scores of a row
        _query_gradient, key_gradient = one.score_gradient_bounds(radius)
        total += factor * (math.sqrt(n) + radius * c + math.sqrt(n / 2) * radius * key_gradient)
    return coarse_norm(part.B) * total


def halves(part: MechanismHead) -> tuple[MechanismHead, MechanismHead]:
    """Return the two softmaxes of a head, each with its half of queries and keys."""
    half = len(part.Q) // 2
    first, second = (
        dataclasses.replace(
            part, Q=part.Q[rows], K=part.K[rows], query_bias=part.query_bias[rows], key_bias=part.key_bias[rows]
        )
        for rows in (slice(None, half), slice(half, None))
    )
    return first, second
