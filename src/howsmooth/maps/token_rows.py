r"""The derivative of attention row by row: how one output token depends on every input token.

With :math:`c_{ij} = \sum_l v_l\,\partial P_{il}/\partial S_{ij}` (for the softmax :math:`P_{ij}(v_j-o_i)`), the
block of output token i and input token j is, for heads h side by side and the output projection W,

.. math:: J_{ij} = W\bigl[P^h_{ij}V^h + c^h_{ij}\,(K^{h\top}r^h_{ij})^\top + \delta_{ij}\,C^h_iQ^h\bigr]_h,\qquad
          C^h_i = \sum_lc^h_{il}k_l^{h\top},

where :math:`r_{ij}` is the query of i, pulled back through rotation and norm of the key at j, and rows of
:math:`C_i` are pulled back through those of the query at i. Nothing here has more than n²·d entries.
"""

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.linear_operators import positive_definite
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.norms import JointNormJacobian, NormJacobian
from howsmooth.maps.projections import TransformJacobian
from howsmooth.maps.weighting import SoftmaxWeights, Tile, Weights, unstack

# More entries than these are not kept; without them only comparisons with the Euclidean norm are known.
MOST_ENTRIES = 2**27
# How wrong the inverse of a form may be.
LARGEST_INVERSE_ERROR = 1e-6


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
        G = self.head_gram(rows, w)
        return G if self.output is None else self.output @ G @ self.output.mT

    def below(self, rows: Tensor, w: Float[Tensor, "rows n"], bound: float) -> Bool[Tensor, " rows"]:
        r"""Say for which rows a Cholesky factorisation proves :math:`\lambda_{\max}(M_i)<` ``bound``\ :sup:`2`.

        :math:`WGW^\top\preceq b^2I` follows from :math:`G\preceq b^2(W^\top W)^{-1}`, which needs no product with W for
        every row.
        """
        G = self.head_gram(rows, w)
        form = self._output_form
        if form is None:  # the output projection has no left inverse that float64 resolves
            return positive_definite(bound, self.output @ G @ self.output.mT, None)  # type: ignore[operator]
        return positive_definite(bound, G, form)

    @functools.cached_property
    def _output_form(self) -> Float[Tensor, "hv hv"] | None:
        r"""A matrix that is at most :math:`(W^\top W)^{-1}`; none where rounding does not allow to say so."""
        width = self.P.shape[0] * self.c.shape[-1]
        identity = torch.eye(width, dtype=self.P.dtype, device=self.P.device)
        if self.output is None:
            return identity
        S = self.output.mT @ self.output
        factor, failed = torch.linalg.cholesky_ex(S)
        if bool(failed):
            return None
        inverse = torch.cholesky_inverse(factor)
        inverse = 0.5 * (inverse + inverse.mT)
        # The eigenvalues of BS are those of S^{1/2} B S^{1/2}, and no norm of BS − I is below their distance from one.
        wrong = float(torch.linalg.matrix_norm(inverse @ S - identity))
        rounding = width * torch.finfo(S.dtype).eps * torch.linalg.matrix_norm(inverse) * torch.linalg.matrix_norm(S)
        wrong += 4 * float(rounding)
        return inverse / (1 + wrong) if wrong < LARGEST_INVERSE_ERROR else None

    def head_gram(self, rows: Tensor, w: Float[Tensor, "rows n"]) -> Float[Tensor, "rows hv hv"]:
        """Sum over input tokens in the space of all heads, term by term of the product of two blocks."""
        P, c, r, C = self.P[:, rows], self.c[:, rows], self.r[:, rows], self.C[:, rows]
        weighted = P / w
        values = _spread(torch.einsum("gij,hij->igh", weighted, P), c.shape[-1]) * self._VV
        mixed, scores = self._score_products(weighted, c / w.unsqueeze(-1), c, r)
        return values + mixed + mixed.mT + scores + self._query_products(rows, P, c, r, C, w)

    def _score_products(self, weighted: Tensor, c_weighted: Tensor, c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products of values with scores, and of scores with scores."""
        if r.shape[2] == 1:
            keys = torch.einsum("hik,hkd->ihd", r[:, :, 0], self.K)
            sums = torch.einsum("gij,hijv->ighv", weighted, c)
            seen = torch.einsum("gad,ihd->igah", self.V, keys)
            mixed = torch.einsum("igah,ighv->igahv", seen, sums)
            flat, flat_weighted = (x.permute(1, 2, 0, 3).flatten(2) for x in (c, c_weighted))
            scores = flat_weighted.mT @ flat * _spread(keys @ keys.mT, c.shape[-1])
            return mixed.flatten(3).flatten(1, 2), scores
        VK = torch.einsum("gad,hkd->gahk", self.V, self.K)
        mixed = torch.stack(
            [torch.einsum("gj,gahk,hjk,hjv->gahv", weighted[:, i], VK, r[:, i], c[:, i]) for i in range(c.shape[1])]
        )
        seen = torch.einsum("hijk,hkd->hijd", r, self.K)
        gains = torch.einsum("gijd,hijd->ighj", seen, seen)
        scores = torch.einsum("gija,ighj,hijb->igahb", c_weighted, gains, c)
        return mixed.flatten(3).flatten(1, 2), scores.flatten(3).flatten(1, 2)

    def _query_products(self, rows: Tensor, P: Tensor, c: Tensor, r: Tensor, C: Tensor, w: Tensor) -> Tensor:
        """Return what the query term adds: it meets its own block alone, and one head's factors each."""
        place = torch.arange(len(rows), device=rows.device)
        at = place, rows
        key = torch.einsum("hik,hkd->ihd", r[:, place, rows if r.shape[2] > 1 else torch.zeros_like(rows)], self.K)
        to_queries = torch.einsum("ihd,gkd->ihgk", key, self.Q)
        P_own, c_own = P[:, at[0], at[1]], c[:, at[0], at[1]]
        block = torch.einsum("hi,hvgk->ihvgk", P_own, self._VQ) + torch.einsum("hiv,ihgk->ihvgk", c_own, to_queries)
        cross = torch.einsum("ihvgk,giuk->ihvgu", block, C).flatten(3).flatten(1, 2)
        both = torch.einsum("hivk,hkgl->ihvgl", C, self._QQ)
        both = torch.einsum("ihvgl,giul->ihvgu", both, C).flatten(3).flatten(1, 2)
        return (cross + cross.mT + both) / w[at[0], at[1], None, None]

    @functools.cached_property
    def _VV(self) -> Float[Tensor, "hv hv"]:
        V = self.V.flatten(0, 1)
        return V @ V.mT

    @functools.cached_property
    def _VQ(self) -> Float[Tensor, "heads v heads k"]:
        return torch.einsum("hvd,gkd->hvgk", self.V, self.Q)

    @functools.cached_property
    def _QQ(self) -> Float[Tensor, "heads k heads k"]:
        return torch.einsum("hkd,gld->hkgl", self.Q, self.Q)

    def _by_head(self, Y: Float[Tensor, "n out"]) -> Float[Tensor, "heads n v"]:
        pulled = Y if self.output is None else Y @ self.output
        return pulled.unflatten(-1, (self.P.shape[0], -1)).transpose(0, 1)


def _spread(x: Float[Tensor, "rows heads heads"], v: int) -> Float[Tensor, "rows hv hv"]:
    """Repeat the number of two heads over all their coordinates."""
    return x.repeat_interleave(v, 1).repeat_interleave(v, 2)


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
