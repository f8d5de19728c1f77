r"""The remainder of attention: :ref:`Theorem 11 <attention-remainder>` and its :ref:`second order <second-order>`."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.image_norms import SquaredBall, UnitBall, packed_pairs
from howsmooth.certificates.stages import FirstOrder, SmoothStage, at_every_token, matrix_root
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.weighting import unstack
from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms

# Where a score may change by more than this, only the hull of the values bounds the remainder.
LARGEST_CHANGE = 60.0
# At most this many numbers of forms of scores are multiplied at once.
NUMBERS = 2**20


class AttentionNorms(NamedTuple):
    r"""Norms of what enters, for every head and row; a row sees keys and values of all tokens.

    Attributes:
        query: :math:`|Q\delta_i|`.
        key: :math:`|K\delta_j|`.
        w: :math:`|V\delta_j|`.
        s: :math:`(\sum P\ell^2)^{1/2}`.
        lam: :math:`\lambda = (\sum Pf\ell^2)^{1/2}`.
        linear: :math:`|\sum P\ell(v-o)+\sum PV\delta|`, the first order of the output.
        ell: :math:`|\ell_j|`, for every pair of tokens.
    """

    query: Float[Tensor, "heads rows"]
    key: Float[Tensor, "heads n"]
    w: Float[Tensor, "heads n"]
    s: Float[Tensor, "heads rows"]
    lam: Float[Tensor, "heads rows"]
    linear: Float[Tensor, "heads rows"]
    ell: Float[Tensor, "heads rows n"]


class AttentionStage(SmoothStage):
    r"""Attention at tokens x; every row is a group of its own, along :math:`B = (W_OW_O^\top)^{1/2}`.

    Scores of row i change by :math:`a = \ell + c`, the linear part and the bilinear one
    :math:`c_j = s\langle Q\delta_i, K\delta_j\rangle`; only the P-centred change counts. New weights are
    :math:`Pe^a/Z` with :math:`e^a = 1+a+r`. With :math:`f_j = |v_j - o_i|`, :math:`|a_j|\le\alpha_j`,
    :math:`\kappa = \tfrac13(2+e^{\max\alpha})`, :math:`s^2\ge\sum Pa^2`, :math:`\lambda^2\ge\sum Pfa^2`,
    :math:`w_j\ge|V\delta_j|` and :math:`DD^\top` the covariance :math:`\sum P(v-o)(v-o)^\top`, the remainder of Theorem
    11 is at most

    .. math:: \underbrace{\sum Pf|c| + \tfrac12\kappa\lambda^2
              + \tfrac12\kappa s^2\min\bigl(\sum Pf\alpha, \|D\|s\bigr)}_{\text{old values}}
              + \underbrace{\sum P\bigl(\alpha + \tfrac12\kappa\max(\alpha^2, s^2)\bigr)w}_{\text{new values}} .

    However far scores move, the output stays in the hull of the new values: the remainder is also at most
    :math:`\max_j(f_j + w_j)` and the linear part. The second order is
    :math:`\sum P(v-o)\bigl(c + \tfrac12\ell^2\bigr) + \sum P\ell\,V\delta`.
    """

    name = "attention"

    def __init__(self, f: Attention, X: Float[Tensor, "n d"], row: int | None = None) -> None:
        """Evaluate attention at ``X``.

        Args:
            f: The attention.
            X: Its input.
            row: The one row of its output that is used later; all of them by default.

        Raises:
            AssumptionError: If scores are not bilinear in the tokens.
        """
        for name in ("softcap", "query_norm", "key_norm", "sink"):
            if getattr(f, name) is not None:
                raise AssumptionError(
                    f"certificates need scores that are bilinear in the tokens; this attention has a {name}.",
                    field="classifier",
                )
        jacobian = f.jacobian(X)
        if jacobian.distances is not None:
            raise AssumptionError(
                "certificates need scores that are bilinear in the tokens; this attention has learned distances.",
                field="classifier",
            )
        layout, pattern = jacobian.projections.layout, jacobian.pattern
        self._projections, self._shared, self._scale = jacobian.projections, layout.shared, f.score_scale
        P = X.new_zeros(layout.groups, layout.shared, len(X), len(X))
        visible = P.bool()
        for tile, part, _slope in pattern.weights():
            P[..., tile.rows, tile.columns] = unstack(part, tile)
            # A weight that underflows is not hidden: its score may grow. So masks are read from scores, not weights.
            masked, _slope = pattern.scores.tile(torch.zeros_like(pattern.q), torch.zeros_like(pattern.k), tile)
            visible[..., tile.rows, tile.columns] = unstack(masked, tile) > -torch.inf
        self._row = row
        self._P, self._visible = self._rows(P.flatten(0, 1)), self._rows(visible.flatten(0, 1))
        self._query = self._rows(pattern.q.flatten(0, 1))  # scaled
        self._key, self._v = self._by_head(pattern.k), self._by_head(pattern.v)
        deviations = self._v[:, None] - (self._P @ self._v)[:, :, None]  # v − o: heads, rows, columns, v
        # |ΣP(v − o)x| ≤ ‖D‖(ΣPx²)^½ is sharper than ΣPf|x| where the values of many tokens differ in direction.
        self._f = deviations.norm(dim=-1)
        self._D = largest_norms(self._P.sqrt()[..., None] * deviations)
        self._output = jacobian.output
        # All heads of a row are one group: a group for each head would make the table larger, and radii hardly so.
        width = self._v.shape[0] * self._v.shape[2]
        self._root = torch.eye(width, dtype=X.dtype) if self._output is None else matrix_root(self._output)

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._P.shape[1]) + (self._row or 0)

    def directions(self) -> list[Tensor]:
        """Return the columns of the root of the output projection at every token."""
        return [self._rows(at_every_token(self._root, self._P.shape[2]), dim=0)]

    def propagate(self, columns: Float[Tensor, "groups r n d"], ball: UnitBall) -> tuple[Tensor, Tensor]:
        """Return the norms of :class:`AttentionNorms`, and what leaves."""
        dq, dk, dv, ell = self._first_order(columns)
        heads, P = self._output_change(ell, dv), self._P[..., None]
        norms = AttentionNorms(
            query=ball.vector_norms(dq.movedim(-1, 1)).mT,
            key=ball.vector_norms(dk.movedim(-1, 1)).mT,
            w=ball.vector_norms(dv.movedim(-1, 1)).mT,
            s=ball.vector_norms((ell * P.sqrt()).movedim(-1, 1)),
            lam=ball.vector_norms((ell * (P * self._f[..., None]).sqrt()).movedim(-1, 1)),
            linear=ball.vector_norms(heads.movedim(-1, 1)).mT,
            # A masked score may change as it likes: its weight is zero however large it is.
            ell=ball.scalar_norms(torch.where(self._visible[..., None], ell, 0.0).movedim(-1, 1)),
        )
        return torch.cat([part.flatten(1) for part in norms], dim=-1), self._leaving(heads)

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound the remainder of every row."""
        return _all_heads(self._whole_remainder(self._split(norms)))

    def second_order(self, columns: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        """Return the second order of every pair of columns."""
        dq, dk, dv, ell = (part[0] for part in self._first_order(columns))
        _a, _b, factors = packed_pairs(ell.shape[-1])
        heads = ell.new_empty(*dq.shape[:2], self._v.shape[-1], len(factors))
        for head, (P, v) in enumerate(zip(self._P, self._v, strict=True)):
            # ½D² of softmax: ΣP(v − o)y for y = c + ½ℓ². Of c and of ½ℓ² + V the second column of a pair comes first:
            # both are then one product with what the first column does to the query and the scores.
            old = P[..., None] * (v - (P @ v)[:, None])
            of_key = self._scale * (old.mT @ dk[:, head].flatten(1)).unflatten(-1, dk.shape[2:]).transpose(1, 2)
            of_score = 0.5 * old[..., None] * ell[head, :, :, None] + P[..., None, None] * dv[:, head]
            later = torch.cat((of_key, of_score), 1).flatten(2).mT
            every = (later @ torch.cat((dq[:, head], ell[head]), 1)).view(*heads[:, head].shape[:2], -1)
            _add_pairs(every, out=heads[:, head])
        return self._leaving(heads.mul_(0.5 * factors)[None])

    def score_forms(self, columns: Float[Tensor, "1 r n d"], squares: SquaredBall) -> Float[Tensor, "heads rows n"]:
        r"""Return norms of :math:`c_1-\sum Pc_1`, a quadratic form of the word for every pair of tokens."""
        dq, dk, _dv = (part[0] for part in self._projected(columns))
        n, r = len(dk), dk.shape[-1]
        _a, _b, factors = packed_pairs(r)
        found, at_once = torch.zeros_like(self._P), max(1, NUMBERS // (n * r**2))
        # Before the first attention only the query of the word itself moves.
        moved = dq.flatten(1).any(1).nonzero()[:, 0]
        for head, P in enumerate(self._P):
            for rows in moved.split(at_once):
                # a mean over keys is one over scores: they are centred before they meet the query
                keys = dk[:, head] - (P[rows] @ dk[:, head].flatten(1)).view(-1, 1, *dk.shape[2:])
                forms = _add_pairs((dq[rows, head].mT[:, None] @ keys).flatten(2)).mul_(0.5 * self._scale * factors)
                found[head, rows] = squares.scalar_norms(forms.movedim(-1, 0)[None])[0]
        return found

    def third_order_remainder(self, first: Tensor, later: Tensor, forms: Tensor | None = None) -> Tensor:
        r"""Bound :math:`R'`, or the whole remainder and the second order.

        With :math:`\rho\ge|a-\ell_1|`, :math:`|e^a-1-a-\tfrac12a^2|\le q` and :math:`h\ge|e^a/Z-1-a|`, old values
        contribute :math:`\sum Pf(|c-c_1|+\rho(\alpha_1+\tfrac12\rho))` and what the exponential is beyond its second
        order; new values contribute :math:`\sum P(\rho+h)w+\sum P\alpha_1w'`.
        """
        one, rest, whole = self._split(first), self._split(later), self._split(first + later)
        c1 = self._bilinear(one.query, one.key)
        c_later = self._bilinear(rest.query, whole.key) + self._bilinear(one.query, rest.key)  # c − c₁
        # c₁ is a quadratic form of the word, whose norm is less than a product of two lengths; c − c₁ is not known so
        # well, and a mean that is subtracted may have either sign.
        c = (self._centred(c1) if forms is None else forms) + self._centred(c_later)
        change = self._score_change(one, rest, whole, c, c_later)
        found = self._old_values(one, rest, whole, change) + self._new_values(one, rest, whole, change)
        # Far out the third-order bound exceeds the sum of the bounds on the whole remainder and on the second order.
        second = (self._P * self._f * c1).sum(-1) + 0.5 * one.lam.square()
        second = second + ((self._P * one.ell) @ one.w[..., None])[..., 0]
        both = self._whole_remainder(whole) + second
        small = change.alpha.amax(-1) < LARGEST_CHANGE
        return _all_heads(torch.where(small, torch.minimum(found, both), both))

    def _score_change(
        self, one: AttentionNorms, rest: AttentionNorms, whole: AttentionNorms, c: Tensor, c_later: Tensor
    ) -> "ScoreChange":
        """Bound how scores and weights change, from bounds on c and on c − c₁."""
        rho = torch.where(self._visible, rest.ell + c, 0.0)
        alpha = one.ell + rho
        s, lam = self._root_mean_squares(whole, c, alpha)
        # Beyond LARGEST_CHANGE exponentials are not used: clamping keeps them finite.
        top, growth = alpha.amax(-1).clamp_max(LARGEST_CHANGE), alpha.clamp_max(LARGEST_CHANGE).exp()
        kappa, r = (2 + top.exp()) / 3, (2 + growth) / 6 * alpha.square()
        excess = torch.minimum(0.5 * kappa * s.square(), (self._P * r).sum(-1))  # Z − 1
        share = excess / (1 + excess)  # 1 − 1/Z
        return ScoreChange(c, c_later, rho, alpha, s, lam, top, growth, kappa, r, share)

    def _old_values(
        self, one: AttentionNorms, rest: AttentionNorms, whole: AttentionNorms, change: "ScoreChange"
    ) -> Float[Tensor, "heads rows"]:
        r"""Bound :math:`|\sum P(v-o)(c-c_1)|`, :math:`\tfrac12|\sum P(v-o)(a^2-\ell_1^2)|`, and the third order."""
        rho, alpha, r, share, top = change.rho, change.alpha, change.r, change.share, change.top
        _s, lam = self._root_mean_squares(rest, change.c, rho)
        # ½|a² − ℓ₁²| ≤ ρ(α₁ + ½ρ) for each token, or by Cauchy–Schwarz for all of them.
        squares = torch.minimum(self._moment(rho * (one.ell + 0.5 * rho)), one.lam * lam + 0.5 * lam.square())
        # |o' − o|: the mean of a and that of r
        mean = self._mean_change(whole, change.s, change.c, alpha)
        mean = mean + torch.minimum(0.5 * change.kappa * change.lam.square(), self._moment(r))
        q = (3 + change.growth) / 24 * alpha**3
        cubes = torch.minimum(self._moment(q), (3 + top.exp()) / 24 * top * change.lam.square())
        thirds = cubes + share * mean
        # e^a beyond its second order and what Z takes off have the sign of a: the longer of the two bounds both.
        thirds = torch.minimum(thirds, self._moment(torch.maximum(q, share[..., None] * (alpha + r))))
        return self._moment(change.c_later) + squares + thirds

    def _new_values(
        self, one: AttentionNorms, rest: AttentionNorms, whole: AttentionNorms, change: "ScoreChange"
    ) -> Float[Tensor, "heads rows"]:
        r"""Bound :math:`|\sum(P'-P)V\delta-\sum P\ell_1V\delta_1|`."""
        # e^a/Z − 1 − a = r − (1 − 1/Z)e^a is a difference of two positive numbers.
        h = torch.maximum(change.r, change.share[..., None] * change.growth)
        values = (self._P * (change.rho + h)) @ whole.w[..., None] + (self._P * one.ell) @ rest.w[..., None]
        return values[..., 0]

    def _whole_remainder(self, norms: AttentionNorms) -> Float[Tensor, "heads rows"]:
        """Bound the whole remainder of every row of every head, as the class says."""
        c = self._bilinear(norms.query, norms.key)
        centred = self._centred(c)
        alpha = torch.where(self._visible, norms.ell + centred, 0.0)
        kappa = (2 + alpha.amax(-1).clamp_max(LARGEST_CHANGE).exp()) / 3
        s, lam = self._root_mean_squares(norms, centred, alpha)
        r = 0.5 * (2 + alpha.clamp_max(LARGEST_CHANGE).exp()) / 3 * alpha.square()
        # r ≤ ½κa² with one κ for the row uses λ, which is sharper than lengths; with a κ for each token, α.
        old_r = torch.minimum(0.5 * kappa * lam.square(), self._moment(r))
        old_mean = 0.5 * kappa * s.square() * self._mean_change(norms, s, c, alpha)
        # |P' − P| = P|a + r − (Z − 1)|/Z, where r and Z − 1 are positive: the larger of the two counts.
        new_weights = self._P * (alpha + torch.maximum(r, (0.5 * kappa * s.square())[..., None]))
        found = self._moment(c) + old_r + old_mean + (new_weights @ norms.w[..., None])[..., 0]
        # The old output plus the linear part is what the remainder is measured from.
        hull = torch.where(self._visible, self._f + norms.w[:, None, :], 0.0).amax(-1) + norms.linear
        return torch.where(alpha.amax(-1) < LARGEST_CHANGE, torch.minimum(found, hull), hull)

    def _bilinear(self, q: Float[Tensor, "heads rows"], k: Float[Tensor, "heads n"]) -> Float[Tensor, "heads rows n"]:
        r"""Bound :math:`|s\langle Q\delta_i,K\delta_j\rangle|` by lengths."""
        return abs(self._scale) * q[:, :, None] * k[:, None, :]

    def _centred(self, c: Float[Tensor, "heads rows n"]) -> Float[Tensor, "heads rows n"]:
        r"""Bound :math:`|c-\sum Pc|`."""
        return c + (self._P * c).sum(-1, keepdim=True)

    def _moment(self, x: Float[Tensor, "heads rows n"]) -> Float[Tensor, "heads rows"]:
        r"""Bound :math:`|\sum P(v-o)y|` over all :math:`|y_j|\le x_j`, by lengths or by the covariance."""
        lengths = (self._P * self._f * x).sum(-1)
        return torch.minimum(lengths, self._D * (self._P * x.square()).sum(-1).sqrt())

    def _mean_change(self, norms: AttentionNorms, s: Tensor, c: Tensor, alpha: Tensor) -> Float[Tensor, "heads rows"]:
        r"""Bound :math:`|\sum P(v-o)a|`: by lengths, by the covariance, or by its linear part and c."""
        lengths = torch.minimum((self._P * self._f * alpha).sum(-1), self._D * s)
        linear = norms.linear + (self._P @ norms.w[..., None])[..., 0] + self._moment(c)
        return torch.minimum(lengths, linear)

    def _root_mean_squares(self, norms: AttentionNorms, c: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        r"""Bound :math:`s` and :math:`\lambda` of :math:`a = \ell+c`: as a sum, or from :math:`|a_j|\le\alpha_j`."""
        # A norm is subadditive, so that parts add up; but α already holds the smaller of two bounds for every token.
        Pf = self._P * self._f
        s = torch.minimum(norms.s + (self._P * c.square()).sum(-1).sqrt(), (self._P * alpha.square()).sum(-1).sqrt())
        lam = torch.minimum(norms.lam + (Pf * c.square()).sum(-1).sqrt(), (Pf * alpha.square()).sum(-1).sqrt())
        return s, lam

    def _projected(self, columns: Float[Tensor, "groups r n d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the changes of queries, keys and values: groups, tokens, heads, coordinates, and columns last."""
        projections = self._projections
        if projections.rotation is None and all(transform is None for transform in projections.transforms):
            # products that leave columns one behind another, and queries of no row that is not used
            x, layout = columns.movedim(1, -1), projections.layout
            counts, widths = (layout.heads, layout.groups, layout.groups), (layout.k, layout.k, layout.v)
            sizes = [count * width for count, width in zip(counts, widths, strict=True)]
            weights = zip(projections.weight.split(sizes), counts, (self._rows(x, dim=1), x, x), strict=True)
            dq, dk, dv = ((weight @ y).unflatten(-2, (count, -1)) for weight, count, y in weights)
        else:
            dq, dk, dv = (part.permute(0, 3, 2, 4, 1) for part in projections.jvp(columns))
            dq = self._rows(dq, dim=1)
        if self._shared > 1:
            dk, dv = dk.repeat_interleave(self._shared, 2), dv.repeat_interleave(self._shared, 2)
        return dq, dk, dv

    def _first_order(self, columns: Float[Tensor, "groups r n d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return also the first-order changes of centred scores: groups, heads, rows, tokens, columns."""
        dq, dk, dv = self._projected(columns)
        ell = dq.new_empty(len(dq), *self._P.shape, dq.shape[-1])
        # Head by head: products of all heads at once would repeat keys and queries for every column.
        for head, P in enumerate(self._P):
            of_query = (self._scale * self._key[head]) @ dq[:, :, head]
            scores = torch.add(of_query, (self._query[head] @ dk[:, :, head]).transpose(1, 2), out=ell[:, head])
            scores -= P[:, None] @ scores
        return dq, dk, dv, ell

    def _output_change(
        self, ell: Float[Tensor, "groups heads rows n r"], dv: Float[Tensor, "groups n heads v r"]
    ) -> Float[Tensor, "groups rows heads v r"]:
        """Return the first-order change of the outputs of heads."""
        found = dv.new_empty(len(dv), self._P.shape[1], *dv.shape[2:])
        for head, P in enumerate(self._P):
            # Scores are centred, so that Σ P ℓ (v − o) = Σ P ℓ v.
            weighted = (P[:, None] * self._v[head].mT) @ ell[:, head]
            torch.add(weighted, (P @ dv[:, :, head].flatten(2)).view_as(weighted), out=found[:, :, head])
        return found

    def _leaving(self, heads: Float[Tensor, "groups rows heads v r"]) -> Float[Tensor, "groups r n out"]:
        """Return what leaves, of outputs of heads; zero at rows that are not used."""
        leaving = heads.flatten(2, 3)
        leaving = leaving if self._output is None else self._output @ leaving
        if self._row is not None:
            rows = leaving.new_zeros(len(leaving), self._P.shape[2], *leaving.shape[2:])
            rows[:, self._row] = leaving[:, 0]
            leaving = rows
        return leaving.movedim(-1, 1)

    def _split(self, norms: Float[Tensor, " norms"]) -> AttentionNorms:
        heads, rows, n = self._P.shape
        every = [heads * count for count in (rows, n, n, rows, rows, rows)]
        *parts, ell = norms.split([*every, heads * rows * n])
        query, key, w, s, lam, linear = (part.view(heads, -1) for part in parts)
        return AttentionNorms(query, key, w, s, lam, linear, ell.view_as(self._P))

    def _rows(self, x: Tensor, dim: int = -2) -> Tensor:
        """Return the rows of the output that are used later."""
        return x if self._row is None else x.narrow(dim, self._row, 1)

    def _by_head(self, x: Float[Tensor, "*more groups n k"]) -> Float[Tensor, "*more heads n k"]:
        """Repeat the keys or values of a group for each of its heads."""
        return x if self._shared == 1 else x.repeat_interleave(self._shared, -3)


class ScoreChange(NamedTuple):
    r"""Bounds on the change of the scores of every row, and on its new weights :math:`Pe^a/Z`.

    Attributes:
        c: :math:`|c-\sum Pc|`.
        c_later: :math:`|c-c_1|`.
        rho: :math:`\rho\ge|a-\ell_1|`.
        alpha: :math:`\alpha\ge|a|`.
        s: :math:`(\sum Pa^2)^{1/2}`.
        lam: :math:`(\sum Pfa^2)^{1/2}`.
        top: The largest α of a row.
        growth: :math:`e^\alpha`.
        kappa: κ.
        r: :math:`e^a-1-a`.
        share: :math:`1-1/Z`.
    """

    c: Float[Tensor, "heads rows n"]
    c_later: Float[Tensor, "heads rows n"]
    rho: Float[Tensor, "heads rows n"]
    alpha: Float[Tensor, "heads rows n"]
    s: Float[Tensor, "heads rows"]
    lam: Float[Tensor, "heads rows"]
    top: Float[Tensor, "heads rows"]
    growth: Float[Tensor, "heads rows n"]
    kappa: Float[Tensor, "heads rows"]
    r: Float[Tensor, "heads rows n"]
    share: Float[Tensor, "heads rows"]


def _add_pairs(bilinear: Float[Tensor, "*more squares"], out: Tensor | None = None) -> Float[Tensor, "*more pairs"]:
    """Return B(a, b) + B(b, a) for all pairs of columns, of bilinear maps at every two columns."""
    r = round(bilinear.shape[-1] ** 0.5)
    a, b, _factors = packed_pairs(r)
    return torch.add(bilinear.index_select(-1, a * r + b), bilinear.index_select(-1, b * r + a), out=out)


def _all_heads(by_head: Float[Tensor, "heads rows"]) -> Float[Tensor, " rows"]:
    """Bound all heads of a row side by side: the root of the sum of their squares."""
    return by_head.norm(dim=0)
