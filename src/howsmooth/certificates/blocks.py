r"""Spectral norms of the many blocks of a table, bounded from above with few passes over memory.

As in :mod:`howsmooth.theory.linalg.eigenvalue_bounds`, with :math:`Y = G^8` for a Gram matrix G of v columns,

.. math:: \lambda_{\max}(Y) \le \frac{t_1}v + \Bigl((v-1)\bigl(\frac{t_2}v - \frac{t_1^2}{v^2}\bigr)\Bigr)^{1/2},
          \qquad t_1 = \mathrm{tr}\,Y,\; t_2 = \|Y\|_F^2,

but blocks are read where they lie, numbers are scaled once, and only a few Gram matrices are squared at once.
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.linalg.eigenvalue_bounds import largest_norms

# So many numbers of Gram matrices are squared at once: they should stay near the processor.
NUMBERS = 2**18
# Sums of squares of columns are exact enough between this and its inverse, in single precision too.
SMALLEST = 1e-24


def block_norms(columns: Float[Tensor, "groups r *more m"]) -> Float[Tensor, "groups *more"]:
    """Bound the largest singular value of every block, whose columns are along r and whose rows are along m.

    Example:
        >>> blocks = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))[None, :, None]
        >>> print(block_norms(blocks).shape, bool((block_norms(blocks) - 3).abs() < 1e-3))
        torch.Size([1, 1]) True
    """
    groups, r, *more, m = columns.shape
    at_once = max(1, NUMBERS // (groups * min(r, m) ** 2))
    stacked = columns.movedim((0, 1), (-3, -2))
    places = [stacked[place] for place in itertools.product(*map(range, more))]
    squares = []
    for first in range(0, len(places), at_once):
        some = places[first : first + at_once]
        squares.append(_largest(torch.cat([x @ x.mT if r < m else x.mT @ x for x in some])))
    found = torch.cat(squares).view(*more, groups).movedim(-1, 0)
    norms, poor = found.sqrt(), ~((found > SMALLEST) & (found < 1 / SMALLEST))
    if bool(poor.any()):
        # what over- or underflows is looked at again; most of it is where nothing arrives
        largest = columns.abs().amax((1, -1))
        norms = torch.where(largest == 0, 0.0, norms)
        poor = poor & (largest != 0)
        if bool(poor.any()):
            norms[poor] = largest_norms(columns.movedim(1, -2)[poor])
    return norms


def form_norms(H: Float[Tensor, "forms r r"]) -> Float[Tensor, " forms"]:
    """Bound the largest absolute eigenvalue of every symmetric matrix, whose numbers are about one in size, or zero.

    Example:
        >>> forms = torch.diag_embed(torch.tensor([[0.5, -1.0], [0.0, 0.0]], dtype=torch.float64))
        >>> print(form_norms(forms).mul(1000).round().tolist())
        [1000.0, 0.0]
    """
    at_once = max(1, NUMBERS // H.shape[-1] ** 2)
    found = torch.cat([_largest(some @ some) for some in H.split(at_once)]).sqrt()
    return torch.where(H.flatten(1).any(1), found, 0.0)


def _largest(G: Float[Tensor, "blocks v v"]) -> Float[Tensor, " blocks"]:
    """Bound the largest eigenvalue of every Gram matrix; G is written over."""
    v, eps = G.shape[-1], torch.finfo(G.dtype).eps
    # by its Frobenius norm, and not by its trace: eighth powers of what is left are no smaller than v⁻⁴
    size = G.flatten(1).square().sum(1).sqrt()
    G *= (1 / size)[:, None, None]
    square = G @ G
    fourth = torch.bmm(square, square, out=G)
    eighth = torch.bmm(fourth, fourth, out=square)
    first = eighth.diagonal(dim1=-2, dim2=-1).sum(-1) / v
    second = eighth.flatten(1).square().sum(1) / v
    # what rounding may have taken from a difference of two numbers is given back
    apart = second - first.square() + 8 * v * eps * second
    top = first + ((v - 1) * apart.clamp_min(0)).sqrt()
    return (1 + 32 * v * eps) * top.sqrt().sqrt().sqrt() * size
