"""Potentials that balance the rows and columns of a matrix: Sinkhorn's iteration, finished by Newton's."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import UnmeasurableError
from howsmooth.maps.tiles import recorded
from howsmooth.maps.weighting import Pick
from howsmooth.torch_internals import is_batched
from howsmooth.wording import number

# After so many of Sinkhorn's steps Newton's are tried; they are kept where they help.
STEPS_BEFORE_NEWTON = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class DoublyStochastic:
    r"""A matrix :math:`P_{ij} = e^{S_{ij}+f_i+g_j}a_j` with row sums one and column sums :math:`\sum_ia_iP_{ij} = a_j`.

    The derivative of the column sums with respect to g is :math:`\mathrm{diag}(a)-P^\top\mathrm{diag}(a)P`, in the
    coordinates :math:`\sqrt{a_j}\,g_j` the matrix :math:`I - M^\top M` with :math:`M_{ij} = \sqrt{a_i/a_j}P_{ij}`. It
    does not see constants, on which :math:`\sqrt a\sqrt a^\top` is added.

    Attributes:
        P: The matrix.
        masses: a, which sum to one.
        factor: The Cholesky factor of :math:`I - M^\top M + \sqrt a\sqrt a^\top`.
        steps: How many iterations were taken.
        solves: How many of them were Newton's: a factorisation and a solve each.
    """

    P: Float[Tensor, "stack shared n n"]
    masses: Float[Tensor, "stack 1 1 n"]
    factor: Float[Tensor, "stack shared n n"]
    steps: int
    solves: int

    def solve(self, y: Float[Tensor, "stack shared 1 n"]) -> Float[Tensor, "stack shared 1 n"]:
        """Return the change of g that changes the column sums by ``y``."""
        return _solve(self.factor, self.masses, y)

    def take(self, pick: Pick) -> "DoublyStochastic":
        """Pick some entries of the batch."""
        return dataclasses.replace(self, P=pick(self.P), masses=pick(self.masses), factor=pick(self.factor))


def balance(
    S: Float[Tensor, "stack shared n n"], masses: Float[Tensor, "stack 1 1 n"], *, max_steps: int
) -> DoublyStochastic:
    r"""Find the potentials of scores.

    Where autograd watches, two steps of Newton's method from the potentials found, which stay fixed, carry the
    derivative: the first three derivatives of that are those of the solution.

    Raises:
        UnmeasurableError: If rows and columns are not balanced after ``max_steps``.
    """
    log_masses = masses.log()
    with torch.no_grad():
        g, steps, solves = _potentials(S.detach(), masses.detach(), log_masses.detach(), max_steps)
    if recorded(S, masses):
        for _order in range(2):
            P, error = _columns(S, g, masses, log_masses)
            g = g - _solve(_factor(_curvature(P, masses)), masses, error)
    P, _error = _columns(S, g, masses, log_masses)
    factor = _factor(_curvature(P, masses))
    return DoublyStochastic(P=P, masses=masses, factor=factor, steps=steps, solves=solves)


def _factor(curvature: Tensor) -> Tensor:
    """Return the triangular factor, where there is one."""
    factor, wrong = torch.linalg.cholesky_ex(curvature)
    if not is_batched(wrong) and bool(wrong.any()):
        raise UnmeasurableError(
            "weights whose rows and columns sum to one are a permutation here, up to rounding: their derivative cannot "
            "be told. Take a smaller scale, or smaller tokens.",
            field="X",
        )
    return factor


def _potentials(S: Tensor, masses: Tensor, log_masses: Tensor, max_steps: int) -> tuple[Tensor, int, int]:
    """Return g, the number of steps, and how many of them were Newton's."""
    largest, eps = float(S.abs().max()), torch.finfo(S.dtype).eps
    g, steps, solves, error = torch.zeros_like(S[..., :1, :]), 0, 0, math.inf
    while steps < max_steps:
        for _step in range(STEPS_BEFORE_NEWTON):
            f = -torch.logsumexp(S + g + log_masses, dim=-1, keepdim=True)
            g = -torch.logsumexp(S + f + log_masses.mT, dim=-2, keepdim=True)
            steps += 1
        before, error = math.inf, float(_error(S, g, masses, log_masses).amax())
        tolerance = eps * (64 + 8 * (largest + float(g.abs().max())))
        # near the solution every step of Newton's squares the error
        while tolerance < error <= before / 4 and steps < max_steps:
            g = _newton(S, g, masses, log_masses)
            steps, solves = steps + 1, solves + 1
            before, error = error, float(_error(S, g, masses, log_masses).amax())
        if error <= tolerance:
            return g, steps, solves
    raise UnmeasurableError(
        f"weights whose rows and columns sum to one were not found in {max_steps} steps: columns are off by "
        f"{number(error)}, and scores reach {number(largest)}. Take a smaller scale, smaller tokens or more max_steps.",
        field="X",
    )


def _newton(S: Tensor, g: Tensor, masses: Tensor, log_masses: Tensor) -> Tensor:
    """Take one step of Newton's method, where it brings columns nearer to their masses."""
    P, excess = _columns(S, g, masses, log_masses)
    factor, _wrong = torch.linalg.cholesky_ex(_curvature(P, masses))
    there = g - _solve(factor, masses, excess)
    better = _error(S, there, masses, log_masses) < _error(S, g, masses, log_masses)
    return torch.where(better, there, g)


def _columns(S: Tensor, g: Tensor, masses: Tensor, log_masses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights for given g, their rows summing to one, and how far column sums exceed the masses."""
    P = torch.softmax(S + g + log_masses, dim=-1)
    return P, (masses.mT * P).sum(-2, keepdim=True) - masses


def _error(S: Tensor, g: Tensor, masses: Tensor, log_masses: Tensor) -> Float[Tensor, "stack shared 1 1"]:
    """Return by which share of its mass a column is off at most."""
    _P, excess = _columns(S, g, masses, log_masses)
    return torch.where(masses > 0, excess / masses, 0).abs().amax(-1, keepdim=True)


def _curvature(P: Tensor, masses: Tensor) -> Tensor:
    root = masses.sqrt()
    inverse = torch.where(masses > 0, 1 / root, 0)
    M = root.mT * P * inverse
    # column sums over masses: one at the solution, and what Newton's step needs elsewhere
    sums = (M * root.mT).sum(-2) * inverse[..., 0, :]
    sums = torch.where(masses[..., 0, :] > 0, sums, 1)
    return torch.diag_embed(sums) - M.mT @ M + root.mT * root


def _solve(factor: Tensor, masses: Tensor, y: Tensor) -> Tensor:
    inverse = torch.where(masses > 0, masses.rsqrt(), 0)
    return torch.cholesky_solve((inverse * y).mT, factor).mT * inverse
