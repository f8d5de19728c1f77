r"""Norms of linear and quadratic images of a ball, the numbers :math:`|fTB|` and :math:`\|MTB\|` of Theorem 11.

A scalar image :math:`f\cdot\xi` of the ball :math:`|\xi|_p\le1` has a dual norm, a vector image :math:`M\xi` the norm
of a matrix. Quadratic images, of :ref:`exact second orders <second-order>`, are linear images of :math:`\xi\otimes\xi`.
"""

import functools
import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms

# At most this many numbers of quadratic forms are unpacked at once, and this many of Gram matrices squared at once:
# they should stay in the cache of the processor.
UNPACKED, SQUARED = 2**18, 2**18
# Sums of squares of columns are accurate between this and its inverse, in single precision too.
SMALLEST = 1e-24


@dataclass(frozen=True)
class UnitBall:
    r"""The unit ball :math:`|\xi|_p\le1` whose images are measured, p = 1, 2 or ∞."""

    p: float = 2.0

    def scalar_norms(self, columns: Float[Tensor, "groups r *more"]) -> Float[Tensor, "groups *more"]:
        r"""Return :math:`\sup|f\cdot\xi|` for functionals f whose coefficients are along r."""
        dual = {1.0: torch.inf, 2.0: 2.0, torch.inf: 1.0}[self.p]
        return torch.linalg.vector_norm(columns, dual, dim=1)

    def vector_norms(self, columns: Float[Tensor, "groups r *more m"]) -> Float[Tensor, "groups *more"]:
        r"""Bound :math:`\sup|M\xi|_2` for matrices M, whose columns are along r and whose rows are along m."""
        if self.p == 1.0:
            return columns.norm(dim=-1).amax(1)
        if columns.shape[1] == 1:
            return columns[:, 0].norm(dim=-1)
        if self.p == 2.0:
            return block_norms(columns)
        # The cube lies in a ball of radius √r; the sum of the lengths of its axes may be smaller.
        around = columns.shape[1] ** 0.5 * block_norms(columns)
        return torch.minimum(around, columns.norm(dim=-1).sum(1))


EUCLIDEAN = UnitBall()


