"""Rows of the first and the third term of the derivative, all heads together: Gram matrices, and their eigenvalues."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.doubt import UNIT, outputs
from howsmooth.theory.traces import largest_eigenvalues
from howsmooth.theory.views import View

# So many products of numbers are affordable for all rows; up to the second number the eigenvalues are bounded closely.
AFFORDABLE, CLOSELY = 5e10, 5e9
# So many numbers of a batch of rows are held at once.
NUMBERS = 2**23


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGrams:
    r"""Row i of both terms maps E to :math:`\sum_jW(\sum_hP^h_{ij}V_he_j + a^h_j\langle g^h,e_j\rangle)`.

    With :math:`a^h_j = P^h_{ij}(v^h_j-o^h)`, :math:`o^h = \sum_jP^h_{ij}v^h_j` and W the output projections beside each
    other, its squared norm is the largest eigenvalue of :math:`WR_iW^\top`, where block (h, k) of :math:`R_i` is

    .. math:: \langle p^h,p^k\rangle V_hV_k^\top + \langle g^h,g^k\rangle\sum_ja^h_j{a^k_j}^\top
              + (V_hg^k)\bigl(\textstyle\sum_jp^h_ja^k_j\bigr)^\top + \bigl(\sum_jp^k_ja^h_j\bigr)(V_kg^h)^\top.

    Attributes:
        P: Attention weights.
        v: Values before the output projection, around their middle.
        o: Their means under the weights.
        g: Pulls.
        V: Value projections.
        W: Output projections, beside each other.
    """

    P: Float[Tensor, "heads n n"]
    v: Float[Tensor, "heads n v"]
    o: Float[Tensor, "heads n v"]
    g: Float[Tensor, "heads n d"]
    V: Float[Tensor, "heads v d"]
    W: Float[Tensor, "out m"]

    @classmethod
    def of(cls, views: list[View]) -> "RowGrams":
        """Gather the heads."""
        P, v = torch.stack([view.P for view in views]), torch.stack([view.y - view.y.mean(0) for view in views])
        return cls(
            P=P,
            v=v,
            o=P @ v,
            g=torch.stack([view.q @ view.head.K for view in views]),
            V=torch.stack([view.head.V for view in views]),
            W=torch.cat(outputs(views), dim=1),
        )

    @property
    def cost(self) -> float:
        """How many products of numbers all rows take."""
        n, m = self.P.shape[1], self.W.shape[1]
        return float(n) * m**2 * (n + m)

    def blocks(self, rows: Tensor) -> Float[Tensor, "rows m m"]:
        r"""Return :math:`R_i` for some rows."""
        heads, width = len(self.v), self.v.shape[2]
        P, o, g = self.P[:, rows], self.o[:, rows], self.g[:, rows]
        shared = torch.einsum("hij,kij->hki", P, P)[..., None]
        pulls = torch.einsum("hid,kid->hki", g, g)[..., None]
        stretched = torch.einsum("hvd,kid->hkiv", self.V, g)
        R = P.new_empty(len(rows), heads, width, heads, width)
        for h in range(heads):
            for k in range(h, heads):
                w = P[h] * P[k]
                pairs = (self.v[h][:, :, None] * self.v[k][:, None, :]).flatten(1)
                left, right = w @ self.v[h] - shared[h, k] * o[h], w @ self.v[k]
                answers = right - shared[h, k] * o[k]
                # Σ_j a_j a_jᵀ by its parts; the rank-one ones are gathered before they meet the large sum
                block = (w @ pairs).unflatten(1, (width, width))
                block -= left[:, :, None] * o[k][:, None] + o[h][:, :, None] * right[:, None]
                block *= pulls[h, k, :, None]
                block += shared[h, k, :, None] * (self.V[h] @ self.V[k].mT)
                block += stretched[h, k][:, :, None] * answers[:, None] + left[:, :, None] * stretched[k, h][:, None]
                R[:, h, :, k] = block
                R[:, k, :, h] = block.mT
        return R.flatten(3).flatten(1, 2)

    def sizes(self) -> Float[Tensor, " n"]:
        r"""Bound the sum of the absolute values of everything that :math:`WR_iW^\top` is added up from."""
        length, pull, far = self.P.norm(dim=-1), self.g.norm(dim=-1), self.v.norm(dim=-1).amax(-1)
        values = self.V.flatten(1).norm(dim=-1)
        return (length * (values[:, None] + 2 * far[:, None] * pull)).sum(0).square() * self.W.square().sum()


def row_squares(views: list[View]) -> Float[Tensor, " n"]:
    """Bound the squared norm of every row of the first and the third term together; infinite if that takes too long.

    Few rows: the largest eigenvalue, closely. Many: the Frobenius norm of the Gram matrix, from one product.
    """
    grams = RowGrams.of(views)
    n, m = grams.P.shape[1], grams.W.shape[1]
    if grams.cost > AFFORDABLE:
        return torch.full((n,), torch.inf, dtype=torch.float64)
    batches = torch.arange(n).split(max(1, NUMBERS // m**2))
    whole, lost = grams.sizes(), 32 * (n + grams.V.shape[2] + 2 * m) * UNIT
    metric = grams.W.mT @ grams.W
    if grams.cost > CLOSELY:
        return torch.cat([_frobenius(grams.blocks(rows) @ metric, lost * whole[rows]) for rows in batches])
    values, vectors = torch.linalg.eigh(metric)
    root = vectors * values.clamp_min(0).sqrt()
    found = torch.cat([largest_eigenvalues(root.mT @ grams.blocks(rows) @ root, squarings=1) for rows in batches])
    return found + lost * whole


def _frobenius(T: Float[Tensor, "rows m m"], lost: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    r"""Bound the Frobenius norm of :math:`WRW^\top` by :math:`(\mathrm{tr}\,T^2)^{1/2}`, :math:`T = RW^\top W`.

    ``lost`` bounds the error of T.
    """
    size, unit = T.flatten(1).norm(dim=-1), T.shape[-1] * UNIT
    squares = (T * T.mT).sum((1, 2)).clamp_min(0)
    return (squares + (2 * lost + unit * size) * size + (lost + unit * size).square()).sqrt()
