"""Theorem 14: attention between largest tokens, for any number of tokens in a ball."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mechanisms.softmax_scores import CosineAttention, DifferentialAttention, L2Attention
from howsmooth.theory.assumptions import refuse_norms, require_attention, require_plain, require_size
from howsmooth.theory.ball.softmax import log_enclosing_radius, score_gradient_bounds
from howsmooth.theory.heads import combine_heads, heads_of, log, log_sum, on_cpu
from howsmooth.theory.mechanisms.mechanism_head import MechanismHead, coarse_norm, layer_upper, length_upper
from howsmooth.theory.mechanisms.softmax_scores import halves
from howsmooth.theory.results import Bound, upper_bound


def token_upper(attention: MultiHead, *, radius: float) -> Bound:
    r"""Bound the Lipschitz constant between largest tokens, :math:`\max_i|e_i|`, for every number of tokens.

    .. math:: |f(X)_i - f(Y)_i| \le \|V\|\,\bigl(1 + 2\|A\|R^2\bigr)\,\max_j|x_j - y_j|

    for all X and Y whose tokens lie in the ball of radius R, masked or not; for measures it is the constant in
    :math:`W_\infty`. Neither :math:`\sqrt n` nor an exponential appears: both come from adding up squares over tokens.
    A query bias b adds :math:`s|K^\top b|R` to one of the two :math:`\|A\|R^2`; beside a sink, biases of keys and
    values count as in :func:`sharp_upper`; under rotary positions :math:`s\|Q\|\|K\|` stands for :math:`\|A\|`.

    Any softmax of scores has the bound :math:`\|V\|(1 + gR)` where g bounds how fast a score changes, the query and the
    key of it together: :math:`2s(\|K^\top Q\|R + \|K\|\sup|q-k|)` for L2 attention,
    :math:`\tau\epsilon^{-1/2}(\|Q\|+\|K\|)` for cosines; two softmaxes (differential attention) add up. Other weights
    do not sum to one, or their derivative grows with their number.

    Raises:
        AssumptionError: If the radius is not positive, queries or keys are normalised, or the weights are no softmax.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> token_upper(Attention.single_head(A=identity, V=identity), radius=2.0).digits
        '9.0001'
    """
    require_size(1, radius)
    domain = f"any number of tokens in the ball of radius {radius:g}, largest token"
    proof = "ours: rows of a Markov matrix"
    if isinstance(attention, MultiHead) and not isinstance(attention, Attention):
        return upper_bound(log(_mechanism(attention, radius)), "token_upper", domain, proof)
    sink = isinstance(attention, Attention) and attention.sink is not None
    plain = dataclasses.replace(attention, sink=None) if sink else attention
    require_attention(plain)
    refuse_norms(plain, "token_upper")
    heads = heads_of(plain)
    # each row's weights are those of a measure, so both score terms see one spread of the values
    gradients = [log(sum(score_gradient_bounds(attention, head, radius))) for head in heads]

    def bound(norm: float, bias: float, gradient: float) -> float:
        spread = log_enclosing_radius(log(norm) + log(radius), bias if sink else 0.0)
        return log_sum((log(norm), spread + gradient))

    mixed = [bound(head.norm_WV, head.norm_Wb, each) for head, each in zip(heads, gradients, strict=True)]
    alone = [
        bound(head.norm_V, float(head.value_bias.norm()), each) for head, each in zip(heads, gradients, strict=True)
    ]
    return upper_bound(combine_heads(heads, mixed, alone), "token_upper", domain, proof)


def _mechanism(f: Any, radius: float) -> float:
    """Bound a softmax of other scores."""
    if type(f) not in HEADS:
        known = ", ".join(["Attention", *(kind.__name__ for kind in HEADS)])
        raise AssumptionError(
            f"token_upper is about weights that are a softmax ({known}), got {type(f).__name__}; use sharp_upper, for "
            "the total norm.",
            field="attention",
        )
    require_plain(f, "token_upper")
    each = HEADS[type(f)]
    if isinstance(f, CosineAttention) and f.normalise_values and f.output is not None:
        # the normalisation stands between V and W: heads as one concatenated map
        alone = dataclasses.replace(f, output=None, output_bias=None)
        return layer_upper(alone, lambda part: each(f, part, radius)) * coarse_norm(
            torch.cat([on_cpu(x) for x in f.output], dim=-1)
        )
    return layer_upper(f, lambda part: each(f, part, radius))


def _l2_head(f: Any, part: MechanismHead, radius: float) -> float:
    if part.scale < 0:
        raise AssumptionError("theorems on L2 attention need a scale that is not negative.", field="attention")
    norm_Q, norm_K = coarse_norm(part.Q), coarse_norm(part.K)
    norm_V = coarse_norm(part.scale * part.B @ part.Q.mT) * norm_Q if f.tied else coarse_norm(part.B)
    # of −s|q_i − k_j|² the part −s|q_i|² is the same for all j, and does not count
    apart = (norm_Q + norm_K) * radius + length_upper(part.query_bias - part.key_bias)
    gradient = 2 * part.scale * (coarse_norm(part.K.mT @ part.Q) * radius + norm_K * apart)
    return norm_V * (1 + gradient * radius)


def _cosine_head(f: Any, part: MechanismHead, radius: float) -> float:
    if f.eps == 0:
        return math.inf  # at a token whose query vanishes
    steepest, norm_V = 1 / math.sqrt(f.eps), coarse_norm(part.B)
    direct, spread = (norm_V * steepest, 1.0) if f.normalise_values else (norm_V, norm_V * radius)
    gradient = abs(f.score_scale) * steepest * (coarse_norm(part.Q) + coarse_norm(part.K))
    return abs(f.gain) * (direct + gradient * spread)


def _differential_head(f: Any, part: MechanismHead, radius: float) -> float:
    subtracted = float(on_cpu(f.subtracted).abs().max())
    terms = 0.0
    for half, factor in zip(halves(part), (1.0, subtracted), strict=True):
        # a key bias adds the same to all scores of a row
        gradient = half.norm_A * radius + half.score_gradient_bounds(radius)[1]
        terms += factor * (1 + gradient * radius)
    return coarse_norm(part.B) * terms


HEADS: dict[type[MultiHead], Callable[[Any, MechanismHead, float], float]] = {
    L2Attention: _l2_head,
    CosineAttention: _cosine_head,
    DifferentialAttention: _differential_head,
}
