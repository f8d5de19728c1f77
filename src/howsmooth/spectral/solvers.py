"""The largest singular values of an operator between two bounds, by Golub–Kahan–Lanczos."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning
from howsmooth.linear_operators import LinearOperator
from howsmooth.metrics import Metric, Metrics, as_metrics, total
from howsmooth.rounding import FORWARD_FACTOR, PRODUCT_UNITS, SOLVER_UNITS
from howsmooth.spectral.autograd import linearise
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.estimates import NormEstimate, SingularValues, Status, gravest
from howsmooth.spectral.lanczos_upper_bound import least_overlap
from howsmooth.spectral.metric_norms import bracket_in, has_proof, in_metrics
from howsmooth.spectral.operators import (
    Composed,
    Differentiable,
    Guessing,
    Recastable,
    Rounded,
    Separable,
    Shardable,
    check_operator,
    compressed,
    dimension,
    flat,
    informed_start,
    norms,
    over_processes,
    random_start,
    require_finite_products,
    root_share,
    unit,
)
from howsmooth.spectral.solver_settings import check_rtol, check_solver
from howsmooth.spectral.stopping import FinishedTriplets, Stopping, least_norm, least_rtol, slack
from howsmooth.token_ring import TokenRing
from howsmooth.validation import Seed, generator_from, plain_mode, tokens_for

# Rounding above this share of rtol triggers float64.
VISIBLE_SHARE = 0.1
# Cancellation between heads below this ratio is covered by the forward rounding; above, errors are bounded per head.
USUAL_HEAD_RATIO = 16.0
# The cancellation ratio between terms of products that is expected before measuring.
USUAL_TERM_RATIO = 32.0
# Finished operators are removed from a batch when they are this share of it: copying the rest costs about one product.
LEAVING_SHARE = 0.2
# If all starts miss the top singular vector, with less than this probability, products are called inconsistent.
MISS_PROBABILITY = 1e-9


@plain_mode()
def local_lipschitz(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "*batch n d"] | Any,
    *,
    metric: str | Metric | Metrics = total,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    certify: bool = True,
    max_steps: int = 200,
    seed: Seed | None = None,
    group: Any = None,
    positions: Tensor | None = None,
) -> NormEstimate:
    r"""Measure the local Lipschitz constant :math:`\|D_X f\|_2` of ``f`` at the tokens ``X``.

    At a measure it is the constant in the metric of the masses, when atoms move without splitting; the direction is
    then :math:`\sqrt{a_i}\,e_i`. Half-precision tokens are measured in float32. A batch of inputs is measured in one
    Krylov iteration; the confidence then holds for each of them.

    The number between the two ends is the constant of the map with these weights at these tokens, not that of its
    rounded forward pass. For attention, both ends are widened by a first-order bound on the effect of rounded scores,
    :math:`4\epsilon(\max|q_i||k_j| + 8)`, norms and terms; where that exceeds a tenth of ``rtol``, float32 is measured
    in float64. In a composition these bounds are added up, and how errors grow from map to map is not counted; other
    maps and callables are measured as they compute.

    Args:
        f: A map with a ``jacobian``, a callable that returns a linear operator, or any callable or module on tensors.
        X: The tokens, as a tensor, an array or a list; or for attention a measure.
        metric: How perturbations and changes are measured: a name, or a value of ``hs.metrics``.
        rtol: The bracket to reach: ``upper / lower <= 1 + rtol``.
        confidence: The probability, over the random start, with which ``upper`` holds; 1 asks for a proof, which the
            metrics ``token``, ``entries`` and ``sum`` have, and takes some ten times as long in ``token``.
        certify: Whether to go on until the bracket closes. Otherwise stop once the residual is below ``rtol`` times
            the value: fewer steps, and ``upper`` is whatever it has reached by then.
        max_steps: When to give up; two products each.
        seed: Seeds the random start; torch's global generator by default.
        group: A process group of ``torch.distributed`` that shares out the tokens of one sequence: ``X`` are this
            process's. All processes call this with the same map and settings, and get the same two ends; direction
            and response are those of their tokens. ``f`` is softmax attention, a composition of it with maps on single
            tokens, or a callable that talks to the other processes itself, as ``hs.sdpa(…, group=group)`` does; it is
            measured as it computes.
        positions: With a group, where the tokens of this process lie in the sequence; without, those of lower ranks
            come before.

    Raises:
        ClusterError: If a process of the group is lost.

    Example:
        >>> f = lambda X: 2 * X
        >>> round(float(local_lipschitz(f, torch.ones(3, 2, dtype=torch.float64)).lower), 6)
        2.0
    """
    metrics, generator = as_metrics(metric), generator_from(seed)
    # nothing is left to chance where a proof is known, so that any probability can be asked for
    chance = 0.999 if confidence == 1 and has_proof(metrics) else confidence
    check_solver(rtol=rtol, confidence=chance, max_steps=max_steps)  # before f is evaluated, which may take long
    X = tokens_for(X, f)
    if group is not None:
        ring = TokenRing.of(group, X, positions)
        return _over_group(f, X, ring, metrics, rtol, confidence, certify, max_steps, generator)
    if positions is not None:
        raise AssumptionError("positions are those of tokens that a group shares out; give group.", field="positions")
    op = linearise(f, X)
    op, metrics = in_metrics(f, op, metrics, X)
    check_settings(op, rtol, chance, max_steps)  # the result has this dtype, whatever measures it
    given, share, visible = op.dtype, widening(op), VISIBLE_SHARE * rtol
    # the part of rtol that is set aside for rounding
    allowance = min(share + USUAL_TERM_RATIO * SOLVER_UNITS * torch.finfo(given).eps, visible) if share > 0 else 0.0

    def bracket(op: LinearOperator, share: float) -> tuple[NormEstimate, tuple[float, float]]:
        inner = rtol - 2.5 * allowance if share <= visible else rtol  # so that the widened bracket has the width rtol
        with torch.no_grad():
            estimate = bracket_in(
                op,
                metrics,
                lambda J: bracket_norm(J, inner, chance, certify, max_steps, generator, warn=False),
                inner,
                confidence,
                generator,
            )
        return estimate, _rounding_errors(op, estimate, share, metrics)

    recast = given == torch.float32 and isinstance(f, Recastable)
    if not (recast and share > visible):
        found, errors = bracket(op, share)
        recast = recast and _exceeds_allowance(found, *errors, allowance)
    if recast and isinstance(f, Recastable):
        # Why not always in float64: twice the time and the memory, for digits that were not asked for.
        f, X = f.to(torch.float64), X.to(torch.float64)
        op, metrics = in_metrics(f, linearise(f, X), metrics, X)
        found, errors = bracket(op, widening(op))
    _warn(found, stacklevel=3)
    return found if errors == (0.0, 0.0) else widened(found, *errors, given if recast else None)


def _over_group(
    f: Any,
    X: Tensor,
    ring: TokenRing,
    metrics: Metrics,
    rtol: float,
    confidence: float,
    certify: bool,
    max_steps: int,
    generator: torch.Generator,
) -> NormEstimate:
    """Measure at tokens that processes share out: vectors are shared out likewise, and inner products added up."""
    if metrics.input is not total or metrics.output is not total:
        raise AssumptionError("over a group, perturbations are measured in the metric total.", field="metric")
    if isinstance(f, Shardable):
        f = f.sharded(ring)
    elif isinstance(f, Differentiable):
        raise AssumptionError(
            f"{type(f).__name__} is not shared out over processes: softmax attention is, and its compositions.",
            field="group",
        )
    # the start must not depend on which process drew it
    seed = ring.agreed(int(torch.randint(2**62, (), generator=generator)))
    with over_processes(ring), torch.no_grad():
        op = linearise(f, X, compare=False)
        return bracket_norm(op, rtol, confidence, certify, max_steps, torch.Generator().manual_seed(seed))


def widening(op: LinearOperator) -> float:
    """Bound the relative effect of the rounding of the forward pass on the norm; zero if unknown.

    In a composition it is the sum over its parts.
    """
    if isinstance(op, Rounded):
        return FORWARD_FACTOR * op.forward_rounding
    return sum(widening(part) for part in op.parts) if isinstance(op, Composed) else 0.0


def _rounding_errors(op: LinearOperator, found: NormEstimate, share: float, metrics: Metrics) -> tuple[float, float]:
    """Bound the relative and the absolute rounding error of the norm between metrics.

    If heads cancel, rounding errors are bounded per head, and always by all terms of the product with the direction.
    The relative error is infinite where what is left after cancellation may be rounding alone.
    """
    if not isinstance(op, Rounded):
        return share, 0.0
    with torch.no_grad():
        over_heads, over_terms = op.cancelled(found.direction, getattr(metrics.output, "scale", None))
    eps = torch.finfo(op.dtype).eps
    if over_heads > USUAL_HEAD_RATIO:
        share = over_heads * max(share, PRODUCT_UNITS * eps)
    share += SOLVER_UNITS * eps * over_terms
    shift = op.derivative_rounding
    if shift > 0:  # of unit vectors of the Euclidean norm, in that norm
        (n, d), (m, out) = op.domain, op.codomain
        shift *= metrics.input.euclidean_ratios((n, d))[0] * metrics.output.euclidean_ratios((m, out))[1]
    return share if share < 1 else math.inf, math.inf if math.isnan(shift) else shift


def _exceeds_allowance(found: NormEstimate, share: float, shift: float, allowance: float) -> bool:
    """Tell whether rounding errors take more of the bracket than was set aside for them."""
    too_large = share > allowance or shift > (allowance - share) * float(found.lower.min())
    return too_large or found.status is Status.INCONSISTENT


def widened(found: NormEstimate, share: float, shift: float, dtype: torch.dtype | None) -> NormEstimate:
    """Widen both ends of a bracket by a relative and an absolute error, and convert it to ``dtype``."""
    if share < 1:
        lower, upper = (found.lower * (1 - share) - shift).clamp_min(0), found.upper * (1 + share) + shift
    else:  # rounding may be as large as the value, so nothing is known of it, unless all terms are zero
        lower = torch.zeros_like(found.lower)
        unknown = (found.upper > 0) | (share == math.inf)
        upper = torch.where(unknown, math.inf, torch.full_like(unknown, shift, dtype=torch.float64)).to(found.upper)
    if dtype is None:
        return dataclasses.replace(found, lower=lower, upper=upper)
    unit, above = torch.finfo(dtype).eps, upper.new_tensor(math.inf).to(dtype)
    high = (upper * (1 + unit)).to(dtype)
    return dataclasses.replace(
        found,
        lower=(lower * (1 - unit)).to(dtype),
        upper=torch.where(high.double() < upper, torch.nextafter(high, above), high),  # rounded down by the conversion
        direction=found.direction.to(dtype),
        response=found.response.to(dtype),
        residual=found.residual.to(dtype),
        random_gain=None if found.random_gain is None else found.random_gain.to(dtype),
    )


@plain_mode()
@torch.no_grad()
def spectral_norm(
    op: LinearOperator,
    *,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    certify: bool = True,
    max_steps: int = 200,
    seed: Seed | None = None,
) -> NormEstimate:
    """Bracket the largest singular value of an operator by Golub–Kahan–Lanczos from a random start.

    The arguments are those of :func:`local_lipschitz`. Costs two products for each step and one or two at the end.
    """
    return bracket_norm(op, rtol, confidence, certify, max_steps, generator_from(seed))


def _warn(found: NormEstimate, *, stacklevel: int) -> None:
    """Warn where the tolerance was not met."""
    if found.status in (Status.MAX_STEPS, Status.INCONSISTENT):
        warnings.warn(f"after {found.steps} steps: {found.status.value}", ConvergenceWarning, stacklevel=stacklevel)


def bracket_norm(
    op: LinearOperator,
    rtol: float,
    confidence: float,
    certify: bool,
    max_steps: int,
    generator: torch.Generator | None,
    floor: "float | np.ndarray" = 0.0,
    warn: bool = True,
) -> NormEstimate:
    """Do what :func:`spectral_norm` says; an operator that moves its start by at most ``floor`` is called zero.

    An attained value may exceed the upper bound: then the start had too little of the top singular vector, and the
    operator is explored again from a new start, see :mod:`howsmooth.spectral.lanczos_upper_bound`.
    """
    check_settings(op, rtol, confidence, max_steps)
    core, embed = compressed(op)
    floor = np.broadcast_to(np.maximum(floor, least_norm(op.dtype)), (math.prod(op.batch),))
    delta = least_overlap(dimension(core.domain), confidence)
    rule = Stopping(rtol=rtol, certify=certify, max_steps=max_steps, delta=delta, slack=slack(op.dtype))
    finished, share, products = _explored(core, floor, rule, generator)
    attained, most = np.zeros(len(floor)), math.ceil(math.log(MISS_PROBABILITY) / math.log(1 - confidence))
    for restarts in range(most + 1):
        small = unit(finished.direction.reshape(*core.batch, *core.domain), core.batch)
        moved = core.jvp(small)
        direction = embed(small)
        # where directions are those of the operator itself, so are responses
        response = moved if direction is small else op.jvp(direction)
        products += 1 if direction is small else 2
        lower = norms(response, op.batch)
        require_finite_products(lower)
        finished.check(lower.flatten().cpu().numpy(), rule)
        attained = np.maximum(attained, lower.flatten().cpu().numpy())
        wrong = finished.exceeded(attained, rule)
        if restarts == most:  # a small excess may be rounding, which the upper end allows for
            finished.refuse(wrong[attained[wrong] > finished.upper[wrong] * (1 + rule.rounding)])
        if not wrong.size or restarts == most:
            break
        some, places = core, wrong
        if wrong.size < len(floor) and isinstance(core, Separable):
            some, places = core.take(torch.as_tensor(wrong, device=op.device)), np.arange(wrong.size)
        again, _share, spent = _explored(some, floor if some is core else floor[wrong], rule, generator)
        finished.replace(wrong, again, places)
        products += spent
    upper = torch.as_tensor(finished.upper, device=op.device).reshape(op.batch)
    first = torch.as_tensor(finished.first, device=op.device).reshape(op.batch) * root_share(core, op)
    found = NormEstimate(
        lower=lower.to(op.dtype),
        upper=torch.maximum(upper, lower).to(op.dtype),  # but for rounding it is the larger one
        confidence=confidence,
        direction=direction,
        response=unit(response, op.batch),
        residual=norms(moved - finished.response.reshape(moved.shape), op.batch).to(op.dtype),
        random_gain=first.to(op.dtype) if share == 1.0 else None,
        leading=tuple(finished.leading.tolist()),
        products=products,
        step_counts=tuple(finished.steps.tolist()),
        statuses=tuple(finished.statuses),
    )
    if warn:
        _warn(found, stacklevel=4)
    return found


def _explored(
    op: LinearOperator, floor: np.ndarray, rule: Stopping, generator: torch.Generator | None
) -> tuple[FinishedTriplets, float, int]:
    """Explore operators from a new start; return what they reached, the random share of the start, and the products.

    ``rule.delta`` is the least overlap of a random start; it is multiplied by the random share of this one.
    """
    start, share, spent = _start(op, rule.certify, generator)
    space = Bidiagonalisation(op, flat(start, op.batch), generator, floor)
    finished = _explore(space, dataclasses.replace(rule, delta=share * rule.delta))
    return finished, share, spent + 2 * int(finished.steps.max())


def _start(op: LinearOperator, certify: bool, generator: torch.Generator | None) -> tuple[Tensor, float, int]:
    """Return where to start, the random share of it, and the products spent."""
    # Why not always from the guess: it finds the value sooner, but does not exclude larger ones sooner, since the
    # certificate counts the random share alone. In two dimensions the law of its overlap is not unimodal.
    if not certify and isinstance(op, Guessing) and math.prod(op.domain) > 2:
        return *informed_start(op, op.guess(), generator), 1
    return random_start(op, generator), 1.0, 0


def _explore(space: Bidiagonalisation, rule: Stopping) -> FinishedTriplets:
    """Grow the Krylov spaces of all operators in lockstep; finished ones are removed in groups."""
    finished = FinishedTriplets(space.op)
    waiting = np.arange(math.prod(space.op.batch))
    can_leave, due = isinstance(space.op, Separable), 1
    while waiting.size:
        space.advance()
        require_finite_products(space.latest)
        if space.steps < min(due, rule.max_steps) and not (space.complete or space.nearly_invariant):
            continue
        closed, pause = rule.closed(space)
        due = space.steps + pause
        if closed.all() or space.steps == rule.max_steps:
            leaving = np.ones_like(closed)
        elif can_leave and closed.mean() >= LEAVING_SHARE:
            leaving = closed
        else:
            continue
        finished.add(waiting[leaving], space, leaving, closed, rule)
        waiting = waiting[~leaving]
        if waiting.size:
            space.keep(np.flatnonzero(~leaving))
    return finished


def check_settings(op: LinearOperator, rtol: float, confidence: float, max_steps: int) -> None:
    """Refuse operators and settings that no solver can work with."""
    check_operator(op)
    check_solver(rtol=rtol, confidence=confidence, max_steps=max_steps)
    check_rtol(rtol, torch.finfo(op.dtype).eps, str(op.dtype).removeprefix("torch."))


@plain_mode()
@torch.no_grad()
def singular_values(
    op: LinearOperator,
    *,
    k: int = 1,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    max_steps: int = 200,
    seed: Seed | None = None,
) -> SingularValues:
    r"""Return the ``k`` largest singular values of an operator, with vectors and error bars.

    Each one is searched on :math:`J(I - VV^\top)`, V the orthonormal directions found so far, from a fresh random
    start: multiple values are found as often as they occur. Both error bars survive inexact directions, since for
    **any** orthonormal V the min–max theorem and interlacing give

    .. math:: \sigma_i(J V_k) \;\le\; \sigma_i(J) \;\le\; \|J(I - V_{i-1}V_{i-1}^\top)\|.

    Args:
        op: The operator, e.g. ``f.jacobian(X)``, or a batch of them.
        k: How many values.
        rtol: The accuracy, relative to the largest value.
        confidence: The probability with which each upper bound holds.
        max_steps: The most Krylov steps for one value.
        seed: Seeds the random starts; torch's global generator by default.
    """
    check_settings(op, rtol, confidence, max_steps)
    generator = generator_from(seed)
    core, embed = compressed(op)
    most = min(math.prod(core.domain), math.prod(core.codomain))
    if not (isinstance(k, int) and 1 <= k <= most):
        raise AssumptionError(
            f"k must lie between 1 and {most}, the largest rank the operator can have, got {k!r}.", field="k"
        )
    # a direction is only accurate to the root of its value's tolerance, and what leaks blurs the values after it
    inner = max(1e-3 * rtol, least_rtol(op.dtype))
    # Why one after another and not all from one Krylov space: a single start meets each eigenspace in one direction,
    # so it finds a multiple value once, and its certificate speaks of the largest value alone.
    rest, found = Deflated(core, ()), []
    floor: float | np.ndarray = 0.0
    for _index in range(k):
        top = bracket_norm(rest, inner, confidence, True, max_steps, generator, floor)
        found.append(top)
        rest = rest.without(top.direction)
        # once the rank is exhausted, only the rounding of the largest value is left
        floor = 16 * torch.finfo(op.dtype).eps * found[0].lower.flatten().double().cpu().numpy()
    return _ritz(op, [embed(v) for v in rest.directions], found)


class Deflated:
    r"""An operator restricted to the orthogonal complement of some directions: :math:`J(I - VV^\top)`."""

    def __init__(self, op: LinearOperator, directions: tuple[Tensor, ...]) -> None:
        self.op, self.directions = op, directions
        self.batch, self.domain, self.codomain = op.batch, op.domain, op.codomain
        self.dtype, self.device = op.dtype, op.device

    def jvp(self, E: Tensor) -> Tensor:
        """Apply the operator to what is orthogonal to the directions."""
        return self.op.jvp(self._complement(E))

    def vjp(self, G: Tensor) -> Tensor:
        """Apply the transpose."""
        return self._complement(self.op.vjp(G))

    def without(self, direction: Tensor) -> "Deflated":
        """Remove one more direction."""
        # twice: a direction that lies nearly in the span of the others keeps few digits after one pass
        rest = self._complement(self._complement(direction))
        axes = tuple(range(len(self.batch), rest.ndim))
        return Deflated(self.op, (*self.directions, rest / torch.linalg.vector_norm(rest, dim=axes, keepdim=True)))

    def _complement(self, E: Tensor) -> Tensor:
        axes = tuple(range(len(self.batch), E.ndim))
        for v in self.directions:
            E = E - v * (v * E).sum(axes, keepdim=True)
        return E


def _ritz(op: LinearOperator, directions: list[Tensor], found: list[NormEstimate]) -> SingularValues:
    """Rotate the directions to the singular vectors of the operator on their span."""
    axis = len(op.batch)
    V = torch.stack(directions, dim=axis).flatten(axis + 1)
    moved = torch.stack([op.jvp(v) for v in directions], dim=axis).flatten(axis + 1)
    left, values, mix = torch.linalg.svd(moved.mT, full_matrices=False)
    by_element = zip(*(estimate.statuses for estimate in found), strict=True)
    return SingularValues(
        values=values,
        upper=torch.stack([estimate.upper for estimate in found], dim=-1),
        right=(mix @ V).unflatten(-1, op.domain),
        left=left.mT.unflatten(-1, op.codomain),
        confidence=found[0].confidence,
        products=sum(estimate.products for estimate in found) + len(directions),
        statuses=tuple(gravest(statuses) for statuses in by_element),
    )
