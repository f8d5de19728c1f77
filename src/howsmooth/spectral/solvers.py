"""The largest singular value of an operator between two bounds, by Golub–Kahan–Lanczos."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning, NonFiniteError
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.certificate import exceeds, least_overlap, upper_bound
from howsmooth.spectral.estimates import NormEstimate, Status
from howsmooth.spectral.operators import LinearOperator, compressed
from howsmooth.spectral.vectors import flat, lengths, random_start, unit

Array = np.ndarray

# Rounding acts like a perturbation of the operator by a few units in the last place; upper bounds include it.
ROUNDING_UNITS = 8


def local_lipschitz(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"],
    *,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    certify: bool = True,
    max_steps: int = 200,
    generator: torch.Generator | None = None,
) -> NormEstimate:
    r"""Measure the local Lipschitz constant :math:`\|D_X f\|_2` of ``f`` at the tokens ``X``.

    Half-precision tokens are measured in float32. A batch of inputs is measured in one Krylov iteration; the
    confidence then holds for each of them.

    Args:
        f: A map with a ``jacobian``, a callable that returns a linear operator, or any callable or module on tensors.
        X: The tokens.
        rtol: The bracket to reach: ``upper / lower <= 1 + rtol``.
        confidence: The probability, over the random start, with which ``upper`` holds.
        certify: Whether to go on until the bracket closes. Otherwise stop once the residual is below ``rtol`` times
            the value: fewer steps, and ``upper`` is whatever it has reached by then.
        max_steps: When to give up; two products each.
        generator: The source of the random start; torch's global one by default.

    Example:
        >>> f = lambda X: 2 * X
        >>> round(float(local_lipschitz(f, torch.ones(3, 2, dtype=torch.float64)).lower), 6)
        2.0
    """
    return spectral_norm(
        linearise(f, X),
        rtol=rtol,
        confidence=confidence,
        certify=certify,
        max_steps=max_steps,
        generator=generator,
    )


@torch.no_grad()
def spectral_norm(
    op: LinearOperator,
    *,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    certify: bool = True,
    max_steps: int = 200,
    generator: torch.Generator | None = None,
) -> NormEstimate:
    """Bracket the largest singular value of an operator by Golub–Kahan–Lanczos from a random start.

    The arguments are those of :func:`local_lipschitz`. Costs two products for each step and one or two at the end.
    """
    check_settings(op, rtol, confidence, max_steps)
    core, embed = compressed(op)
    delta = least_overlap(math.prod(core.domain), confidence)
    slack = 1 + ROUNDING_UNITS * torch.finfo(op.dtype).eps
    space = Bidiagonalisation(core, flat(random_start(core, generator), core.batch), generator)
    closed = np.zeros(math.prod(core.batch), dtype=bool)
    while not closed.all() and space.steps < max_steps:
        space.advance()
        _require_finite(space)
        if space.complete:
            closed[:] = True
        else:
            closed = _bracket_closed(space, rtol, slack, delta) if certify else _residual_small(space, rtol)
    return _estimate(op, core, embed, space, closed, delta=delta, slack=slack, confidence=confidence)


def _bracket_closed(space: Bidiagonalisation, rtol: float, slack: float, delta: float) -> Array:
    """Tell for which operators the upper bound is within ``rtol`` of the lower one."""
    closed = space.zero.copy()
    live = ~space.zero
    goal = space.ritz()[live] * (1 + rtol) / slack
    closed[live] = exceeds(goal, space.alphas[live], space.betas[live], delta**-2)
    return closed


def _residual_small(space: Bidiagonalisation, rtol: float) -> Array:
    return space.zero | (space.residual() <= rtol * space.ritz())


def _estimate(
    op: LinearOperator,
    core: LinearOperator,
    embed: Callable[[Tensor], Tensor],
    space: Bidiagonalisation,
    closed: Array,
    *,
    delta: float,
    slack: float,
    confidence: float,
) -> NormEstimate:
    """Turn the Krylov space into the estimate: one more product shows that the lower bound is attained."""
    left, values, right = np.linalg.svd(space.matrix(), full_matrices=False)
    small = unit(space.right_vectors(right[:, :1]).reshape(*core.batch, *core.domain), core.batch)
    moved = core.jvp(small)
    expected = space.left_vectors((left[:, :, 0] * values[:, :1])[:, None]).reshape(moved.shape)
    direction = unit(embed(small), op.batch)
    response = moved if core is op else op.jvp(direction)
    lower = lengths(response, op.batch)
    upper = torch.as_tensor(_upper(space, values[:, 0], delta) * slack, device=op.device).reshape(op.batch)
    statuses = tuple(_status(space, *flags) for flags in zip(space.zero.tolist(), closed.tolist(), strict=True))
    if Status.MAX_STEPS in statuses:
        sentence = f"the bracket did not close in {space.steps} steps. {Status.MAX_STEPS.value}"
        warnings.warn(sentence, ConvergenceWarning, stacklevel=4)
    return NormEstimate(
        lower=lower.to(op.dtype),
        upper=torch.maximum(upper, lower).to(op.dtype),
        confidence=confidence,
        direction=direction,
        response=unit(response, op.batch),
        residual=lengths(moved - expected, op.batch).to(op.dtype),
        steps=space.steps,
        products=2 * space.steps + (1 if core is op else 2),
        statuses=statuses,
    )


def _upper(space: Bidiagonalisation, ritz: Array, delta: float) -> Array:
    upper = np.zeros_like(ritz)
    live = ~space.zero
    if space.complete:
        upper[live] = ritz[live]
    elif live.any():
        upper[live] = upper_bound(ritz[live], space.alphas[live], space.betas[live], delta)
    return upper


def _status(space: Bidiagonalisation, zero: bool, closed: bool) -> Status:
    if zero:
        return Status.ZERO
    if space.complete:
        return Status.INVARIANT
    return Status.CONVERGED if closed else Status.MAX_STEPS


def least_rtol(dtype: torch.dtype) -> float:
    """Return the smallest relative width of a bracket that the rounding of ``dtype`` lets close."""
    return 4 * ROUNDING_UNITS * torch.finfo(dtype).eps


def check_settings(op: LinearOperator, rtol: float, confidence: float, max_steps: int) -> None:
    """Refuse settings that no solver can meet."""
    least = least_rtol(op.dtype)
    if not rtol >= least:
        raise AssumptionError(
            f"rtol must be at least {least:.1e} in {op.dtype}, got {rtol}; use float64 for more digits."
        )
    if not 0 < confidence < 1:
        raise AssumptionError(f"confidence must lie strictly between 0 and 1, got {confidence}.")
    if max_steps < 1:
        raise AssumptionError(f"max_steps must be at least 1, got {max_steps}.")
    if not math.prod((*op.batch, *op.domain, *op.codomain)):
        raise AssumptionError(f"the operator must not be empty, got {op.batch}, {op.domain} → {op.codomain}.")


def _require_finite(space: Bidiagonalisation) -> None:
    if not (np.isfinite(space.alphas[:, -1]).all() and np.isfinite(space.betas[:, -1]).all()):
        raise NonFiniteError(
            "a product with the operator is not finite: the map is not differentiable, or overflows, there."
        )
