"""The remainder of attention."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.sizes import Ball, Squares
from howsmooth.certificates.stages import Bent, First, at_every_token, root
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.weighting import unstack
from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms

# Where the exponential of a change of scores is as good as infinite, the hull of the values decides.
MOST = 60.0
# So many pairs of columns meet at once.
PAIRS = 2**10


class AttentionStage(Bent):
    r"""Attention at tokens x; every row is a group of its own, along :math:`B = (W_OW_O^\top)^{1/2}`.

    Heads side by side are no longer than the root of the sum of their squares.

    Scores of the row change by :math:`a = \ell + c`, the linear part and the bilinear one
    :math:`c_j = s\langle Q\delta_i, K\delta_j\rangle`; only the P-centred change counts. With
    :math:`f_j = |v_j - o_i|`, :math:`|a_j|\le\alpha_j`, :math:`\kappa = \tfrac13(2+e^{\max\alpha})`,
    :math:`s^2\ge\sum Pa^2`, :math:`\lambda^2\ge\sum Pfa^2`, :math:`w_j\ge|V\delta_j|` and :math:`\|D\|^2` the norm of
    the covariance :math:`\sum P(v-o)(v-o)^\top` the remainder is at most

    .. math:: \sum Pf|c| + \tfrac12\kappa\lambda^2 + \tfrac12\kappa s^2\min\bigl(\sum Pf\alpha, \|D\|s\bigr)
              + \sum_jP_j\bigl(\alpha_j + \tfrac12\kappa\max(\alpha_j^2, s^2)\bigr)w_j .

    New weights are :math:`P_je^{a_j}/Z` with :math:`1\le Z\le1+\tfrac12\kappa s^2`; the first three terms are what the
    weights' change does to the old values beyond :math:`\sum P\ell(v-o)`, the last one what it does to the new ones.
    However far scores move, the output stays in the hull of the values: the remainder is at most
    :math:`\max_j(f_j + w_j)` and the linear part. Of second order is

    .. math:: \sum P(v-o)\bigl(c + \tfrac12\ell^2\bigr) + \sum P\ell\,V\delta .
    """

    name = "attention"

    def __init__(self, f: Attention, X: Float[Tensor, "n d"]) -> None:
        """Look at attention at ``X``.

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
        seen = P.bool()
        for tile, part, _slope in pattern.weights():
            P[..., tile.rows, tile.columns] = unstack(part, tile)
            # a weight below all floats is not hidden: its score may grow
            alike, _slope = pattern.scores.tile(torch.zeros_like(pattern.q), torch.zeros_like(pattern.k), tile)
            seen[..., tile.rows, tile.columns] = unstack(alike, tile) > -torch.inf
        self._P, self._seen = P.flatten(0, 1), seen.flatten(0, 1)
        self._q = pattern.q.flatten(0, 1)  # scaled
        self._k, self._v = self._by_head(pattern.k), self._by_head(pattern.v)
        self._values = self._v[:, None] - (self._P @ self._v)[:, :, None]  # heads, rows, columns, v
        self._far = self._values.norm(dim=-1)
        # how far weights of a given mean square can move the old mean: the root of the covariance of the values
        self._spread = largest_norms(self._P.sqrt()[..., None] * self._values)
        self._output = jacobian.output
        wide = self._v.shape[0] * self._v.shape[2]
        self._root = torch.eye(wide, dtype=X.dtype) if self._output is None else root(self._output)

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._P.shape[1])

    def directions(self) -> list[Tensor]:
        """Return the columns of the root of the output projection at every token."""
        return [at_every_token(self._root, self._P.shape[1])]

    def through(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> tuple[Tensor, Tensor]:
        """Return how far queries, keys, values, scores and outputs move by first order, and what leaves."""
        dq, dk, dv, scores = self._moved(bundle)
        moved = self._mixed(scores, dv)
        parts = (
            ball.vectors(dq),
            ball.vectors(dk),
            ball.vectors(dv),
            ball.vectors(scores * self._P.sqrt()),
            ball.vectors(scores * (self._P * self._far).sqrt()),
            ball.vectors(moved),
            ball.numbers(torch.where(self._seen, scores, 0.0)),
        )
        heads = moved.transpose(-3, -2).flatten(-2)
        pushed = heads if self._output is None else heads @ self._output.mT
        return torch.cat([part.flatten(1) for part in parts], dim=-1), pushed

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the remainder of every row of every head."""
        return self._together(self._all(self._cut(sizes)))

    def second(self, bundle: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        """Return the second order of every pair of columns."""
        dq, dk, dv, scores = (part[0] for part in self._moved(bundle))
        found = []
        for left, right, many, met in self._meeting(dq, dk):
            bent = met + 0.5 * scores[left] * scores[right]
            turned = self._P * (bent - (self._P * bent).sum(-1, keepdim=True))
            both = 0.5 * (self._P * scores[left]) @ dv[right] + 0.5 * (self._P * scores[right]) @ dv[left]
            heads = many * (turned @ self._v + both)
            found.append(heads.transpose(1, 2).flatten(2))
        columns = torch.cat(found)
        return (columns if self._output is None else columns @ self._output.mT)[None]

    def inside(self, bundle: Float[Tensor, "1 r n d"], squares: Squares) -> Float[Tensor, "heads n n"]:
        r"""Return how far queries that meet keys move centred scores: c is a quadratic form of the word itself."""
        dq, dk, _dv = self._projections.jvp(bundle)
        dq, dk, found = dq[0], self._by_head(dk)[0], []
        # head by head: there are as many forms as pairs of tokens
        for head, P in enumerate(self._P):
            meeting = self._meeting(dq[:, head, None], dk[:, head, None])
            forms = [many * (met - (P * met).sum(-1, keepdim=True)) for _left, _right, many, met in meeting]
            found.append(squares.numbers(torch.cat(forms)[None])[0])
        return torch.cat(found)

    def beyond(self, one: Tensor, rest: Tensor, inside: Tensor | None = None) -> Tensor:
        """Bound what is of third order, or all of it."""
        first, other, whole = self._cut(one), self._cut(rest), self._cut(one + rest)
        P = self._P
        # how scores meet by first order of the word, and beyond; a common shift counts in neither
        known, later = self._met(first.q, first.k), self._met(other.q, whole.k) + self._met(first.q, other.k)
        met = (self._centred(known) if inside is None else inside) + self._centred(later)
        # by how much scores differ from what the word itself does to them by first order
        rho = torch.where(self._seen, other.scores + met, 0.0)
        alpha1, alpha = first.scores, first.scores + rho
        s, spread = self._sums(whole, met, alpha)
        _s, apart = self._sums(other, met, rho)
        top, grown = alpha.amax(-1).clamp_max(MOST), alpha.clamp_max(MOST).exp()
        kappa, bent = (2 + top.exp()) / 3, (2 + grown) / 6 * alpha.square()  # r
        weight = torch.minimum(0.5 * kappa * s.square(), (P * bent).sum(-1))  # Z − 1
        share = weight / (1 + weight)  # 1 − 1/Z
        # old values
        squares = torch.minimum(self._old(rho * (alpha1 + 0.5 * rho)), first.spread * apart + 0.5 * apart.square())
        total = self._mean(whole, s, met, alpha) + torch.minimum(0.5 * kappa * spread.square(), self._old(bent))
        cubes = (3 + grown) / 24 * alpha**3
        thirds = torch.minimum(self._old(cubes), (3 + top.exp()) / 24 * top * spread.square()) + share * total
        # what an exponential is beyond its second order, and what the sum of all takes off it, have the sign of a
        one_of_them = torch.maximum(cubes, share[..., None] * (alpha + bent))
        thirds = torch.minimum(thirds, self._old(one_of_them))
        # new values: r and what the sum of all takes are positive
        lost = torch.maximum(bent, share[..., None] * grown)
        values = (P * (rho + lost)) @ whole.w[..., None] + (P * alpha1) @ other.w[..., None]
        found = self._old(later) + squares + thirds + values[..., 0]
        second = (P * self._far * known).sum(-1) + 0.5 * first.spread.square()
        second = second + ((P * alpha1) @ first.w[..., None])[..., 0]
        both = self._all(whole) + second
        return self._together(torch.where(alpha.amax(-1) < MOST, torch.minimum(found, both), both))

    def _all(self, sizes: "Sizes") -> Float[Tensor, "heads n"]:
        P, far = self._P, self._far
        met = self._met(sizes.q, sizes.k)
        centred = self._centred(met)
        alpha = torch.where(self._seen, sizes.scores + centred, 0.0)
        kappa = (2 + alpha.amax(-1).clamp_max(MOST).exp()) / 3
        s, spread = self._sums(sizes, centred, alpha)
        each = 0.5 * (2 + alpha.clamp_max(MOST).exp()) / 3 * alpha.square()
        bent = torch.minimum(0.5 * kappa * spread.square(), self._old(each))
        shift = 0.5 * kappa * s.square() * self._mean(sizes, s, met, alpha)
        weights = P * (alpha + torch.maximum(each, (0.5 * kappa * s.square())[..., None]))
        found = self._old(met) + bent + shift + (weights @ sizes.w[..., None])[..., 0]
        hull = torch.where(self._seen, far + sizes.w[:, None, :], 0.0).amax(-1) + sizes.linear
        return torch.where(alpha.amax(-1) < MOST, torch.minimum(found, hull), hull)

    def _met(self, q: Float[Tensor, "heads n"], k: Float[Tensor, "heads n"]) -> Float[Tensor, "heads n n"]:
        """Bound how much scores change where queries meet keys that move as well."""
        return abs(self._scale) * q[:, :, None] * k[:, None, :]

    def _meeting(
        self, dq: Float[Tensor, "r heads n k"], dk: Float[Tensor, "r heads n k"]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield pairs of columns, what their forms are multiplied by, and how much scores change where they meet."""
        a, b, times = Squares().packed(len(dq))
        for left, right, many in zip(a.split(PAIRS), b.split(PAIRS), times.split(PAIRS), strict=True):
            met = 0.5 * self._scale * (dq[left] @ dk[right].mT + dq[right] @ dk[left].mT)
            yield left, right, many[:, None, None, None], met

    def _centred(self, met: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n n"]:
        """Bound what is left of changes of scores without their mean."""
        return met + (self._P * met).sum(-1, keepdim=True)

    def _old(self, x: Float[Tensor, "heads n n"]) -> Float[Tensor, "heads n"]:
        r"""Bound :math:`|\sum P(v-o)y|` over all :math:`|y_j|\le x_j`, by lengths or by covariances."""
        lengths = (self._P * self._far * x).sum(-1)
        return torch.minimum(lengths, self._spread * (self._P * x.square()).sum(-1).sqrt())

    def _mean(self, sizes: "Sizes", s: Tensor, met: Tensor, alpha: Tensor) -> Float[Tensor, "heads n"]:
        r"""Bound :math:`|\sum P(v-o)a|`: by lengths, by covariances, or by what is linear and by what meets."""
        lengths = torch.minimum((self._P * self._far * alpha).sum(-1), self._spread * s)
        linear = sizes.linear + (self._P @ sizes.w[..., None])[..., 0] + self._old(met)
        return torch.minimum(lengths, linear)

    def _sums(self, sizes: "Sizes", met: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
        """Bound both root mean squares of a change of scores, of which ``met`` is not linear in what enters."""
        weighted = self._P * self._far
        s = torch.minimum(sizes.s + (self._P * met.square()).sum(-1).sqrt(), (self._P * each.square()).sum(-1).sqrt())
        spread = torch.minimum(
            sizes.spread + (weighted * met.square()).sum(-1).sqrt(), (weighted * each.square()).sum(-1).sqrt()
        )
        return s, spread

    def _moved(self, bundle: Float[Tensor, "groups r n d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return how queries, keys, values and centred scores move by first order."""
        dq, dk, dv = self._projections.jvp(bundle)
        dk, dv = self._by_head(dk), self._by_head(dv)
        heads, n = self._P.shape[:2]
        scores = dq.new_empty(heads, *dq.shape[:-3], n, n)
        # head by head: products of all heads at once would repeat keys and queries for every column
        for head, (each, P) in enumerate(zip(scores, self._P, strict=True)):
            asked = dq[..., head, :, :].flatten(0, -2) @ (self._scale * self._k[head]).mT
            told = dk[..., head, :, :].flatten(0, -2) @ self._q[head].mT
            torch.add(asked.view_as(each), told.view_as(each).mT, out=each)
            each -= (P * each).sum(-1, keepdim=True)
        return dq, dk, dv, scores.movedim(0, -3)

    def _mixed(self, scores: Float[Tensor, "*more heads n n"], dv: Tensor) -> Float[Tensor, "*more heads n v"]:
        """Return how outputs of heads move by first order, stored side by side."""
        heads, n, v = self._v.shape
        found = dv.new_empty(*dv.shape[:-3], n, heads, v)
        for head, P in enumerate(self._P):
            # scores are centred: values count as they are
            weighted = ((P * scores[..., head, :, :]).flatten(0, -2) @ self._v[head]).view(-1, n, v)
            values = dv[..., head, :, :].flatten(0, -3)
            mixed = torch.baddbmm(weighted, P.expand(len(values), n, n), values)
            found[..., head, :] = mixed.view(*dv.shape[:-3], n, v)
        return found.transpose(-3, -2)

    def _cut(self, sizes: Float[Tensor, " sizes"]) -> "Sizes":
        heads, n = self._P.shape[:2]
        *rows, scores = sizes.split([heads * n] * 6 + [heads * n * n])
        q, k, w, s, spread, linear = (part.view(heads, n) for part in rows)
        return Sizes(q, k, w, s, spread, linear, scores.view_as(self._P))

    def _together(self, by_head: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        """Bound all heads of a row side by side."""
        return by_head.norm(dim=0)

    def _by_head(self, x: Float[Tensor, "*more groups n k"]) -> Float[Tensor, "*more heads n k"]:
        """Give every head the keys or values of its group."""
        return x if self._shared == 1 else x.repeat_interleave(self._shared, -3)


class Sizes(NamedTuple):
    """How far queries, keys and values move, scores in two root mean squares, outputs, and single scores."""

    q: Float[Tensor, "heads n"]
    k: Float[Tensor, "heads n"]
    w: Float[Tensor, "heads n"]
    s: Float[Tensor, "heads n"]
    spread: Float[Tensor, "heads n"]
    linear: Float[Tensor, "heads n"]
    scores: Float[Tensor, "heads n n"]
