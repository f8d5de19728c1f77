"""One head at given tokens: weights, keys, values, score gradients, rounding errors (Theorem 3 to Theorem 6)."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import on_tokens
from howsmooth.maps.attention import Attention
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.norms import NormJacobian, of_each_head
from howsmooth.theory.assumptions import require_one_sequence
from howsmooth.theory.heads import Head, heads_of, on_cpu
from howsmooth.theory.linalg.matrix_norms import MOST, NOTHING, UNIT
from howsmooth.validation import require_tokens

# So many products bound the norm of the attention weights, to about one part in a thousand.
NORM_STEPS = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadErrorBounds:
    r"""Rounding-error bounds for one head at one input, one number for each row.

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
        query_slope: The factor by which the derivative of a query exceeds Q: the slope of a query norm.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAtInput:
    r"""One head at n tokens."""

    head: Head  # the head
    P: Float[Tensor, "n n"]  # the attention weights
    # their logarithms: −∞ where a mask hides, finite where weights are merely too small for a float
    log_P: Float[Tensor, "n n"]
    slope: Float[Tensor, "n n"] | None  # the slope of the soft cap, ``None`` for one
    q: Float[Tensor, "n k"]  # queries, with the scale of the scores inside
    k: Float[Tensor, "n k"]  # keys
    y: Float[Tensor, "n v"]  # values: :math:`Vx_j`, or :math:`WVx_j` up to an isometry
    value_norm: float  # the norm of the map from tokens to ``y``
    jacobian: AttentionJacobian  # the closed-form derivative that this was read from
    errors: HeadErrorBounds  # rounding-error bounds for all of this

    @property
    def mean(self) -> Float[Tensor, "n v"]:
        """The attention mean of the values, seen from each token."""
        return self.P @ self.y

    def mixed(self) -> "HeadAtInput":
        r"""Return the same view with the values :math:`WVx_j`, up to an isometry, in place of :math:`Vx_j`."""
        return dataclasses.replace(self, y=self.y @ self.head.reduced_W, value_norm=self.head.norm_WV)

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
        # sums of so many products, and the true weights may be larger
        safe = (1 + 4 * len(self.P) * UNIT) * float(self.errors.growth.max())
        return min(safe * math.sqrt(best), math.sqrt(len(self.P)))

    @property
    def value_radius(self) -> float:
        """The largest distance of a value from the middle of all."""
        return float((self.y - self.y.mean(0)).norm(dim=-1).max())

    @property
    def key_radius(self) -> float:
        """The same for keys; from zero under a soft cap, where a shift of all scores of a row counts."""
        return float((self.k - self._middle_key).norm(dim=-1).max())

    @property
    def _middle_key(self) -> Float[Tensor, " k"]:
        return self.k.mean(0) if self.slope is None else torch.zeros_like(self.k[0])

    def query_side(self) -> Float[Tensor, "n v r"]:
        r"""Return :math:`V C_iA` for every token i, up to an isometry on the right.

        :math:`\sum_jP_{ij}(y_j-\bar y_i)\,\partial S_{ij}/\partial x_i`: the covariance of values and keys, pulled
        back through the rotary embedding, the query norm and Q.
        """
        # The covariance stands between values and keys; what follows is the derivative of a query by its token.
        rows = _query_vjp(
            self.covariance().transpose(0, 1), self.jacobian, of_each_head(self.jacobian.projections.query_norm)
        )
        return rows.transpose(0, 1) @ self.head.reduced_Q

    def covariance(self) -> Float[Tensor, "n v k"]:
        r"""Return the covariance of values and keys, :math:`\sum_jP_{ij}(y_j-\bar y_i)k_j^\top`, for every token i."""
        weights = self.P if self.slope is None else self.P * self.slope
        # differences alone count; small numbers lose less when they are subtracted
        y, k = self.y - self.y.mean(0), self.k - self._middle_key
        return weighted_pairs(weights, y, k) - (self.P @ y)[:, :, None] * (weights @ k)[:, None, :]

    def score_gradients(self) -> Float[Tensor, "n n"]:
        r"""Return :math:`|\partial S_{ij}/\partial x_j|` for every pair; in plain scores :math:`|Ax_i + K^\top b|`."""
        projections, K = self.jacobian.projections, self.head.reduced_K
        norm = of_each_head(projections.key_norm)
        if projections.rotation is None and norm is None:
            gradient = (self.q @ K).norm(dim=-1, keepdim=True).expand_as(self.P)
        else:
            # the keys' derivative at token j applied to each unit vector of the short factor
            units = K.mT[:, None].expand(-1, self.P.shape[0], -1)
            moved = units if norm is None else _expanded(norm, units).jvp(units)
            moved = moved if projections.rotation is None else projections.rotation(moved)
            gradient = torch.zeros_like(self.P)
            for component in moved:
                gradient += (self.q @ component.mT).square()
            gradient = gradient.sqrt()
        return gradient if self.slope is None else gradient * self.slope

    def key_side(self) -> tuple[Float[Tensor, "n v v"], Float[Tensor, " n"]]:
        r"""Return :math:`\sum_jP_{ij}^2|\partial_jS_{ij}|^2(y_j-\bar y_i)(y_j-\bar y_i)^\top`, and its rounding."""
        # Σ_j w_j(y_j − o)(y_j − o)ᵀ, multiplied out: the Gram matrix is one product for all rows, the rest has rank
        # two.
        y = self.y - self.y.mean(0)
        o = self.P @ y
        gradient = self.score_gradients()
        w = _flushed((self.P * gradient).square())
        first, total = w @ y, w.sum(1)
        cross = first[:, :, None] * o[:, None, :]
        moment = weighted_gram(w, y) - cross - cross.mT + total[:, None, None] * o[:, :, None] * o[:, None, :]
        # rounding errors of the subtraction, and the weights that were flushed
        error = (16 + len(y)) * torch.finfo(y.dtype).eps * total
        flushed = 4 * len(y) * (NOTHING + (NOTHING * gradient.amax(1)).square())
        return moment, (error + flushed) * y.square().sum(1).max()


