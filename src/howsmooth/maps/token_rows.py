r"""The derivative of attention row by row: how one output token depends on every input token.

With :math:`c_{ij} = \sum_l v_l\,\partial P_{il}/\partial S_{ij}` (for the softmax :math:`P_{ij}(v_j-o_i)`), the
block of output token i and input token j is, for heads h side by side and the output projection W,

.. math:: J_{ij} = W\bigl[P^h_{ij}V^h + c^h_{ij}\,(K^{h\top}r^h_{ij})^\top + \delta_{ij}\,C^h_iQ^h\bigr]_h,\qquad
          C^h_i = \sum_lc^h_{il}k_l^{h\top},

where :math:`r_{ij}` is the query of i, pulled back through rotation and norm of the key at j, and rows of
:math:`C_i` are pulled back through those of the query at i. Nothing here has more than n²·d entries.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.norms import JointNormJacobian, NormJacobian
from howsmooth.maps.projections import TransformJacobian
from howsmooth.maps.weighting import SoftmaxWeights, Tile, Weights, unstack

# More entries than these are not kept; without them only comparisons with the Euclidean norm are known.
MOST_ENTRIES = 2**27


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionRows:
    """All blocks of the derivative at one input, in factors, in float64.

    Attributes:
        P: The weights.
        c: How the means move with the scores.
        r: Queries as seen by each key; one column if all keys see the same.
        C: The factors of the query term.
        Q: The query projections of every head.
        K: The key projections.
        V: The value projections.
        output: The output projection, or none.
    """

    P: Float[Tensor, "heads n n"]
    c: Float[Tensor, "heads n n v"]
    r: Float[Tensor, "heads n columns k"]
    C: Float[Tensor, "heads n v k"]
    Q: Float[Tensor, "heads k d"]
    K: Float[Tensor, "heads k d"]
    V: Float[Tensor, "heads v d"]
    output: Float[Tensor, "out hv"] | None

    @property
    def out(self) -> int:
        """The dimension of an output token."""
        return self.P.shape[0] * self.c.shape[-1] if self.output is None else self.output.shape[0]

    def pull(self, Y: Float[Tensor, "n out"]) -> Float[Tensor, "n n d"]:
        r"""Return :math:`J_{ij}^\top y_i` for all i and j."""
        u = self._by_head(Y)
        a = torch.einsum("hijv,hiv->hij", self.c, u)
        found = torch.einsum("hij,hid->ijd", self.P, torch.einsum("hiv,hvd->hid", u, self.V))
        if self.r.shape[2] == 1:
            found += torch.einsum("hij,hid->ijd", a, torch.einsum("hik,hkd->hid", self.r[:, :, 0], self.K))
        else:
            found += torch.einsum("hijk,hkd->ijd", a.unsqueeze(-1) * self.r, self.K)
        own = torch.einsum("hik,hkd->id", torch.einsum("hivk,hiv->hik", self.C, u), self.Q)
        found.diagonal(dim1=0, dim2=1).add_(own.mT)
        return found

    def push(self, E: Float[Tensor, "n n d"]) -> Float[Tensor, "n out"]:
        r"""Return :math:`\sum_jJ_{ij}e_{ij}` for all i, each with a perturbation of its own."""
        means = torch.einsum("hid,hvd->hiv", torch.einsum("hij,ijd->hid", self.P, E), self.V)
        if self.r.shape[2] == 1:
            a = torch.einsum("ijd,hid->hij", E, torch.einsum("hik,hkd->hid", self.r[:, :, 0], self.K))
        else:
            a = torch.einsum("hijk,hijk->hij", self.r, torch.einsum("ijd,hkd->hijk", E, self.K))
        means += torch.einsum("hijv,hij->hiv", self.c, a)
        own = E.diagonal(dim1=0, dim2=1).mT
        means += torch.einsum("hivk,hik->hiv", self.C, torch.einsum("id,hkd->hik", own, self.Q))
        joined = means.transpose(0, 1).flatten(1)
        return joined if self.output is None else joined @ self.output.mT

    def gram(self, rows: Tensor, w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows out out"]:
        r"""Return :math:`M_i = \sum_jJ_{ij}J_{ij}^\top/w_{ij}` for some output tokens i."""
        found = torch.stack([self._gram(int(i), 1 / weights) for i, weights in zip(rows, w, strict=True)])
        return found if self.output is None else self.output @ found @ self.output.mT

    def _gram(self, i: int, inverse: Float[Tensor, "n"]) -> Float[Tensor, "hv hv"]:
        """Sum over input tokens in the space of all heads, term by term of the product of two blocks."""
        P, c, r = self.P[:, i], self.c[:, i], self.r[:, i]
        v = c.shape[-1]
        weighted = P * inverse
        V, K, Q = self.V.flatten(0, 1), self.K, self.Q
        values = (weighted @ P.mT).repeat_interleave(v, 0).repeat_interleave(v, 1) * (V @ V.mT)
        if r.shape[1] == 1:
            keys = torch.einsum("hk,hkd->hd", r[:, 0], K)
            sums = torch.einsum("gj,hjv->ghv", weighted, c)
            mixed = torch.einsum("gah,ghv->gahv", (V @ keys.mT).unflatten(0, (-1, v)), sums).flatten(2).flatten(0, 1)
            flat = c.transpose(0, 1).flatten(1)
            gains = (keys @ keys.mT).repeat_interleave(v, 0).repeat_interleave(v, 1)
            scores = (flat * inverse.unsqueeze(-1)).mT @ flat * gains
        else:
            VK = torch.einsum("gad,hkd->gahk", self.V, K)
            mixed = torch.einsum("gj,gahk,hjk,hjv->gahv", weighted, VK, r, c).flatten(2).flatten(0, 1)
            seen = torch.einsum("hjk,hkd->hjd", r, K)
            gains = torch.einsum("gjd,hjd->ghj", seen, seen) * inverse
            scores = torch.einsum("gja,ghj,hjb->gahb", c, gains, c).flatten(2).flatten(0, 1)
        found = values + mixed + mixed.mT + scores
        key = torch.einsum("hk,hkd->hd", r[:, i if r.shape[1] > 1 else 0], K)
        block = torch.einsum("h,hvd->hvd", P[:, i], self.V) + c[:, i].unsqueeze(-1) * key.unsqueeze(1)
        # the query term, whose factors are those of one head each
        CQ = torch.einsum("hvk,hkd->hvd", self.C[:, i], Q).flatten(0, 1)
        cross = block.flatten(0, 1) @ CQ.mT
        return found + inverse[i] * (cross + cross.mT + CQ @ CQ.mT)

    def _by_head(self, Y: Float[Tensor, "n out"]) -> Float[Tensor, "heads n v"]:
        pulled = Y if self.output is None else Y @ self.output
        return pulled.unflatten(-1, (self.P.shape[0], -1)).transpose(0, 1)


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
    P = torch.zeros(heads, n, n, dtype=torch.float64, device=J.device)
    c = torch.zeros(heads, n, n, layout.v, dtype=torch.float64, device=J.device)
    for tile, weights, slope in pattern.parts():
        at = slice(None), tile.rows, tile.columns
        P[at] = unstack(weights.P.double(), tile).flatten(0, 1)
        c[at] = _score_sensitivity(weights, slope, pattern.v[:, tile.columns], tile).flatten(0, 1)
    W = projections.weight.double().reshape(-1, J.domain[1])
    Q, K, V = W.split([heads * layout.k, layout.groups * layout.k, layout.groups * layout.v])
    K, V = (x.unflatten(0, (layout.groups, -1)).repeat_interleave(shared, 0) for x in (K, V))
    scaled_k = J.scaled_k.double().repeat_interleave(shared, 0)
    C = torch.einsum("hijv,hjk->hivk", c, scaled_k)
    q = pattern.q.double().flatten(0, 1)
    return AttentionRows(
        P=P,
        c=c,
        r=_seen_queries(J, q),
        C=_pulled_queries(J, C),
        Q=Q.unflatten(0, (heads, -1)),
        K=K,
        V=V,
        output=None if J.output is None else J.output.double().reshape(J.output.shape[-2:]),
    )


def _score_sensitivity(
    weights: Weights, slope: Tensor | None, v: Float[Tensor, "stack columns v"], tile: Tile
) -> Float[Tensor, "stack shared rows columns v"]:
    r"""Return :math:`c_{ij} = \sum_lv_l\,\partial P_{il}/\partial S_{ij}` of a tile."""
    if isinstance(weights, SoftmaxWeights):
        P, v = weights.P.double(), v.double()
        found = P.unsqueeze(-1) * (v.unsqueeze(1) - (P @ v).unsqueeze(2))
    else:
        columns = [weights.vjp(v[..., a].unsqueeze(1).expand(weights.P.shape).clone()) for a in range(v.shape[-1])]
        found = torch.stack(columns, dim=-1).double()
    found = found if slope is None else found * slope.double().unsqueeze(-1)
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
    """Pull cotangents of queries or keys back to the projections, in the dtype of the derivative."""
    g = g.to(J.dtype).reshape(*J.batch, *g.shape)
    g = g if transform is None else transform.vjp(g)
    g = g if J.projections.rotation is None else J.projections.rotation.T(g)
    if isinstance(norm, NormJacobian):
        g = norm.vjp(g.contiguous())
    return g.reshape(g.shape[len(J.batch) :]).double()
