"""A token at the origin, which attends to all others equally: the R² growth of Kim et al. (``kim_lower``)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.heads import Head
from howsmooth.theory.linalg.matrix_norms import matrix_norm

ROUNDS = 30
STARTS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class OriginToken:
    r"""The direction u of the other tokens, and :math:`\sum_h(W_hV_hu)(A_h^\top u)^\top` up to orthogonal factors.

    Attributes:
        direction: The unit vector u.
        response: A small matrix with the singular values of that sum.
    """

    direction: Float[Tensor, " d"]
    response: Float[Tensor, "h h"]


def best_origin_token(heads: tuple[Head, ...]) -> OriginToken:
    r"""Maximise :math:`\|\sum_h(W_hV_hu)(A_h^\top u)^\top\|` over unit vectors u.

    For fixed unit y, e the form :math:`u\mapsto\langle y,\sum_hW_hV_hu\,\langle A_h^\top u,e\rangle\rangle` is
    quadratic, so u can be replaced by its top eigenvector, then y, e by the top singular vectors, and so on: the value
    never falls. Any u gives a true lower bound, so it does not matter whether this finds the maximum.
    """
    # The alternation ends in a local maximum, so a few starts are tried.
    starts = sorted(_starts(heads), key=lambda u: -matrix_norm(_small(*_sides(heads, u))))[:STARTS]
    best = max((_alternate(heads, u) for u in starts), key=lambda u: matrix_norm(_small(*_sides(heads, u))))
    return OriginToken(direction=best, response=_small(*_sides(heads, best)))


def _starts(heads: tuple[Head, ...]) -> list[Tensor]:
    """Return what each head's values stretch most, what its scores stretch most, and what lies between."""
    found = []
    for head in heads:
        value = torch.linalg.svd(head.mixed, full_matrices=False).Vh[0]
        basis, triangle = torch.linalg.qr(head.K.mT)
        score = basis @ torch.linalg.svd(triangle @ head.Q, full_matrices=False).U[:, 0]
        found += [value, score, value + score, value - score]
    return [u / u.norm() for u in found if float(u.norm()) > 0]


def _alternate(heads: tuple[Head, ...], u: Tensor) -> Tensor:
    for _round in range(ROUNDS):
        # the best y and e for this u, by triangular factors: nothing of size d × d is decomposed
        left, right = _sides(heads, u)
        a, b = torch.linalg.qr(left), torch.linalg.qr(right)
        x, _values, z = torch.linalg.svd(a.R @ b.R.mT)
        y, e = a.Q @ x[:, 0], b.Q @ z[0]
        # the best u for these
        u = _top_eigenvector(_value_rows(heads, y), torch.stack([head.form(e) for head in heads]))
    return u


def _sides(heads: tuple[Head, ...], u: Tensor) -> tuple[Float[Tensor, "out h"], Float[Tensor, "d h"]]:
    r"""Return the columns :math:`W_hV_hu` and :math:`A_h^\top u`."""
    values = [head.V @ u if head.W is None else head.W @ (head.V @ u) for head in heads]
    left = torch.block_diag(*(v[:, None] for v in values)) if heads[0].W is None else torch.stack(values, dim=1)
    return left, torch.stack([head.adjoint(u) for head in heads], dim=1)


def _value_rows(heads: tuple[Head, ...], y: Tensor) -> Float[Tensor, "h d"]:
    r"""Return the rows :math:`(W_hV_h)^\top y`."""
    blocks = y.split([head.V.shape[0] for head in heads]) if heads[0].W is None else [y] * len(heads)
    parts = [block if head.W is None else block @ head.W for block, head in zip(blocks, heads, strict=True)]
    return torch.stack([part @ head.V for part, head in zip(parts, heads, strict=True)])


def _top_eigenvector(a: Float[Tensor, "h d"], b: Float[Tensor, "h d"]) -> Float[Tensor, " d"]:
    r"""Return the unit u with the largest :math:`|\sum_h\langle a_h,u\rangle\langle b_h,u\rangle|`."""
    # the form has rank 2H at most: its eigenvectors lie in the span of all a and b
    basis = torch.linalg.qr(torch.cat((a, b)).mT).Q
    small = (a @ basis).mT @ (b @ basis)
    values, vectors = torch.linalg.eigh(small + small.mT)
    return basis @ vectors[:, values.abs().argmax()]


def _small(left: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.qr(left).R @ torch.linalg.qr(right).R.mT
