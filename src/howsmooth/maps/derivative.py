"""The closed-form Jacobian of attention by scores, tile by tile and row by row: products with J and Jᵀ, no autograd."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from howsmooth.linear_operators import take
from howsmooth.maps.attention_weights import AttentionPattern
from howsmooth.maps.heads_derivative import HeadsJacobian, project_heads
from howsmooth.maps.norms import JointNormJacobian, NormJacobian
from howsmooth.maps.positions import Distances
from howsmooth.maps.projections import IDENTITY_TRANSFORMS, TransformJacobian
from howsmooth.maps.weighting import SoftmaxWeights, Tile, Weights, Workspace, rows_of, unstack

# Products go past queries and keys where a token meets at most this share of their coordinates in scores, and where the
# vectors that this takes, other ones for each sequence, stay in the caches.
DIRECT_SHARE, DIRECT_BYTES = 0.75, 2**23


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionJacobian(HeadsJacobian):
    r"""The derivative of multi-head attention at one input (or a batch of inputs).

    With ``P = softmax(s q kᵀ)`` and ``o = P v`` for each head (``s`` rides on ``q`` and ``k``),

    .. math::
        \mathrm{JVP}:&\quad dS = s(dq\,k^\top + q\,dk^\top),\quad dP = \mathrm{softmax}'(dS),\quad do = dP\,v + P\,dv \\
        \mathrm{VJP}:&\quad dP = g\,v^\top,\quad dS = s\,\mathrm{softmax}'(dP),\quad
                      dq = dS\,k,\quad dk = dS^\top q,\quad dv = P^\top g

    where :math:`\mathrm{softmax}'(D) = P\circ(D - \mathrm{rowsum}(P\circ D))` is symmetric; for other rules it is
    :meth:`howsmooth.maps.weighting.Weights.jvp`. Autograd can differentiate both products once more.
    """

    pattern: AttentionPattern  # the attention weights, kept or rebuilt
    scaled_k: Float[Tensor, "stack n k"]  # keys times the scale of the scores (the pattern's queries are scaled)
    distances: Distances | None = None  # keys and queries of distances, times the scale of the scores
    direct: bool = False  # whether products go from tokens to scores past queries and keys, see compress

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

    @property
    def _one_tile(self) -> "OneTile | None":
        """The factors of products where all weights are one tile; none where they are several, or not kept."""
        # views that were made without recording would hide their factors from autograd
        return self._factors() if self._recorded else self._kept_factors

    @functools.cached_property
    def _recorded(self) -> bool:
        """Whether autograd records what products are made of."""
        pattern = self.pattern
        kept = [weights.P for weights, _slope in pattern.kept or ()]
        return any(x.requires_grad for x in (pattern.q, pattern.v, self.scaled_k, self.projections.weight, *kept))

    @functools.cached_property
    def _kept_factors(self) -> "OneTile | None":
        return self._factors()

    def _factors(self) -> "OneTile | None":
        pattern = self.pattern
        if (weights := pattern.whole) is None or self.distances is not None:
            return None
        q, k, v = pattern.q.flatten(1, 2), self.scaled_k, pattern.v
        return OneTile(weights=weights, q=q, k=k, v=v, k_rows=k.mT, v_rows=v.mT, P_columns=weights.P.mT)

    def push_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push perturbations of queries, keys and values to the means."""
        pattern = self.pattern
        if (one := self._one_tile) is not None:
            # short sequences are bound by the number of operations: here nothing is cut, stitched or copied
            dk, dv = dk.reshape(one.k.shape), dv.reshape(one.v.shape)
            dS = torch.bmm(dq.reshape(one.q.shape), one.k_rows).baddbmm_(one.q, dk.mT)
            return torch.bmm(one.weights.jvp(dS), one.v).baddbmm_(one.weights.P, dv).view(pattern.o.shape)
        dq, dk, dv = dq.reshape(pattern.q.shape), dk.reshape(pattern.k.shape), dv.reshape(pattern.v.shape).contiguous()
        moved = []
        for tile, weights, dS in self._push_scores(dq, dk):
            moved.append(self._push_tile(tile, weights, dS, dv))
        return stitch(moved)

    def compress(self) -> tuple["AttentionJacobian", Callable[[Tensor], Tensor]]:
        r"""Return an operator with the same singular values and cheaper products, and the isometry back to tokens.

        Where tokens meet fewer scores than queries and keys have coordinates, they are pushed to scores past these:
        :math:`dS^h_{ij} = \langle e_i, Q^{h\top}k^h_j\rangle + \langle e_j, K^{h\top}q^h_i\rangle`, where the vectors
        on the right are computed once, for about the cost of a product.
        """
        small, embed = super().compress()
        layout, (n, d) = self.projections.layout, small.domain
        scores = 2 * layout.heads * n
        few = scores <= DIRECT_SHARE * (layout.heads + layout.groups) * layout.k
        few = few and scores * d * math.prod(self.batch) * self.scaled_k.element_size() <= DIRECT_BYTES
        return (dataclasses.replace(small, direct=True) if few and small.may_be_direct else small), embed

    @property
    def may_be_direct(self) -> bool:
        """Whether scores are linear in the tokens on either side, by the same projections in the whole batch.

        Where autograd records queries and keys, vectors that are made of them once would hide them from it.
        """
        projections = self.projections
        linear = projections.query_norm is None and projections.key_norm is None and projections.rotation is None
        linear = linear and projections.transforms == IDENTITY_TRANSFORMS and not self.lead
        return linear and projections.weight.ndim == 2 and not self._recorded and self._one_tile is not None

    @functools.cached_property
    def _to_scores(self) -> tuple[Float[Tensor, "count p d"], Float[Tensor, "gv d"]]:
        """The vectors that tokens are multiplied by, for their rows of scores and for their columns; and for values."""
        (heads, groups, k, v), (n, d), count = self.projections.layout, self.domain, math.prod(self.batch)
        query, key, value = self.projections.weight.split([heads * k, groups * k, groups * v])
        shared = heads // groups
        rows = torch.einsum(
            "bgnk, gskd -> bgsnd", self.scaled_k.reshape(count, groups, n, k), query.view(groups, shared, k, d)
        )
        columns = torch.einsum(
            "bgsnk, gkd -> bgsnd", self.pattern.q.reshape(count, groups, shared, n, k), key.view(groups, k, d)
        )
        return torch.cat([x.reshape(count, heads * n, d) for x in (rows, columns)], dim=1), value

    def _scores_in(self, Y: Float[Tensor, "count n p"]) -> tuple[Tensor, Tensor]:
        """Return what tokens add to the scores in their rows, and to those in their columns, as views by head."""
        (count, n, p), heads = Y.shape, self.projections.layout.heads
        shape, size = (count, heads, n, n), n * p
        return Y.as_strided(shape, (size, n, p, 1), 0), Y.as_strided(shape, (size, n, 1, p), heads * n)

    def _push(self, E: Tensor) -> Tensor:
        if not self.direct or (one := self._one_tile) is None:
            return super()._push(E)
        (groups, v), (to_scores, value) = self.projections.layout[1::2], self._to_scores
        tokens = E.reshape(-1, *self.domain)
        rows, columns = self._scores_in(tokens @ to_scores.mT)
        dP = one.weights.jvp((rows + columns).contiguous().view(one.weights.P.shape))
        dv = (tokens @ value.mT).unflatten(-1, (groups, v)).transpose(-2, -3).reshape(one.v.shape)
        return project_heads(
            torch.bmm(dP, one.v).baddbmm_(one.weights.P, dv).view(self.means.shape), self.output, self.batch
        )

    def _pull(self, G: Tensor) -> Tensor:
        if not self.direct or (one := self._one_tile) is None:
            return super()._pull(G)
        (groups, v), (to_scores, value), n = self.projections.layout[1::2], self._to_scores, self.domain[0]
        g = self.by_head(G).flatten(1, 2)
        Y = g.new_empty(len(to_scores), n, to_scores.shape[1])
        dS = one.weights.vjp(torch.bmm(g, one.v_rows)).view(len(Y), -1, n, n)
        for place in range(2):  # autograd takes no view that is older than what was written last
            self._scores_in(Y)[place].copy_(dS)
        dv = torch.bmm(one.P_columns, g).view(-1, groups, n, v).transpose(1, 2).flatten(-2)
        return torch.baddbmm(dv @ value, Y, to_scores).view(*self.batch, *self.domain)

    def push_terms(self, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`push_means`, and the sums of its absolute terms: scores are pushed once for both."""
        pattern = self.pattern
        dq, dk, dv = dq.reshape(pattern.q.shape), dk.reshape(pattern.k.shape), dv.reshape(pattern.v.shape).contiguous()
        v_sizes, dv_sizes, moved, sizes = pattern.v.abs(), dv.abs(), [], []
        for tile, weights, dS in self._push_scores(dq, dk):
            columns = tile.columns
            do = torch.bmm(weights.magnitudes(dS), v_sizes[:, columns])
            sizes.append(unstack(do.baddbmm_(weights.P.abs(), dv_sizes[:, columns]), tile))
            moved.append(self._push_tile(tile, weights, dS, dv))  # weights may change dS in place
        return stitch(moved), stitch(sizes)

    def _push_tile(self, tile: Tile, weights: Weights, dS: Tensor, dv: Tensor) -> Tensor:
        do = torch.bmm(weights.jvp(dS), self.pattern.v[:, tile.columns])
        return unstack(do.baddbmm_(weights.P, dv[:, tile.columns]), tile)

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
        if (one := self._one_tile) is not None:
            # the transpose of the short path above: dP = g vᵀ, then dq = dS k, dk = dSᵀ q, dv = Pᵀ g
            g = g.flatten(1, 2)
            dS = one.weights.vjp(torch.bmm(g, one.v_rows))
            return torch.bmm(dS, one.k), torch.bmm(dS.mT, one.q), torch.bmm(one.P_columns, g)
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


class OneTile(NamedTuple):
    """The factors of products where all weights are one tile, in the shapes that matrix products take."""

    weights: Weights
    q: Float[Tensor, "stack rows k"]  # the heads of a group one below the other
    k: Float[Tensor, "stack n k"]
    v: Float[Tensor, "stack n v"]
    k_rows: Float[Tensor, "stack k n"]
    v_rows: Float[Tensor, "stack v n"]
    P_columns: Float[Tensor, "stack n rows"]


def attention_entropy(J: AttentionJacobian, real: Bool[Tensor, "*batch n"] | None = None) -> Float[Tensor, "*batch"]:
    r"""Return :math:`-\sum_j P_{ij}\log P_{ij}`, the mean over heads and over (real) tokens i, in nats.

    Zero means that every token attends to a single one, :math:`\log n` that it attends to all equally.
    """
    parts = [unstack(-torch.special.xlogy(P, P).sum(-1, keepdim=True), tile) for tile, P, _slope in J.pattern.weights()]
    entropies = torch.cat(parts, dim=-2).reshape(*J.batch, -1, J.domain[0])
    if real is None:
        return entropies.mean((-2, -1))
    shares = real.to(entropies.dtype)
    return (entropies.mean(-2) * shares).sum(-1) / shares.sum(-1)


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


# More entries than these are not kept; rows are then taken from products with the whole derivative.
MOST_ENTRIES = 2**27


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionRows:
    r"""Some rows of blocks of the derivative at one input, in factors.

    With :math:`c_{ij} = \sum_l v_l\,\partial P_{il}/\partial S_{ij}` (for the softmax :math:`P_{ij}(v_j-o_i)`), the
    block of output token i and input token j is, for heads h side by side and the output projection W,

    .. math:: J_{ij} = W\bigl[P^h_{ij}V^h + c^h_{ij}\,(K^{h\top}r^h_{ij})^\top + \delta_{ij}\,C^h_iQ^h\bigr]_h,\qquad
              C^h_i = \sum_lc^h_{il}k_l^{h\top},

    where :math:`r_{ij}` is the query of i, pulled back through rotation and norm of the key at j, and rows of
    :math:`C_i` are pulled back through those of the query at i. For a cotangent y of output token i, all
    :math:`J_{ij}^\top y` lie in the span of the pulled values :math:`z^h = V^{h\top}u^h`, the pulled queries (at j = i)
    and the keys: one vector :math:`K^{h\top}r^h_i` for each head if all keys see the same query, all rows of the key
    projections if not. Their norms, and sums over j, need only coordinates in this span and its Gram matrix.
    """

    P: Float[Tensor, "rows heads_and_own n"]  # the weights of every head, and one for the token itself
    c: Float[Tensor, "rows heads n v"]  # how the means move with the scores
    C: Float[Tensor, "rows heads v k"]  # the factors of the query term
    queries: Float[Tensor, "hk joined"]  # Q; [Q, QKᵀ] where keys see different queries
    values: Float[Tensor, "heads v joined"]  # V, or likewise [V, VKᵀ]
    output: Float[Tensor, "out hv"] | None  # the output projection, or none
    r: Float[Tensor, "rows groups shared k n"] | None  # queries as seen by each key, where they differ
    keys: Float[Tensor, "rows heads d"] | None  # what each row sees of all keys, where it is the same
    key_grams: Float[Tensor, "rows_or_1 b b"]  # the products of these with each other, or KKᵀ for every row
    key_weight: Float[Tensor, "groups k d"]  # the key projections

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.c.shape[1] * self.c.shape[-1] if self.output is None else self.output.shape[0]

    def take(self, index: Int[Tensor, " some"]) -> "AttentionRows":
        """Pick some of the rows."""
        names = ("P", "c", "C", "r") if self.keys is None else ("P", "c", "C", "keys", "key_grams")
        return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in names})

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        r"""Return :math:`\sum_jJ_{ij}J_{ij}^\top y_i/w_{ij}` for every row, and the norms :math:`|J_{ij}^\top y_i|`.

        Without weights these are the norms themselves. For all rows it costs about three products.
        """
        t, Z, Z_keys, on_keys = self._pulled(Y)
        on_values = (Z @ Z.mT) @ self.P + Z_keys @ t
        sizes = ((self.P * on_values).sum(1) + (t * on_keys).sum(1)).clamp_min(0).sqrt()
        w = torch.where(sizes > 0, sizes, 1.0) if w is None else w
        return self._pushed(t, Z, on_keys, w), sizes

    def weighted(self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out"]:
        """Return the first of the two alone, which costs a seventh less."""
        t, Z, _Z_keys, on_keys = self._pulled(Y)
        return self._pushed(t, Z, on_keys, w)

    def blocks(self) -> Iterator[Float[Tensor, "n out d"]]:
        """Yield the blocks of every row, in memory that the next row overwrites.

        All of them cost as many multiplications as there are numbers, times twice the heads.
        """
        (heads, v), n, d = (self.c.shape[1], self.c.shape[-1]), self.P.shape[-1], self.key_weight.shape[-1]
        W = (torch.eye(heads * v).to(self.c) if self.output is None else self.output).unflatten(-1, (heads, v))
        WV = torch.einsum("ohv,hvd->hod", W, self.values[..., :d]).flatten(1)
        J = WV.new_empty(n, len(W), d)
        for row, (P, c, C) in enumerate(zip(self.P, self.c, self.C, strict=True)):
            torch.mm(P[:-1].mT, WV, out=J.view(n, -1))
            Wc = torch.einsum("ohv,hjv->joh", W, c)
            if self.keys is not None:
                J.view(-1, d).addmm_(Wc.flatten(0, 1), self.keys[row])
            else:
                assert self.r is not None
                J.baddbmm_(Wc, torch.einsum("gskn,gkd->ngsd", self.r[row], self.key_weight).flatten(1, 2))
            J[int(P[-1].argmax())] += W.flatten(1) @ (C @ self.queries[:, :d].unflatten(0, (heads, -1))).flatten(0, 1)
            yield J

    def _pulled(self, Y: Float[Tensor, "rows out"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r"""Return t and Z with :math:`J_{ij}^\top y = P_{ij}Z + t_{ij}K`, and the products of Z and of these with K."""
        P, c, C, keys, heads = self.P, self.c, self.C, self.keys, self.c.shape[1]
        u = (Y if self.output is None else Y @ self.output).unflatten(-1, (heads, -1))
        # rows times matrices throughout: batched products with columns take a slow path
        t = (u.unsqueeze(2) @ c.mT).squeeze(2)
        own = (u.unsqueeze(2) @ C).flatten(1) @ self.queries
        Z = torch.cat(((u.transpose(0, 1) @ self.values).transpose(0, 1), own.unsqueeze(1)), 1)
        if keys is None:
            Z, Z_keys = Z.tensor_split((-self.key_grams.shape[-1],), -1)
            t = self._sum_of_keys(t)
        else:
            Z_keys = (keys @ Z.mT).mT  # a third faster than its transpose
        return t, Z, Z_keys, Z_keys.mT @ P + self.key_grams @ t

    def _pushed(self, t: Tensor, Z: Tensor, on_keys: Tensor, w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out"]:
        """Push what was pulled back forward again, divided by weights, and sum over input tokens."""
        P, c, C, keys, heads, a = self.P, self.c, self.C, self.keys, self.c.shape[1], (1 / w).unsqueeze(1)
        weighted = P * a
        pulled, on_heads = (weighted @ P.mT) @ Z, a * on_keys
        if keys is None:
            pulled, on_heads = torch.cat((pulled, weighted @ t.mT), -1), self._on_heads(on_heads)
        else:
            pulled = pulled.baddbmm_(weighted @ t.mT, keys)
        moved = (pulled[:, :-1].transpose(0, 1) @ self.values.mT).transpose(0, 1)
        query = (pulled[:, -1] @ self.queries.mT).unflatten(-1, (heads, 1, -1))
        moved = (moved + (on_heads.unsqueeze(2) @ c + query @ C.mT).squeeze(2)).flatten(1)
        return moved if self.output is None else moved @ self.output.mT

    def _sum_of_keys(self, t: Float[Tensor, "rows heads n"]) -> Float[Tensor, "rows gk n"]:
        """Return what multiplies the rows of the key projections: the sum over heads that share them."""
        assert self.r is not None
        return (t.unflatten(1, self.r.shape[1:3]).unsqueeze(3) * self.r).sum(2).flatten(1, 2)

    def _on_heads(self, on_keys: Float[Tensor, "rows gk n"]) -> Float[Tensor, "rows heads n"]:
        """Apply the transpose of :meth:`_sum_of_keys`."""
        assert self.r is not None
        groups, _shared, k, _n = self.r.shape[1:]
        return (on_keys.unflatten(1, (groups, 1, k)) * self.r).sum(3).flatten(1, 2)


def attention_rows(J: AttentionJacobian) -> AttentionRows | None:
    """Return the rows of a derivative at one input; none where blocks have no such factors, or are too many."""
    projections, pattern = J.projections, J.pattern
    layout, n = projections.layout, J.domain[0]
    regular = J.distances is None and not J.lead and not pattern.weighting.couples_rows
    regular = regular and not projections.joint and projections.transforms.value is None
    if not regular or math.prod(J.batch) != 1:
        return None
    widest = max(layout.heads * (layout.v + layout.k), J.domain[1])
    if n * n * widest > MOST_ENTRIES:
        return None
    heads, shared = layout.heads, layout.shared
    P = torch.zeros(n, heads + 1, n, dtype=J.dtype, device=J.device)
    P[:, -1].fill_diagonal_(1.0)
    c = torch.zeros(n, heads, n, layout.v, dtype=J.dtype, device=J.device)
    for tile, weights, slope in pattern.parts():
        P[tile.rows, :-1, tile.columns] = unstack(weights.P, tile).flatten(0, 1).transpose(0, 1)
        sensitivity = _score_sensitivity(weights, slope, pattern.v[:, tile.columns], tile)
        c[tile.rows, :, tile.columns] = sensitivity.flatten(0, 1).transpose(0, 1)
    W = projections.weight.reshape(-1, J.domain[1])
    Q, K, V = W.split([heads * layout.k, layout.groups * layout.k, layout.groups * layout.v])
    V = V.unflatten(0, (layout.groups, -1)).repeat_interleave(shared, 0)
    C = (c.mT @ J.scaled_k.repeat_interleave(shared, 0)).transpose(0, 1)
    r, keys, q = None, None, pattern.q.flatten(0, 1)
    if projections.rotation is None and projections.key_norm is None and projections.transforms.key is None:
        keys = (q @ K.unflatten(0, (layout.groups, -1)).repeat_interleave(shared, 0)).transpose(0, 1).contiguous()
        grams = keys @ keys.mT
    else:
        # the query of every row, as one cotangent of all keys
        at = q.transpose(0, 1).unflatten(1, (layout.groups, -1)).movedim(2, 1).flatten(0, 1).unsqueeze(2)
        seen = _stages(at.expand(-1, -1, n, -1), J, projections.transforms.key, projections.key_norm)
        r = seen.unflatten(0, (n, shared)).permute(0, 2, 1, 4, 3).contiguous()
        Q, V, grams = torch.cat((Q, Q @ K.mT), -1), torch.cat((V, V @ K.mT), -1), (K @ K.mT).unsqueeze(0)
    pulled = _stages(C.movedim(2, 0), J, projections.transforms.query, projections.query_norm)
    return AttentionRows(
        P=P,
        c=c,
        C=pulled.permute(2, 1, 0, 3).contiguous(),
        queries=Q,
        values=V,
        output=None if J.output is None else J.output.reshape(J.output.shape[-2:]),
        r=r,
        keys=keys,
        key_grams=grams,
        key_weight=K.unflatten(0, (layout.groups, -1)),
    )


def _score_sensitivity(
    weights: Weights, slope: Tensor | None, v: Float[Tensor, "stack columns v"], tile: Tile
) -> Float[Tensor, "stack shared rows columns v"]:
    r"""Return :math:`c_{ij} = \sum_lv_l\,\partial P_{il}/\partial S_{ij}` of a tile."""
    if isinstance(weights, SoftmaxWeights):
        found = weights.P.unsqueeze(-1) * (v.unsqueeze(1) - (weights.P @ v).unsqueeze(2))
    else:
        # the derivative is written in place, which goes wrong where memory is not contiguous
        cotangents = v.movedim(-1, 0).unsqueeze(2).expand(-1, *weights.P.shape).contiguous()
        found = torch.stack([weights.vjp(D) for D in cotangents], dim=-1)
    found = found if slope is None else found * slope.unsqueeze(-1)
    return found.unflatten(1, (-1, tile.height))


def _stages(
    g: Float[Tensor, "many heads n lifted"],
    J: AttentionJacobian,
    transform: TransformJacobian | None,
    norm: NormJacobian | JointNormJacobian | None,
) -> Float[Tensor, "many heads n k"]:
    """Pull many cotangents of queries or keys back to the projections."""
    g = g.reshape(len(g), *J.batch, *g.shape[1:])
    g = g if transform is None else torch.stack([transform.vjp(each) for each in g])
    g = g if J.projections.rotation is None else J.projections.rotation.T(g)
    if isinstance(norm, NormJacobian):
        g = torch.stack([norm.vjp(each) for each in g.contiguous()])
    return g.reshape(len(g), *g.shape[-3:])
