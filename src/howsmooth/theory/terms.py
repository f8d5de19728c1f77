"""The terms of the second derivative of a whole layer at one input, each by the eigenvalues of a Gram matrix."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.moved import Centre
from howsmooth.theory.scales import Scales
from howsmooth.theory.traces import largest_eigenvalues, largest_norms

# Rows that answer less than this share of the largest answer count as much.
FLOOR = 0.1


def keys_at(c: Centre, i: int) -> Float[Tensor, "m m"]:
    r"""Return the absolute Gram matrix of :math:`\kappa_{ij} = A^\top(x_j-m_i)`, for all heads and j."""
    key = (c.keys - (c.P[:, i, None] @ c.keys)).flatten(0, 1)
    return (key @ key.mT).abs()


def row_at(c: Centre, i: int, even: Tensor, scales: Scales) -> tuple[float, float, float, float, float]:
    r"""Return the terms of one row that hold its own token, and the answer of the second term.

    A sum :math:`\sum_ma_m\langle b_m,e\rangle\langle c_m,f\rangle` is at most
    :math:`\lambda_{\max}(\sum_{ml}\langle b_m,b_l\rangle\langle c_m,c_l\rangle\,a_ma_l^\top)^{1/2}` for unit e, f.
    """
    heads, n = c.P.shape[:2]
    P, g = c.P[:, i], c.pull[:, i]
    a = c.alpha[:, i].flatten(0, 1)
    key = (c.keys - (P[:, None] @ c.keys)).flatten(0, 1)
    keys, pulls = key @ key.mT, g @ g.mT
    centred = torch.eye(n, dtype=P.dtype) - P[:, None]  # rows u_j − P, for every head
    centred = centred.flatten(0, 1)
    about = (centred @ centred.mT) * _spread_out(pulls, n)
    own, mixed = (float(largest_eigenvalues(a.mT @ (m * keys) @ a).sqrt()) for m in (keys, about))
    weights = (scales.key[:, None] * P).flatten()
    split = a / scales.cross.repeat_interleave(n)[:, None]
    # the second term keeps heads apart: one output for each
    sides = torch.eye(heads, dtype=P.dtype) * even.square()
    separate = (a @ a.mT) * _spread_out(sides, n)
    root = _root(pulls).repeat_interleave(n, 0)  # how each head's pull lies in a basis of all
    answer = torch.einsum("mp,ml,lq->mlpq", root, separate, root)
    answer = answer.reshape(heads, n, heads, n, heads, heads).sum((0, 2)).transpose(1, 2).flatten(2).flatten(0, 1)
    return (
        own,
        mixed,
        float(largest_norms(weights[:, None] * key)),
        float(largest_norms(split)),
        float(largest_eigenvalues(answer).sqrt()),
    )


def tokens_at(c: Centre, gram: Float[Tensor, "m m"]) -> float:
    r"""Bound the first term at X.

    For every j it is :math:`(e,f)\mapsto(\sum_h\alpha^h_{ij}\langle g^h_i,e\rangle\langle g^h_i,f\rangle)_i`.
    """
    heads, n = c.P.shape[:2]
    squares = gram.square().reshape(heads, n, heads, n)
    best = 0.0
    for j in range(n):
        a = c.alpha[:, :, j]
        root = _root(torch.einsum("hio,kio->ihk", a, a))
        M = torch.einsum("ihp,hikl->ipkl", root, squares)
        M = torch.einsum("ipkl,lkq->iplq", M, root).reshape(heads * n, heads * n)
        best = max(best, float(largest_eigenvalues(M)))
    return math.sqrt(best)


def mean_at(c: Centre, gram: Tensor, even: Float[Tensor, "heads n"]) -> float:
    r"""Return the norm of :math:`E\mapsto(\langle g^h_i,\bar e^h_i\rangle/c^h_i)_{hi}`."""
    P = (c.P / even[..., None]).flatten(0, 1)
    return float(largest_eigenvalues((P @ P.mT) * gram).sqrt())


def even_scales(c: Centre) -> Float[Tensor, "heads n"]:
    """Return scales that make both factors of the second term of one size; any positive numbers would do."""
    given = c.P.square().sum(-1).sqrt()
    answer = (c.P * c.far).square().sum(-1).sqrt()
    # a row that is saturated here may not be so further away
    return (given / (answer + FLOOR * answer.amax()).clamp_min(1e-100)).sqrt().clamp(1e-8, 1e8)


def weighted_norm(gram: Float[Tensor, "m m"], w: Float[Tensor, "heads n n"]) -> float:
    r"""Bound :math:`\max_j\lambda_{\max}(\sum_{hi}w_{hij}\,g_{hi}g_{hi}^\top)^{1/2}` from the Gram matrix of the g."""
    best = 0.0
    for column in w.flatten(0, 1).mT.sqrt():
        best = max(best, float(largest_eigenvalues(column[:, None] * gram * column)))
    return math.sqrt(best)


def _spread_out(x: Float[Tensor, "heads heads"], n: int) -> Float[Tensor, "m m"]:
    """Repeat every entry for all pairs of tokens."""
    return x.repeat_interleave(n, 0).repeat_interleave(n, 1)


def _root(gram: Float[Tensor, "*batch m m"]) -> Float[Tensor, "*batch m m"]:
    """Return R with RRᵀ the Gram matrix, and a little more than it for rounding."""
    values, vectors = torch.linalg.eigh(gram)
    safe = values + 1e-13 * values.abs().amax(-1, keepdim=True)
    return vectors * safe.clamp_min(0).sqrt()[..., None, :]
