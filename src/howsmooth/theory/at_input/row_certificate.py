"""Theorem 3, rows: a certificate at one input for all heads of a layer at once, and the Gram matrices of its rows."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.at_input.layer_errors import LayerErrorBounds, outputs
from howsmooth.theory.linalg.eigenvalue_bounds import CholeskyCertificate, deflated_eigenvalues, nonnegative_norm
from howsmooth.theory.linalg.matrix_norms import NOTHING, UNIT, norm_upper, triangular_factor

# So many rows are held at once: they stay near the processor.
AT_ONCE = 16
# Vectors for all rows, and for the largest ones.
QUICKLY, CLOSELY = 8, 24
# So many products of numbers are affordable for all rows.
AFFORDABLE = 2e10
# So many numbers of a batch of rows are held at once.
NUMBERS = 2**23


@dataclass(frozen=True, kw_only=True, eq=False)
class RowCertificate:
    r"""All heads at n tokens.

    Attributes:
        P: Attention weights.
        B: :math:`W_hV_h`.
        side_by_side: :math:`[W_1V_1\cdots W_HV_H]`, up to an isometry.
        errors: Rounding-error bounds.
    """

    P: Float[Tensor, "heads n n"]
    B: Float[Tensor, "heads out d"]
    side_by_side: Float[Tensor, "out r"]
    errors: LayerErrorBounds

    @classmethod
    def of(cls, views: list[HeadAtInput]) -> "RowCertificate":
        """Gather the heads; concatenated heads have outputs of their own."""
        W = outputs(views)
        factors = [w @ triangular_factor(view.head.V) for view, w in zip(views, W, strict=True)]
        return cls(
            P=torch.stack([view.P for view in views]),
            B=torch.stack([w @ view.head.V for view, w in zip(views, W, strict=True)]),
            side_by_side=torch.cat(factors, dim=1),
            errors=LayerErrorBounds.of(views),
        )

    def by_rows(self, views: list[HeadAtInput], *, beaten: float = math.inf) -> float:
        r"""Bound the value and the key term together: the squares of the norms of their rows add up.

        The sum is abandoned once it is more than ``beaten``.
        """
        errors, (key_error, largest_key_term) = self.errors, self.errors.key_term()
        rows = row_norms_squared(views, beaten=beaten).sqrt() + errors.value_rows() + key_error
        rows = torch.minimum(rows, errors.WV_norm.sum() + largest_key_term)
        # score gradients whose squares are too small for a float
        rows = rows + NOTHING * float(errors.value_radius.sum())
        return (1 + 16 * len(rows) * UNIT) * float(rows.norm())

    def by_blocks(self, views: list[HeadAtInput]) -> float:
        r"""Bound both terms one by one: the key term by the matrix of the norms of its blocks.

        Block (i, j) is :math:`\sum_hP^h_{ij}(y^h_j-\bar y^h_i){g^h_i}^\top`. Where every row attends to other tokens,
        this is much less than adding up the squares of rows.
        """
        errors = self.errors
        # Norms of blocks make a matrix without negative entries whose norm is at least that of the key term.
        blocks = torch.zeros_like(self.P[0])
        for h, view in enumerate(views):
            y, change, radius = view.mixed().y, errors.weight_change[h, :, None], errors.value_radius[h]
            # not by products of matrices: differences of squares would cancel
            distance = torch.cdist(view.P @ y, y, compute_mode="donot_use_mm_for_euclid_dist")
            distance = distance * (1 + 64 * UNIT * len(y)) + 4 * errors.value_error[h] + change * radius
            # a weight that is wrong by a share of c is wrong by c at most
            weights = (view.P + change).clamp_max(1.0)
            blocks += weights * distance.clamp_max(2 * radius) * errors.gradient[h, :, None]
        return self.value_term() + nonnegative_norm(blocks)

    def value_term(self) -> float:
        r"""Bound :math:`\|\sum_hP^h\otimes B_h\|`: heads apart, or what they share and what they do not.

        With :math:`\bar P` the mean over heads, the sum is
        :math:`\bar P\otimes\sum_hB_h + \sum_h(P^h-\bar P)\otimes B_h`, and the second part is at most
        :math:`\|[B_1\cdots B_H]\|\,\|(P^h-\bar P)_h\|`.
        """
        # Heads of a layer often attend alike: then their values may cancel in the sum, which norms of heads would not
        # see.
        mean, errors = self.P.mean(0), self.errors
        shared = norm_upper(mean) * norm_upper(self.B.sum(0))
        norm_B = norm_upper(self.side_by_side) + 2 * float(errors.product_error.sum())
        differences = norm_B * norm_upper((self.P - mean).flatten(0, 1))
        return min(float((errors.P_norm * errors.WV_norm).sum()), shared + differences + errors.value_term())


def rows_upper(views: list[HeadAtInput]) -> float:
    """Return the certificate: the query term, block by block, and the other two in the better of two ways.

    It is infinite where numbers leave the range of floats.
    """
    try:
        rows = RowCertificate.of(views)
        # The query term touches only the row's own token, so its rows are never added up: the largest counts.
        error, largest = rows.errors.query_term()
        query_term = float(torch.minimum(query_term_norms(views) + error, largest).max())
        by_blocks = rows.by_blocks(views)
        others = [by_blocks, rows.by_rows(views, beaten=math.inf if math.isnan(by_blocks) else by_blocks)]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # such numbers have no eigenvalues
        return math.inf
    found = query_term + min(math.inf if math.isnan(x) else x for x in others)
    return math.inf if math.isnan(found) else found


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
        # Powers of two move between W and the values: the columns of W become comparable, and nothing is rounded.
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
    # The rounding of sums of n, d and m products, in units of the sum of all absolute values.
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


def query_term_norms(views: list[HeadAtInput]) -> Float[Tensor, " n"]:
    r"""Bound :math:`\|\sum_hW_hV_hC_i^hA_h\|` for every row i.

    The query term is block diagonal, and its norm is the largest block norm. So all rows have a quick bound, and the
    largest ones a closer one, until none of the others can be larger.
    """
    W = torch.cat(outputs(views), dim=1)
    Q = torch.cat([view.head.Q for view in views])
    C = torch.stack([view.covariance() for view in views], dim=1)  # n, heads, v, k
    heads, v, k = C.shape[1:]
    # ‖Σ W_hC_hQ_h‖² is the largest eigenvalue of WCQQᵀCᵀWᵀ; products with it never form a d × d matrix.
    inner, outer = W.mT @ W, Q @ Q.mT
    whole = C.square().sum((1, 2, 3)) * W.square().sum() * Q.square().sum()
    # heads that cancel leave the rounding of a square, whose root is much larger
    error = 8 * (heads * (v + k) + sum(W.shape) + sum(Q.shape)) * UNIT * whole
    trace = torch.cat([_trace(part, inner, outer) for part in C.split(AT_ONCE)]).clamp_min(0) + error
    space = torch.randn(len(W), CLOSELY, dtype=W.dtype, generator=torch.Generator().manual_seed(0))

    def largest(rows: Tensor, columns: int, steps: int) -> Float[Tensor, " rows"]:
        some = C[rows]

        def times(x: Float[Tensor, "#some out r"]) -> Float[Tensor, "some out r"]:
            scored = outer @ (some.mT @ (W.mT @ x).unflatten(1, (heads, v))).flatten(1, 2)
            return W @ (some @ scored.unflatten(1, (heads, k))).flatten(1, 2)

        start = space[:, : min(columns, len(W))]
        return deflated_eigenvalues(times, start, trace=trace[rows], error=error[rows], steps=steps)

    # A quick bound for all; then the largest ones closely, until the next is below what is proven of the others.
    square, known = largest(torch.arange(len(C)), QUICKLY, 1), torch.tensor(0.0, dtype=W.dtype)
    for rows in square.argsort(descending=True).split(AT_ONCE):
        if bool(square[rows[0]] <= known):
            break
        square[rows] = torch.minimum(square[rows], largest(rows, CLOSELY, 2))
        known = torch.maximum(known, square[rows].max())
    return square.sqrt()


def _trace(C: Float[Tensor, "n heads v k"], inner: Tensor, outer: Tensor) -> Float[Tensor, " n"]:
    r"""Return :math:`\sum_{hm}\langle W_h^\top W_m, C^hQ_hQ_m^\top{C^m}^\top\rangle` for every row."""
    n, heads, v, k = C.shape
    C = C.permute(1, 2, 0, 3).contiguous()
    inner = inner.view(heads, v, heads, v).transpose(1, 2)
    outer = outer.view(heads, k, heads, k).transpose(1, 2)
    found = C.new_zeros(n)
    for h in range(heads):
        left = (inner[h, h:] @ C[h:].flatten(2)).view(-1, v, n, k)
        right = (C[h].flatten(0, 1) @ outer[h, h:]).view(-1, v, n, k)
        both = (left * right).sum((1, 3))
        found += 2 * both.sum(0) - both[0]  # pairs of heads count twice
    return found