@functools.cache
def packed_pairs(r: int) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the indices a ≤ b of all pairs of columns, and the factors 1 and √2 of a symmetric form there."""
    a, b = torch.triu_indices(r, r)
    # In double precision always: √2 in single precision is too small by more than proofs allow for.
    return a, b, torch.where(a == b, 1, 2).double().sqrt()


@dataclass(frozen=True)
class SquaredBall(UnitBall):
    r"""All :math:`\xi\otimes\xi` for :math:`|\xi|_p\le1`, in the coordinates :math:`\xi_a^2, \sqrt2\xi_a\xi_b`, a < b.

    Columns are those of quadratic maps, packed: H(a, a) and :math:`\sqrt2H(a, b)`, as in ``packed_pairs``.
    """

    def scalar_norms(self, columns: Float[Tensor, "groups pairs *more"]) -> Float[Tensor, "groups *more"]:
        r"""Bound :math:`\sup|\xi^\top H\xi|`: for p = 2 by the largest absolute eigenvalue."""
        return self._norms(columns[..., None])

    def vector_norms(self, columns: Float[Tensor, "groups pairs *more m"]) -> Float[Tensor, "groups *more"]:
        r"""Bound :math:`\sup|H(\xi,\xi)|_2` for forms with values in m dimensions.

        :math:`|\xi\otimes\xi|_F = 1`, so the norm of H as a matrix of m rows bounds it; and
        :math:`|H(\xi,\xi)|^2\le\xi^\top\sum_mH_m^2\,\xi`.
        """
        found = self._norms(columns)
        if self.p == 1.0:
            return found
        # Neither norm is always smaller: this one is for many different forms, the other for a single one. A product
        # with one vector, which no norm is below, mostly shows that it is not, and costs less than a Gram matrix.
        around, blocks = 1.0 if self.p == 2.0 else float(_dimension(columns)), columns.movedim(1, -1)
        some = blocks @ blocks[..., :1, :].mT
        least = (some.mT @ blocks).norm(dim=(-2, -1)) / some.norm(dim=(-2, -1))
        smaller = ~(around * least >= found)
        if bool(smaller.any()):
            matrix = around * block_norms(blocks[smaller].movedim(-1, 0)[None])[0]
            found[smaller] = torch.minimum(found[smaller], matrix)
        return found

    def _norms(self, columns: Float[Tensor, "groups pairs *more m"]) -> Float[Tensor, "groups *more"]:
        """Bound forms by their largest entry, by the largest eigenvalue of the sum of squares, or by all entries."""
        _a, _b, factors = packed_pairs(_dimension(columns))
        factors = factors.view(-1, *[1] * (columns.ndim - 3))
        if self.p == 1.0:
            return (columns.norm(dim=-1) / factors).amax(1)
        euclidean = square_sum_norms(columns)
        if self.p == 2.0:
            return euclidean
        # The cube lies in a ball of radius √r, whose square is r. Entries beside the diagonal are there twice.
        return torch.minimum(_dimension(columns) * euclidean, (columns.norm(dim=-1) * factors).sum(1))


def _dimension(columns: Float[Tensor, "groups pairs *more"]) -> int:
    """Return the r of r(r + 1)/2 packed columns."""
    return round((2 * columns.shape[1] + 0.25) ** 0.5 - 0.5)


def square_sum_norms(columns: Float[Tensor, "groups pairs *more m"]) -> Float[Tensor, "groups *more"]:
    r"""Bound :math:`\|\sum_mH_m^2\|^{1/2}` for packed forms, with products in single precision, of unit roundoff u.

    The error of a product of symmetric matrices is at most :math:`ru\|H\|_F^2\le r^2u\|H\|^2`, so that all squarings
    together take at most :math:`r^2u` of a norm. Twice as much is added, which also covers entries that are rounded.
    """
    groups, pairs, *more, m = columns.shape
    found, allowance = [], 1 + _dimension(columns) ** 2 * torch.finfo(torch.float32).eps
    # Forms one after another: walks of second orders keep them so, and nothing is copied here.
    for forms in columns.movedim(1, -1).flatten(0, -2).split(m * max(1, UNPACKED // (2 * m * pairs))):
        scale = torch.maximum(forms.amax(-1), -forms.amin(-1)).view(-1, m).amax(-1)
        # Rounded first: half as much is moved then. Of forms that are zero there are no numbers until the last line.
        H = _unpacked((forms / scale.repeat_interleave(m)[:, None]).float())
        if m == 1:
            norms = form_norms(H).double()
        else:
            # Products are short sums; the long one is in double precision.
            squares = (H @ H).unflatten(0, (-1, m)).sum(1, dtype=torch.float64)
            norms = _largest_eigenvalues(squares.float()).double().sqrt()
        found.append(torch.where(scale == 0, 0.0, allowance * scale * norms))
    return torch.cat(found).view(groups, *more)


def _unpacked(packed: Float[Tensor, "forms pairs"]) -> Float[Tensor, "forms r r"]:
    """Return packed forms as symmetric matrices."""
    r = _dimension(packed)
    _a, _b, factors = packed_pairs(r)
    return (packed / factors.to(packed.dtype)).index_select(1, _square_places(r)).unflatten(1, (r, r))


@functools.cache
def _square_places(r: int) -> Int[Tensor, " squares"]:
    """Return which pair of columns stands at every place of a matrix, row by row."""
    a, b, _factors = packed_pairs(r)
    places = torch.empty(r, r, dtype=torch.long)
    places[a, b] = places[b, a] = torch.arange(len(a))
    return places.flatten()


def block_norms(columns: Float[Tensor, "groups r *more m"]) -> Float[Tensor, "groups *more"]:
    r"""Bound the largest singular value of every block, whose columns are along r and whose rows are along m.

    As in :mod:`howsmooth.theory.linalg.eigenvalue_bounds`, with :math:`Y = G^8` for a Gram matrix G of v columns,

    .. math:: \lambda_{\max}(Y) \le \frac{t_1}v + \Bigl((v-1)\bigl(\frac{t_2}v - \frac{t_1^2}{v^2}\bigr)\Bigr)^{1/2},
              \qquad t_1 = \mathrm{tr}\,Y,\; t_2 = \|Y\|_F^2,

    but blocks are not copied, numbers are scaled once, and only a few Gram matrices are squared at once: these norms
    take most of the time of a table.

    Example:
        >>> blocks = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))[None, :, None]
        >>> print(block_norms(blocks).shape, bool((block_norms(blocks) - 3).abs() < 1e-3))
        torch.Size([1, 1]) True
    """
    groups, r, *more, m = columns.shape
    at_once = max(1, SQUARED // (groups * min(r, m) ** 2))
    stacked = columns.movedim((0, 1), (-3, -2))
    places = [stacked[place] for place in itertools.product(*map(range, more))]
    squares = []
    for first in range(0, len(places), at_once):
        some = places[first : first + at_once]
        squares.append(_largest_eigenvalues(torch.cat([x @ x.mT if r < m else x.mT @ x for x in some])))
    found = torch.cat(squares).view(*more, groups).movedim(-1, 0)
    norms, inaccurate = found.sqrt(), ~((found > SMALLEST) & (found < 1 / SMALLEST))
    if bool(inaccurate.any()):
        # Blocks that over- or underflow are bounded again with scaled columns; most of them are zero.
        largest = columns.abs().amax((1, -1))
        norms = torch.where(largest == 0, 0.0, norms)
        inaccurate = inaccurate & (largest != 0)
        if bool(inaccurate.any()):
            norms[inaccurate] = largest_norms(columns.movedim(1, -2)[inaccurate])
    return norms


def form_norms(H: Float[Tensor, "forms r r"]) -> Float[Tensor, " forms"]:
    """Bound the largest absolute eigenvalue of symmetric matrices, whose largest entry is about one or zero.

    Example:
        >>> forms = torch.diag_embed(torch.tensor([[0.5, -1.0], [0.0, 0.0]], dtype=torch.float64))
        >>> print(form_norms(forms).mul(1000).round().tolist())
        [1000.0, 0.0]
    """
    at_once = max(1, SQUARED // H.shape[-1] ** 2)
    found = []
    for some in H.split(at_once):
        G = some @ some
        # entries are about one: squares of a form that is not zero do not underflow
        zero = ~G.diagonal(dim1=-2, dim2=-1).any(-1)
        found.append(_largest_eigenvalues(G).sqrt().masked_fill(zero, 0.0))
    return torch.cat(found)


def _largest_eigenvalues(G: Float[Tensor, "blocks v v"]) -> Float[Tensor, " blocks"]:
    """Bound the largest eigenvalue of every Gram matrix by traces of its eighth power; G is overwritten."""
    v, eps = G.shape[-1], torch.finfo(G.dtype).eps
    # Scaled by the Frobenius norm, and not by the trace: eighth powers of eigenvalues then add up to v⁻⁴ at least.
    size = torch.linalg.vector_norm(G, dim=(1, 2))
    G *= (1 / size)[:, None, None]
    square = G @ G
    fourth = torch.bmm(square, square, out=G)
    eighth = torch.bmm(fourth, fourth, out=square)
    first = eighth.diagonal(dim1=-2, dim2=-1).sum(-1) / v
    second = torch.linalg.vector_norm(eighth, dim=(1, 2)).square() / v
    # A variance is a difference of two nearly equal numbers: their rounding error is added to it.
    variance = second - first.square() + 8 * v * eps * second
    top = first + ((v - 1) * variance.clamp_min(0)).sqrt()
    return (1 + 32 * v * eps) * top.sqrt().sqrt().sqrt() * size
