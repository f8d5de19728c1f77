"""What one head does at given tokens, in float64: weights, keys, values, and how steep its scores are."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import ShapeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.norms import NormJacobian
from howsmooth.theory.heads import Head, heads_of
from howsmooth.validation import require_tokens

# So many products bound the norm of the attention weights, to about one part in a thousand.
NORM_STEPS = 12
# Weights below this are zero: far below the rounding of the largest weight in their row, which is at least 1/n.
NOTHING = 1e-140


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    r"""One head at n tokens.

    Attributes:
        head: The head.
        P: The attention weights.
        log_P: Their logarithms: −∞ where a mask hides, finite where weights are merely too small for a float.
        slope: The slope of the soft cap, ``None`` for one.
        q: Queries, with the scale of the scores inside.
        k: Keys.
        y: Values: :math:`Vx_j`, or :math:`WVx_j` up to an isometry.
        value_norm: The norm of the map from tokens to ``y``.
        jacobian: The closed-form derivative that this was read from.
    """

    head: Head
    P: Float[Tensor, "n n"]
    log_P: Float[Tensor, "n n"]
    slope: Float[Tensor, "n n"] | None
    q: Float[Tensor, "n k"]
    k: Float[Tensor, "n k"]
    y: Float[Tensor, "n v"]
    value_norm: float
    jacobian: AttentionJacobian

    @property
    def mean(self) -> Float[Tensor, "n v"]:
        """The attention mean of the values, seen from each token."""
        return self.P @ self.y

    def mixed(self) -> "View":
        r"""Return the same view with the values :math:`WVx_j`, up to an isometry, in place of :math:`Vx_j`."""
        return dataclasses.replace(self, y=self.y @ self.head.short_W, value_norm=self.head.norm_WV)

    def norm_P(self) -> float:
        r"""Bound :math:`\|P\|_2`, closely: for a positive z, :math:`\|P\|^2 \le \max_j(P^\top Pz)_j/z_j`.

        Collatz and Wielandt's bound for matrices without negative entries; z comes from a few power steps.
        """
        z = self.P.new_ones(self.P.shape[1])
        best = torch.inf
        for _ in range(NORM_STEPS):
            moved = self.P.mT @ (self.P @ z)
            best = min(best, float((moved / z).max()))
            z = (moved / moved.max()).clamp_min(1e-12)  # any positive vector will do
        return math.sqrt(best)

    def query_side(self) -> Float[Tensor, "n v r"]:
        r"""Return :math:`V C_iA` for every token i, up to an isometry on the right.

        :math:`\sum_jP_{ij}(y_j-\bar y_i)\,\partial S_{ij}/\partial x_i`: the covariance of values and keys, pulled
        back through the rotary embedding, the query norm and Q.
        """
        weights = self.P if self.slope is None else self.P * self.slope
        covariance = weighted_pairs(weights, self.y, self.k) - self.mean[:, :, None] * (weights @ self.k)[:, None, :]
        pulled = _unturn(covariance.transpose(0, 1), self.jacobian, self.jacobian.projections.query_norm)
        return pulled.transpose(0, 1) @ self.head.short_Q

    def key_pull(self) -> Float[Tensor, "n n"]:
        r"""Return :math:`|\partial S_{ij}/\partial x_j|` for every pair; in plain scores :math:`|Ax_i + K^\top b|`."""
        projections, K = self.jacobian.projections, self.head.short_K
        if projections.rotation is None and projections.key_norm is None:
            pull = (self.q @ K).norm(dim=-1, keepdim=True).expand_as(self.P)
        else:
            # the keys' derivative at token j applied to each unit vector of the short factor
            units = K.mT[:, None].expand(-1, self.P.shape[0], -1)
            moved = units if projections.key_norm is None else _expanded(projections.key_norm, units).jvp(units)
            moved = moved if projections.rotation is None else projections.rotation(moved)
            pull = torch.zeros_like(self.P)
            for component in moved:
                pull += (self.q @ component.mT).square()
            pull = pull.sqrt()
        return pull if self.slope is None else pull * self.slope

    def key_side(self) -> tuple[Float[Tensor, "n v v"], Float[Tensor, " n"]]:
        r"""Return :math:`\sum_jP_{ij}^2|\partial_jS_{ij}|^2(y_j-\bar y_i)(y_j-\bar y_i)^\top`, and its rounding."""
        y = self.y - self.y.mean(0)
        o = self.P @ y
        w = _flushed((self.P * self.key_pull()).square())
        first, total = w @ y, w.sum(1)
        cross = first[:, :, None] * o[:, None, :]
        moment = weighted_squares(w, y) - cross - cross.mT + total[:, None, None] * o[:, :, None] * o[:, None, :]
        # what the subtraction may have lost
        return moment, 16 * torch.finfo(y.dtype).eps * total * y.square().sum(1).max()


def views(attention: Attention, X: Float[Tensor, "n d"], heads: tuple[Head, ...] | None = None) -> list[View]:
    r"""Look at every head; values are :math:`Vx_j`, see :meth:`View.mixed` for the others.

    Heads that were read before need not be read again.
    """
    heads = heads_of(attention) if heads is None else heads
    require_tokens(X, attention.query)
    if X.ndim != 2:
        raise ShapeError(f"this takes one sequence (n, d), got {tuple(X.shape)}; call it for each entry of the batch.")
    wide, X = attention.to(torch.float64), X.detach().double()
    with torch.no_grad():
        return [_view(head, wide.head(h), X) for h, head in enumerate(heads)]


def _view(head: Head, alone: Attention, X: Tensor) -> View:
    jacobian = alone.jacobian(X)
    pattern, n = jacobian.pattern, X.shape[0]
    log_P = X.new_full((n, n), -torch.inf)
    slope = None if alone.softcap is None else X.new_ones(n, n)
    for tile in pattern.tiles:
        scores, part = pattern.scores.tile(pattern.q, pattern.k, tile)
        log_P[tile.rows, tile.columns] = scores[0].log_softmax(-1)
        if slope is not None and part is not None:
            slope[tile.rows, tile.columns] = part[0]
    return View(
        head=head,
        P=_flushed(log_P.exp()),
        log_P=log_P,
        slope=slope,
        q=pattern.q[0, 0],
        k=pattern.k[0],
        y=X @ head.V.mT,
        value_norm=head.norm_V,
        jacobian=jacobian,
    )


def _flushed(w: Tensor) -> Tensor:
    """Set weights that are next to nothing to zero: processors take a hundred times longer over subnormal numbers."""
    return torch.where(w < NOTHING, 0.0, w)


def weighted_pairs(w: Float[Tensor, "n n"], a: Tensor, b: Tensor) -> Float[Tensor, "n u v"]:
    r"""Return :math:`\sum_jw_{ij}\,a_jb_j^\top` for every row i."""
    return (w @ (a[:, :, None] * b[:, None, :]).flatten(1)).unflatten(1, (a.shape[1], b.shape[1]))


def weighted_squares(w: Float[Tensor, "n n"], a: Tensor) -> Float[Tensor, "n v v"]:
    r"""Return :math:`\sum_jw_{ij}\,a_ja_j^\top` for every row i; half of it is computed, the rest is its mirror."""
    v = a.shape[1]
    row, column = torch.triu_indices(v, v)
    half = w @ (a[:, row] * a[:, column])
    whole = half.new_empty(len(w), v, v)
    whole[:, row, column] = half
    whole[:, column, row] = half
    return whole


def _unturn(rows: Float[Tensor, "v n k"], jacobian: AttentionJacobian, norm: NormJacobian | None) -> Tensor:
    """Multiply rows that belong to token i from the right by the derivative of its query."""
    rotation = jacobian.projections.rotation
    rows = rows if rotation is None else rotation.T(rows)
    return rows if norm is None else _expanded(norm, rows).vjp(rows)


def _expanded(norm: NormJacobian, like: Tensor) -> NormJacobian:
    scale = norm.scale.expand(*like.shape[:-1], 1)
    return dataclasses.replace(norm, z=norm.z.expand_as(like), scale=scale)
