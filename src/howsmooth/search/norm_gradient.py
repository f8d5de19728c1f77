"""The local constant at a batch of inputs, and its gradient with respect to the tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.autograd import evaluate, linearise
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.protocols import Differentiable
from howsmooth.spectral.vectors import flat, random_start, unit

# Krylov steps from a start that is nearly right already.
KRYLOV_STEPS = 4
# What one slope costs each run, in products: two for a step, one that is differentiated, and that differentiation.
PRODUCTS = 2 * KRYLOV_STEPS + 2
# How much of that start is random, so that a singular value that overtakes the largest is noticed.
RANDOM_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class NormGradient:
    """The local constant of a map at a batch of inputs, to first order.

    Attributes:
        value: A lower bound on each constant, attained by ``direction`` up to rounding.
        direction: The unit perturbations that move the output most, as far as is known.
        gradient: The gradient of each constant with respect to its tokens.
    """

    value: Float[Tensor, " runs"]
    direction: Float[Tensor, "runs n e"]
    gradient: Float[Tensor, "runs n d"]


def slope(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "runs n d"],
    guess: Float[Tensor, "runs n e"],
    generator: torch.Generator,
    *,
    steps: int = KRYLOV_STEPS,
) -> NormGradient:
    r"""Measure the local constant at each input, and differentiate it.

    Where the largest singular value is simple, with singular vectors u and v, the gradient is that of
    :math:`X \mapsto \langle u, D_Xf\,v\rangle` with u and v held fixed. Costs a handful of products with the Jacobian
    (a few Krylov steps from ``guess``) and one differentiation through such a product.

    Args:
        f: A map whose ``jacobian`` autograd can differentiate, or a callable that is twice differentiable.
        X: The inputs.
        guess: A unit perturbation for each, near the one that moves the output most.
        generator: The source of the random part of the start.
        steps: How many Krylov steps to take; as many as X has numbers make the singular pair exact.
    """
    inputs = X.detach().clone().requires_grad_()
    if isinstance(f, Differentiable):
        with torch.enable_grad():
            J = f.jacobian(inputs)
        value, v, u = _top_pair(J, guess, generator, steps)
        with torch.enable_grad():
            paired = (u * J.jvp(v)).sum()
    else:
        value, v, u = _top_pair(linearise(f, X, compare=False), guess, generator, steps)
        inputs, output = evaluate(f, X)
        (pulled,) = torch.autograd.grad(output, inputs, u, create_graph=True, materialize_grads=True)
        paired = (pulled * v).sum()
    if not paired.requires_grad:  # the derivative is the same everywhere
        return NormGradient(value=value, direction=v, gradient=torch.zeros_like(X))
    (gradient,) = torch.autograd.grad(paired, inputs, materialize_grads=True)
    return NormGradient(value=value, direction=v, gradient=gradient)


@torch.no_grad()
def _top_pair(
    J: LinearOperator, guess: Tensor, generator: torch.Generator, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest singular value found, and the unit vectors v and u of it."""
    start = unit(guess + RANDOM_SHARE * random_start(J, generator), J.batch)
    space = Bidiagonalisation(J, flat(start, J.batch), generator)
    for _step in range(steps):
        if not space.complete:
            space.advance()
    v, moved, values = space.top_triplets(np.ones(len(guess), dtype=bool))
    u = unit(moved.reshape(*J.batch, *J.codomain), J.batch)
    return torch.as_tensor(values[:, 0], device=guess.device), v.reshape(guess.shape), u
