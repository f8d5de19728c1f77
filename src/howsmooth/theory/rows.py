"""At one input: a certificate for all heads at once, row by row."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.doubt import UNIT, Doubt, outputs
from howsmooth.theory.positive import positive_norm
from howsmooth.theory.rounding import NOTHING, safe_norm
from howsmooth.theory.row_grams import row_squares
from howsmooth.theory.traces import largest_norms
from howsmooth.theory.views import View

# So many blocks of the second term are looked at closely, at most, so many at once; others have their Frobenius norm.
BLOCKS, AT_ONCE = 32, 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    r"""All heads at n tokens.

    Attributes:
        P: Attention weights.
        g: :math:`\partial S_{ij}/\partial x_j = A_hx_i + K_h^\top b_h`, the same for every j.
        y: Values :math:`W_hV_hx_j`.
        B: :math:`W_hV_h`.
        doubt: How far all this may be from what is true.
    """

    P: Float[Tensor, "heads n n"]
    g: Float[Tensor, "heads n d"]
    y: Float[Tensor, "heads n out"]
    B: Float[Tensor, "heads out d"]
    doubt: Doubt

    @classmethod
    def of(cls, views: list[View]) -> "Rows":
        """Put the heads beside each other; concatenated heads have outputs of their own."""
        W = outputs(views)
        return cls(
            P=torch.stack([view.P for view in views]),
            g=torch.stack([view.q @ view.head.K for view in views]),
            # a common shift changes no difference, and what is small loses less
            y=torch.stack([(view.y - view.y.mean(0)) @ w.mT for view, w in zip(views, W, strict=True)]),
            B=torch.stack([w @ view.head.V for view, w in zip(views, W, strict=True)]),
            doubt=Doubt.of(views),
        )

    def by_rows(self, views: list[View]) -> float:
        r"""Bound the first and the third term together: the squares of the norms of their rows add up."""
        lost, most = self.doubt.of_third()
        first = self.doubt.of_rows()
        largest = (self.doubt.values[:, None] * (1 + UNIT * self.P.shape[1])).sum() + most
        rows = torch.minimum(row_squares(views).sqrt() + first + lost, largest)
        # pulls whose squares are too small for a float
        rows = rows + NOTHING * float(self.doubt.reach.sum()) * (1 + float(self.doubt.pull.max()))
        return (1 + 16 * len(rows) * UNIT) * float(rows.norm())

    def by_blocks(self, views: list[View]) -> float:
        r"""Bound both terms one by one: the third by the matrix of the norms of its blocks.

        Block (i, j) is :math:`\sum_hP^h_{ij}(y^h_j-\bar y^h_i){g^h_i}^\top`. Where rows attend to tokens of their own,
        this is much less than adding up their squares.
        """
        doubt = self.doubt
        blocks = torch.zeros_like(self.P[0])
        for h, view in enumerate(views):
            y = view.mixed().y
            far = torch.cdist(view.P @ y, y, compute_mode="donot_use_mm_for_euclid_dist") * (1 + 64 * UNIT * len(y))
            change = doubt.change[h, :, None]
            far = (far + 4 * doubt.wrong[h] + change * doubt.reach[h]).clamp_max(2 * doubt.reach[h])
            # a weight that is wrong by a share of c is wrong by c at most
            blocks += (view.P + change).clamp_max(1.0) * far * doubt.pull[h, :, None]
        return self._first() + positive_norm(blocks)

    def _first(self) -> float:
        r"""Bound :math:`\|\sum_hP^h\otimes B_h\|`: heads apart, or what they share and what they do not.

        With :math:`\bar P` the mean over heads, the sum is
        :math:`\bar P\otimes\sum_hB_h + \sum_h(P^h-\bar P)\otimes B_h`, and the second part is at most
        :math:`\|[B_1\cdots B_H]\|\,\|(P^h-\bar P)_h\|`.
        """
        mean, doubt = self.P.mean(0), self.doubt
        shared = safe_norm(mean) * safe_norm(self.B.sum(0))
        beside = safe_norm(self.B.transpose(0, 1).flatten(1)) * safe_norm((self.P - mean).flatten(0, 1))
        return min(float((doubt.norms * doubt.values).sum()), shared + beside + doubt.of_weights())


def second_term(views: list[View]) -> Float[Tensor, " n"]:
    r"""Bound :math:`\|\sum_hW_hV_hC_i^hA_h\|` for every row i.

    All enter by the Frobenius norm; the largest are looked at closely until none of the others can be larger.
    """
    W = torch.cat(outputs(views), dim=1)
    Q = torch.cat([view.head.Q for view in views])
    covariance = torch.stack([view.covariance() for view in views], dim=1)  # n, heads, v, k
    heads, v, k = covariance.shape[1:]
    inner = (W.mT @ W).reshape(heads, v, heads, v).transpose(1, 2)
    outer = (Q @ Q.mT).reshape(heads, k, heads, k).transpose(1, 2)
    square = torch.zeros(len(covariance), dtype=W.dtype)
    for h in range(heads):
        for m in range(heads):
            square += ((inner[m, h] @ covariance[:, h] @ outer[h, m]) * covariance[:, m]).sum((1, 2))
    whole = covariance.square().sum((1, 2, 3)).sqrt() * W.norm() * Q.norm()
    lost = 8 * (heads * (v + k) + sum(W.shape) + sum(Q.shape)) * UNIT
    # heads that cancel leave the rounding of a square, whose root is much larger
    size = (square.clamp_min(0) + lost * whole.square()).sqrt()
    known = torch.tensor(0.0, dtype=W.dtype)
    for rows in size.argsort(descending=True)[:BLOCKS].split(AT_ONCE):
        if bool(size[rows[0]] <= known):
            break
        mixed = torch.einsum("ohv,nhvk->nohk", W.reshape(-1, heads, v), covariance[rows]).flatten(2)
        size[rows] = torch.minimum(size[rows], largest_norms(mixed @ Q, squarings=2) + lost * whole[rows])
        known = torch.maximum(known, size[rows].max())
    return size


def rows_upper(views: list[View]) -> float:
    """Return the certificate: the second term, block by block, and the other two in the better of two ways.

    It is infinite where numbers leave the range of floats.
    """
    try:
        rows = Rows.of(views)
        lost, most = rows.doubt.of_second()
        second = float(torch.minimum(second_term(views) + lost, most).max())
        others = [rows.by_rows(views), rows.by_blocks(views)]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # such numbers have no eigenvalues
        return math.inf
    found = second + min(math.inf if math.isnan(x) else x for x in others)
    return math.inf if math.isnan(found) else found
