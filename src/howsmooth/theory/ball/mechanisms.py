"""Theorem 12: mechanisms other than softmax on n tokens in a ball, and the bounds as published."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from howsmooth.domains.domain import in_ball
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mechanisms.cosine import CosineAttention
from howsmooth.maps.mechanisms.differential import DifferentialAttention
from howsmooth.maps.mechanisms.entmax import EntmaxAttention
from howsmooth.maps.mechanisms.l2 import L2Attention
from howsmooth.maps.mechanisms.linear import LinearAttention
from howsmooth.maps.mechanisms.sigmoid import SigmoidAttention
from howsmooth.maps.mechanisms.sinkhorn import SinkhornAttention
from howsmooth.theory.assumptions import require_length, require_plain, require_size
from howsmooth.theory.ball.l2 import kim, l2_ball
from howsmooth.theory.heads import MechanismHead, coarse_norm, layer_upper, length_upper, log, mechanism_head, on_cpu
from howsmooth.theory.results import Bound, upper_bound


def mechanism_upper(f: Any, *, n: int, radius: float) -> Bound:
    """Bound attention of any other kind on sequences of ``n`` tokens in a ball.

    Raises:
        DtypeError: If no theorem is about this kind.
        AssumptionError: If the map has a feature that the theorem does not cover.
    """
    require_size(n, radius)
    if type(f) not in IN_BALL:
        known = ", ".join(f"hs.{name}" for name in ("Attention", *(kind.__name__ for kind in IN_BALL)))
        raise DtypeError(
            f"theorems are about {known}, got {type(f).__name__}; "
            "for any other map use hs.local_lipschitz at an input and hs.maximise for the worst one.",
            field="attention",
        )
    bound, source = IN_BALL[type(f)]
    return upper_bound(log(bound(f, n, radius)), "sharp_upper", in_ball(n, radius), source)


def kim_l2_upper(f: Any, *, n: int) -> Bound:
    r"""Bound tied L2 attention on all of space, as Kim, Papamakarios and Mnih do.

    .. math:: \mathrm{Lip}(f)\le\frac{\sqrt n}{\sqrt{D/H}}\bigl(4\varphi^{-1}(n-1)+1\bigr)
              \Bigl(\sum_h\|W^Q_h\|^4\|W^V_h\|^2\Bigr)^{1/2}\|W^O\|,\qquad\varphi(x) = xe^{x+1}

    Theorem 3.2 of [kim2021], where :math:`\|W^Q_h\|` is squared only; as printed it fails as soon as queries are long
    (the findings tell). :func:`sharp_upper` is smaller.

    Raises:
        AssumptionError: If the attention is not tied, or masked.
    """
    require_length(n)
    _require(f, L2Attention, "kim_l2_upper")
    return upper_bound(log(kim(f, n)), "kim_l2_upper", f"{n} tokens anywhere", "after Kim et al., Theorem 3.2")


def lipsformer_upper(f: Any, *, n: int) -> Bound:
    r"""Bound cosine attention with normalised values on all of space, as LipsFormer does.

    .. math:: \mathrm{Lip}(f)\le2\nu\epsilon^{-1/2}\bigl(n(n-1)\tau\|W^K\| + (n-1)\tau\|W^Q\| + n\|W^V\|\bigr)

    The formula as published, as far as we know it; its text was not at hand. :func:`sharp_upper` is smaller.

    Raises:
        AssumptionError: If values are not normalised, or there are several heads.
    """
    require_length(n)
    _require(f, CosineAttention, "lipsformer_upper")
    return upper_bound(log(lipsformer(f, n)), "lipsformer_upper", f"{n} tokens anywhere", "LipsFormer, Theorem 1")


def _require(f: Any, kind: type[MultiHead], theorem: str) -> None:
    if type(f) is not kind:
        raise DtypeError(f"{theorem} is about hs.{kind.__name__}, got {type(f).__name__}.", field="attention")


def sigmoid(u: float) -> float:
    """Return 1/(1 + e^(-u)) without overflow."""
    return 1 / (1 + math.exp(-u)) if u >= 0 else math.exp(u) / (1 + math.exp(u))


def largest_sigmoid_slope(low: float, high: float) -> float:
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
    return layer_upper(
        f, lambda part: _sigmoid_head(part, n, radius, -math.log(count) if f.bias is None else f.bias, count)
    )


def _sigmoid_head(part: MechanismHead, n: int, radius: float, bias: float, count: float) -> float:
    query_gradient, key_gradient = part.score_gradient_bounds(radius)
    s = abs(part.scale)
    largest = part.norm_A * radius**2 + s * radius * (
        length_upper(part.key_bias @ part.Q) + length_upper(part.query_bias @ part.K)
    )
    middle = bias + part.scale * float(part.query_bias @ part.key_bias)
    # σ increases, and a few units in the last place of a score are as much of σ
    safely = 1 + 64 * 2.0**-52 * (1 + abs(middle) + largest)
    top, slope = sigmoid(middle + largest) * safely, largest_sigmoid_slope(middle - largest, middle + largest) * safely
    norm_V = coarse_norm(part.B)
    most = norm_V * radius + length_upper(part.value_bias)
    return count * (norm_V * top + most * slope * (query_gradient + key_gradient))


def linear_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound linear attention on n tokens in a ball.

    Normalised: :math:`\|V\|\bigl(\sqrt n + R\,(\|Q\|/\sqrt2 + \sqrt{n/2}\,\|K\|)\bigr)`: it grows like R, not like R².

    Without the denominator, with :math:`p = \sqrt k+\|Q\|R+|b_q|`, :math:`r = \sqrt k+\|K\|R+|b_k|` and Y the largest
    value: :math:`N\bigl(\|V\|pr + Y(r\|Q\| + p\|K\|)\bigr)`, N the ``count``, n by default.
    """
    require_plain(f, "this bound on linear attention")
    # without a denominator each of the n tokens counts for count / n
    return layer_upper(f, lambda part: _linear_head(part, n, radius, None if f.normalised else float(f.count or n)))


