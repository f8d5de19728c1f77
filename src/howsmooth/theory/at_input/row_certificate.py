"""Theorem 3, rows: a certificate at one input for all heads of a layer at once."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.at_input.layer_errors import LayerErrorBounds, outputs
from howsmooth.theory.at_input.row_gram_matrices import row_norms_squared
from howsmooth.theory.linalg.eigenvalue_bounds import deflated_eigenvalues, nonnegative_norm
from howsmooth.theory.linalg.matrix_norms import NOTHING, UNIT, norm_upper, triangular_factor

# So many rows are held at once: they stay near the processor.
AT_ONCE = 16
# Vectors for all rows, and for the largest ones.
QUICKLY, CLOSELY = 8, 24


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
        error, largest = rows.errors.query_term()
        query_term = float(torch.minimum(query_term_norms(views) + error, largest).max())
        by_blocks = rows.by_blocks(views)
        others = [by_blocks, rows.by_rows(views, beaten=math.inf if math.isnan(by_blocks) else by_blocks)]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # such numbers have no eigenvalues
        return math.inf
    found = query_term + min(math.inf if math.isnan(x) else x for x in others)
    return math.inf if math.isnan(found) else found


def query_term_norms(views: list[HeadAtInput]) -> Float[Tensor, " n"]:
    r"""Bound :math:`\|\sum_hW_hV_hC_i^hA_h\|` for every row i.

    The query term is block diagonal, and its norm is the largest block norm. So all rows have a quick bound, and the
    largest ones a closer one, until none of the others can be larger.
    """
    W = torch.cat(outputs(views), dim=1)
    Q = torch.cat([view.head.Q for view in views])
    C = torch.stack([view.covariance() for view in views], dim=1)  # n, heads, v, k
    heads, v, k = C.shape[1:]
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
