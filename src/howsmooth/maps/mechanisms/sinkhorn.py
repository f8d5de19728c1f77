"""SinkhornAttention: doubly stochastic weights, whose potentials Sinkhorn's and Newton's iterations find."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, UnmeasurableError
from howsmooth.files import require_memory
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.weighting import Pickable, Tile, Weighting, Weights, softmax_magnitudes
from howsmooth.torch_internals import is_batched, recorded, softmax_derivative
from howsmooth.wording import number

MAX_STEPS = 1000
# After this many steps of Sinkhorn's iteration Newton's are tried, and kept where they reduce the error.
STEPS_BEFORE_NEWTON = 8


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SinkhornAttention(ScoreAttention):
    r"""Attention with doubly stochastic weights :cite:`sander2022`.

    .. math:: P^h_{ij} = e^{S_{ij} + f_i + g_j}a_j,\qquad \sum_jP^h_{ij} = 1,\quad \sum_ia_iP^h_{ij} = a_j

    The potentials f and g are found by Sinkhorn's iteration and Newton's, to rounding; scores for which they are not
    found are refused. Derivatives are those of the potentials, not of the loop: one triangular factor of an n × n
    matrix for each head when the Jacobian is made, one solve with it for each product. All weights are kept.

    A mask would leave nothing to balance; biases of distance and position are fine.

    Attributes:
        max_steps: How many iterations the potentials may take.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> one = torch.eye(1)
        >>> SinkhornAttention.single_head(Q=0 * one, K=one, V=one)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    max_steps: int = MAX_STEPS

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"sinkhorn": {}}

    def _mechanism(self, X: Tensor) -> Mechanism:
        n = X.shape[-2]
        pairs = math.prod(X.shape[:-2]) * self.layout.heads * n**2
        require_memory(3 * pairs * X.element_size(), "balancing all weights at once", field="X")
        masses = X.new_full((n,), 1 / n) if self.weights is None else self.weights / self.weights.sum(-1, keepdim=True)
        masses = masses.expand(*X.shape[:-2], n).reshape(-1, 1, n).repeat_interleave(self.layout.groups, dim=0)
        return Mechanism(
            weighting=Sinkhorn(masses=masses, max_steps=self.max_steps), value=self.value, masses_in_scores=False
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.max_steps < 1:
            raise AssumptionError(f"max_steps must be at least 1, got {self.max_steps}.", field="max_steps")
        order = self.positions
        if order.causal or order.window is not None or order.padding is not None or order.mask is not None:
            raise AssumptionError(
                "weights whose rows and columns sum to one have no mask: under a causal one they are the identity. "
                "Use hs.Attention, or leave the mask away.",
                field="positions",
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class DoublyStochastic(Pickable):
    r"""A matrix :math:`P_{ij} = e^{S_{ij}+f_i+g_j}a_j` with row sums one and column sums :math:`\sum_ia_iP_{ij} = a_j`.

    The derivative of the column sums with respect to g is :math:`\mathrm{diag}(a)-P^\top\mathrm{diag}(a)P`, in the
    coordinates :math:`\sqrt{a_j}\,g_j` the matrix :math:`I - M^\top M` with :math:`M_{ij} = \sqrt{a_i/a_j}P_{ij}`. It
    does not see constants, on which :math:`\sqrt a\sqrt a^\top` is added.
    """

    P: Float[Tensor, "stack shared n n"]
    masses: Float[Tensor, "stack 1 1 n"]  # a, which sum to one
    factor: Float[Tensor, "stack shared n n"]  # the Cholesky factor of I − MᵀM + √a√aᵀ
    steps: int  # how many iterations were taken
    solves: int  # how many of them were Newton's: a factorisation and a solve each

    def solve(self, y: Float[Tensor, "stack shared 1 n"]) -> Float[Tensor, "stack shared 1 n"]:
        """Return the change of g that changes the column sums by ``y``."""
        return _solve(self.factor, self.masses, y)


def balance(
    S: Float[Tensor, "stack shared n n"], masses: Float[Tensor, "stack 1 1 n"], *, max_steps: int
) -> DoublyStochastic:
    r"""Find the potentials of scores.

    Where autograd records, two steps of Newton's method from the potentials, held fixed, carry the derivative: the
    first three derivatives of that are those of the solution.
    """
    if S.dtype in (torch.float16, torch.bfloat16):
        raise DtypeError(
            f"rows and columns are balanced in float32 or float64, got {S.dtype}; use attention.to(torch.float32) and "
            "X.float().",
            field="X",
        )
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
    factor, info = torch.linalg.cholesky_ex(curvature)
    if not is_batched(info) and bool(info.any()):
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
    """Take one step of Newton's method where it reduces the error of the column sums."""
    P, excess = _columns(S, g, masses, log_masses)
    factor, _info = torch.linalg.cholesky_ex(_curvature(P, masses))
    trial = g - _solve(factor, masses, excess)
    better = _error(S, trial, masses, log_masses) < _error(S, g, masses, log_masses)
    return torch.where(better, trial, g)


def _columns(S: Tensor, g: Tensor, masses: Tensor, log_masses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights for given g, their rows summing to one, and how far column sums exceed the masses."""
    P = torch.softmax(S + g + log_masses, dim=-1)
    return P, (masses.mT * P).sum(-2, keepdim=True) - masses


def _error(S: Tensor, g: Tensor, masses: Tensor, log_masses: Tensor) -> Float[Tensor, "stack shared 1 1"]:
    """Return the largest relative error of the column sums."""
    _P, excess = _columns(S, g, masses, log_masses)
    return torch.where(masses > 0, excess / masses, 0).abs().amax(-1, keepdim=True)


def _curvature(P: Tensor, masses: Tensor) -> Tensor:
    root = masses.sqrt()
    inverse = torch.where(masses > 0, 1 / root, 0)
    M = root.mT * P * inverse
    # column sums over masses: one at the solution, and what Newton's step needs elsewhere
    sums = (M * root.mT).sum(-2) * inverse[..., 0, :]
    sums = torch.where(masses[..., 0, :] > 0, sums, 1)  # a token without mass has no column to balance
    return torch.diag_embed(sums) - M.mT @ M + root.mT * root


def _solve(factor: Tensor, masses: Tensor, y: Tensor) -> Tensor:
    inverse = torch.where(masses > 0, masses.rsqrt(), 0)
    return torch.cholesky_solve((inverse * y).mT, factor).mT * inverse


@dataclass(frozen=True, eq=False)
class SinkhornWeights(Weights):
    r"""DoublyStochastic weights, which move with all scores of their matrix.

    With L the derivative of the row-wise softmax, :math:`dP = L(dS + 1\,dg^\top)`, where :math:`dg` keeps the columns:
    :math:`G^{-1}dg = -\sum_ia_i\,(L\,dS)_{i\cdot}`. The transpose is :math:`L(D - a\,w^\top)`,
    :math:`w = G\sum_i(LD)_{i\cdot}`: one pass, one solve, one more pass.
    """

    balanced: DoublyStochastic  # P with its masses and the factor of G⁻¹

    def jvp(self, D: Tensor) -> Tensor:
        """Push a change of scores forward."""
        B = self.balanced
        dP = softmax_derivative(D, self.P).view(B.P.shape)
        dg = -B.solve((B.masses.mT * dP).sum(-2, keepdim=True))
        # L applied to the matrix 1 dgᵀ, whose rows are all alike: the row's mean is one product with P
        return (dP + B.P * (dg - B.P @ dg.mT)).flatten(1, 2)

    def vjp(self, D: Tensor) -> Tensor:
        """Pull a cotangent of weights back."""
        B = self.balanced
        dP = softmax_derivative(D, self.P).view(B.P.shape)
        w = B.solve(dP.sum(-2, keepdim=True))
        return (dP - B.masses.mT * B.P * (w - B.P @ w.mT)).flatten(1, 2)

    def query_jvp(self, D: Tensor) -> Tensor:
        """Push a change of each row's query forward: g stays fixed with the keys, f normalises the row."""
        return softmax_derivative(D, self.P)

    query_vjp = query_jvp

    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the terms of the row-wise softmax and the entries themselves, without signs."""
        return softmax_magnitudes(D, self.P) + self.jvp(D.clone()).abs()


@dataclass(frozen=True, kw_only=True, eq=False)
class Sinkhorn(Weighting):
    """The rule from scores to balanced weights."""

    masses: Float[Tensor, "stack 1 n"]  # the mass of every token; they sum to one
    max_steps: int  # how many iterations it may take

    couples_rows = True
    matrices = 2

    def __call__(self, S: Float[Tensor, "stack rows n"], tile: Tile) -> SinkhornWeights:
        """Return the weights of all scores."""
        by_head = S.unflatten(1, (-1, tile.height))
        balanced = balance(by_head, self.masses.unsqueeze(1), max_steps=self.max_steps)
        return SinkhornWeights(balanced.P.flatten(1, 2), balanced)

    def rounding(self, n: int) -> float:
        """Potentials follow the scores of all rows."""
        return float(n)
