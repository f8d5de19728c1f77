"""The local constant at a batch of inputs and its gradient with respect to the tokens, where it can be measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import UnmeasurableError
from howsmooth.linear_operators import LinearOperator
from howsmooth.metrics import TOTAL, Euclidean, Metrics
from howsmooth.spectral.autograd import evaluate, linearise
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.metric_norms import alternate, isometric
from howsmooth.spectral.operators import Differentiable, flat, random_start, unit
from howsmooth.spectral.solvers import local_lipschitz

# Krylov steps from a start that is nearly right already.
KRYLOV_STEPS = 4
# The random share of that start, so that a singular value that overtakes the largest is found.
RANDOM_SHARE = 0.1
# The map on some inputs of a batch: the same for all, or one whose masses are those of its inputs.
MapOn = Callable[[Tensor], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class NormGradient:
    """The local constant of a map at a batch of inputs, to first order."""

    value: Float[Tensor, " runs"]  # a lower bound on each constant, attained by direction up to rounding
    direction: Float[Tensor, "runs n e"]  # the unit perturbations that move the output most, as far as is known
    gradient: Float[Tensor, "runs n d"]  # the gradient of each constant with respect to its tokens


def norm_gradient(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "runs n d"],
    guess: Float[Tensor, "runs n e"],
    generator: torch.Generator,
    *,
    steps: int = KRYLOV_STEPS,
    metrics: Metrics = TOTAL,
) -> NormGradient:
    r"""Measure the local constant at each input, and differentiate it.

    Where the largest singular value is simple, with singular vectors u and v, the gradient is that of
    :math:`X \mapsto \langle u, D_Xf\,v\rangle` with u and v held fixed. Costs a handful of products with the Jacobian
    (a few Krylov steps from ``guess``) and one differentiation through such a product.
    As many ``steps`` as X has numbers make the singular pair exact.
    In other ``metrics`` (none relative) v is a perturbation of size one, and u a functional of dual size one.
    """
    inputs = X.detach().clone().requires_grad_()
    if isinstance(f, Differentiable):
        with torch.enable_grad():
            J = f.jacobian(inputs)
        value, v, u = _top_pair(J, guess, generator, steps, metrics)
        with torch.enable_grad():
            paired = (u * J.jvp(v)).sum()
    else:
        value, v, u = _top_pair(linearise(f, X, compare=False), guess, generator, steps, metrics)
        inputs, output = evaluate(f, X)
        (pulled,) = torch.autograd.grad(output, inputs, u, create_graph=True, materialize_grads=True)
        paired = (pulled * v).sum()
    if not paired.requires_grad:  # the derivative is the same everywhere
        return NormGradient(value=value, direction=v, gradient=torch.zeros_like(X))
    (gradient,) = torch.autograd.grad(paired, inputs, materialize_grads=True)
    return NormGradient(value=value, direction=v, gradient=gradient)


@torch.no_grad()
def _top_pair(
    J: LinearOperator, guess: Tensor, generator: torch.Generator, steps: int, metrics: Metrics
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest gain found, the perturbation v that has it, and the functional u that measures it."""
    given, wanted = metrics.input, metrics.output
    if not (isinstance(given, Euclidean) and isinstance(wanted, Euclidean)):
        return alternate(J, [guess + RANDOM_SHARE * given.draw(guess, generator)], given, wanted, steps)
    J = isometric(J, given, wanted)
    start = unit(given.standard(guess) + RANDOM_SHARE * random_start(J, generator), J.batch)
    space = Bidiagonalisation(J, flat(start, J.batch), generator)
    for _step in range(steps):
        if not space.complete:
            space.advance()
    v, moved, values = space.top_triplets(np.ones(len(guess), dtype=bool))
    u = unit(moved.reshape(*J.batch, *J.codomain), J.batch)
    value = torch.as_tensor(values[:, 0], device=guess.device)
    return value, given.original(v.reshape(guess.shape)), wanted.standard_transpose(u)


def products_of(steps: int) -> int:
    """Return how many products a gradient takes: two for each step, one that is differentiated, and that."""
    return 2 * steps + 2


def measurable_inputs(
    map_on: MapOn,
    X: Float[Tensor, "runs n d"],
    generator: torch.Generator,
    metrics: Metrics = TOTAL,
    **solver: Any,
) -> tuple[Int[Tensor, " some"], NormEstimate]:
    """Return which inputs can be measured, and the constants there; ``solver`` says how well."""
    every = torch.arange(len(X), device=X.device)
    try:
        return every, local_lipschitz(map_on(every), X, metric=metrics, seed=generator, **solver)
    except UnmeasurableError as error:
        some = every[:0]
        for i in every:  # together with others, since rounding may decide and depends on the batch
            more = torch.cat((some, i[None]))
            some = more if _works(map_on(more), X[more]) else some
        if not len(some):
            raise UnmeasurableError(f"no input of the search can be measured: {error}", field=error.field) from error
        return some, local_lipschitz(map_on(some), X[some], metric=metrics, seed=generator, **solver)


def norm_gradient_or_skip(
    map_on: MapOn,
    X: Float[Tensor, "runs n d"],
    guess: Float[Tensor, "runs n e"],
    generator: torch.Generator,
    metrics: Metrics = TOTAL,
    steps: int = KRYLOV_STEPS,
) -> NormGradient:
    """Do what :func:`norm_gradient` does; inputs that cannot be measured have the value −∞."""
    return _by_halves(map_on, torch.arange(len(X), device=X.device), X, guess, generator, metrics, steps)


def _by_halves(
    map_on: MapOn, index: Tensor, X: Tensor, guess: Tensor, generator: torch.Generator, metrics: Metrics, steps: int
) -> NormGradient:
    try:
        return norm_gradient(map_on(index), X, guess, generator, metrics=metrics, steps=steps)
    except UnmeasurableError:
        if len(X) == 1:
            nothing = torch.full_like(guess[:, 0, 0], -torch.inf)
            return NormGradient(value=nothing, direction=guess, gradient=torch.zeros_like(X))
        # the error does not say which input it was: both halves are tried, and so on
        half = len(X) // 2
        halves = [
            _by_halves(map_on, index[part], X[part], guess[part], generator, metrics, steps)
            for part in (slice(half), slice(half, None))
        ]
        return NormGradient(
            value=torch.cat([part.value for part in halves]),
            direction=torch.cat([part.direction for part in halves]),
            gradient=torch.cat([part.gradient for part in halves]),
        )


def _works(f: Any, X: Tensor) -> bool:
    try:
        linearise(f, X)
    except UnmeasurableError:
        return False
    return True
