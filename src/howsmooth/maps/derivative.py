"""The closed-form Jacobian of attention by scores: products with J and Jᵀ, tile by tile, no autograd."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.maps.attention_weights import AttentionPattern
from howsmooth.maps.heads_derivative import HeadsJacobian
from howsmooth.maps.positions import Distances
from howsmooth.maps.protocols import take
from howsmooth.maps.weighting import Tile, Weights, Workspace, rows_of, unstack

if TYPE_CHECKING:
    from howsmooth.maps.token_rows import AttentionRows


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionJacobian(HeadsJacobian):
    r"""The derivative of multi-head attention at one input (or a batch of inputs).

    With ``P = softmax(s q kᵀ)`` and ``o = P v`` for each head (``s`` rides on ``q`` and ``k``),

    .. math::
        \mathrm{JVP}:&\quad dS = s(dq\,k^\top + q\,dk^\top),\quad dP = \mathrm{softmax}'(dS),\quad do = dP\,v + P\,dv \\
        \mathrm{VJP}:&\quad dP = g\,v^\top,\quad dS = s\,\mathrm{softmax}'(dP),\quad
                      dq = dS\,k,\quad dk = dS^\top q,\quad dv = P^\top g

    where :math:`\mathrm{softmax}'(D) = P\circ(D - \mathrm{rowsum}(P\circ D))` is symmetric. The two parts of
    :math:`dS` in the JVP are one matrix product, :math:`[dq\,|\,q]\,[k\,|\,dk]^\top`.
    Both products can be differentiated by autograd with respect to the tokens and the weights.

    For other rules from scores to weights, softmax' is :meth:`howsmooth.maps.weighting.Weights.jvp`.
    """

    pattern: AttentionPattern  # the attention weights, kept or rebuilt
    scaled_k: Float[Tensor, "stack n k"]  # keys times the scale of the scores (the pattern's queries are scaled)
    distances: Distances | None = None  # keys and queries of distances, times the scale of the scores

    @property
    def means(self) -> Float[Tensor, "stack shared n v"]:
        """The attention means of every head."""
        return self.pattern.o

    @property
    def lead(self) -> tuple[int, ...]:
        """Axes of queries and keys before those of the batch."""
        return self.pattern.scores.lead

    @property
    def forward_rounding(self) -> float:
        r"""The share of a weight that rounding may have changed: :math:`\epsilon(\max_i|q_i|\max_j|k_j| + 8)`.

        A softmax weight is the exponential of a score, so its relative error is the *absolute* error of the score; for
        other rules :meth:`~howsmooth.maps.weighting.Weighting.rounding` times that. A single token has weight one where
        weights sum to one; then only products are rounded. Norms of queries and keys amplify rounding of projections.
        """
        if self.domain[0] == 1 and self.pattern.weighting.sums_to_one:
            return torch.finfo(self.dtype).eps * 8
        q, k, scaled_k = (_longest(x) for x in (self.pattern.q, self.pattern.k, self.scaled_k))
        (_sq, query), (_sk, key) = self.projections.normed_rounding()
        units = q * k + 8 + q * key + scaled_k * query
        return torch.finfo(self.dtype).eps * units * self.pattern.weighting.rounding(self.domain[0])

    @property
    def derivative_rounding(self) -> float:
        """Bound the rounding error of derivatives of query and key norms, and of weights that do not sum to one.

        Norms nearly annihilate some directions. Weights that do not sum to one multiply the bias of values, and in some
        directions only its rounding is left; where a sink takes all weight, the others may underflow.
        """
        (stretch_q, query), (stretch_k, key) = self.projections.normed_rounding()
        unnormalised = not self.pattern.weighting.sums_to_one
        if query == key == 0 and not unnormalised:
            return 0.0
        q, scaled_k, v = (_longest(x) for x in (self.pattern.q, self.scaled_k, self.pattern.v))
        info, output = torch.finfo(self.dtype), 1.0 if self.output is None else float(self.output.detach().norm())
        size = float(self.projections.weight.detach().norm())
        # dS = dq·k + q·dk: the error of a normalised key meets q, that of a normalised query meets k
        total = 4 * info.eps * v * size * (q * key * stretch_k + scaled_k * query * stretch_q)
        if unnormalised:
            largest = max(float(P.detach().abs().max()) for _tile, P, _slope in self.pattern.weights())
            slopes = size * (q * max(stretch_k, 1.0) + scaled_k * max(stretch_q, 1.0))
            total += self.domain[0] * (8 * info.eps * largest * v * slopes + info.tiny * (v * slopes + size))
        return output * total

    @property
    def query_rounding(self) -> float:
        """Bound the rounding error of products with queries alone, relative to the projections."""
        return 4 * torch.finfo(self.dtype).eps * _longest(self.pattern.v) * _longest(self.scaled_k)

    def push_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push perturbations of queries, keys and values to the means."""
        pattern = self.pattern
        dq, dk, dv = dq.reshape(pattern.q.shape), dk.reshape(pattern.k.shape), dv.reshape(pattern.v.shape).contiguous()
        if (whole := pattern.whole) is not None and self.distances is None:
            # short sequences are bound by the number of operations: here nothing is cut and stitched
            dS = torch.bmm(dq.flatten(1, 2), self.scaled_k.mT).baddbmm_(pattern.q.flatten(1, 2), dk.mT)
            return torch.bmm(whole.jvp(dS), pattern.v).baddbmm_(whole.P, dv).view(pattern.o.shape)
        moved = []
        for tile, weights, dS in self._push_scores(dq, dk):
            dP = weights.jvp(dS)
            do = torch.bmm(dP, pattern.v[:, tile.columns]).baddbmm_(weights.P, dv[:, tile.columns])
            moved.append(unstack(do, tile))
        return stitch(moved)

    def push_magnitudes(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Return the sums of absolute terms in :meth:`push_means`."""
        pattern = self.pattern
        dq, dk, dv = dq.reshape(pattern.q.shape), dk.reshape(pattern.k.shape), dv.reshape(pattern.v.shape)
        v, dv, sizes = pattern.v.abs(), dv.abs(), []
        for tile, weights, dS in self._push_scores(dq, dk):
            columns = tile.columns
            do = torch.bmm(weights.magnitudes(dS), v[:, columns]) + torch.bmm(weights.P.abs(), dv[:, columns])
            sizes.append(unstack(do, tile))
        return stitch(sizes)

    def _push_scores(self, dq: Tensor, dk: Tensor) -> Iterator[tuple[Tile, Weights, Tensor]]:
        """Yield each tile with its weights and the change of its scores."""
        # Why one product of doubled width and not two: a tile of dS is written once, and memory traffic dominates.
        pattern = self.pattern
        left = torch.cat((dq, pattern.q), dim=-1)
        right = torch.cat((self.scaled_k, dk), dim=-1)
        workspace = Workspace(left, right)
        for tile, weights, slope in pattern.parts():
            dS = torch.bmm(rows_of(left, tile), right[:, tile.columns].mT, out=workspace(tile))
            if self.distances is not None:
                parts = pattern.scores.parts(dq, dk, tile)
                pattern.scores.by_head(dS, tile).add_(self.distances.scores(*parts, tile.rows, tile.columns))
            yield tile, weights, dS if slope is None else dS * slope

    def pull_means(self, g: Float[Tensor, "stack shared n v"]) -> tuple[Tensor, Tensor, Tensor]:
        """Pull a cotangent of the means back to queries, keys and values."""
        pattern = self.pattern
        if (whole := pattern.whole) is not None and self.distances is None:
            # the transpose of the short path above: dP = g vᵀ, then dq = dS k, dk = dSᵀ q, dv = Pᵀ g
            g = g.flatten(1, 2)
            dS = whole.vjp(torch.bmm(g, pattern.v.mT))
            return torch.bmm(dS, self.scaled_k), torch.bmm(dS.mT, pattern.q.flatten(1, 2)), torch.bmm(whole.P.mT, g)
        workspace, moved = Workspace(g, pattern.v), []
        dk, dv = ColumnSums(pattern.k), ColumnSums(pattern.v)
        for tile, weights, slope in pattern.parts():
            columns, g_rows = tile.columns, rows_of(g, tile)
            dP = torch.bmm(g_rows, pattern.v[:, columns].mT, out=workspace(tile))
            dS = weights.vjp(dP)
            if slope is not None:
                dS = dS * slope
            dq = unstack(torch.bmm(dS, self.scaled_k[:, columns]), tile)
            # a tile has complete rows, so its dq is final; dk and dv are sums over all tiles
            dk.add(columns, dS.mT, rows_of(pattern.q, tile))
            dv.add(columns, weights.P.mT, g_rows)
            if self.distances is not None:
                to_q, to_k = self.distances.pull_back(pattern.scores.by_head(dS, tile), tile.rows, columns)
                dq = dq + to_q.reshape(dq.shape)
                dk.total[:, columns].add_(to_k.reshape(-1, *to_k.shape[-2:]))
            moved.append(dq)
        return stitch(moved), dk.total, dv.total

    def push_queries(self, dq: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push a perturbation of each token's query to its mean, with keys and values fixed."""
        pattern = self.pattern
        dq = dq.reshape(pattern.q.shape)
        workspace, moved = Workspace(dq, self.scaled_k), []
        for tile, weights, slope in pattern.parts():
            dS = torch.bmm(rows_of(dq, tile), self.scaled_k[:, tile.columns].mT, out=workspace(tile))
            dP = weights.query_jvp(dS if slope is None else dS * slope)
            moved.append(unstack(torch.bmm(dP, pattern.v[:, tile.columns]), tile))
        return stitch(moved)

    def pull_queries(self, g: Float[Tensor, "stack shared n v"]) -> Tensor:
        """Pull a cotangent of each token's mean back to its query."""
        pattern = self.pattern
        workspace, moved = Workspace(g, pattern.v), []
        for tile, weights, slope in pattern.parts():
            dP = torch.bmm(rows_of(g, tile), pattern.v[:, tile.columns].mT, out=workspace(tile))
            dS = weights.query_vjp(dP)
            dS = dS if slope is None else dS * slope
            moved.append(unstack(torch.bmm(dS, self.scaled_k[:, tile.columns]), tile))
        return stitch(moved)

    def token_rows(self) -> "AttentionRows | None":
        """Return the derivative row by row; none where blocks have no closed form, or take too much memory."""
        from howsmooth.maps.token_rows import attention_rows

        return attention_rows(self)

    def take(self, index: Tensor) -> "AttentionJacobian":
        """Pick some operators of the batch."""
        scores = self.pattern.scores
        return dataclasses.replace(
            self,
            projections=self.projections.take(self.batch, index),
            pattern=self.pattern.take(index),
            scaled_k=scores.pick(self.scaled_k, index, lead=scores.lead),
            output=take(self.output, self.batch, index, event=2),
            distances=None if self.distances is None else self.distances.take(self.batch, index),
            batch=(len(index),),
        )


def attention_entropy(J: AttentionJacobian, real: Bool[Tensor, "*batch n"] | None = None) -> Float[Tensor, "*batch"]:
    r"""Return :math:`-\sum_j P_{ij}\log P_{ij}`, the mean over heads and over (real) tokens i, in nats.

    Zero means that every token attends to a single one, :math:`\log n` that it attends to all equally.
    """
    entropies = _of_rows(J, lambda P: -torch.special.xlogy(P, P).sum(-1, keepdim=True))
    if real is None:
        return entropies.mean((-2, -1))
    shares = real.to(entropies.dtype)
    return (entropies.mean(-2) * shares).sum(-1) / shares.sum(-1)


def softmax_theta(J: AttentionJacobian) -> Float[Tensor, "*batch heads n"]:
    r"""Return :math:`\theta(p) = \|\mathrm{diag}\,p - pp^\top\|_{\infty\to1}` of the weights of every head and row.

    It is :math:`4\max_Sp(S)(1-p(S)) = 1 - \min_S(p(S)-p(S^c))^2`: how far scores that move by at most one move the
    weights. Weights are put into the lighter of two halves, largest first, which attains it where one weight is at
    least one half; elsewhere it is a lower bound, and one an upper bound.
    """

    def row_theta(P: Tensor) -> Tensor:
        difference = torch.zeros_like(P[..., :1])
        for weight in P.sort(-1, descending=True).values.split(1, dim=-1):
            difference = (difference - weight).abs()
        return 1 - difference.square()

    return _of_rows(J, row_theta)


def _of_rows(J: AttentionJacobian, number: Callable[[Tensor], Tensor]) -> Float[Tensor, "*batch heads n"]:
    """Return one number for the weights of every head and row."""
    parts = [unstack(number(P), tile) for tile, P, _slope in J.pattern.weights()]
    return torch.cat(parts, dim=-2).reshape(*J.batch, -1, J.domain[0])


class ColumnSums:
    """A sum over tiles of matrix products, each added to the tokens that its tile sees."""

    def __init__(self, like: Float[Tensor, "stack n k"]) -> None:
        self._like = like
        self._total: Tensor | None = None

    @property
    def total(self) -> Float[Tensor, "stack n k"]:
        """The sum so far."""
        return torch.zeros_like(self._like) if self._total is None else self._total

    def add(self, columns: slice, a: Tensor, b: Tensor) -> None:
        """Add the product of ``a`` and ``b`` to the tokens ``columns``."""
        if self._total is None and columns.stop - columns.start == self._like.shape[1]:
            self._total = torch.bmm(a, b)  # the first tile sees everything: nothing to add to
            return
        self._total = self.total
        self._total[:, columns].baddbmm_(a, b)


def stitch(tiles: list[Tensor]) -> Float[Tensor, "stack shared n v"]:
    """Put the rows of all tiles together."""
    return torch.cat(tiles, dim=-2) if len(tiles) > 1 else tiles[0]


def _longest(x: Float[Tensor, "*stack n k"]) -> float:
    return float(torch.linalg.vector_norm(x.detach(), dim=-1).max())
