"""The second term of the derivative, all heads together: one block for every row, and only the largest counts."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.at_input.head_errors import UNIT
from howsmooth.theory.at_input.layer_errors import outputs
from howsmooth.theory.linalg.deflation_bound import deflated_eigenvalues

# So many rows are held at once: they stay near the processor.
AT_ONCE = 16
# Vectors for all rows, and for the largest ones.
QUICKLY, CLOSELY = 8, 24


def query_term_norms(views: list[HeadAtInput]) -> Float[Tensor, " n"]:
    r"""Bound :math:`\|\sum_hW_hV_hC_i^hA_h\|` for every row i.

    All rows are looked at quickly, the largest again and closely, until none of the others can be larger.
    """
    W = torch.cat(outputs(views), dim=1)
    Q = torch.cat([view.head.Q for view in views])
    C = torch.stack([view.covariance() for view in views], dim=1)  # n, heads, v, k
    heads, v, k = C.shape[1:]
    inner, outer = W.mT @ W, Q @ Q.mT
    whole = C.square().sum((1, 2, 3)) * W.square().sum() * Q.square().sum()
    # heads that cancel leave the rounding of a square, whose root is much larger
    lost = 8 * (heads * (v + k) + sum(W.shape) + sum(Q.shape)) * UNIT * whole
    trace = torch.cat([_trace(part, inner, outer) for part in C.split(AT_ONCE)]).clamp_min(0) + lost
    space = torch.randn(len(W), CLOSELY, dtype=W.dtype, generator=torch.Generator().manual_seed(0))

    def largest(rows: Tensor, columns: int, steps: int) -> Float[Tensor, " rows"]:
        some = C[rows]

        def times(x: Float[Tensor, "#some out r"]) -> Float[Tensor, "some out r"]:
            seen = outer @ (some.mT @ (W.mT @ x).unflatten(1, (heads, v))).flatten(1, 2)
            return W @ (some @ seen.unflatten(1, (heads, k))).flatten(1, 2)

        start = space[:, : min(columns, len(W))]
        return deflated_eigenvalues(times, start, trace=trace[rows], lost=lost[rows], steps=steps)

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
