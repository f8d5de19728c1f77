"""Searching where not every input can be measured: such inputs are left out."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import UnmeasurableError
from howsmooth.search.norm_gradient import NormGradient, slope
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.solvers import local_lipschitz

# The map on some inputs of a batch: the same for all, or one whose masses are those of its inputs.
MapOn = Callable[[Tensor], Any]


def measurable_inputs(
    map_on: MapOn, X: Float[Tensor, "runs n d"], generator: torch.Generator
) -> tuple[Int[Tensor, " some"], NormEstimate]:
    """Return which inputs can be measured, and the constants there.

    Raises:
        UnmeasurableError: If none can, with what was said of the last one.
    """
    every = torch.arange(len(X), device=X.device)
    try:
        return every, local_lipschitz(map_on(every), X, generator=generator)
    except UnmeasurableError as error:
        some = every[:0]
        for i in every:  # beside others, since rounding may decide and depends on the batch
            more = torch.cat((some, i[None]))
            some = more if _works(map_on(more), X[more]) else some
        if not len(some):
            raise UnmeasurableError(f"no input of the search can be measured: {error}", field=error.field) from error
        return some, local_lipschitz(map_on(some), X[some], generator=generator)


def slope_or_skip(
    map_on: MapOn, X: Float[Tensor, "runs n d"], guess: Float[Tensor, "runs n e"], generator: torch.Generator
) -> NormGradient:
    """Do what :func:`slope` does; inputs that cannot be measured have the value −∞, which no run prefers."""
    return _slope(map_on, torch.arange(len(X), device=X.device), X, guess, generator)


def _slope(map_on: MapOn, index: Tensor, X: Tensor, guess: Tensor, generator: torch.Generator) -> NormGradient:
    try:
        return slope(map_on(index), X, guess, generator)
    except UnmeasurableError:
        if len(X) == 1:
            nothing = torch.full_like(guess[:, 0, 0], -torch.inf)
            return NormGradient(value=nothing, direction=guess, gradient=torch.zeros_like(X))
        # which one it was the error does not say: both halves, and so on
        half = len(X) // 2
        halves = [
            _slope(map_on, index[part], X[part], guess[part], generator) for part in (slice(half), slice(half, None))
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
