"""The largest singular value of an operator between two bounds, by Golub–Kahan–Lanczos."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import ConvergenceWarning, NonFiniteError
from howsmooth.spectral.abilities import Guessing, Recastable, Rounded, Separable
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.certificate import least_overlap
from howsmooth.spectral.estimates import NormEstimate, Status, gravest
from howsmooth.spectral.operators import LinearOperator, check_operator, compressed, root_share
from howsmooth.spectral.settings import check_rtol, check_solver
from howsmooth.spectral.stopping import Harvest, Stopping, least_norm, slack
from howsmooth.spectral.vectors import flat, informed_start, norms, random_start, unit

# Both ends give way by so many times the forward rounding: a weight enters each of the derivative's terms about twice.
WIDER = 4.0
# What takes more than this share of the tolerance is seen.
VISIBLE = 0.1
# Parts that are so many times longer than their sum are ordinary; where they are more, the rounding of each counts.
ORDINARY = 16.0
# So many units in the last place sums of products may lose of what they add up.
PRODUCTS = 32.0
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

    The number between the two ends is the constant of the map with these weights at these tokens, not that of its
    rounded forward pass: for attention, both ends give way by :math:`4\epsilon(\max|q_i||k_j| + 8)`, a bound to first
    order on what the rounding of scores does, and by what norms of queries and keys make of the rounding before them;
    where that would be seen, float32 is measured in float64. Where heads cancel, each is rounded by itself.
    Compositions and callables are measured as they compute.

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
    check_solver(rtol=rtol, confidence=confidence, max_steps=max_steps)  # before f is evaluated, which may take long
    op, asked = linearise(f, X), None
    check_settings(op, rtol, confidence, max_steps)  # the answer comes in these numbers, whatever measures it
    lost, narrow = widening(op), f if op.dtype == torch.float32 and isinstance(f, Recastable) else None

    def measured() -> NormEstimate:
        inner = rtol - 2.5 * lost if lost <= VISIBLE * rtol else rtol  # so that the wider bracket is the one asked for
        with torch.no_grad():
            return bracket_norm(op, inner, confidence, certify, max_steps, generator)

    found = None if narrow is not None and lost > VISIBLE * rtol else measured()
    if narrow is not None and (found is None or _lost(op, found, lost) > VISIBLE * rtol):
        # Why not always in float64: twice the time and the memory, for digits that nobody asked for.
        op, asked = linearise(narrow.to(torch.float64), X.to(torch.float64)), op.dtype
        lost = widening(op)
        found = None
    found = measured() if found is None else found
    lost = _lost(op, found, lost)
    return found if lost == 0 else widened(found, lost, asked)


def widening(op: LinearOperator) -> float:
    """Return by what share both ends of a bracket give way to the rounding of the forward pass; zero if unknown."""
    return WIDER * op.forward_rounding if isinstance(op, Rounded) else 0.0


def _lost(op: LinearOperator, found: NormEstimate, lost: float) -> float:
    """Return the share that rounding takes: where heads cancel, of what each of them says, and that of products too.

    It is infinite where what is left of them may be rounding alone.
    """
    if not isinstance(op, Rounded):
        return lost
    with torch.no_grad():
        times = op.cancelled(found.direction)
    if (wrong := op.derivative_rounding) > 0:
        lost += wrong / max(float(found.lower.min()), torch.finfo(op.dtype).tiny)
    if times <= ORDINARY:
        return lost
    share = times * max(lost, PRODUCTS * torch.finfo(op.dtype).eps)
    return share if share < 1 else math.inf


def widened(found: NormEstimate, share: float, dtype: torch.dtype | None) -> NormEstimate:
    """Let both ends of a bracket give way by a share, and return it in the numbers that were given."""
    if share < 1:
        lower, upper = found.lower * (1 - share), found.upper * (1 + share)
    else:  # rounding may be as large as the value: nothing is known of it, unless all it was made of is zero
        lower = torch.zeros_like(found.lower)
        upper = torch.where((found.upper > 0) | (share == math.inf), math.inf, 0.0).to(found.upper)
    if dtype is None:
        return dataclasses.replace(found, lower=lower, upper=upper)
    unit = torch.finfo(dtype).eps
    return dataclasses.replace(
        found,
        lower=(lower * (1 - unit)).to(dtype),
        upper=(upper * (1 + unit)).to(dtype),
        direction=found.direction.to(dtype),
        response=found.response.to(dtype),
        residual=found.residual.to(dtype),
        random_gain=None if found.random_gain is None else found.random_gain.to(dtype),
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
    floor: "float | np.ndarray" = 0.0,
) -> NormEstimate:
    """Do what :func:`spectral_norm` says; an operator that moves its start by at most ``floor`` is called zero."""
    check_settings(op, rtol, confidence, max_steps)
    core, embed = compressed(op)
    start, share, spent = _start(core, certify, generator)
    rule = Stopping(
        rtol=rtol,
        certify=certify,
        max_steps=max_steps,
        delta=share * least_overlap(math.prod(core.domain), confidence),
        slack=slack(op.dtype),
    )
    space = Bidiagonalisation(core, flat(start, core.batch), generator, np.maximum(floor, least_norm(op.dtype)))
    harvest = _harvest(space, rule)
    products = spent + 2 * int(harvest.steps.max())
    small = unit(harvest.direction.reshape(*core.batch, *core.domain), core.batch)
    moved = core.jvp(small)
    direction = embed(small)
    response = moved if core is op else op.jvp(direction)
    lower = norms(response, op.batch)
    harvest.check(lower.flatten().cpu().numpy(), rule)
    if (worst := gravest(harvest.statuses)) in (Status.MAX_STEPS, Status.INCONSISTENT):
        warnings.warn(f"after {harvest.steps.max()} steps: {worst.value}", ConvergenceWarning, stacklevel=3)
    upper = torch.as_tensor(harvest.upper, device=op.device).reshape(op.batch)
    first = torch.as_tensor(harvest.first, device=op.device).reshape(op.batch) * root_share(core, op)
    return NormEstimate(
        lower=lower.to(op.dtype),
        upper=torch.maximum(upper, lower).to(op.dtype),
        confidence=confidence,
        direction=direction,
        response=unit(response, op.batch),
        residual=norms(moved - harvest.response.reshape(moved.shape), op.batch).to(op.dtype),
        random_gain=first.to(op.dtype) if share == 1.0 else None,
        leading=tuple(harvest.leading.tolist()),
        products=products + (1 if core is op else 2),
        step_counts=tuple(harvest.steps.tolist()),
        statuses=tuple(harvest.statuses),
    )


def _start(op: LinearOperator, certify: bool, generator: torch.Generator | None) -> tuple[Tensor, float, int]:
    """Return where to start, the random share of it, and the products spent."""
    # Why not always from the guess: it finds the value sooner, but does not exclude larger ones sooner, since the
    # certificate counts the random share alone. In two dimensions the law of its overlap is not unimodal.
    if not certify and isinstance(op, Guessing) and math.prod(op.domain) > 2:
        return *informed_start(op, op.guess(), generator), 1
    return random_start(op, generator), 1.0, 0


def _harvest(space: Bidiagonalisation, rule: Stopping) -> Harvest:
    """Grow the Krylov spaces of all operators in lockstep; those that are done leave in groups."""
    harvest = Harvest(space.op)
    waiting = np.arange(math.prod(space.op.batch))
    can_leave = isinstance(space.op, Separable)
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
    check_operator(op)
    check_solver(rtol=rtol, confidence=confidence, max_steps=max_steps)
    check_rtol(rtol, torch.finfo(op.dtype).eps, str(op.dtype).removeprefix("torch."))


def _require_finite(space: Bidiagonalisation) -> None:
    if not (np.isfinite(space.alphas[:, -1]).all() and np.isfinite(space.betas[:, -1]).all()):
        raise NonFiniteError(
            "a product with the operator is not finite: the map is not differentiable, or overflows, there."
        )
