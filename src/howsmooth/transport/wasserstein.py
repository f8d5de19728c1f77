"""Distances between discrete measures: Wasserstein, and its conditional form for masked attention; on POT."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning, DtypeError, ShapeError
from howsmooth.transport.measures import Measure

# Positions and masses at a position agree up to this.
SAME = 1e-9
# Less mass than this comes from rounding: sent far, its p-th root would be seen.
SLIVER = 1e-14


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A sparse coupling of two measures: mass ``mass[m]`` goes from atom ``source[m]`` to atom ``target[m]``.

    Attributes:
        source: Atoms of the first measure.
        target: Atoms of the second.
        mass: How much goes.
        shape: The numbers of atoms.
    """

    source: Int[Tensor, " m"]
    target: Int[Tensor, " m"]
    mass: Float[Tensor, " m"]
    shape: tuple[int, int]

    def dense(self) -> Float[Tensor, "n k"]:
        """Return the coupling as a matrix."""
        matrix = self.mass.new_zeros(self.shape)
        return matrix.index_put((self.source, self.target), self.mass, accumulate=True)

    def cost(self, mu: Measure, nu: Measure, p: float) -> Float[Tensor, ""]:
        r"""Return :math:`(\sum\pi_{ij}|x_i-y_j|^p)^{1/p}`, differentiable in the points of both measures."""
        steps = mu.points[self.source] - nu.points[self.target]
        lengths = steps.abs().amax(-1) if steps.shape[-1] == 1 else torch.linalg.vector_norm(steps, dim=-1)
        moved = lengths > 0
        if not bool(moved.any()):
            return (steps * 0).sum()  # zero, and so is its gradient
        # the largest step in front: p-th powers of small numbers vanish
        scale = lengths.detach().max()
        total = (self.mass[moved] * (lengths[moved] / scale) ** p).sum()
        return scale * total ** (1 / p)


def wasserstein(mu: Measure, nu: Measure, p: float = 2.0) -> Float[Tensor, ""]:
    r"""Return :math:`W_p(\mu,\nu) = \min_\pi(\int|x-y|^p\,d\pi)^{1/p}`, exactly.

    Positions are ignored. The result can be differentiated with respect to the points of both measures: the plan is
    held fixed, which is right wherever it is unique. Costs one linear program (POT), an assignment problem when both
    have equally many atoms of equal mass, or a sort in dimension one.

    Example:
        >>> mu, nu = Measure(torch.tensor([[0.0], [1.0]])), Measure(torch.tensor([[1.0], [2.0]]))
        >>> float(wasserstein(mu, nu))
        1.0
    """
    return transport_plan(mu, nu, p).cost(mu, nu, p)


def transport_plan(mu: Measure, nu: Measure, p: float = 2.0) -> Plan:
    """Return an optimal coupling for the cost :math:`|x-y|^p`."""
    _check(mu, nu, p)
    if mu.d == 1:
        return _sorted_plan(mu, nu)
    if len(mu) == len(nu) and _equal_masses(mu) and _equal_masses(nu):
        return _assignment(mu, nu, p)
    return _linear_program(mu, nu, p)


def conditional_wasserstein(mu: Measure, nu: Measure, p: float = 2.0) -> Float[Tensor, ""]:
    r"""Return :math:`d_p(\mu,\nu) = (\int W_p(\mu^s,\nu^s)^p\,d\theta(s))^{1/p}`, the distance of masked attention.

    Mass moves between atoms of the same position only. Infinite when the two measures do not have the same mass
    :math:`\theta` at every position. Differentiable as :func:`wasserstein` is.

    Example:
        >>> mu = Measure.from_sequence(torch.tensor([[0.0], [1.0]]), causal=True)
        >>> nu = Measure.from_sequence(torch.tensor([[1.0], [0.0]]), causal=True)
        >>> float(conditional_wasserstein(mu, nu)), float(wasserstein(mu, nu))
        (1.0, 0.0)
    """
    plan = conditional_plan(mu, nu, p)
    return mu.points.new_tensor(math.inf) if plan is None else plan.cost(mu, nu, p)


def conditional_plan(mu: Measure, nu: Measure, p: float = 2.0) -> Plan | None:
    """Return an optimal coupling that keeps positions, or ``None`` when the masses at positions differ."""
    _check(mu, nu, p)
    if mu.positions is None or nu.positions is None:
        raise AssumptionError("the conditional distance needs positions; use Measure.from_sequence(X, causal=True).")
    groups = _matched_groups(mu.positions, nu.positions)
    if groups is None:
        return None
    parts = []
    for here, there in groups:
        mass, other = mu.weights[here].sum(), nu.weights[there].sum()
        if abs(float(mass - other)) > SAME:
            return None
        parts.append(_within(mu, here, nu, there, mass, p))
    return Plan(
        source=torch.cat([plan.source for plan in parts]),
        target=torch.cat([plan.target for plan in parts]),
        mass=torch.cat([plan.mass for plan in parts]),
        shape=(len(mu), len(nu)),
    )


