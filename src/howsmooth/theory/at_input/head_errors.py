"""What rounding may have done to scores, weights and values at an input: certificates there include it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.norms import NormJacobian
from howsmooth.theory.heads import Head, matrix_norm

UNIT = torch.finfo(torch.float64).eps
# Weights below this are zero: far below the rounding of the largest weight in their row, which is at least 1/n.
NOTHING = 1e-140
# Beyond this a factor is as good as infinite; infinity itself would turn zero into no number.
MOST = 1e300


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadErrorBounds:
    r"""How far what was computed of one head may be from what is true, one number for each row.

    A sum of m products is wrong by at most :math:`mu\sum|a_i||b_i|`, u the rounding unit: so are queries, keys and
    values, and scores by at most

    .. math:: \delta_{ij} = |k_j|\,\delta q_i + |q_i|\,\delta k_j + \delta q_i\,\delta k_j + (k+8)u\,|q_i||k_j|
              + 8u\,|S_{ij}|,

    so that every true weight lies between :math:`e^{-2\delta_i}P_{ij}` and :math:`e^{2\delta_i}P_{ij}`.

    Attributes:
        scores: :math:`\delta_i`, the largest :math:`\delta_{ij}` that row i sees.
        query: :math:`\delta q_i`.
        key: The largest :math:`\delta k_j`.
        value: The largest error of a value :math:`Vx_j`.
        query_slope: How far the derivative of a query exceeds Q: what a query norm stretches.
        key_slope: The same for all keys.
    """

    scores: Float[Tensor, " n"]
    query: Float[Tensor, " n"]
    key: float
    value: float
    query_slope: Float[Tensor, " n"]
    key_slope: float

    @property
    def growth(self) -> Float[Tensor, " n"]:
        r"""The factor :math:`e^{2\delta_i}` by which true weights may exceed computed ones."""
        return (2 * self.scores).exp().clamp_max(MOST)

    @property
    def change(self) -> Float[Tensor, " n"]:
        r"""The share :math:`e^{2\delta_i}-1` of a weight that may be wrong."""
        return torch.expm1(2 * self.scores).clamp_max(MOST)


def head_errors(
    head: Head,
    f: Attention,
    X: Float[Tensor, "n d"],
    q: Float[Tensor, "n k"],
    k: Float[Tensor, "n k"],
    scores: Float[Tensor, "n n"],
    norms: tuple[NormJacobian | None, NormJacobian | None],
) -> HeadErrorBounds:
    """Bound the rounding errors of one head; ``scores`` are −∞ where a mask hides."""
    (n, d), width, u = X.shape, q.shape[-1], torch.finfo(X.dtype).eps / 2
    size = X.norm(dim=-1)
    query_slope, key_slope = (_slope(norm, size) for norm in norms)
    sums, small = (d + 8) * u, 16 * width * u
    query = query_slope * sums * (size * head.Q.norm() + head.query_bias.norm()) + small * q.norm(dim=-1)
    key = key_slope * sums * (size * head.K.norm() + head.key_bias.norm()) + small * k.norm(dim=-1)
    q_size, k_size = q.norm(dim=-1)[:, None], k.norm(dim=-1)
    wrong = query[:, None] * (k_size + key) + q_size * key + (width + 8) * u * q_size * k_size
    visible = scores > -torch.inf
    wrong = torch.where(visible, wrong + 8 * u * scores.abs(), 0.0).nan_to_num(torch.inf, torch.inf).amax(-1)
    # the slope of a soft cap c changes by a factor of at most e^(2δ/c)
    steeper = 1.0 if f.softcap is None else 1 + 1 / f.softcap
    return HeadErrorBounds(
        scores=steeper * wrong + (n + 16) * u,
        query=query,
        key=float(key.max()),
        value=float(sums * size.max() * head.V.norm()),
        query_slope=query_slope,
        key_slope=float(key_slope.max()),
    )


def _slope(norm: NormJacobian | None, like: Tensor) -> Float[Tensor, " n"]:
    if norm is None:
        return torch.ones_like(like)
    return norm.stretch.abs().amax(-1).reshape(-1, like.numel()).amax(0)


def norm_upper(x: Float[Tensor, "a b"]) -> float:
    """Return the largest singular value, and what its computation may have lost."""
    return matrix_norm(x) * (1 + 8 * sum(x.shape) * torch.finfo(x.dtype).eps)
