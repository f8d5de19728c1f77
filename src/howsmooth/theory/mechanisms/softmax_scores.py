"""Theorem 12, a softmax of other scores: distances (L2), cosines, and the difference of two softmaxes."""

import dataclasses
import math
from typing import Any

import torch
from scipy.special import lambertw
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mechanisms.softmax_scores import CosineAttention, DifferentialAttention, L2Attention
from howsmooth.rounding import ROOT_ERROR
from howsmooth.theory.assumptions import require_length, require_plain
from howsmooth.theory.heads import log, on_cpu
from howsmooth.theory.mechanisms.mechanism_head import (
    MechanismAtInput,
    MechanismHead,
    MechanismTheorems,
    by_three_terms,
    coarse_norm,
    diameter,
    layer_upper,
    length_upper,
    mechanism_head,
    output_gradients,
    projected,
    require_kind,
    softmax_weights,
    three_terms,
)
from howsmooth.theory.results import Bound, upper_bound


def l2_ball(f: Any, n: int, radius: float) -> float:
    r"""Bound L2 attention on n tokens in a ball; tied, also without any ball.

    Tied (keys are queries), with :math:`\beta = \varphi^{-1}(n-1)`, a column of energies :math:`c_n`
    (:func:`column_energy`), values :math:`y = Lq + V_\perp x` and their spread
    :math:`\sigma = \min(\|V\|R, \|L\|\sqrt{\beta/s} + \|V_\perp\|R)`:

    .. math:: \mathrm{Lip}\le n^{1/4}\|V\| + 2\sqrt s\,\|Q\|\,\sigma\,(\sqrt\beta + \sqrt{c_n})

    Untied: :math:`\|V\|(\sqrt n + 2s\|K^\top Q\|R^2 + \sqrt{n/2}\,2s\|K\|\sup|q-k|\,R)`.
    """
    require_plain(f, "this bound on L2 attention")
    masked = bool(f.positions.causal)
    return layer_upper(f, lambda part: _l2_head(part, bool(f.tied), n, radius, masked))


def _l2_head(part: MechanismHead, tied: bool, n: int, radius: float, masked: bool) -> float:
    if part.scale < 0:
        raise AssumptionError("theorems on L2 attention need a scale that is not negative.", field="attention")
    # Only with equal queries and keys is the weight of a token on itself the largest, on which the tied bound rests.
    same = torch.equal(part.Q, part.K) and torch.equal(part.query_bias, part.key_bias)
    bounds = [_l2_untied(part, tied, n, radius)]
    if same:
        bounds.append(_l2_tied(part, tied, n, radius, masked))
    return min(bounds)


def _l2_tied(part: MechanismHead, through: bool, n: int, radius: float, masked: bool) -> float:
    root, norm_Q = math.sqrt(part.scale), coarse_norm(part.Q)
    if through:  # values are V A x = (s V Qᵀ) q
        L, rest = coarse_norm(part.scale * part.B @ part.Q.mT), 0.0
        norm_V = L * norm_Q
    else:
        # Values are split into what queries see, which distances bound, and the rest, which only the ball bounds.
        back = torch.linalg.pinv(part.Q)
        L = coarse_norm(part.B @ back)
        rest, norm_V = coarse_norm(part.B - part.B @ back @ part.Q), coarse_norm(part.B)
    # energies are squared distances of √s q: bounded in a ball, and in any case by φ⁻¹
    most = (2 * root * norm_Q * radius) ** 2
    beta = min(phi_inverse(n - 1), most)
    first = ((2 * n) if masked else n) ** 0.25
    column = min(column_energy(n, masked=masked), first**2 * most)
    spread = min(norm_V * radius, (L * math.sqrt(beta) / root if root > 0 else 0.0) + rest * radius)
    return first * norm_V + 2 * root * norm_Q * spread * (math.sqrt(beta) + math.sqrt(column))


def _l2_untied(part: MechanismHead, through: bool, n: int, radius: float) -> float:
    s, norm_Q, norm_K = part.scale, coarse_norm(part.Q), coarse_norm(part.K)
    norm_V = coarse_norm(part.scale * part.B @ part.Q.mT) * norm_Q if through else coarse_norm(part.B)
    # The score −s|q_i − k_j|² has the gradient 2s(q_i − k_j), so the largest distance counts.
    apart = (norm_Q + norm_K) * radius + length_upper(part.query_bias - part.key_bias)
    query = 2 * s * coarse_norm(part.K.mT @ part.Q) * radius
    return norm_V * (math.sqrt(n) + radius * query + math.sqrt(n / 2) * radius * 2 * s * norm_K * apart)


