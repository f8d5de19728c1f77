"""Theorem 3, rows: Gram matrices of the value and key terms of all heads, and their largest eigenvalues."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.linalg.eigenvalue_bounds import CholeskyCertificate
from howsmooth.theory.linalg.matrix_norms import UNIT

# So many products of numbers are affordable for all rows.
AFFORDABLE = 2e10
# So many numbers of a batch of rows are held at once.
NUMBERS = 2**23


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGramMatrices:
    r"""Row i of both terms maps E to :math:`\sum_jW(\sum_hP^h_{ij}V_he_j + a^h_j\langle g^h,e_j\rangle)`.

    With :math:`a^h_j = P^h_{ij}(v^h_j-o^h)`, :math:`o^h = \sum_jP^h_{ij}v^h_j` and W the output projections side by
    side, its squared norm is the largest eigenvalue of :math:`WR_iW^\top`, where block (h, k) of :math:`R_i` is

    .. math:: \langle p^h,p^k\rangle V_hV_k^\top + \langle g^h,g^k\rangle\sum_ja^h_j{a^k_j}^\top
              + (V_hg^k)\bigl(\textstyle\sum_jp^h_ja^k_j\bigr)^\top + \bigl(\sum_jp^k_ja^h_j\bigr)(V_kg^h)^\top.

    Attributes:
        P: Attention weights.
        v: Values before the output projection, around their middle.
        o: Their means under the weights.
        g: Score gradients :math:`g^h_i = A_hx_i + K_h^\top b_h`.
        V: Value projections.
        W: Output projections, side by side; columns have lengths between 1/2 and 1, and values the rest.
    """

    P: Float[Tensor, "heads n n"]
    v: Float[Tensor, "heads n v"]
    o: Float[Tensor, "heads n v"]
    g: Float[Tensor, "heads n d"]
    V: Float[Tensor, "heads v d"]
    W: Float[Tensor, "out m"]

    @classmethod
    def of(cls, views: list[HeadAtInput]) -> "RowGramMatrices":
        """Gather the heads."""
        W = torch.cat(outputs(views), dim=1)
        sizes = _lengths(W)
        width = sizes.view(len(views), 1, -1)
        P, v = torch.stack([view.P for view in views]), torch.stack([view.y - view.y.mean(0) for view in views]) * width
        return cls(
            P=P,
            v=v,
            o=P @ v,
            g=torch.stack([view.q @ view.head.K for view in views]),
            V=torch.stack([view.head.V for view in views]) * width.mT,
            W=W / sizes,
        )

    @property
    def cost(self) -> float:
        """How many products of numbers all rows take: half a product of matrices, and a Cholesky factor."""
        n, m = self.P.shape[1], self.W.shape[1]
        return n * m**2 * (n / 2 + m / 3)

    def blocks(self, rows: Tensor, into: Float[Tensor, "most m m"]) -> Float[Tensor, "rows m m"]:
        r"""Return :math:`R_i` for some rows, written over ``into``: new pages of memory take longer than numbers.

        With :math:`w_j = p^h_jp^k_j`, :math:`s^h = \sum_jw_jv^h_j`, :math:`\gamma = \langle g^h,g^k\rangle` and
        :math:`c^h = s^h-\langle p^h,p^k\rangle o^h`, which is :math:`\sum_jp^k_ja^h_j`, block (h, k) is

        .. math:: \langle p^h,p^k\rangle V_hV_k^\top + \gamma\Bigl(\sum_jw_jv^h_j{v^k_j}^\top - c^h{o^k}^\top
                  - o^h{s^k}^\top\Bigr) + (V_hg^k){c^k}^\top + c^h(V_kg^h)^\top.
        """
        heads, width = len(self.v), self.v.shape[2]
        P, o, g = self.P[:, rows], self.o[:, rows], self.g[:, rows]
        overlap = torch.einsum("hij,kij->hki", P, P)[..., None]  # ⟨p^h, p^k⟩
        gamma = torch.einsum("hid,kid->hki", g, g)[..., None]
        Vg = torch.einsum("hvd,kid->hkiv", self.V, g)  # V_h g^k
        R = into[: len(rows)].view(len(rows), heads, width, heads, width)
        for h in range(heads):
            for k in range(h, heads):
                w, inner, pp = P[h] * P[k], gamma[h, k], overlap[h, k]
                # ⟨p^h, p^k⟩ V_hV_kᵀ + γ Σ_j w_j v^h_j v^k_jᵀ: the large sum, one product of matrices for all rows
                pairs = (self.v[h][:, :, None] * self.v[k][:, None, :]).flatten(1)
                block = pp * (self.V[h] @ self.V[k].mT).flatten()
                block = block.addmm_(w * inner, pairs).unflatten(1, (width, width))
                s_k = w @ self.v[k]
                c_h, c_k = w @ self.v[h] - pp * o[h], s_k - pp * o[k]
                # three products of a column and a row, gathered before they are added to the large sum:
                # c^h (V_kg^h − γo^k)ᵀ + (V_hg^k) c^kᵀ − γo^h s^kᵀ
                columns = torch.stack([c_h, Vg[h, k], -inner * o[h]], -1)
                block.baddbmm_(columns, torch.stack([Vg[k, h] - inner * o[k], c_k, s_k], -2))
                R[:, h, :, k] = block
                R[:, k, :, h] = block.mT
        return into[: len(rows)]

    def sizes(self) -> Float[Tensor, " n"]:
        r"""Bound the sum of the absolute values of everything that :math:`WR_iW^\top` is added up from."""
        p, g, v = self.P.norm(dim=-1), self.g.norm(dim=-1), self.v.norm(dim=-1).amax(-1)
        V = self.V.flatten(1).norm(dim=-1)
        return (p * (V[:, None] + 2 * v[:, None] * g)).sum(0).square() * self.W.square().sum()


def row_norms_squared(views: list[HeadAtInput], *, beaten: float = math.inf) -> Float[Tensor, " n"]:
    """Bound the squared norm of every row of the value and the key term together.

    All are infinite where that takes too long, or where their sum exceeds the square of ``beaten``.
    """
    grams = RowGramMatrices.of(views)
    n, m = grams.P.shape[1], grams.W.shape[1]
    if grams.cost > AFFORDABLE:
        return torch.full((n,), torch.inf, dtype=torch.float64)
    error = 32 * (n + grams.V.shape[2] + 2 * m) * UNIT * grams.sizes()
    certificate, batches = CholeskyCertificate.of(grams.W), torch.arange(n).split(max(1, NUMBERS // m**2))
    into, found = grams.W.new_empty(len(batches[0]), m, m), torch.zeros_like(error)
    for rows in batches:
        found[rows] = certificate.eigenvalues(grams.blocks(rows, into), error[rows])
        if float(found.sum()) > beaten**2:
            return torch.full_like(found, torch.inf)
    return found


def _lengths(W: Float[Tensor, "out m"]) -> Float[Tensor, " m"]:
    """Return the lengths of the columns as powers of two, so that dividing by them rounds nothing."""

    def power(x: Tensor) -> Tensor:
        return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent)  # one for zero

    largest = power(W.abs().amax(0))
    return largest * power((W / largest).norm(dim=0))
