"""Theorem 12, attention by distance: our bound, and that of Kim et al. as published."""

import math
from typing import Any

import torch
from scipy.special import lambertw

from howsmooth.errors import AssumptionError
from howsmooth.theory.assumptions import require_plain
from howsmooth.theory.heads import MechanismHead, coarse_norm, layer_upper, length_upper, mechanism_head, on_cpu

# The relative error of a computed root.
ROOT_ERROR = 1e-12


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
    return layer_upper(f, lambda part: _head(part, bool(f.tied), n, radius, masked))


def _head(part: MechanismHead, tied: bool, n: int, radius: float, masked: bool) -> float:
    if part.scale < 0:
        raise AssumptionError("theorems on L2 attention need a scale that is not negative.", field="attention")
    same = torch.equal(part.Q, part.K) and torch.equal(part.query_bias, part.key_bias)
    bounds = [_untied(part, tied, n, radius)]
    if same:
        bounds.append(_tied(part, tied, n, radius, masked))
    return min(bounds)


def _tied(part: MechanismHead, through: bool, n: int, radius: float, masked: bool) -> float:
    root, norm_Q = math.sqrt(part.scale), coarse_norm(part.Q)
    if through:  # values are V A x = (s V Qᵀ) q
        L, rest = coarse_norm(part.scale * part.B @ part.Q.mT), 0.0
        norm_V = L * norm_Q
    else:
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


def _untied(part: MechanismHead, through: bool, n: int, radius: float) -> float:
    s, norm_Q, norm_K = part.scale, coarse_norm(part.Q), coarse_norm(part.K)
    norm_V = coarse_norm(part.scale * part.B @ part.Q.mT) * norm_Q if through else coarse_norm(part.B)
    apart = (norm_Q + norm_K) * radius + length_upper(part.query_bias - part.key_bias)
    query = 2 * s * coarse_norm(part.K.mT @ part.Q) * radius
    return norm_V * (math.sqrt(n) + radius * query + math.sqrt(n / 2) * radius * 2 * s * norm_K * apart)


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
    share = min(1.0, 2 / math.log(n))
    kernel = n ** ((1 + share) / 2) / (math.e * share) * (math.sqrt(2) if masked else 1.0)
    return min(each, kernel * (1 + ROOT_ERROR))
