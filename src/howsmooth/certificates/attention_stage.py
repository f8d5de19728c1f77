"""The remainder of attention."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.stages import First, Stage
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.pattern import unstack

# Where the exponential of a change of scores is as good as infinite, the hull of the values decides.
MOST = 60.0


class AttentionStage(Stage):
    r"""Attention at tokens x; every row i of every head h is a group of its own, along :math:`B = W_h`.

    Scores of the row change by :math:`a = \ell + c`, the linear part and the bilinear one
    :math:`c_j = s\langle Q\delta_i, K\delta_j\rangle`; only the P-centred change counts. With
    :math:`f_j = |v_j - o_i|`, :math:`|a_j|\le\alpha_j`, :math:`\kappa = e^{\max\alpha}`, :math:`s^2\ge\sum Pa^2`,
    :math:`\lambda^2\ge\sum Pfa^2` and :math:`w_j\ge|V\delta_j|` the remainder is at most

    .. math:: \sum Pf|c| + \tfrac12\kappa\lambda^2 + \tfrac12\kappa s^2\sum Pf\alpha
              + \sum_jP_j\bigl(\alpha_j + \tfrac12\kappa\max(\alpha_j^2, s^2)\bigr)w_j .

    New weights are :math:`P_je^{a_j}/Z` with :math:`1\le Z\le1+\tfrac12\kappa s^2`; the first three terms are what the
    weights' change does to the old values beyond :math:`\sum P\ell(v-o)`, the last one what it does to the new ones.
    However far scores move, the output stays in the hull of the values: the remainder is at most
    :math:`\max_j(f_j + w_j)` and the linear part.
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
        for tile, part, _slope in pattern.weights():
            P[..., tile.rows, tile.columns] = unstack(part, tile)
        self._P = P.flatten(0, 1)
        self._q = pattern.q.flatten(0, 1)  # scaled
        self._k, self._v = self._by_head(pattern.k), self._by_head(pattern.v)
        self._values = self._v[:, None] - (self._P @ self._v)[:, :, None]  # heads, rows, columns, v
        self._far = self._values.norm(dim=-1)
        self._output = jacobian.output

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._P.shape[1]).repeat_interleave(self._P.shape[0])

    def directions(self) -> list[Tensor]:
        """Return the columns of every head's output projection at every token."""
        heads, n, v = self._v.shape
        W = torch.eye(heads * v, dtype=self._P.dtype) if self._output is None else self._output
        found = W.new_zeros(n, heads, v, n, W.shape[0])
        every = torch.arange(n)
        found[every, :, :, every] = W.mT.unflatten(0, (heads, v))
        return [found.flatten(0, 1)]

    def seen(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> Float[Tensor, "groups sizes"]:
        """Return how far queries, keys, values, scores and outputs move by first order."""
        dq, dk, dv = self._projections.jvp(bundle)
        dk, dv = self._by_head(dk), self._by_head(dv)
        scores = self._scale * dq @ self._k.mT + self._q @ dk.mT
        scores = scores - (self._P * scores).sum(-1, keepdim=True)
        moved = torch.einsum("grhij,hijv->grhiv", self._P * scores, self._values) + self._P @ dv
        parts = (
            ball.vectors(dq),
            ball.vectors(dk),
            ball.vectors(dv),
            ball.vectors(scores * self._P.sqrt()),
            ball.vectors(scores * (self._P * self._far).sqrt()),
            ball.vectors(moved),
            ball.numbers(torch.where(self._P > 0, scores, 0.0)),
        )
        return torch.cat([part.flatten(1) for part in parts], dim=-1)

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the remainder of every row of every head."""
        heads, n = self._P.shape[:2]
        *by_row, scores = sizes.split([heads * n] * 6 + [heads * n * n])
        q, k, w, s, spread, linear = (part.view(heads, n) for part in by_row)
        P, far = self._P, self._far
        bilinear = self._scale * q[:, :, None] * k[:, None, :]
        mean = (P * bilinear).sum(-1, keepdim=True)
        alpha = torch.where(P > 0, scores.view_as(P) + bilinear + mean, 0.0)
        kappa = alpha.amax(-1).clamp_max(MOST).exp()
        # the bilinear part in the two root mean squares
        s = torch.minimum(s + (P * (bilinear + mean).square()).sum(-1).sqrt(), (P * alpha.square()).sum(-1).sqrt())
        weighted = P * far
        spread = torch.minimum(
            spread + (weighted * (bilinear + mean).square()).sum(-1).sqrt(),
            (weighted * alpha.square()).sum(-1).sqrt(),
        )
        bent = 0.5 * kappa * (spread.square() + s.square() * (weighted * alpha).sum(-1))
        values = (P * (alpha + 0.5 * kappa[..., None] * torch.maximum(alpha.square(), s.square()[..., None]))) @ w[
            ..., None
        ]
        found = (weighted * bilinear).sum(-1) + bent + values[..., 0]
        hull = torch.where(P > 0, far + w[:, None, :], 0.0).amax(-1) + linear
        # groups are tokens first, then heads
        return torch.where(alpha.amax(-1) < MOST, torch.minimum(found, hull), hull).mT.flatten()

    def _by_head(self, x: Float[Tensor, "*more groups n k"]) -> Float[Tensor, "*more heads n k"]:
        """Give every head the keys or values of its group."""
        return x.repeat_interleave(self._shared, -3)
