r"""The norm of several matrices under all unit combinations, :math:`\sup_{|c|=1}\|\sum_hc_hA_h\|`, from above.

It is the largest value of a form of three vectors, which nobody can compute in general. Two bounds are well known: the
norms of the matrices one under the other, and side by side. The square of what is here is at most the mean of their
squares, as :math:`\sum_{hg}\langle A_g^\top z_h, A_h^\top z_g\rangle\le\sum_{hg}|A_g^\top z_h|^2`. It is often next to
the truth.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

# Larger problems would take longer than all the rest.
LARGEST = 6144
# The bound is so far above the eigenvalue that iteration found.
SLACK = 2e-4
UNIT = torch.finfo(torch.float64).eps


def products_norm(factors: list[tuple[Tensor, Tensor]]) -> float:
    r"""Bound :math:`\sup_{|c|=1}\|\sum_hc_hK_h^\top Q_h\|` from above, given every Q and K."""
    keys = torch.cat([K for _Q, K in factors])
    # up to an isometry, the tokens are as many numbers as there are keys
    basis = torch.linalg.qr(keys.mT).R.mT if keys.shape[0] < keys.shape[1] else keys
    if len(factors) * min(basis.shape[1], factors[0][0].shape[1]) > LARGEST:
        return math.inf
    blocks = basis.split([len(K) for _Q, K in factors])
    forms = torch.stack([K.mT @ Q for K, (Q, _K) in zip(blocks, factors, strict=True)])
    lost = sum((sum(K.shape) * 4 * UNIT * float(K.norm()) * float(Q.norm())) ** 2 for Q, K in factors)
    return combined_norm(forms) + math.sqrt(lost)


def combined_norm(A: Float[Tensor, "h a b"]) -> float:
    r"""Bound :math:`\sup_{|c|=1}\|\sum_hc_hA_h\|` from above; infinity where that would take too long.

    The square is the largest value of :math:`\sum_{hg}c_hc_g\langle e, A_hA_g^\top e\rangle` over unit c and e. The
    matrix of the blocks :math:`A_hA_g^\top` has this form, at :math:`c\otimes e`; so has that of the blocks
    :math:`A_gA_h^\top`, and so has half of their sum S, whose largest eigenvalue is a bound. Lanczos' iteration finds
    it, and a Cholesky factor of :math:`\lambda I - S` proves it.
    """
    A = A if A.shape[1] <= A.shape[2] else A.mT
    heads, rows, columns = A.shape
    size = float(A.abs().max())
    if not 0 < size < math.inf:
        return 0.0 if size == 0 else math.inf
    if heads * rows > LARGEST:
        return math.inf
    flat = (A / size).flatten(0, 1)
    gram = (flat @ flat.mT).view(heads, rows, heads, rows)
    S = ((gram + gram.transpose(0, 2)) / 2).reshape(heads * rows, -1)
    largest = _largest(S) * (1 + SLACK)
    if not largest > 0:
        return math.inf
    S.neg_().diagonal().add_(largest)
    _factor, failed = torch.linalg.cholesky_ex(S)
    if failed:
        return math.inf
    # sums of so many products in S, and what a factor of a nearly singular matrix may hide
    lost = (columns + 2) * float(flat.square().sum()) + 2 * (len(S) + 2) * largest * len(S)
    return size * math.sqrt(largest + UNIT * lost) * (1 + 8 * UNIT)


def _largest(S: Float[Tensor, "m m"]) -> float:
    """Return the largest eigenvalue, nearly, from below."""
    start = torch.ones(len(S), dtype=S.dtype).numpy()
    product = LinearOperator(S.shape, matvec=lambda x: (S @ torch.from_numpy(np.ravel(x))).numpy(), dtype=start.dtype)
    try:
        found = eigsh(product, k=1, which="LA", tol=SLACK / 4, v0=start, maxiter=300, return_eigenvectors=False)
    except ArpackNoConvergence:
        return math.nan
    return float(found[0])
