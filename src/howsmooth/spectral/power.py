"""Power iteration: what most scripts use, kept for comparison."""

import math

import torch

from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.estimates import NormEstimate, Status
from howsmooth.spectral.lanczos_upper_bound import least_overlap
from howsmooth.spectral.operators import (
    broadcast,
    check_operator,
    divide,
    norms,
    random_start,
    require_finite_products,
    unit,
)
from howsmooth.spectral.solver_settings import check_solver
from howsmooth.spectral.stopping import slack
from howsmooth.validation import Seed, generator_from


@torch.no_grad()
def power_iteration(
    op: LinearOperator,
    *,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    max_steps: int = 1000,
    seed: Seed | None = None,
) -> NormEstimate:
    r"""Estimate the largest singular value by power iteration on :math:`J^\top J`.

    It stops when a step changes the value by at most ``rtol`` of it, which says little about the error. The upper bound
    is :math:`\sigma^{2k}|\gamma| \le |(J^\top J)^k v_1|`, :math:`|\gamma|` at least the overlap that a random start has
    at the confidence :cite:`dixon1983`; infinity where the value exceeds it, which shows that the start had less. Costs
    two products for each step.

    Args:
        op: The operator.
        rtol: The relative change of the value at which to stop.
        confidence: The probability, over the random start, with which ``upper`` holds.
        max_steps: When to give up.
        seed: Seeds the random start; torch's global generator by default.
    """
    check_operator(op)
    check_solver(rtol=rtol, confidence=confidence, max_steps=max_steps)
    v = random_start(op, generator_from(seed))
    value = torch.zeros(op.batch, dtype=torch.float64, device=op.device)
    log_growth, settled, steps = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool), 0
    while True:
        moved = op.jvp(v)
        pulled = op.vjp(moved)
        before, value = value, norms(moved, op.batch)
        require_finite_products(value)
        log_growth += norms(pulled, op.batch).log()
        settled = (value - before).abs() <= rtol * value
        steps += 1
        if bool(settled.all()) or steps == max_steps:
            break
        v = unit(pulled, op.batch)
    growth = (log_growth - math.log(least_overlap(math.prod(op.domain), confidence))) / (2 * steps)
    rounding = slack(op.dtype) * (1 + 4 * torch.finfo(growth.dtype).eps * growth.abs())  # of products and of logarithms
    upper = torch.where(value > 0, growth.exp() * rounding, 0.0)
    response = unit(moved, op.batch)
    residual = divide(pulled, torch.where(value > 0, value, 1.0)) - v * broadcast(value, v)
    return NormEstimate(
        lower=value.to(op.dtype),
        upper=torch.where(value <= upper, upper, math.inf).to(op.dtype),
        confidence=confidence,
        direction=v,
        response=response,
        residual=norms(residual, op.batch).to(op.dtype),
        products=2 * steps,
        step_counts=(steps,) * value.numel(),
        statuses=tuple(
            _status(*flags) for flags in zip(value.flatten().tolist(), settled.flatten().tolist(), strict=True)
        ),
    )


def _status(value: float, settled: bool) -> Status:
    if value == 0:
        return Status.ZERO
    return Status.CONVERGED if settled else Status.MAX_STEPS
