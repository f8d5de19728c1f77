"""The real eigenvector of a head along which the inputs of the paper lie (its lower bounds)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.theory.heads import Head

# An eigenvalue is called real when its imaginary part is below this share of ‖A‖: rounding is.
REAL = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class SteepestEigenvalue:
    r""":math:`\gamma = \max(-\gamma_\delta, \gamma_1/8)`, its unit eigenvector, and the paper's two points.

    Attributes:
        gamma: :math:`\gamma`.
        direction: The unit eigenvector u.
        first: The first token is ``first · R · u``.
        others: All others are ``others · R · u``.
    """

    gamma: float
    direction: Float[Tensor, " d"]
    first: float
    others: float


def steepest_eigenvalue(head: Head, instead: str) -> SteepestEigenvalue:
    r"""Find :math:`\gamma` among the real eigenvalues of A.

    The non-zero eigenvalues of :math:`A = K^\top Q` are those of the k × k matrix :math:`QK^\top`, and
    :math:`K^\top y` is an eigenvector of A for an eigenvector y of it. When k < d, zero is an eigenvalue too.

    Raises:
        AssumptionError: If there is no real eigenvalue.
    """
    values, vectors = _real_eigenpairs(head)
    if not values:
        raise AssumptionError(
            f"A has no real eigenvalue, so the paper's points do not exist; use {instead}.", field="attention"
        )
    lowest, highest = min(values), max(values)
    # The paper's two cases: tokens at −Ru and Ru for a negative eigenvalue, at Ru and Ru/2 for a positive one.
    if -lowest >= highest / 8:
        return SteepestEigenvalue(gamma=-lowest, direction=vectors[values.index(lowest)], first=-1.0, others=1.0)
    return SteepestEigenvalue(gamma=highest / 8, direction=vectors[values.index(highest)], first=1.0, others=0.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Eigenvalue:
    """A real eigenvalue with its unit eigenvector."""

    value: float
    direction: Float[Tensor, " d"]


def largest_eigenvalue(head: Head) -> Eigenvalue | None:
    r"""Return :math:`\gamma_1`, the largest real eigenvalue of A, or ``None``."""
    values, vectors = _real_eigenpairs(head)
    if not values:
        return None
    return Eigenvalue(value=max(values), direction=vectors[values.index(max(values))])


def _real_eigenpairs(head: Head) -> tuple[list[float], list[Tensor]]:
    k, d = head.Q.shape
    small = k < d
    found, coordinates = torch.linalg.eig(head.Q @ head.K.mT if small else head.K.mT @ head.Q)
    values, vectors = [], []
    for value, y in zip(found.tolist(), coordinates.mT, strict=True):
        u = _real_part(y) @ head.K if small else _real_part(y)
        norm = float(u.norm())
        # where Kᵀy vanishes, y belongs to the eigenvalue zero of QKᵀ alone
        if abs(value.imag) <= REAL * head.norm_A and norm > REAL * head.norm_K:
            values.append(value.real)
            vectors.append(u / norm)
    if small:
        values.append(0.0)
        vectors.append(_kernel_vector(head))
    return values, vectors


def _real_part(y: Tensor) -> Tensor:
    """Return the real part of a complex eigenvector of a real eigenvalue, turned so that it does not vanish."""
    largest = y[y.abs().argmax()]
    turned = y * (largest.conj() / largest.abs())
    return turned.real / turned.real.norm()


def _kernel_vector(head: Head) -> Tensor:
    """Return a unit vector that all queries ignore."""
    basis = torch.linalg.qr(head.Q.mT).Q
    candidate = torch.eye(head.d, dtype=basis.dtype, device=basis.device)[basis.square().sum(-1).argmin()]
    rest = candidate - basis @ (basis.mT @ candidate)
    return rest / rest.norm()