def _linear_head(part: MechanismHead, n: int, radius: float, count: float | None) -> float:
    norm_Q, norm_K, norm_V = coarse_norm(part.Q), coarse_norm(part.K), coarse_norm(part.B)
    if count is None:
        return norm_V * (math.sqrt(n) + radius * (norm_Q / math.sqrt(2) + math.sqrt(n / 2) * norm_K))
    root = math.sqrt(len(part.Q))
    p = root + norm_Q * radius + length_upper(part.query_bias)
    r = root + norm_K * radius + length_upper(part.key_bias)
    most = norm_V * radius + length_upper(part.value_bias)
    return count * (norm_V * p * r + most * (r * norm_Q + p * norm_K))


def cosine_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound cosine attention on n tokens in a ball; with normalised values, without any ball.

    .. math:: \nu\Bigl(\sqrt n\,v + \frac{\tau Y}{\sqrt\epsilon}\bigl(\|Q\| + \sqrt{n/2}\,\|K\|\bigr)\Bigr)

    with :math:`v = \|V\|`, :math:`Y = \|V\|R`; for normalised values :math:`v = \|V\|/\sqrt\epsilon`, Y = 1.
    """
    require_plain(f, "this bound on cosine attention")
    if f.eps == 0:
        return math.inf  # at a token whose query vanishes
    value = f.normalise_values
    if value and f.output is not None:  # the normalisation stands between V and W: heads as one concatenated map
        return layer_upper(f.__class__(**_without_output(f)), lambda p: _cosine_head(f, p, n, radius)) * _output_norm(f)
    return layer_upper(f, lambda part: _cosine_head(f, part, n, radius))


def _cosine_head(f: Any, part: MechanismHead, n: int, radius: float) -> float:
    sharp = 1 / math.sqrt(f.eps)
    norm_V = coarse_norm(part.B)
    direct, value = (norm_V * sharp, 1.0) if f.normalise_values else (norm_V, norm_V * radius)
    slope = abs(f.score_scale) * sharp * value
    return abs(f.gain) * (
        math.sqrt(n) * direct + slope * (coarse_norm(part.Q) + math.sqrt(n / 2) * coarse_norm(part.K))
    )


def lipsformer(f: Any, n: int) -> float:
    r"""Return LipsFormer's bound: :math:`2\nu\epsilon^{-1/2}\bigl((n-1)\tau(n\|K\|+\|Q\|) + n\|V\|\bigr)`."""
    require_plain(f, "LipsFormer's bound", causal=False)
    if not f.normalise_values or f.layout.heads > 1:
        raise AssumptionError(
            "LipsFormer's bound is about one head with normalised values (normalise_values=True); use sharp_upper.",
            field="attention",
        )
    if f.eps == 0:
        return math.inf
    part, W = mechanism_head(f, 0)
    tau, inner = abs(f.score_scale), n * coarse_norm(part.B)
    inner += (n - 1) * tau * (n * coarse_norm(part.K) + coarse_norm(part.Q))
    return 2 * abs(f.gain) / math.sqrt(f.eps) * inner * (1.0 if W is None else coarse_norm(W))


