"""Heads and layers whose every field is drawn at random and of ordinary size, rounding errors too."""

import torch
from draws import gaussian

from howsmooth.theory.around_input.head_on_ball import HeadAtCentre, HeadOnBall
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, LayerOnBall, Points

# What statements and code, the same sums in another order, may differ by.
EXACT = {"rtol": 2e-13, "atol": 1e-14}


def positive(rng, *shape):
    return gaussian(rng, *shape).abs() + 0.1


def weights(rng, *shape, size=1.0, causal=False):
    scores = size * gaussian(rng, *shape)
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-1], shape[-1], dtype=torch.bool).triu(1), -torch.inf)
    return scores.log_softmax(-1)


def head_at_centre(rng, n=4, size=1.0, scale=1.0, causal=False):
    log_P = weights(rng, n, n, size=size, causal=causal)
    return HeadAtCentre(
        P=log_P.exp(),
        log_P=log_P,
        query_gradient=scale * positive(rng, n, n),
        key_gradient=scale * positive(rng, n),
        diagonal_gradient=scale * positive(rng, n),
        tau=scale * positive(rng, n),
        sigma=positive(rng, n),
        value_distance=positive(rng, n, n),
        norm_A=1.3,
        norm_V=0.7,
        score_error=scale * 0.1 * positive(rng, n),
    )


def head_on_ball(rng, P, n=4):
    growth = 1 + 0.3 * torch.rand(n, n, generator=rng, dtype=torch.float64)
    log_upper, log_lower = (P * growth).clamp_max(1.0).log(), P.log() - 0.2
    return HeadOnBall(
        log_P=(log_upper, log_lower),
        upper=log_upper.exp(),
        lower=log_lower.exp(),
        drift=positive(rng, n),
        score_deviation=positive(rng, n),
        peak=log_upper.exp().amax(-1),
        tau=positive(rng, n),
        sigma=positive(rng, n),
        rho=positive(rng, n),
        gamma=positive(rng, n),
        norm_A=1.3,
        norm_V=0.7,
    )


def points(rng, heads, n):
    return Points(
        from_mean=positive(rng, heads, n, n),
        between=positive(rng, heads, n, n),
        deviation=positive(rng, heads, n),
        error=0.2 * positive(rng, heads),
        norm=positive(rng, heads),
    )


def layer_at_centre(rng, heads=2, n=3, d=2, out=2):
    return LayerAtCentre(
        P=weights(rng, heads, n, n).exp(),
        alpha=gaussian(rng, heads, n, n, out),
        g=gaussian(rng, heads, n, d),
        g_length=positive(rng, heads, n),
        g_error=positive(rng, heads, n),
        y_keys=gaussian(rng, heads, n, d),
        B=gaussian(rng, heads, out, d),
        A=gaussian(rng, heads, d, d),
        A_transposed=gaussian(rng, heads, d, d),
        outputs=points(rng, heads, n),
        values=points(rng, heads, n),
        keys=points(rng, heads, n),
        W_norm=positive(rng, heads),
        W_joint=1.2,
    )


def layer_on_ball(rng, c, size=1.0):
    heads, n = c.P.shape[:2]
    return LayerOnBall(
        P=c.P + size * 0.1 * positive(rng, heads, n, n),
        P_change=size * 0.2 * positive(rng, heads, n, n),
        alpha_change=size * positive(rng, heads, n, n),
        value_alpha_change=size * positive(rng, heads, n, n),
        kappa=c.keys.from_mean + size * positive(rng, heads, n, n),
        g_change=size * positive(rng, heads, n),
        output_distance=positive(rng, heads, n),
        softmax_norm=positive(rng, heads, n),
        softmax_diagonal=positive(rng, heads, n, n),
    )
