"""The closed-form Jacobian of attention by scores, tile by tile and row by row: products with J and Jᵀ, no autograd."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from howsmooth.linear_operators import take
from howsmooth.maps.attention_weights import AttentionPattern
from howsmooth.maps.heads_derivative import HeadsJacobian
from howsmooth.maps.norms import JointNormJacobian, NormJacobian
from howsmooth.maps.positions import Distances
from howsmooth.maps.projections import TransformJacobian
from howsmooth.maps.weighting import SoftmaxWeights, Tile, Weights, Workspace, rows_of, unstack


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
    :math:`J_{ij}^\top y` lie in the span of two vectors for each head, the pulled values :math:`z^h = V^{h\top}u^h` and
    the keys :math:`K^{h\top}r^h_{ij}`, but for j = i. Their norms, and sums over j, need only their Gram matrices.
    """

    at: Int[Tensor, " rows"]  # which output tokens these are
    P: Float[Tensor, "rows heads n"]
    c: Float[Tensor, "rows heads n v"]  # how the means move with the scores
    r: Float[Tensor, "rows heads columns k"]  # queries as seen by each key; one column if all keys see the same
    C: Float[Tensor, "rows heads v k"]  # the factors of the query term
    queries: Float[Tensor, "hk joined"]  # [Q, QKᵀ]: the query projections, and what all key projections see of them
    values: Float[Tensor, "heads v joined"]  # [V, VKᵀ]: the same for values
    output: Float[Tensor, "out hv"] | None  # the output projection, or none
    key_grams: Float[Tensor, "rows heads heads columns"]  # the products of keys with keys, as each row sees them

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.P.shape[1] * self.c.shape[-1] if self.output is None else self.output.shape[0]

    def take(self, index: Int[Tensor, " some"]) -> "AttentionRows":
        """Pick some of the rows."""
        by_row = {name: getattr(self, name)[index] for name in ("at", "P", "c", "r", "C", "key_grams")}
        return dataclasses.replace(self, **by_row)

    def step(
        self, Y: Float[Tensor, "rows out"], w: Float[Tensor, "rows n"] | None
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows n"]]:
        r"""Return :math:`\sum_jJ_{ij}J_{ij}^\top y_i/w_{ij}` for every row, and the norms :math:`|J_{ij}^\top y_i|`.

        Without weights these are the norms themselves. For all rows it costs about three products.
        """
        P, c, r, C, heads = self.P, self.c, self.r, self.C, self.P.shape[1]
        split = self.values.shape[-1] - len(self.queries), len(self.queries)
        same = r.shape[2] == 1  # every key sees the same query
        r_own = r.squeeze(2) if same else r[torch.arange(len(r), device=r.device), :, self.at]
        own_column = self.at.unsqueeze(1)
        own_columns = own_column.unsqueeze(1).expand(-1, heads, -1)
        u = (Y if self.output is None else Y @ self.output).unflatten(-1, (heads, -1))
        # rows times matrices throughout: batched products with columns take a slow path
        t = (u.unsqueeze(2) @ c.mT).squeeze(2)
        z, z_keys = (u.transpose(0, 1) @ self.values).transpose(0, 1).split(split, -1)
        own, own_keys = ((u.unsqueeze(2) @ C).flatten(1) @ self.queries).split(split, -1)
        z_keys = _seen(z_keys.unflatten(-1, (heads, -1)), r)
        own_keys = (own_keys.unflatten(-1, (heads, -1)) * r_own).sum(-1, keepdim=True)
        own_values = (own.unsqueeze(1) @ z.mT).mT
        # the products of J_ij^T y with the values of each head, and with the keys
        on_values = (z @ z.mT) @ P + _contract(z_keys.transpose(1, 2), t)
        on_keys = _contract(z_keys, P) + _contract(self.key_grams, t)
        on_values.scatter_add_(2, own_columns, own_values)
        on_keys.scatter_add_(2, own_columns, own_keys)
        P_own, t_own = P.gather(2, own_columns), t.gather(2, own_columns)
        squares = (P * on_values).sum(1) + (t * on_keys).sum(1)
        own_squares = (P_own * own_values + t_own * own_keys).sum(1) + own.square().sum(-1, keepdim=True)
        sizes = squares.scatter_add_(1, own_column, own_squares).clamp_min(0).sqrt()
        a = 1 / (torch.where(sizes > 0, sizes, 1.0) if w is None else w)
        weighted = P * a.unsqueeze(1)
        a_own = a.gather(1, own_column)
        values = (weighted @ P.mT) @ z + (P_own * a_own.unsqueeze(-1)) * own.unsqueeze(1)
        if same:
            keys = (weighted @ t.mT).unsqueeze(-1) * r.transpose(1, 2)
        else:
            keys = ((t.unsqueeze(2) * weighted.unsqueeze(1)) @ r).transpose(1, 2)
        moved = torch.cat((values, keys.flatten(2)), -1).transpose(0, 1) @ self.values.mT
        moved = moved.transpose(0, 1) + ((a.unsqueeze(1) * on_keys).unsqueeze(2) @ c).squeeze(2)
        pulled = torch.cat(((P_own.mT @ z).squeeze(1) + own, (t_own * r_own).flatten(1)), -1)
        queries = ((a_own * pulled) @ self.queries.mT).unflatten(-1, (heads, -1))
        moved = (moved + (queries.unsqueeze(2) @ C.mT).squeeze(2)).flatten(1)
        return (moved if self.output is None else moved @ self.output.mT), sizes


def _seen(
    x: Float[Tensor, "rows heads heads k"], r: Float[Tensor, "rows heads columns k"]
) -> Float[Tensor, "rows heads heads columns"]:
    """Return the products with the queries that each key of the second head sees."""
    if r.shape[2] == 1:
        return (x * r.transpose(1, 2)).sum(-1, keepdim=True)
    return (x.transpose(1, 2) @ r.mT).transpose(1, 2)


def _contract(
    grams: Float[Tensor, "rows heads heads columns"], x: Float[Tensor, "rows heads n"]
) -> Float[Tensor, "rows heads n"]:
    """Sum over the first head; one column serves all."""
    if grams.shape[-1] == 1:
        return grams.squeeze(-1).mT @ x
    return (grams * x.unsqueeze(2)).sum(1)


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
    P = torch.zeros(n, heads, n, dtype=J.dtype, device=J.device)
    c = torch.zeros(n, heads, n, layout.v, dtype=J.dtype, device=J.device)
    for tile, weights, slope in pattern.parts():
        P[tile.rows, :, tile.columns] = unstack(weights.P, tile).flatten(0, 1).transpose(0, 1)
        sensitivity = _score_sensitivity(weights, slope, pattern.v[:, tile.columns], tile)
        c[tile.rows, :, tile.columns] = sensitivity.flatten(0, 1).transpose(0, 1)
    W = projections.weight.reshape(-1, J.domain[1])
    Q, K, V = W.split([heads * layout.k, layout.groups * layout.k, layout.groups * layout.v])
    K, V = (x.unflatten(0, (layout.groups, -1)).repeat_interleave(shared, 0) for x in (K, V))
    C = (c.mT @ J.scaled_k.repeat_interleave(shared, 0)).transpose(0, 1)
    r, keys = _seen_queries(J, pattern.q.flatten(0, 1)), K.flatten(0, 1).mT
    pulled = (r.flatten(1, 2) @ (K @ keys)).unflatten(-1, (heads, -1)).unflatten(1, r.shape[1:3])
    return AttentionRows(
        at=torch.arange(n, device=J.device),
        P=P,
        c=c,
        r=r.transpose(0, 1).contiguous(),
        C=_pulled_queries(J, C).transpose(0, 1).contiguous(),
        queries=torch.cat((Q, Q @ keys), -1),
        values=torch.cat((V, V @ keys), -1),
        output=None if J.output is None else J.output.reshape(J.output.shape[-2:]),
        key_grams=torch.einsum("hijgk,gijk->ighj", pulled, r),
    )


def _score_sensitivity(
    weights: Weights, slope: Tensor | None, v: Float[Tensor, "stack columns v"], tile: Tile
) -> Float[Tensor, "stack shared rows columns v"]:
    r"""Return :math:`c_{ij} = \sum_lv_l\,\partial P_{il}/\partial S_{ij}` of a tile."""
    if isinstance(weights, SoftmaxWeights):
        found = weights.P.unsqueeze(-1) * (v.unsqueeze(1) - (weights.P @ v).unsqueeze(2))
    else:
        columns = [weights.vjp(v[..., a].unsqueeze(1).expand(weights.P.shape).clone()) for a in range(v.shape[-1])]
        found = torch.stack(columns, dim=-1)
    found = found if slope is None else found * slope.unsqueeze(-1)
    return found.unflatten(1, (-1, tile.height))


def _seen_queries(J: AttentionJacobian, q: Float[Tensor, "heads n lifted"]) -> Float[Tensor, "heads n columns k"]:
    """Pull the query of every row back through rotation, norm and transform of every key."""
    projections, layout = J.projections, J.projections.layout
    if projections.rotation is None and projections.key_norm is None and projections.transforms.key is None:
        return q.unsqueeze(2)
    n = J.domain[0]
    rows = []
    for i in range(n):
        at = q[:, i].unflatten(0, (layout.groups, -1)).transpose(0, 1)
        pulled = [
            _stages(each[:, None].expand(-1, n, -1), J, projections.transforms.key, projections.key_norm) for each in at
        ]
        rows.append(torch.stack(pulled, dim=1).flatten(0, 1))
    return torch.stack(rows, dim=1)


def _pulled_queries(J: AttentionJacobian, C: Float[Tensor, "heads n v lifted"]) -> Float[Tensor, "heads n v k"]:
    projections = J.projections
    if projections.rotation is None and projections.query_norm is None and projections.transforms.query is None:
        return C
    columns = [_stages(C[:, :, a], J, projections.transforms.query, projections.query_norm) for a in range(C.shape[2])]
    return torch.stack(columns, dim=2)


def _stages(
    g: Tensor, J: AttentionJacobian, transform: TransformJacobian | None, norm: NormJacobian | JointNormJacobian | None
) -> Tensor:
    """Pull cotangents of queries or keys back to the projections."""
    g = g.reshape(*J.batch, *g.shape)
    g = g if transform is None else transform.vjp(g)
    g = g if J.projections.rotation is None else J.projections.rotation.T(g)
    if isinstance(norm, NormJacobian):
        g = norm.vjp(g.contiguous())
    return g.reshape(g.shape[len(J.batch) :])