def _without_output(f: Any) -> dict[str, Any]:
    fields = {field.name: getattr(f, field.name) for field in dataclasses.fields(f)}
    return fields | {"output": None, "output_bias": None}


def _output_norm(f: Any) -> float:
    return coarse_norm(torch.cat([on_cpu(x) for x in f.output], dim=-1))


def entmax_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound entmax attention on n tokens in a ball.

    .. math:: \|V\|\Bigl(\sqrt n + R\,p_q\,N^{\alpha-1} + (N/n)^{\alpha-1}\sqrt n\,\kappa_nR\,p_k\Bigr)

    with N the ``count``, n by default (slopes are :math:`g_j = m_j^{\alpha-1}P_j^{2-\alpha}`, :math:`m_j = N/n`),
    :math:`p_q, p_k` the slopes of scores, :math:`\kappa_n = \sqrt n` for the sparsemax (α = 2) and
    :math:`\kappa_n = 2\sqrt n\,(1+(n-1)^{1/3})^{-3/2} < 2` for α = 1.5.
    """
    require_plain(f, "this bound on entmax attention")
    count = float(n if f.count is None else f.count)
    return layer_upper(f, lambda part: _entmax_head(part, n, radius, f.alpha, count))


def _entmax_head(part: MechanismHead, n: int, radius: float, alpha: float, count: float) -> float:
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


def differential_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound differential attention on n tokens in a ball: the softmaxes add up, :math:`g_1 + |\lambda|g_2`."""
    require_plain(f, "this bound on differential attention")
    subtracted = [abs(float(x)) for x in on_cpu(f.subtracted).reshape(-1)]
    return layer_upper(f, lambda part: _differential_head(part, n, radius, max(subtracted)))


def _differential_head(part: MechanismHead, n: int, radius: float, subtracted: float) -> float:
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


def sinkhorn_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound Sinkhorn attention on tokens in a ball, however many: :math:`\|V\|(1 + R(p_q + p_k))`.

    Without biases that is :math:`\|V\|(1 + 2\|A\|R^2)`. Biases of queries or keys cancel.
    """
    require_plain(f, "this bound on Sinkhorn attention", causal=False)
    return layer_upper(f, lambda part: _sinkhorn_head(part, radius))


def _sinkhorn_head(part: MechanismHead, radius: float) -> float:
    return coarse_norm(part.B) * (1 + 2 * part.norm_A * radius**2)


# What every mechanism brings: its bound on n tokens in a ball, and the proof in a few words.
IN_BALL: dict[type[MultiHead], tuple[Callable[[Any, int, float], float], str]] = {
    L2Attention: (l2_ball, "ours: distances hold little energy"),
    SigmoidAttention: (sigmoid_ball, "ours, after Ramapuram et al.: the largest slopes"),
    LinearAttention: (linear_ball, "ours: slopes of logarithms are at most one"),
    SinkhornAttention: (sinkhorn_ball, "ours: doubly stochastic weights"),
    CosineAttention: (cosine_ball, "ours: three terms, cosines"),
    EntmaxAttention: (entmax_ball, "ours: three terms, sparse weights"),
    DifferentialAttention: (differential_ball, "ours: two softmaxes"),
}
