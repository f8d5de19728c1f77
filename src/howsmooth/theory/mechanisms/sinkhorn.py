"""Sinkhorn attention: doubly stochastic weights have no worst length."""

from typing import Any

from howsmooth.theory.mechanisms.layers import MechanismHead, coarse_norm, layer_upper, require_plain


def sinkhorn_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound Sinkhorn attention on tokens in a ball, however many: :math:`\|V\|(1 + R(p_q + p_k))`.

    Without biases that is :math:`\|V\|(1 + 2\|A\|R^2)`. Biases of queries or keys cancel.
    """
    require_plain(f, "this bound on Sinkhorn attention", causal=False)
    return layer_upper(f, lambda part: _head(part, radius))


def _head(part: MechanismHead, radius: float) -> float:
    return coarse_norm(part.B) * (1 + 2 * part.norm_A * radius**2)
