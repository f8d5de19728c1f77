r"""The derivative of attention row by row: how one output token depends on every input token.

With :math:`c_{ij} = \sum_l v_l\,\partial P_{il}/\partial S_{ij}` (for the softmax :math:`P_{ij}(v_j-o_i)`), the
block of output token i and input token j is, for heads h side by side and the output projection W,

.. math:: J_{ij} = W\bigl[P^h_{ij}V^h + c^h_{ij}\,(K^{h\top}r^h_{ij})^\top + \delta_{ij}\,C^h_iQ^h\bigr]_h,\qquad
          C^h_i = \sum_lc^h_{il}k_l^{h\top},

where :math:`r_{ij}` is the query of i, pulled back through rotation and norm of the key at j, and rows of
:math:`C_i` are pulled back through those of the query at i. For a cotangent y of output token i, all
:math:`J_{ij}^\top y` lie in the span of two vectors for each head, the pulled values :math:`z^h = V^{h\top}u^h` and the
keys :math:`K^{h\top}r^h_{ij}`, but for j = i. Their norms, and sums over j, need only the Gram matrices of these.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.norms import JointNormJacobian, NormJacobian
from howsmooth.maps.projections import TransformJacobian
from howsmooth.maps.weighting import SoftmaxWeights, Tile, Weights, unstack

# More entries than these are not kept; rows are then taken from products with the whole derivative.
MOST_ENTRIES = 2**27


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionRows:
    """Some rows of blocks of the derivative at one input, in factors."""

    at: Int[Tensor, " rows"]  # which output tokens these are
    P: Float[Tensor, "rows heads n"]
    c: Float[Tensor, "rows heads n v"]  # how the means move with the scores
    r: Float[Tensor, "rows heads columns k"]  # queries as seen by each key; one column if all keys see the same
    C: Float[Tensor, "rows heads v k"]  # the factors of the query term
    Q: Float[Tensor, "heads k d"]  # the query projections of every head
    K: Float[Tensor, "heads k d"]  # the key projections
    V: Float[Tensor, "heads v d"]  # the value projections
    output: Float[Tensor, "out hv"] | None  # the output projection, or none
    key_grams: Float[Tensor, "rows heads heads columns"]  # the products of keys with keys, as each row sees them
    values_by_keys: Float[Tensor, "heads v hk"]  # the products of values with keys

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
        P, c, r, C, rows = self.P, self.c, self.r, self.C, self.at
        place, column = torch.arange(len(rows), device=rows.device), rows if r.shape[2] > 1 else torch.zeros_like(rows)
        heads, r_own = P.shape[1], r[place, :, column]
        u = (Y if self.output is None else Y @ self.output).unflatten(-1, (heads, -1))
        # rows times matrices throughout: batched products with columns take a slow path
        t = (u.unsqueeze(2) @ c.mT).squeeze(2)
        by_head = u.transpose(0, 1)
        z = (by_head @ self.V).transpose(0, 1)
        own = (u.unsqueeze(2) @ C).flatten(1) @ self.Q.flatten(0, 1)
        vk = (by_head @ self.values_by_keys).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) @ r.mT
        own_keys = ((own @ self.K.flatten(0, 1).mT).unflatten(-1, (heads, -1)) * r_own).sum(-1)
        # the products of J_ij^T y with the values of each head, and with the keys
        on_values = (z @ z.mT) @ P + _contract(vk, t)
        on_keys = _contract(vk.transpose(1, 2), P) + _contract(self.key_grams, t)
        P_own, t_own = P[place, :, rows], t[place, :, rows]
        on_keys[place, :, rows] += own_keys
        own_values = (own.unsqueeze(1) @ z.mT).squeeze(1)
        on_values[place, :, rows] += own_values
        squares = (P * on_values).sum(1) + (t * on_keys).sum(1)
        squares[place, rows] += (P_own * own_values + t_own * own_keys).sum(-1)
        squares[place, rows] += own.square().sum(-1)
        sizes = squares.clamp_min(0).sqrt()
        a = 1 / (torch.where(sizes > 0, sizes, 1.0) if w is None else w)
        weighted = P * a.unsqueeze(1)
        values = (weighted @ P.mT) @ z + weighted[place, :, rows].unsqueeze(-1) * own.unsqueeze(1)
        same = r.shape[2] == 1  # every key sees the same query
        keys = (t @ weighted.mT).unsqueeze(-1) * r if same else (t.unsqueeze(2) * weighted.unsqueeze(1)) @ r
        moved = values.transpose(0, 1) @ self.V.mT + keys.permute(2, 0, 1, 3).flatten(2) @ self.values_by_keys.mT
        moved = moved.transpose(0, 1) + ((a.unsqueeze(1) * on_keys).unsqueeze(2) @ c).squeeze(2)
        pulled = (P_own.unsqueeze(1) @ z).squeeze(1) + own
        pulled += (t_own.unsqueeze(-1) * r_own).flatten(1) @ self.K.flatten(0, 1)
        queries = ((a[place, rows].unsqueeze(-1) * pulled) @ self.Q.flatten(0, 1).mT).unflatten(-1, (heads, -1))
        moved = (moved + (queries.unsqueeze(2) @ C.mT).squeeze(2)).flatten(1)
        return (moved if self.output is None else moved @ self.output.mT), sizes


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
    r = _seen_queries(J, pattern.q.flatten(0, 1)).transpose(0, 1).contiguous()
    return AttentionRows(
        at=torch.arange(n, device=J.device),
        P=P,
        c=c,
        r=r,
        C=_pulled_queries(J, C).transpose(0, 1).contiguous(),
        Q=Q.unflatten(0, (heads, -1)),
        K=K,
        V=V,
        output=None if J.output is None else J.output.reshape(J.output.shape[-2:]),
        key_grams=_key_grams(r, K),
        values_by_keys=V @ K.flatten(0, 1).mT,
    )


def _key_grams(
    r: Float[Tensor, "n heads columns k"], K: Float[Tensor, "heads k d"]
) -> Float[Tensor, "n heads heads columns"]:
    """Return the products of the keys that every row sees."""
    products = K @ K.flatten(0, 1).mT
    pulled = (r @ products).unflatten(-1, (len(K), -1))  # row, head, column, head, k
    return torch.einsum("ihjgk,igjk->ighj", pulled, r)


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


def _seen_queries(J: AttentionJacobian, q: Float[Tensor, "heads n k"]) -> Float[Tensor, "heads n columns k"]:
    """Pull the query of every row back through rotation, norm and transform of every key."""
    projections, layout = J.projections, J.projections.layout
    if projections.rotation is None and projections.key_norm is None and projections.transforms.key is None:
        return q.unsqueeze(2)
    n = J.domain[0]
    rows = []
    for i in range(n):
        at = q[:, i].unflatten(0, (layout.groups, -1)).transpose(0, 1)
        pulled = [_key_stages(J, each[:, None].expand(-1, n, -1)) for each in at]
        rows.append(torch.stack(pulled, dim=1).flatten(0, 1))
    return torch.stack(rows, dim=1)


def _key_stages(J: AttentionJacobian, g: Float[Tensor, "groups n k"]) -> Float[Tensor, "groups n k"]:
    projections = J.projections
    return _stages(g, J, projections.transforms.key, projections.key_norm)


def _pulled_queries(J: AttentionJacobian, C: Float[Tensor, "heads n v k"]) -> Float[Tensor, "heads n v k"]:
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