def _l2_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    q, k, y = projected(part, x)
    y = part.scale * x @ part.Q.mT @ part.Q @ part.B.mT if f.tied else y
    apart = q[:, None] - k
    P = softmax_weights(-part.scale * apart.square().sum(-1), hidden)
    return MechanismAtInput(
        P=P,
        output_gradient=output_gradients(P, y),
        query_gradient=-2 * part.scale * apart @ part.Q,
        key_gradient=2 * part.scale * (apart @ part.K).norm(dim=-1),
        exponent=16 * part.scale * float((q.norm(dim=-1).max() + k.norm(dim=-1).max()) ** 2),
        value_diameter=diameter(y),
        norm_V=coarse_norm(part.scale * part.B @ part.Q.mT) * coarse_norm(part.Q) if f.tied else coarse_norm(part.B),
    )


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
    require_kind(f, L2Attention, "kim_l2_upper")
    return upper_bound(log(kim(f, n)), "kim_l2_upper", f"{n} tokens anywhere", "after Kim et al., Theorem 3.2")


def kim(f: Any, n: int, *, as_printed: bool = False) -> float:
    r"""Return Kim's bound: :math:`s\sqrt n(4\varphi^{-1}(n-1)+1)(\sum_h\|Q_h\|^4\|V_h\|^2)^{1/2}\|W\|`.

    As it is printed, the norms of queries stand there squared and not to the fourth power, which cannot be: twice the
    queries make the map four times as steep. ``as_printed`` returns that, as a claim to audit and not as a bound.
    """
    require_plain(f, "Kim's bound", causal=False)
    if not f.tied:
        raise AssumptionError("Kim's bound is about tied L2 attention; use sharp_upper.", field="attention")
    parts = [mechanism_head(f, h) for h in range(f.layout.heads)]
    norms = math.hypot(*(coarse_norm(part.Q) ** (1 if as_printed else 2) * coarse_norm(part.B) for part, _W in parts))
    output = 1.0 if f.output is None else coarse_norm(torch.cat([on_cpu(x) for x in f.output], dim=-1))
    scale = parts[0][0].scale
    return scale * math.sqrt(n) * (4 * phi_inverse(n - 1) + 1) * norms * output


def phi_inverse(N: float) -> float:
    r"""Return :math:`\varphi^{-1}(N)` for :math:`\varphi(x) = xe^{x+1}`, rounded up.

    It is :math:`\max_{E\ge0}\sum_jE_je^{-E_j}/(1+\sum_je^{-E_j})` over N energies: how much energy N points can hold
    against one at zero.

    Example:
        >>> round(phi_inverse(15.0), 4)
        1.3835
    """
    return float(lambertw(N / math.e).real) * (1 + ROOT_ERROR)


def column_energy(n: int, *, masked: bool) -> float:
    r"""Bound :math:`\sum_iP_{ij}E_{ij}`, one column of weights and energies of a Gaussian kernel.

    .. math:: \min\Bigl((n-1)\varphi^{-1}(1),\;\min_{0<\epsilon\le1}\frac{n^{(1+\epsilon)/2}}{e\epsilon}\Bigr),

    the second :math:`\sqrt2` times larger under a causal mask.
    """
    each = (n - 1) * phi_inverse(1.0)
    if n < 2:
        return each
    # The minimum over ε of n^((1+ε)/2)/(eε) is at ε = 2/log n, where that is at most one.
    share = min(1.0, 2 / math.log(n))
    kernel = n ** ((1 + share) / 2) / (math.e * share) * (math.sqrt(2) if masked else 1.0)
    return min(each, kernel * (1 + ROOT_ERROR))


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
    # z/(|z|² + ε)^½ has slope at most ε^(−½), attained at the origin.
    sharp = 1 / math.sqrt(f.eps)
    norm_V = coarse_norm(part.B)
    direct, value = (norm_V * sharp, 1.0) if f.normalise_values else (norm_V, norm_V * radius)
    slope = abs(f.score_scale) * sharp * value
    return abs(f.gain) * (
        math.sqrt(n) * direct + slope * (coarse_norm(part.Q) + math.sqrt(n / 2) * coarse_norm(part.K))
    )


