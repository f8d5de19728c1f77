"""At one input: a certificate for all heads at once, row by row."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.doubt import Doubt, outputs
from howsmooth.theory.heads import short
from howsmooth.theory.positive import positive_norm
from howsmooth.theory.rounding import NOTHING, UNIT, safe_norm
from howsmooth.theory.row_grams import row_squares
from howsmooth.theory.second import second_term
from howsmooth.theory.views import View


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    r"""All heads at n tokens.

    Attributes:
        P: Attention weights.
        B: :math:`W_hV_h`.
        beside: All :math:`W_hV_h` beside each other, up to an isometry.
        doubt: How far all this may be from what is true.
    """

    P: Float[Tensor, "heads n n"]
    B: Float[Tensor, "heads out d"]
    beside: Float[Tensor, "out r"]
    doubt: Doubt

    @classmethod
    def of(cls, views: list[View]) -> "Rows":
        """Put the heads beside each other; concatenated heads have outputs of their own."""
        W = outputs(views)
        return cls(
            P=torch.stack([view.P for view in views]),
            B=torch.stack([w @ view.head.V for view, w in zip(views, W, strict=True)]),
            beside=torch.cat([w @ short(view.head.V) for view, w in zip(views, W, strict=True)], dim=1),
            doubt=Doubt.of(views),
        )

    def by_rows(self, views: list[View], *, beaten: float = math.inf) -> float:
        r"""Bound the first and the third term together: the squares of the norms of their rows add up.

        Rows are not looked at any further once that is more than ``beaten``.
        """
        lost, most = self.doubt.of_third()
        first = self.doubt.of_rows()
        largest = self.doubt.values.sum() + most
        rows = torch.minimum(row_squares(views, beaten=beaten).sqrt() + first + lost, largest)
        # pulls whose squares are too small for a float
        rows = rows + NOTHING * float(self.doubt.reach.sum())
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
        beside = (safe_norm(self.beside) + 2 * float(doubt.lost.sum())) * safe_norm((self.P - mean).flatten(0, 1))
        return min(float((doubt.norms * doubt.values).sum()), shared + beside + doubt.of_weights())


def rows_upper(views: list[View]) -> float:
    """Return the certificate: the second term, block by block, and the other two in the better of two ways.

    It is infinite where numbers leave the range of floats.
    """
    try:
        rows = Rows.of(views)
        lost, most = rows.doubt.of_second()
        second = float(torch.minimum(second_term(views) + lost, most).max())
        by_blocks = rows.by_blocks(views)
        others = [by_blocks, rows.by_rows(views, beaten=math.inf if math.isnan(by_blocks) else by_blocks)]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # such numbers have no eigenvalues
        return math.inf
    found = second + min(math.inf if math.isnan(x) else x for x in others)
    return math.inf if math.isnan(found) else found
