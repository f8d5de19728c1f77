"""Golub–Kahan–Lanczos bidiagonalisation with full reorthogonalisation, for a batch of operators in lockstep."""

import math
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.operators import Separable, dimension, gaussian, norms, summed

Array = np.ndarray
# A Krylov space nearly ends where what leads out of it is this share of the largest entry of its matrix.
INVARIANT_SHARE = 0.1


class Bidiagonalisation:
    r"""Orthonormal bases U, V with :math:`U_k^\top J V_{k+1} = [\,B_k\;\;\beta_k e_k\,]`, grown one step at a time.

    A step costs one product with the operator and one with its transpose. Rounding errors act like a perturbation of
    the operator of relative size ``eps``; a breakdown (the next vector vanishes to rounding) is repaired by a random
    orthogonal direction with a coupling of that size, which is such a perturbation too.

    Attributes:
        steps: How many steps were taken.
        zero: Which operators of the batch are zero.
    """

    def __init__(
        self,
        op: LinearOperator,
        start: Float[Tensor, "batch N"],
        generator: torch.Generator | None,
        floor: "float | Array" = 0.0,
    ) -> None:
        """Start at the unit vectors ``start``; what moves them by at most ``floor`` is called zero."""
        self.op = op
        self.floor: Array = np.broadcast_to(np.asarray(floor, dtype=float), (start.shape[0],))
        self.generator = generator
        self.steps = 0
        self._entries: Array = np.empty((2, start.shape[0], 32))  # of the steps so far, and room for more
        self.zero: Array = np.zeros(start.shape[0], dtype=bool)
        self._scale: Array = np.zeros(start.shape[0])
        self._right = _Basis(start, dimension(op.domain))
        left = start.new_empty(start.shape[0], 0, math.prod(op.codomain))
        self._left = _Basis(left, dimension(op.codomain))

    @property
    def alphas(self) -> Array:
        """The diagonal of B, ``(batch, k)``."""
        return self._entries[0, :, : self.steps]

    @property
    def betas(self) -> Array:
        """What stands beside the diagonal, ``(batch, k)``."""
        return self._entries[1, :, : self.steps]

    @property
    def latest(self) -> Array:
        """The entries of the last step, ``(2, batch)``."""
        return self._entries[:, :, self.steps - 1]

    @property
    def nearly_invariant(self) -> bool:
        """Whether some Krylov space nearly ended with the last step: all that is large in its operator may be found."""
        return bool((self.latest[1] < INVARIANT_SHARE * self._scale).any())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to explore."""
        return self.steps == min(dimension(self.op.domain), dimension(self.op.codomain))

    def advance(self) -> None:
        """Take one step."""
        op, size = self.op, self.zero.shape[0]
        moved = op.jvp(self._right.last.reshape((*op.batch, *op.domain))).reshape(size, -1)
        alpha = self._extend(self._left, moved, op.codomain)
        if self.steps == 0:
            self.zero = alpha <= self.floor
        pulled = op.vjp(self._left.last.reshape((*op.batch, *op.codomain))).reshape(size, -1)
        beta = self._extend(self._right, pulled, op.domain)
        if self.steps == self._entries.shape[2]:
            self._entries = np.concatenate((self._entries, np.empty_like(self._entries)), axis=2)
        self._entries[:, :, self.steps] = alpha, beta
        self.steps += 1

    def _extend(self, basis: "_Basis", w: Tensor, shape: tuple[int, ...]) -> Array:
        """Orthogonalise ``w``, vectors of a shape, against the basis, append it, and return its norm."""
        w, norm = basis.complement(w)
        self._scale = np.maximum(self._scale, norm)
        if basis.full:
            basis.append(torch.zeros_like(w), np.ones_like(norm))
            return np.zeros_like(norm)
        # Why not stop at a breakdown: the space is invariant, but a larger singular value may lie outside of it.
        least = torch.finfo(w.dtype).eps * self._scale
        if (norm <= least).any() and (broken := (norm <= least) & (self._scale > 0)).any():
            fresh, size = basis.complement(gaussian(w.reshape(-1, *shape), self.generator).reshape(w.shape))
            factor = torch.as_tensor(least / size, dtype=w.dtype, device=w.device)
            where = torch.as_tensor(broken, device=w.device)
            w = torch.where(where[:, None], fresh * factor[:, None], w)
            norm = np.where(broken, least, norm)
        basis.append(w, norm)
        return norm

    def keep(self, which: Array) -> None:
        """Go on with some of the operators only; ``op`` must be able to ``take`` them."""
        index = torch.as_tensor(which, device=self.op.device)
        self.op = cast(Separable, self.op).take(index)
        self._entries, self.zero = self._entries[:, which], self.zero[which]
        self._scale, self.floor = self._scale[which], self.floor[which]
        self._right.keep(which)
        self._left.keep(which)

    def matrix(self) -> Array:
        r"""Return :math:`[B_k\;\;\beta_k e_k]`, ``(batch, k, k + 1)``."""
        size, k = len(self.zero), self.steps
        B = np.zeros((size, k, k + 1))
        rows = np.arange(k)
        B[:, rows, rows] = self.alphas
        B[:, rows, rows + 1] = self.betas
        return B

    def ritz(self) -> Array:
        """Return the largest Ritz value of each operator."""
        # Why eigenvalues of B Bᵀ and not singular values of B: they are found faster, and squaring costs the largest
        # value no digits. Why with the last β: [B β] is a larger part of J, so its norm is a sharper lower bound.
        alphas, betas, k = self.alphas, self.betas, self.steps
        size = np.maximum(alphas.max(axis=1), betas.max(axis=1))
        size = np.maximum(size, np.finfo(float).tiny)  # so that squares stay in range
        alphas, betas = alphas / size[:, None], betas / size[:, None]
        squared = np.zeros((len(size), k * k))
        squared[:, :: k + 1] = alphas * alphas + betas * betas
        squared[:, k :: k + 1] = betas[:, :-1] * alphas[:, 1:]  # below the diagonal; what is above is not read
        return size * np.sqrt(np.maximum(np.linalg.eigvalsh(squared.reshape(-1, k, k))[:, -1], 0.0))

    def residual_below(self, rtol: float) -> Array:
        r"""Tell where :math:`|J^\top u - \theta v| = \beta_k|x_k|` is at most rtol :math:`\theta` (top triplet)."""
        residuals, values = self._residuals()
        return residuals <= rtol * values

    def residuals(self) -> Array:
        """Return that residual of every operator."""
        return self._residuals()[0]

    def _residuals(self) -> tuple[Array, Array]:
        left, values, _right = np.linalg.svd(self.matrix()[:, :, :-1])
        return self.betas[:, -1] * np.abs(left[:, -1, 0]), values[:, 0]

    def top_triplets(self, which: Array) -> tuple[Tensor, Tensor, Array]:
        r"""Return the top Ritz triplets of some operators, v and :math:`\theta u`, and all their Ritz values.

        :math:`J^\top u = \theta v` holds to rounding, and :math:`J v = \theta u` up to the residual.
        """
        left, values, right = np.linalg.svd(self.matrix()[which], full_matrices=False)
        moved = values[:, :1] * left[:, :, 0]
        return self._right.combine(right[:, 0], which), self._left.combine(moved, which), values

    def right_vectors(self, count: int) -> list[Float[Tensor, "batch N"]]:
        """Return the leading right Ritz vectors of every operator, at most ``count``, the largest value first."""
        _left, _values, right = np.linalg.svd(self.matrix(), full_matrices=False)
        every = np.ones(len(right), dtype=bool)
        return [self._right.combine(right[:, place], every) for place in range(min(count, self.steps))]


class _Basis:
    """Orthonormal vectors, stored row by row in memory that grows."""

    def __init__(self, first: Tensor, dimension: int) -> None:
        """Start with one vector ``(batch, N)``, or with none ``(batch, 0, N)``, of a space of some dimension."""
        self._dimension = dimension
        rows = first if first.ndim == 3 else first.unsqueeze(1)
        self._count = rows.shape[1]
        self._memory = rows

    @property
    def vectors(self) -> Float[Tensor, "batch k N"]:
        return self._memory[:, : self._count]

    @property
    def last(self) -> Float[Tensor, "batch N"]:
        return self._memory[:, self._count - 1]

    @property
    def full(self) -> bool:
        return self._count >= self._dimension

    def append(self, w: Tensor, norm: Array) -> None:
        """Append the vectors ``w`` of the given norms, scaled to one; what is as good as zero stays."""
        batch, capacity, N = self._memory.shape
        if self._count == capacity:
            # memory that is not written to costs nothing, so growing is rare
            grown = self._memory.new_empty(batch, capacity + max(32, capacity), N)
            grown[:, : self._count] = self.vectors
            self._memory = grown
        normal = norm >= torch.finfo(w.dtype).tiny  # the inverse of a subnormal norm may overflow
        inverse = 1 / (norm if normal.all() else np.where(normal, norm, 1.0))
        # one number needs no tensor, whose making takes as long as the product on short sequences
        factor = float(inverse[0]) if batch == 1 else torch.as_tensor(inverse[:, None], dtype=w.dtype, device=w.device)
        torch.mul(w, factor, out=self._memory[:, self._count])
        self._count += 1

    def keep(self, which: Array) -> None:
        """Keep the vectors of some operators (in increasing order), moved to the front of the same memory."""
        # Why not by an index: that copies all the memory at once, when memory is what batches run out of.
        for place, source in enumerate(which.tolist()):
            if place != source:
                self._memory[place, : self._count] = self._memory[source, : self._count]
        self._memory = self._memory[: len(which)]

    def complement(self, w: Float[Tensor, "batch N"]) -> tuple[Float[Tensor, "batch N"], Array]:
        """Return what is left of ``w`` orthogonal to the basis, and its norm; ``w`` may be anybody's memory."""
        # Why all of the basis and not its last vectors, as exact arithmetic allows: orthogonality is lost as soon as a
        # Ritz value converges, copies of it appear, and the certificate, which is Bessel's inequality, is void.
        # Gram–Schmidt; what loses most of its norm is done again: twice is enough
        rows, vectors = w.unsqueeze(1), self.vectors
        for _pass in range(3):
            overlap = summed(torch.bmm(rows, vectors.mT))
            rows = torch.baddbmm(rows, overlap, vectors, alpha=-1)
            norm = norms(rows, rows.shape[:1]).cpu().numpy()
            lost = torch.linalg.vector_norm(overlap, dim=(1, 2)).cpu().numpy()
            if (lost <= 2 * norm).all():
                break
        return rows.squeeze(1), norm

    def combine(self, coefficients: Array, which: Array) -> Float[Tensor, "some N"]:
        """Combine the vectors of some operators, ``(some, k)`` coefficients."""
        weights = torch.as_tensor(coefficients, dtype=self._memory.dtype, device=self._memory.device)
        basis = self.vectors if which.all() else self.vectors[torch.as_tensor(which, device=weights.device)]
        return torch.bmm(weights.unsqueeze(1), basis[:, : weights.shape[-1]]).squeeze(1)
