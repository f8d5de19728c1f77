"""The largest singular value of an operator between two bounds, by Golub–Kahan–Lanczos."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning, DtypeError, NonFiniteError
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.certificate import least_overlap
from howsmooth.spectral.estimates import NormEstimate, Status, gravest
from howsmooth.spectral.operators import LinearOperator, compressed
from howsmooth.spectral.stopping import Harvest, Stopping, least_length, least_rtol, slack
from howsmooth.spectral.vectors import flat, informed_start, lengths, random_start, unit

# Operators leave a batch when so many of them are done: copying the rest costs about one product.
LEAVING_SHARE = 0.2


def local_lipschitz(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"] | Any,
    *,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    certify: bool = True,
    max_steps: int = 200,
    generator: torch.Generator | None = None,
) -> NormEstimate:
    r"""Measure the local Lipschitz constant :math:`\|D_X f\|_2` of ``f`` at the tokens ``X``.

    At a measure it is the constant in the metric of the masses, when atoms move without splitting; the direction is
    then :math:`\sqrt{a_i}\,e_i`. Half-precision tokens are measured in float32. A batch of inputs is measured in one
    Krylov iteration; the confidence then holds for each of them.

    Args:
        f: A map with a ``jacobian``, a callable that returns a linear operator, or any callable or module on tensors.
        X: The tokens, or for attention a measure.
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
    return bracket_norm(op, rtol, confidence, certify, max_steps, generator)


def bracket_norm(
    op: LinearOperator,
    rtol: float,
    confidence: float,
    certify: bool,
    max_steps: int,
    generator: torch.Generator | None,
    floor: float = 0.0,
) -> NormEstimate:
    """Do what :func:`spectral_norm` says; an operator that moves its start by at most ``floor`` is called zero."""
    check_settings(op, rtol, confidence, max_steps)
    core, embed = compressed(op)
    # a good guess finds the value sooner, but does not exclude larger ones sooner
    informed = not certify and hasattr(core, "guess") and math.prod(core.domain) > 2  # the law is unimodal then
    start, share, spent = informed_start(core, generator) if informed else (random_start(core, generator), 1.0, 0)
    rule = Stopping(
        rtol=rtol,
        certify=certify,
        max_steps=max_steps,
        delta=share * least_overlap(math.prod(core.domain), confidence),
        slack=slack(op.dtype),
    )
    space = Bidiagonalisation(core, flat(start, core.batch), generator, max(floor, least_length(op.dtype)))
    harvest = _harvest(space, rule)
    products = spent + 2 * int(harvest.steps.max())
    small = unit(harvest.direction.reshape(*core.batch, *core.domain), core.batch)
    moved = core.jvp(small)
    direction = embed(small)
    response = moved if core is op else op.jvp(direction)
    lower = lengths(response, op.batch)
    harvest.check(lower.flatten().cpu().numpy(), rule)
    if (worst := gravest(harvest.statuses)) in (Status.MAX_STEPS, Status.INCONSISTENT):
        warnings.warn(f"after {harvest.steps.max()} steps: {worst.value}", ConvergenceWarning, stacklevel=3)
    upper = torch.as_tensor(harvest.upper, device=op.device).reshape(op.batch)
    return NormEstimate(
        lower=lower.to(op.dtype),
        upper=torch.maximum(upper, lower).to(op.dtype),
        confidence=confidence,
        direction=direction,
        response=unit(response, op.batch),
        residual=lengths(moved - harvest.response.reshape(moved.shape), op.batch).to(op.dtype),
        products=products + (1 if core is op else 2),
        step_counts=tuple(harvest.steps.tolist()),
        statuses=tuple(harvest.statuses),
    )


def _harvest(space: Bidiagonalisation, rule: Stopping) -> Harvest:
    """Grow the Krylov spaces of all operators in lockstep; those that are done leave in groups."""
    harvest = Harvest(space.op)
    waiting = np.arange(math.prod(space.op.batch))
    can_leave = hasattr(space.op, "take")
    while waiting.size:
        space.advance()
        _require_finite(space)
        closed = rule.closed(space)
        if closed.all() or space.steps == rule.max_steps:
            leaving = np.ones_like(closed)
        elif can_leave and closed.mean() >= LEAVING_SHARE:
            leaving = closed
        else:
            continue
        harvest.add(waiting[leaving], space, leaving, closed, rule)
        waiting = waiting[~leaving]
        if waiting.size:
            space.keep(np.flatnonzero(~leaving))
    return harvest


def check_settings(op: LinearOperator, rtol: float, confidence: float, max_steps: int) -> None:
    """Refuse operators and settings that no solver can work with."""
    if not isinstance(op, LinearOperator):
        raise DtypeError(
            f"this takes a linear operator, got {type(op).__name__}; wrap a matrix in hs.Dense, and use "
            "hs.local_lipschitz for a map and its input."
        )
    least = least_rtol(op.dtype)
    if not rtol >= least:
        raise AssumptionError(
            f"rtol must be at least {least:.1e} in {op.dtype}, got {rtol}; use float64 for more digits."
        )
    if not 0 < confidence < 1:
        raise AssumptionError(f"confidence must lie strictly between 0 and 1, got {confidence}.")
    if not (isinstance(max_steps, int) and max_steps >= 1):
        raise AssumptionError(f"max_steps must be a whole number, at least 1, got {max_steps}.")
    if not math.prod((*op.batch, *op.domain, *op.codomain)):
        raise AssumptionError(f"the operator must not be empty, got {op.batch}, {op.domain} → {op.codomain}.")


def _require_finite(space: Bidiagonalisation) -> None:
    if not (np.isfinite(space.alphas[:, -1]).all() and np.isfinite(space.betas[:, -1]).all()):
        raise NonFiniteError(
            "a product with the operator is not finite: the map is not differentiable, or overflows, there."
        )