def heads_at_input(
    attention: Attention, X: Float[Tensor, "n d"], heads: tuple[Head, ...] | None = None
) -> list[HeadAtInput]:
    r"""Look at every head; values are :math:`Vx_j`, see :meth:`HeadAtInput.mixed` for the others.

    Heads that were read before need not be read again.
    """
    heads = heads_of(attention) if heads is None else heads
    require_tokens(X, attention.query)
    require_one_sequence(X)
    wide, X = attention.to(torch.float64, "cpu"), on_cpu(X)
    with torch.no_grad():
        return [_head_at_input(head, wide.head(h), X) for h, head in enumerate(heads)]


def _head_at_input(head: Head, alone: Attention, X: Tensor) -> HeadAtInput:
    jacobian = alone.jacobian(X)
    pattern, n = jacobian.pattern, X.shape[0]
    log_P, S = X.new_full((n, n), -torch.inf), X.new_full((n, n), -torch.inf)
    slope = None if alone.softcap is None else X.new_ones(n, n)
    for tile in pattern.tiles:
        scores, part = pattern.scores.tile(pattern.q, pattern.k, tile)
        S[tile.rows, tile.columns] = scores[0]
        log_P[tile.rows, tile.columns] = scores[0].log_softmax(-1)
        if slope is not None and part is not None:
            slope[tile.rows, tile.columns] = part[0]
    q, k, parts = pattern.q[0, 0], pattern.k[0], jacobian.projections
    norms = (of_each_head(parts.query_norm), of_each_head(parts.key_norm))
    return HeadAtInput(
        head=head,
        P=_flushed(log_P.exp()),
        log_P=log_P,
        slope=slope,
        q=q,
        k=k,
        y=X @ head.V.mT,
        value_norm=head.norm_V,
        jacobian=jacobian,
        errors=head_errors(head, alone, X, q, k, S, norms),
    )


def _flushed(w: Tensor) -> Tensor:
    """Set weights that are next to nothing to zero: processors take a hundred times longer over subnormal numbers."""
    return torch.where(w < NOTHING, 0.0, w)


def weighted_pairs(w: Float[Tensor, "n n"], a: Tensor, b: Tensor) -> Float[Tensor, "n u v"]:
    r"""Return :math:`\sum_jw_{ij}\,a_jb_j^\top` for every row i."""
    return (w @ (a[:, :, None] * b[:, None, :]).flatten(1)).unflatten(1, (a.shape[1], b.shape[1]))


def weighted_gram(w: Float[Tensor, "n n"], a: Tensor) -> Float[Tensor, "n v v"]:
    r"""Return :math:`\sum_jw_{ij}\,a_ja_j^\top` for every row i; half of it is computed, the rest is its mirror."""
    v = a.shape[1]
    row, column = torch.triu_indices(v, v)
    half = w @ (a[:, row] * a[:, column])
    whole = half.new_empty(len(w), v, v)
    whole[:, row, column] = half
    whole[:, column, row] = half
    return whole


def _query_vjp(rows: Float[Tensor, "v n k"], jacobian: AttentionJacobian, norm: NormJacobian | None) -> Tensor:
    """Multiply rows that belong to token i from the right by the derivative of its query."""
    rotation = jacobian.projections.rotation
    rows = rows if rotation is None else rotation.T(rows)
    return rows if norm is None else _expanded(norm, rows).vjp(rows)


def _expanded(norm: NormJacobian, like: Tensor) -> NormJacobian:
    z, stretch = norm.z.expand_as(like), norm.stretch.expand_as(like)
    return NormJacobian(z=z, stretch=stretch, centred=norm.centred, **on_tokens(z))


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
    # the rounding of one operation to nearest
    (n, d), width, u = X.shape, q.shape[-1], UNIT / 2
    size = X.norm(dim=-1)
    query_slope, key_slope = (_norm_slope(norm, size) for norm in norms)
    # A projection sums d products; what a norm or a rotation does to k numbers afterwards is relative to the result.
    sums, small = (d + 8) * u, 16 * width * u
    query = query_slope * sums * (size * head.Q.norm() + head.query_bias.norm()) + small * q.norm(dim=-1)
    key = key_slope * sums * (size * head.K.norm() + head.key_bias.norm()) + small * k.norm(dim=-1)
    q_size, k_size = q.norm(dim=-1)[:, None], k.norm(dim=-1)
    # First-order errors of both factors, their product, and the sum of k products itself.
    error = query[:, None] * (k_size + key) + q_size * key + (width + 8) * u * q_size * k_size
    # What a mask hides has no weight, whatever its score is; numbers beyond floats have infinite errors.
    visible = scores > -torch.inf
    error = torch.where(visible, error + 8 * u * scores.abs(), 0.0).nan_to_num(torch.inf, torch.inf).amax(-1)
    # the slope of a soft cap c changes by a factor of at most e^(2δ/c)
    steeper = 1.0 if f.softcap is None else 1 + 1 / f.softcap
    return HeadErrorBounds(
        scores=steeper * error + (n + 16) * u,
        query=query,
        key=float(key.max()),
        value=float(sums * size.max() * head.V.norm()),
        query_slope=query_slope,
        key_slope=float(key_slope.max()),
    )


def _norm_slope(norm: NormJacobian | None, like: Tensor) -> Float[Tensor, " n"]:
    if norm is None:
        return torch.ones_like(like)
    return norm.stretch.abs().amax(-1).reshape(like.shape)  # of one head