def _without_output(f: Any) -> dict[str, Any]:
    fields = {field.name: getattr(f, field.name) for field in dataclasses.fields(f)}
    return fields | {"output": None, "output_bias": None}


def _output_norm(f: Any) -> float:
    return coarse_norm(torch.cat([on_cpu(x) for x in f.output], dim=-1))


def _cosine_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    if f.normalise_values:
        raise AssumptionError(
            "local_upper is about cosine attention whose values are not normalised.", field="attention"
        )
    if f.eps == 0:
        raise AssumptionError("local_upper needs eps > 0 in cosine attention.", field="attention")
    q, k, y = projected(part, x)
    y = f.gain * y
    (u, nu), (w, nw) = ((z / r, r) for z, r in ((z, (z.square().sum(-1, keepdim=True) + f.eps).sqrt()) for z in (q, k)))
    tau, cosines = part.scale, u @ w.mT
    P = softmax_weights(tau * cosines, hidden)
    dq = tau * (w - cosines[..., None] * u[:, None]) / nu[:, None]
    dk = tau * (u[:, None] - cosines[..., None] * w) / nw
    return MechanismAtInput(
        P=P * abs(f.gain),
        output_gradient=output_gradients(P, y),
        query_gradient=dq @ part.Q,
        key_gradient=(dk @ part.K).norm(dim=-1),
        exponent=16
        * abs(tau)
        * (1 + float(x.norm(dim=-1).max()) / math.sqrt(f.eps) * (coarse_norm(part.Q) + coarse_norm(part.K))),
        value_diameter=diameter(y),
        norm_V=coarse_norm(part.B),
    )


def lipsformer_upper(f: Any, *, n: int) -> Bound:
    r"""Bound cosine attention with normalised values on all of space, as LipsFormer does.

    .. math:: \mathrm{Lip}(f)\le2\nu\epsilon^{-1/2}\bigl(n(n-1)\tau\|W^K\| + (n-1)\tau\|W^Q\| + n\|W^V\|\bigr)

    The formula as published, as far as we know it; its text was not at hand. :func:`sharp_upper` is smaller.

    Raises:
        AssumptionError: If values are not normalised, or there are several heads.
    """
    require_length(n)
    require_kind(f, CosineAttention, "lipsformer_upper")
    return upper_bound(log(lipsformer(f, n)), "lipsformer_upper", f"{n} tokens anywhere", "LipsFormer, Theorem 1")


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


def _differential_at_input(f: Any, part: MechanismHead, x: Tensor, hidden: Tensor | None) -> float:
    subtracted = float(on_cpu(f.subtracted).abs().max())
    return sum(
        factor * three_terms(_dots(half, x, hidden))
        for half, factor in zip(halves(part), (1.0, subtracted), strict=True)
    )


def _dots(part: MechanismHead, x: Tensor, hidden: Tensor | None) -> MechanismAtInput:
    """A softmax of scores, as in plain attention."""
    q, k, y = projected(part, x)
    n, S = len(x), part.scale * q @ k.mT
    P = softmax_weights(S, hidden)
    return MechanismAtInput(
        P=P,
        output_gradient=output_gradients(P, y),
        query_gradient=(part.scale * k @ part.Q).expand(n, -1, -1),
        key_gradient=(part.scale * q @ part.K).norm(dim=-1)[:, None].expand(n, n),
        exponent=16 * float(S.abs().max()),
        value_diameter=diameter(y),
        norm_V=coarse_norm(part.B),
    )


SOFTMAX_SCORES: dict[type[MultiHead], MechanismTheorems] = {
    L2Attention: MechanismTheorems(
        in_ball=l2_ball,
        proof="ours: distances hold little energy",
        at_input=by_three_terms(_l2_at_input),
    ),
    CosineAttention: MechanismTheorems(
        in_ball=cosine_ball,
        proof="ours: three terms, cosines",
        at_input=by_three_terms(_cosine_at_input),
    ),
    DifferentialAttention: MechanismTheorems(
        in_ball=differential_ball,
        proof="ours: two softmaxes",
        at_input=_differential_at_input,
    ),
}