def _within(mu: Measure, here: Tensor, nu: Measure, there: Tensor, mass: Tensor, p: float) -> Plan:
    """Couple the atoms of one position."""
    if len(here) == len(there) == 1:
        return Plan(source=here, target=there, mass=mass.reshape(1), shape=(1, 1))
    a = Measure(mu.points[here], mu.weights[here] / mass)
    b = Measure(nu.points[there], nu.weights[there] / nu.weights[there].sum())
    plan = transport_plan(a, b, p)
    return Plan(source=here[plan.source], target=there[plan.target], mass=mass * plan.mass, shape=plan.shape)


def _matched_groups(first: Tensor, second: Tensor) -> list[tuple[Tensor, Tensor]] | None:
    """Return the atoms of both measures at each position, or ``None`` when one has a position that the other lacks."""
    places, mine = first.unique(return_inverse=True)
    others, theirs = second.unique(return_inverse=True)
    if len(places) != len(others) or float((places - others).abs().max()) > SAME:
        return None
    by_place = [x.argsort(stable=True).split(x.bincount().tolist()) for x in (mine, theirs)]
    return list(zip(*by_place, strict=True))


def _sorted_plan(mu: Measure, nu: Measure) -> Plan:
    """Couple two measures on the line quantile by quantile: optimal for every p."""
    (i, a), (j, b) = (_cumulative(measure) for measure in (mu, nu))
    cuts = np.union1d(a, b)
    mass = np.diff(cuts, prepend=0.0)
    middle = cuts - mass / 2
    source, target = i[np.searchsorted(a, middle)], j[np.searchsorted(b, middle)]
    return _plan(source, target, mass, mu, nu)


def _cumulative(measure: Measure) -> tuple[np.ndarray, np.ndarray]:
    order = measure.points[:, 0].detach().argsort().cpu().numpy()
    total = np.cumsum(measure.weights.detach().double().cpu().numpy()[order])
    total[-1] = 1.0
    return order, np.minimum(total, 1.0)


def _assignment(mu: Measure, nu: Measure, p: float) -> Plan:
    source, target = linear_sum_assignment(_costs(mu, nu, p))
    return _plan(source, target, np.full(len(mu), 1 / len(mu)), mu, nu)


def _linear_program(mu: Measure, nu: Measure, p: float) -> Plan:
    from ot import emd

    a, b = (measure.weights.detach().double().cpu().numpy() for measure in (mu, nu))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT's own words; we say the same in ours
        coupling, log = emd(a / a.sum(), b / b.sum(), _costs(mu, nu, p), numItermax=10**7, log=True)
    if log["warning"] is not None:
        warnings.warn(f"the transport problem was not solved: {log['warning']}", ConvergenceWarning, stacklevel=4)
    source, target = coupling.nonzero()
    return _plan(source, target, coupling[source, target], mu, nu)


def _costs(mu: Measure, nu: Measure, p: float) -> np.ndarray:
    distances = torch.cdist(mu.points.detach().double(), nu.points.detach().double()).cpu().numpy()
    return distances if p == 1 else distances**p


def _plan(source: np.ndarray, target: np.ndarray, mass: np.ndarray, mu: Measure, nu: Measure) -> Plan:
    device, keep = mu.points.device, mass > SLIVER
    return Plan(
        source=torch.as_tensor(source[keep], device=device).long(),
        target=torch.as_tensor(target[keep], device=device).long(),
        mass=torch.as_tensor(mass[keep], device=device).to(mu.dtype),
        shape=(len(mu), len(nu)),
    )


def _equal_masses(measure: Measure) -> bool:
    return bool((measure.weights == measure.weights[0]).all())


def _check(mu: object, nu: object, p: float) -> None:
    for measure in (mu, nu):
        if not isinstance(measure, Measure):
            raise DtypeError(
                f"distances are between hs.Measure, got {type(measure).__name__}; wrap points in hs.Measure."
            )
    assert isinstance(mu, Measure)
    assert isinstance(nu, Measure)
    if mu.d != nu.d:
        raise ShapeError(f"both measures must have one dimension, got {mu.d} and {nu.d}.")
    if mu.dtype != nu.dtype:
        raise DtypeError(f"both measures must have one dtype, got {mu.dtype} and {nu.dtype}; convert with .to().")
    if not 1 <= p < math.inf:
        raise AssumptionError(f"p must be at least 1 and finite, got {p}.")
