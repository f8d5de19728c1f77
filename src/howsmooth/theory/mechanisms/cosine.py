"""Cosine attention: LipsFormer's bound as published, and ours."""

import dataclasses
import math
from typing import Any

import torch

from howsmooth.errors import AssumptionError
from howsmooth.theory.heads import on_cpu
from howsmooth.theory.mechanisms.layers import MechanismHead, coarse_norm, layer_upper, mechanism_head, require_plain


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
        return layer_upper(f.__class__(**_without_output(f)), lambda p: _head(f, p, n, radius)) * _output(f)
    return layer_upper(f, lambda part: _head(f, part, n, radius))


def _head(f: Any, part: MechanismHead, n: int, radius: float) -> float:
    sharp = 1 / math.sqrt(f.eps)
    norm_V = coarse_norm(part.B)
    direct, reach = (norm_V * sharp, 1.0) if f.normalise_values else (norm_V, norm_V * radius)
    steep = abs(f.score_scale) * sharp * reach
    return abs(f.gain) * (
        math.sqrt(n) * direct + steep * (coarse_norm(part.Q) + math.sqrt(n / 2) * coarse_norm(part.K))
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


def _output(f: Any) -> float:
    return coarse_norm(torch.cat([on_cpu(x) for x in f.output], dim=-1))
