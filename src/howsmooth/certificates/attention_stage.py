r"""The remainder of attention: :ref:`Theorem 11 <attention-remainder>` and its :ref:`second order <second-order>`."""

from collections.abc import Iterator
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
# At most this many pairs of columns are multiplied at once.
PAIRS = 2**10


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
        heads = self._output_change(ell, dv)
        norms = AttentionNorms(
            query=ball.vector_norms(dq),
            key=ball.vector_norms(dk),
            w=ball.vector_norms(dv),
            s=ball.vector_norms(ell * self._P.sqrt()),
            lam=ball.vector_norms(ell * (self._P * self._f).sqrt()),
            linear=ball.vector_norms(heads),
            # A masked score may change as it likes: its weight is zero however large it is.
            ell=ball.scalar_norms(torch.where(self._visible, ell, 0.0)),
        )
        side_by_side = heads.transpose(-3, -2).flatten(-2)
        leaving = side_by_side if self._output is None else side_by_side @ self._output.mT
        return torch.cat([part.flatten(1) for part in norms], dim=-1), self._at_rows(leaving)

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound the remainder of every row."""
        return _all_heads(self._whole_remainder(self._split(norms)))

    def second_order(self, columns: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        """Return the second order of every pair of columns."""
        dq, dk, dv, ell = (part[0] for part in self._first_order(columns))
        found = []
        for a, b, factors, c in self._bilinear_pairs(dq, dk):
            # ½D² of softmax: P(y − ΣPy) for y = c + ½ℓ², and ℓ is centred already.
            squares = c + 0.5 * ell[a] * ell[b]
            weights = self._P * (squares - (self._P * squares).sum(-1, keepdim=True))
            new_values = 0.5 * (self._P * ell[a]) @ dv[b] + 0.5 * (self._P * ell[b]) @ dv[a]
            heads = factors * (weights @ self._v + new_values)
            found.append(heads.transpose(1, 2).flatten(2))
        pairs = torch.cat(found)
        return self._at_rows(pairs if self._output is None else pairs @ self._output.mT)[None]

    def score_forms(self, columns: Float[Tensor, "1 r n d"], squares: SquaredBall) -> Float[Tensor, "heads rows n"]:
        r"""Return norms of :math:`c_1-\sum Pc_1`, a quadratic form of the word for every pair of tokens."""
        dq, dk, _dv = self._projections.jvp(columns)
        dq, dk, found = self._rows(dq[0]), self._by_head(dk)[0], []
        # Head by head: there are as many forms as pairs of tokens.
        for head, P in enumerate(self._P):
            pairs = self._bilinear_pairs(dq[:, head, None], dk[:, head, None])
            forms = [factors * (c - (P * c).sum(-1, keepdim=True)) for _a, _b, factors, c in pairs]
            found.append(squares.scalar_norms(torch.cat(forms)[None])[0])
        return torch.cat(found)

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

    def _bilinear_pairs(
        self, dq: Float[Tensor, "r heads rows k"], dk: Float[Tensor, "r heads n k"]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield pairs of columns, the factors of packed forms, and the symmetric form behind c."""
        first, second, factors = packed_pairs(len(dq))
        for a, b, some in zip(first.split(PAIRS), second.split(PAIRS), factors.split(PAIRS), strict=True):
            c = 0.5 * self._scale * (dq[a] @ dk[b].mT + dq[b] @ dk[a].mT)
            yield a, b, some[:, None, None, None], c

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

    def _first_order(self, columns: Float[Tensor, "groups r n d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first-order changes of queries, keys, values and centred scores."""
        dq, dk, dv = self._projections.jvp(columns)
        dq, dk, dv = self._rows(dq), self._by_head(dk), self._by_head(dv)
        ell = dq.new_empty(len(self._P), *dq.shape[:-3], *self._P.shape[1:])
        # Head by head: products of all heads at once would repeat keys and queries for every column.
        for head, (scores, P) in enumerate(zip(ell, self._P, strict=True)):
            of_query = dq[..., head, :, :].flatten(0, -2) @ (self._scale * self._key[head]).mT
            of_key = dk[..., head, :, :].flatten(0, -2) @ self._query[head].mT
            torch.add(of_query.view_as(scores), of_key.view(scores.mT.shape).mT, out=scores)
            scores -= (P * scores).sum(-1, keepdim=True)
        return dq, dk, dv, ell.movedim(0, -3)

    def _output_change(
        self, ell: Float[Tensor, "*more heads rows n"], dv: Float[Tensor, "*more heads n v"]
    ) -> Float[Tensor, "*more heads rows v"]:
        """Return the first-order change of the outputs of heads, stored side by side."""
        heads, rows, v = len(self._P), self._P.shape[1], self._v.shape[-1]
        found = dv.new_empty(*dv.shape[:-3], rows, heads, v)
        for head, P in enumerate(self._P):
            # Scores are centred, so that Σ P ℓ (v − o) = Σ P ℓ v.
            weighted = ((P * ell[..., head, :, :]).flatten(0, -2) @ self._v[head]).view(-1, rows, v)
            values = dv[..., head, :, :].flatten(0, -3)
            mixed = torch.baddbmm(weighted, P.expand(len(values), -1, -1), values)
            found[..., head, :] = mixed.view(*dv.shape[:-3], rows, v)
        return found.transpose(-3, -2)

    def _split(self, norms: Float[Tensor, " norms"]) -> AttentionNorms:
        heads, rows, n = self._P.shape
        every = [heads * count for count in (rows, n, n, rows, rows, rows)]
        *parts, ell = norms.split([*every, heads * rows * n])
        query, key, w, s, lam, linear = (part.view(heads, -1) for part in parts)
        return AttentionNorms(query, key, w, s, lam, linear, ell.view_as(self._P))

    def _rows(self, x: Tensor, dim: int = -2) -> Tensor:
        """Return the rows of the output that are used later."""
        return x if self._row is None else x.narrow(dim, self._row, 1)

    def _at_rows(self, x: Float[Tensor, "*more rows out"]) -> Float[Tensor, "*more n out"]:
        """Put these rows where they stand; zero elsewhere."""
        if self._row is None:
            return x
        found = x.new_zeros(*x.shape[:-2], self._P.shape[2], x.shape[-1])
        found[..., self._row, :] = x[..., 0, :]
        return found

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


def _all_heads(by_head: Float[Tensor, "heads rows"]) -> Float[Tensor, " rows"]:
    """Bound all heads of a row side by side: the root of the sum of their squares."""
    return by_head.norm(dim=0)
