"""Differential attention: two softmaxes, each with its own bound."""

import dataclasses
import math
from typing import Any

from howsmooth.theory.heads import on_cpu
from howsmooth.theory.mechanisms.layers import Part, layer_upper, require_plain, safe


def differential_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound differential attention on n tokens in a ball: the softmaxes add up, :math:`g_1 + |\lambda|g_2`."""
    require_plain(f, "this bound on differential attention")
    subtracted = [abs(float(x)) for x in on_cpu(f.subtracted).reshape(-1)]
    return layer_upper(f, lambda part: _head(part, n, radius, max(subtracted)))


def _head(part: Part, n: int, radius: float, subtracted: float) -> float:
    total = 0.0
    for one, factor in zip(halves(part), (1.0, subtracted), strict=True):
        c = one.norm_A * radius
        # a key bias adds the same to all scores of a row
        _pull_q, pull_k = one.pulls(radius)
        total += factor * (math.sqrt(n) + radius * c + math.sqrt(n / 2) * radius * pull_k)
    return safe(part.B) * total


def halves(part: Part) -> tuple[Part, Part]:
    """Return the two softmaxes of a head, each with its half of queries and keys."""
    half = len(part.Q) // 2
    first, second = (
        dataclasses.replace(
            part, Q=part.Q[rows], K=part.K[rows], query_bias=part.query_bias[rows], key_bias=part.key_bias[rows]
        )
        for rows in (slice(None, half), slice(half, None))
    )
    return first, second
