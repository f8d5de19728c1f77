"""Batches of vectors of any shape: norms, unit vectors, random starts."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.protocols import Constrained

# Between these the squares of a vector's entries can be added up in float64 without under- or overflow.
SAFE_LEAST, SAFE_MOST = 1e-145, 1e145

# How much of an informed start is random all the same.
RANDOM_SHARE = 0.1


def norms(x: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "*batch"]:
    """Return the Euclidean norm of each vector of the batch, in float64, whatever the size of the numbers."""
    rows = x.reshape(*batch, -1)
    # in float32, the squares of 10⁵ entries add up to five units in the last place too little
    norm = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    if all(SAFE_LEAST < value < SAFE_MOST for value in norm.flatten().tolist()):
        return norm
    largest = rows.abs().amax(-1).double()
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return scale * torch.linalg.vector_norm(rows.double() / scale.unsqueeze(-1), dim=-1)


def unit(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Scale every vector of the batch to norm one; zero stays zero."""
    norm = norms(x, batch)
    return divide(x, torch.where(norm > 0, norm, 1.0))


def divide(x: Tensor, by: Float[Tensor, "*batch"]) -> Tensor:
    """Divide every vector of the batch by its own number."""
    return x / broadcast(by, x)


def broadcast(numbers: Float[Tensor, "*batch"], x: Tensor) -> Tensor:
    """Shape one number for each vector of the batch so that it broadcasts over ``x``, in the dtype of ``x``."""
    return numbers.reshape((*numbers.shape, *(1 for _ in range(x.ndim - numbers.ndim)))).to(x.dtype)


def random_start(op: LinearOperator, generator: torch.Generator | None) -> Float[Tensor, "..."]:
    """Draw a unit vector of the domain for each operator of the batch, uniform on the sphere.

    Where perturbations live in a part of the domain, it is uniform on the sphere of that part: bounds that hold for the
    dimension of the whole hold there all the more.
    """
    shape = (*op.batch, *op.domain)
    device = op.device if generator is None else generator.device
    start = torch.randn(shape, dtype=op.dtype, device=device, generator=generator).to(op.device)
    return unit(op.constrain(start) if isinstance(op, Constrained) else start, op.batch)


def informed_start(
    op: LinearOperator, guess: Tensor, generator: torch.Generator | None
) -> tuple[Float[Tensor, "..."], float]:
    r"""Mix a guess with a random vector; return the start and its random share.

    Why not the guess alone: it may be orthogonal to the top singular vector, and then no upper bound holds.

    With :math:`v_1 \propto \sqrt{1-b^2}\,s + b\,g`, g uniform on the sphere, and any y,
    :math:`P(|\langle v_1, y\rangle| < t) \le P(|\langle g,y\rangle| < t/c)` with :math:`c = b/(\sqrt{1-b^2}+b)`: a
    symmetric unimodal law puts most mass on a centred interval. Upper bounds survive with the least overlap times c.
    """
    b = RANDOM_SHARE
    rest = math.sqrt(1 - b * b)
    start = rest * unit(guess, op.batch) + b * random_start(op, generator)
    return unit(start, op.batch), b / (rest + b)


def flat(x: Tensor, batch: tuple[int, ...]) -> Float[Tensor, "count N"]:
    """Flatten the batch axes into one and the rest into another."""
    return x.reshape(math.prod(batch), -1)
