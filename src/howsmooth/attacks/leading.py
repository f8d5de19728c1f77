"""The leading right singular vectors of a derivative, as well as some products tell them."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.vectors import flat, random_start

# A direction is good enough to start from when its residual is so small against its value.
RESIDUAL = 0.01


@torch.no_grad()
def leading(
    J: LinearOperator, *, count: int, products: int, generator: torch.Generator
) -> list[Float[Tensor, "*batch n d"]]:
    """Return at most ``count`` leading directions by Golub–Kahan–Lanczos; fewer after fewer steps.

    Args:
        J: The derivative.
        count: How many directions.
        products: How many products may be taken; at least two are.
        generator: The source of the random start.
    """
    space = Bidiagonalisation(J, flat(random_start(J, generator), J.batch), generator)
    space.advance()
    while not space.complete and 2 * space.steps + 2 <= products and not space.residual_below(RESIDUAL).all():
        space.advance()
    return [v.reshape(*J.batch, *J.domain) for v in space.right_vectors(count)]
