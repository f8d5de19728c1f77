"""The largest eigenvalues of many Gram matrices by products alone: a space that sees most, a trace for the rest."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.at_input.head_errors import UNIT


def deflated_eigenvalues(
    times: Callable[[Tensor], Tensor],
    space: Float[Tensor, "size k"],
    *,
    trace: Float[Tensor, " rows"],
    lost: Float[Tensor, " rows"],
    steps: int,
) -> Float[Tensor, " rows"]:
    r"""Bound :math:`\lambda_{\max}(S)` for positive matrices S from above, closely where few eigenvalues are large.

    With U an orthonormal basis of some space, :math:`A = U^\top SU` and :math:`B = SU - UA`, S is at most

    .. math:: \begin{pmatrix}\lambda_{\max}(A) & \|B\|\\ \|B\| & \mathrm{tr}\,S-\mathrm{tr}\,A\end{pmatrix},

    since outside of the space no eigenvalue exceeds the sum of them all. The space is what power steps make of the
    given one; any is right.

    Args:
        times: Multiplies a batch of matrices by every S; one matrix counts as many.
        space: Columns that span a space, not necessarily independent.
        trace: At least the traces.
        lost: How far ``times`` may be from the product, for columns of length one.
        steps: How many power steps there are.
    """
    size, k = space.shape
    x = space[None]
    for _ in range(steps):
        x = times(x)
        x = x / x.abs().amax((1, 2), keepdim=True).clamp_min(1e-250)
    U = torch.linalg.qr(x).Q
    SU = times(U)
    A = U.mT @ SU
    wrong = k * (lost + 64 * k * size * UNIT * trace)
    inside = _largest(A) + wrong
    outside = (trace - A.diagonal(dim1=1, dim2=2).sum(-1)).clamp_min(0) + k * wrong
    across = (SU - U @ A).flatten(1).norm(dim=-1) + wrong
    return (inside + outside) / 2 + torch.hypot((inside - outside) / 2, across)


def _largest(A: Float[Tensor, "rows k k"]) -> Float[Tensor, " rows"]:
    """Return the largest eigenvalue of every matrix; what is no number has none."""
    wrong = ~A.flatten(1).isfinite().all(-1)
    A = (A + A.mT) / 2
    return torch.linalg.eigvalsh(torch.where(wrong[:, None, None], 0.0, A))[:, -1].masked_fill(wrong, torch.nan)
