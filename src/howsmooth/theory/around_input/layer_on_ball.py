"""All heads of a layer at X, and on a ball around it: the factors of both derivatives and bounds on their changes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.rounding import PRODUCT
from howsmooth.theory.around_input.head_on_ball import HeadOnBall, distances, softmax_jacobian_bounds
from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.at_input.layer_errors import LayerErrorBounds, outputs
from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms
from howsmooth.theory.linalg.matrix_norms import norm_upper


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Points y_j = L_h x_j that every head makes of the tokens: outputs, values or keys."""

    from_mean: Float[Tensor, "heads n n"]  # |y_j − Σ_k P_ik y_k|
    between: Float[Tensor, "heads n n"]  # |y_j − y_k|
    deviation: Float[Tensor, "heads n"]  # the largest standard deviation, over directions, under row i
    error: Float[Tensor, " heads"]  # rounding errors of these distances
    norm: Float[Tensor, " heads"]  # ‖L_h‖

    @classmethod
    def of(cls, P: Tensor, y: Tensor, from_mean: Tensor, *, error: Tensor, norm: Tensor) -> "Points":
        """Measure distances; a shift common to all points changes none."""
        deviation = largest_norms(P.sqrt()[..., None] * (y[:, None] - (P @ y)[:, :, None]))
        return cls(from_mean=from_mean, between=distances(y, y), deviation=deviation, error=error, norm=norm)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerAtCentre:
    """All heads at X, with B_h = W_hV_h and the score gradients g for x_j and κ for x_i."""

    P: Float[Tensor, "heads n n"]  # weights
    alpha: Float[Tensor, "heads n n out"]  # α_ij = P_ij B(x_j − m_i)
    g: Float[Tensor, "heads n d"]  # g_i = Ax_i + Kᵀb
    g_length: Float[Tensor, "heads n"]  # |g_i|
    g_error: Float[Tensor, "heads n"]  # rounding errors of g
    y_keys: Float[Tensor, "heads n d"]  # Aᵀx_j up to a common shift; less their mean they are κ_ij = Aᵀ(x_j − m_i)
    B: Float[Tensor, "heads out d"]
    A: Float[Tensor, "heads r d"]  # with the singular values and right singular vectors of A
    A_transposed: Float[Tensor, "heads s d"]  # with those of Aᵀ
    outputs: Points  # Bx_j
    values: Points  # Vx_j
    keys: Points  # Aᵀx_j
    W_norm: Float[Tensor, " heads"]  # ‖W_h‖
    W_joint: float  # ‖[W_h/‖W_h‖]_h‖

    @classmethod
    def of(cls, views: list[HeadAtInput]) -> "LayerAtCentre":
        """Gather the heads."""
        # Three kinds of points, each with distances, deviations, norm and rounding error: Bx_j, Vx_j and Aᵀx_j.
        W, errors, heads = outputs(views), LayerErrorBounds.of(views), [view.head for view in views]
        P, g = torch.stack([view.P for view in views]), torch.stack([view.q @ view.head.K for view in views])
        # a common shift changes no difference, and what is small loses less
        y_keys = torch.stack([(view.k - view.k.mean(0)) @ view.head.Q for view in views])
        y_values = torch.stack([view.y - view.y.mean(0) for view in views])
        y_outputs = torch.stack([y @ w.mT for y, w in zip(y_values, W, strict=True)])
        W_norm = vector(norm_upper(w) for w in W)
        unit_W = [w / (size if size > 0 else 1.0) for w, size in zip(W, W_norm.tolist(), strict=True)]
        norm_V, norm_A = vector(head.norm_V * (1 + PRODUCT) for head in heads), vector(head.norm_A for head in heads)
        value_error = vector(4 * view.errors.value for view in views)
        centred = y_outputs[:, None] - (P @ y_outputs)[:, :, None]
        return cls(
            P=P,
            alpha=P[..., None] * centred,
            g=g,
            g_length=g.norm(dim=-1),
            g_error=2 * errors.gradient_error,
            y_keys=y_keys,
            B=torch.stack([w @ head.V for w, head in zip(W, heads, strict=True)]),
            A=torch.stack([head.reduced_K.mT @ head.Q for head in heads]),
            A_transposed=torch.stack([head.reduced_Q.mT @ head.K for head in heads]),
            outputs=Points.of(P, y_outputs, centred.norm(dim=-1), error=4 * errors.value_error, norm=errors.WV_norm),
            values=Points.of(P, y_values, distances(P @ y_values, y_values), error=value_error, norm=norm_V),
            keys=Points.of(P, y_keys, distances(P @ y_keys, y_keys), error=4 * errors.key_error, norm=norm_A),
            W_norm=W_norm,
            W_joint=norm_upper(torch.cat(unit_W, dim=1)),
        )

    def combined(self, mixed: Float[Tensor, "heads n"], alone: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`|\sum_hW_hv_h|` from ``mixed`` :math:`\ge|W_hv_h|` and ``alone`` :math:`\ge|v_h|`, in two ways.

        Heads add up, or the sum is :math:`[W_h/\|W_h\|]_h` times the vectors :math:`\|W_h\|v_h` under each other.
        """
        stacked = (self.W_norm[:, None] * alone).square().sum(0).sqrt()
        return torch.minimum(mixed.sum(0), self.W_joint * stacked)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerOnBall:
    """Bounds on the factors of the second derivative at all points Z of a ball around X."""

    P: Float[Tensor, "heads n n"]  # weights
    P_change: Float[Tensor, "heads n n"]  # |P_ij(Z) − P_ij|
    alpha_change: Float[Tensor, "heads n n"]  # |α_ij(Z) − α_ij|
    value_alpha_change: Float[Tensor, "heads n n"]  # the same before the output projection, of P_ij V(x_j − m_i)
    kappa: Float[Tensor, "heads n n"]  # |κ_ij(Z)|
    g_change: Float[Tensor, "heads n"]  # |g_i(Z) − g_i|
    output_distance: Float[Tensor, "heads n"]  # max_j |B(x_j − m_i)| over the tokens that a row sees
    softmax_norm: Float[Tensor, "heads n"]  # ‖S_i‖, S_i = diag(p_i) − p_i p_iᵀ the derivative of the softmax
    softmax_diagonal: Float[Tensor, "heads n n"]  # a diagonal matrix above S_i

    @classmethod
    def of(cls, c: LayerAtCentre, heads: list[HeadOnBall], t: float, per_token: bool) -> "LayerOnBall":
        """Bound the changes from the weights of each head on the ball."""
        # Weights come from the heads on the ball; what is new is how far points move against their mean.
        upper, lower = (torch.stack(x) for x in ([h.upper for h in heads], [h.lower for h in heads]))
        drift, sd = (torch.stack(x) for x in ([h.drift for h in heads], [h.score_deviation for h in heads]))
        change = torch.maximum(upper - c.P, c.P - lower)
        # how far two tokens move apart, and the weight of all tokens of a row but j
        apart = 2.0 if per_token else math.sqrt(2)
        rest = torch.minimum(1 - lower, upper.sum(-1, keepdim=True) - upper)

        def distance_change(y: Points) -> Float[Tensor, "heads n n"]:
            r"""Bound how far :math:`y_j-\bar y_i` moves, in two ways: by the mean, and by pairs."""
            error, norm = y.error[:, None, None], y.norm[:, None, None]
            # the mean moves with the weights and with the tokens, y_j with its token
            by_weights = (change * (y.from_mean + error)).sum(-1)
            by_weights = torch.minimum(by_weights, sd * (y.deviation + error[..., 0]))
            by_mean = by_weights[..., None] + norm * (t + drift[..., None])
            # y_j − ȳ_i is the mean of y_j − y_k over the others: where their weight is small, it moves little
            by_pairs = change @ (y.between + error) + rest * apart * norm * t
            return torch.minimum(by_mean, by_pairs) + error

        outputs, values, keys = (distance_change(y) for y in (c.outputs, c.values, c.keys))
        softmax_norm, softmax_diagonal = softmax_jacobian_bounds(upper, lower)
        return cls(
            P=upper,
            P_change=change,
            # Pz − P'z' = (P − P')z + P'(z − z')
            alpha_change=change * c.outputs.from_mean + upper * outputs,
            value_alpha_change=change * c.values.from_mean + upper * values,
            kappa=c.keys.from_mean + keys,
            g_change=c.keys.norm[:, None] * t + c.g_error,
            output_distance=torch.where(upper > 0, c.outputs.from_mean + outputs, 0.0).amax(-1),
            softmax_norm=softmax_norm,
            softmax_diagonal=softmax_diagonal,
        )


class Scaled(NamedTuple):
    """Scales of heads, and the norm of the matrices that are divided or multiplied by them."""

    scales: Float[Tensor, " heads"]
    norm: float


def row_norm(x: Float[Tensor, "heads a b"]) -> float:
    r"""Return :math:`\|[X_1\cdots X_H]\|`."""
    return norm_upper(x.transpose(0, 1).flatten(1))


def stack_norm(x: Float[Tensor, "heads a b"]) -> float:
    r"""Return :math:`\|(X_h)_h\|`, one block under the other."""
    return norm_upper(x.flatten(0, 1))


def vector(x: Iterable[float]) -> Tensor:
    """Return numbers as a vector."""
    return torch.tensor(list(x), dtype=torch.float64)
