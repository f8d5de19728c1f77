"""When a bracket is good enough, and what is kept of the operators that have reached it."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from howsmooth.linear_operators import LinearOperator
from howsmooth.rounding import SOLVER_UNITS
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.estimates import Status
from howsmooth.spectral.lanczos_upper_bound import component_sums, upper_bound
from howsmooth.spectral.solver_settings import LEAST_WIDTH

Array = np.ndarray
# Between two tests the sums that exclude larger values are taken to grow by this factor in a step at most. In 120
# brackets at layers and heads of MiniLM no test came too late; with 100 there are half as many tests again, with 10
# some are late.
LARGEST_GROWTH = 20.0


def slack(dtype: torch.dtype) -> float:
    """Return the factor by which rounding may have lowered an upper bound."""
    return 1 + SOLVER_UNITS * torch.finfo(dtype).eps


def least_rtol(dtype: torch.dtype) -> float:
    """Return the smallest relative width of a bracket that the rounding of ``dtype`` lets close."""
    return LEAST_WIDTH * torch.finfo(dtype).eps


def least_norm(dtype: torch.dtype) -> float:
    """Return the norm below which a vector's rounding errors leave the range of ``dtype``: as good as zero."""
    return torch.finfo(dtype).tiny / torch.finfo(dtype).eps


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """The rule that decides when an operator is done."""

    rtol: float  # the tolerance, of the bracket or of the residual
    certify: bool  # whether the bracket has to close
    max_steps: int  # when to give up
    delta: float  # the least overlap of the start with the top singular vector, at the confidence
    slack: float  # what rounding adds to upper bounds

    @property
    def rounding(self) -> float:
        """By how much the lower end may turn out lower than its Ritz value; the rest of ``rtol`` is for the bracket."""
        return self.rtol / 4

    def closed(self, space: Bidiagonalisation) -> tuple[Array, int]:
        """Tell which operators are done, and how many steps the others take at least, as far as one can tell."""
        if space.complete:
            return np.ones_like(space.zero), 1
        done = space.zero.copy()
        live = ~space.zero
        if not self.certify:
            done[live] = space.residual_below(self.rtol)[live]
        elif live.any():
            # Why not compute the bound and compare: one evaluation of the sum at the goal answers yes or no, the bound
            # itself takes many, and is needed once.
            goal = space.ritz()[live] * (1 + self.rtol) / (1 + self.rounding) / self.slack
            threshold = self.delta**-2
            sums = component_sums(goal, space.alphas[live], space.betas[live], threshold)
            done[live] = sums >= threshold
            # Why not after every step: on short sequences a test takes a tenth of a step
            missing = threshold / sums[sums < threshold].max(initial=1.0)
            return done, max(1, int(math.log(missing) / math.log(LARGEST_GROWTH)))
        return done, 1

    def upper(self, space: Bidiagonalisation, which: Array, ritz: Array) -> Array:
        """Return the upper bounds of some operators whose largest Ritz values are ``ritz``."""
        live = ~space.zero[which]
        # σ|γ| ≤ |J v_1|, which is zero, or as good as zero
        upper = np.where(space.alphas[which, 0] > 0, space.floor[which] / self.delta, 0.0)
        if space.complete:
            upper[live] = ritz[live]
        elif live.any():
            alphas, betas = space.alphas[which][live], space.betas[which][live]
            upper[live] = upper_bound(ritz[live], alphas, betas, self.delta)
        return upper * self.slack


class FinishedTriplets:
    """What is kept of each operator once it is done: its top Ritz triplet, its upper bound, why it stopped."""

    def __init__(self, op: LinearOperator) -> None:
        count = math.prod(op.batch)
        self.direction = torch.empty(count, math.prod(op.domain), dtype=op.dtype, device=op.device)
        self.response = torch.empty(count, math.prod(op.codomain), dtype=op.dtype, device=op.device)
        self.ritz = np.empty(count)
        self.first = np.empty(count)
        self.leading = np.zeros(count, dtype=int)
        self.upper = np.empty(count)
        self.steps = np.zeros(count, dtype=int)
        self.statuses = [Status.MAX_STEPS] * count

    def add(self, places: Array, space: Bidiagonalisation, which: Array, closed: Array, rule: Stopping) -> None:
        """Take operators ``which`` out of the Krylov spaces and put them in their ``places``."""
        direction, response, values = space.top_triplets(which)
        ritz = values[:, 0]
        index = torch.as_tensor(places, device=direction.device)
        self.direction[index], self.response[index] = direction, response
        self.ritz[places] = ritz
        self.upper[places] = rule.upper(space, which, ritz)
        self.first[places] = space.alphas[which, 0]
        # the i-th singular value is at least the i-th Ritz value, so these many are there, if not more
        self.leading[places] = (values > self.upper[places, None] / 2).sum(axis=1)
        self.steps[places] = space.steps
        for place, zero, done in zip(places, space.zero[which], closed[which], strict=True):
            self.statuses[place] = _status(space, bool(zero), bool(done))

    def check(self, lower: Array, rule: Stopping) -> None:
        r"""Compare what the operator really does with the Ritz values: :math:`|Jv| \ge \theta` in exact arithmetic.

        Where this fails by more than the tolerance allows, products do not come from one matrix and its transpose, and
        no upper bound can be given.
        """
        # Why not trust the Ritz values: they come from the recursion, which does not notice two different matrices.
        wrong = np.flatnonzero(lower * (1 + rule.rounding) < self.ritz)
        self.refuse(np.array([place for place in wrong if self.statuses[place] is not Status.ZERO], dtype=int))

    def exceeded(self, attained: Array, rule: Stopping) -> Array:
        """Return the operators whose upper bound is below what was attained, by more than rounding.

        A Krylov space that fills the whole space has missed nothing: there only rounding, or products that are not
        consistent, can be the reason.
        """
        whole = np.array([status is Status.INVARIANT for status in self.statuses])
        return np.flatnonzero(attained > self.upper * np.where(whole, 1 + rule.rounding, rule.slack))

    def refuse(self, places: Array) -> None:
        """Give no upper bound for some operators, whose products contradict each other."""
        self.upper[places] = np.inf
        for place in places:
            self.statuses[place] = Status.INCONSISTENT

    def replace(self, places: Array, other: "FinishedTriplets", which: Array) -> None:
        """Take the upper bounds of some operators from another exploration, and its directions where they are better.

        How far the first start was stretched stays: it was random, and a second one depends on what came of it.
        """
        better = other.ritz[which] > self.ritz[places]
        to, source = places[better], which[better]
        index = torch.as_tensor(to, device=self.direction.device)
        other_index = torch.as_tensor(source, device=self.direction.device)
        self.direction[index], self.response[index] = other.direction[other_index], other.response[other_index]
        self.ritz[to] = other.ritz[source]
        self.upper[places], self.leading[places] = other.upper[which], other.leading[which]
        self.steps[places] += other.steps[which]
        for place, source in zip(places, which, strict=True):
            self.statuses[place] = other.statuses[source]


def _status(space: Bidiagonalisation, zero: bool, done: bool) -> Status:
    if zero:
        return Status.ZERO
    if space.complete:
        return Status.INVARIANT
    return Status.CONVERGED if done else Status.MAX_STEPS
