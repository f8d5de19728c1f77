"""Distances between discrete measures: Wasserstein, bottleneck, and conditional for masked attention."""

import importlib.util
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import csr_array, eye, kron, vstack
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning, DtypeError, ShapeError
from howsmooth.transport.gaussian import GaussianMeasure
from howsmooth.transport.measures import DiscreteMeasure, distances_in_unit

# Positions agree up to this, and so do masses at a position, as a share of them.
SAME = 1e-9
# Less mass than so many roundings of one, and less than this share of both atoms, is rounding: sent far, its p-th root
# would be seen.
SLIVERS, SHARE = 45, 1e-3
# Every float is a whole number of this part of one.
UNITS = 2**1074
# No step costs more than this many times the longest step of the plan before it.
LARGEST_COST = 1e6
# From this power on, costs are capped by the bottleneck distance from the start.
LARGE_POWER = 100
# A distance that may be too large by more than this share, by the dual problem, comes with a warning.
DUALITY_GAP = 1e-6
# Pairs of atoms that are solved for in whole numbers, where floats have too few digits: in half a second.
EXACT_PAIRS = 2**10
# Pairs of atoms that scipy solves for in seconds; POT is a hundred times faster, and installed where it is wanted.
LARGEST_PROGRAM = 2**18
INSTALL_POT = "run: pip install 'howsmooth[transport]'"
# The tolerances of scipy's solver, the smallest it takes.
HIGHS_TOLERANCE = 1e-10
# They are absolute: what they leave open is solved for again, where it is this share of the largest cost.
REFINEMENTS, SOLVED_SHARE = 3, 1e-4
# How many roundings each mass may have suffered: computed, normalised, split, merged.
ROUNDINGS = 16

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class TransportPlan:
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

    def cost(self, mu: DiscreteMeasure, nu: DiscreteMeasure, p: float) -> Float[Tensor, ""]:
        r"""Return :math:`(\sum\pi_{ij}|x_i-y_j|^p)^{1/p}`, differentiable in the points of both measures.

        For p = ∞ that is the longest step.
        """
        steps = mu.points[self.source] - nu.points[self.target]
        sizes = steps.detach().abs().amax(-1)
        moved = sizes > 0
        if not bool(moved.any()):
            return (steps * 0).sum()  # zero, and so is its gradient
        # each step by its largest coordinate, all of them by the largest term: squares and powers leave the floats
        steps, sizes, mass = steps[moved], sizes[moved], self.mass[moved]
        terms = sizes * torch.linalg.vector_norm(steps / sizes.unsqueeze(-1), dim=-1)
        if p < math.inf:
            terms = mass ** (1 / p) * terms
        scale = terms.detach().max()
        if not bool(scale.isfinite()):
            raise AssumptionError(
                f"the atoms are farther apart than {mu.dtype} can tell; divide the points of both measures by a "
                "number, and multiply the distance by it."
            )
        return terms.max() if p == math.inf else scale * ((terms / scale) ** p).sum() ** (1 / p)


def wasserstein(
    mu: DiscreteMeasure | GaussianMeasure, nu: DiscreteMeasure | GaussianMeasure, p: float = 2.0
) -> Float[Tensor, ""]:
    r"""Return :math:`W_p(\mu,\nu) = \min_\pi(\int|x-y|^p\,d\pi)^{1/p}`, exactly.

    Positions are ignored. The result can be differentiated with respect to the points of both measures: the plan is
    held fixed, which is right wherever it is unique. Costs one linear program, an assignment problem when both have
    equally many atoms of equal mass, or a sort in dimension one. POT solves the linear program where it is installed
    (``pip install 'howsmooth[transport]'``); without it scipy does, for at most 2¹⁸ pairs of atoms. Distances are
    divided by the largest before they are raised to the power p, so :math:`W_p(s\mu,s\nu) = s\,W_p(\mu,\nu)` at every
    scale s; where the longest step of a plan is so short that its cost is lost beside the largest, the problem is
    solved once more at its scale. Where float64 has too few digits, for masses far below its rounding or costs far
    apart, up to 2¹⁰ pairs of atoms are solved for in whole numbers; more come with a warning.

    For p = ∞ it is the bottleneck distance :math:`W_\infty = \min_\pi\max_{\pi_{ij}>0}|x_i-y_j|`, the limit of all
    others: the length of the longest step, however little mass takes it. Masses that differ by a few roundings are
    taken for equal. Costs a flow in whole numbers for each step of a bisection, or a matching where masses are equal.

    Between two Gaussian measures, p = 2, it is :meth:`howsmooth.GaussianMeasure.distance`.

    Example:
        >>> mu, nu = DiscreteMeasure(torch.tensor([[0.0], [1.0]])), DiscreteMeasure(torch.tensor([[1.0], [3.0]]))
        >>> float(wasserstein(mu, nu, p=1)), float(wasserstein(mu, nu, p=float("inf")))
        (1.5, 2.0)
    """
    if isinstance(mu, GaussianMeasure) and isinstance(nu, GaussianMeasure) and p == 2:
        return mu.distance(nu)
    if isinstance(mu, GaussianMeasure) or isinstance(nu, GaussianMeasure):
        raise AssumptionError(
            "between Gaussian measures the distance of p = 2 is known, and none to a discrete one; draw atoms with "
            "measure.sample(n)."
        )
    return transport_plan(mu, nu, p).cost(mu, nu, p)


def transport_plan(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2.0) -> TransportPlan:
    """Return an optimal coupling for the cost :math:`|x-y|^p`; for p = ∞, one whose longest step is shortest."""
    _check(mu, nu, p)
    matched = len(mu) == len(nu) and _equal_masses(mu) and _equal_masses(nu)
    if p == math.inf:
        return _bottleneck(mu, nu, matched)
    return _sorted_plan(mu, nu) if mu.d == 1 else _optimal(mu, nu, p, matched)


def conditional_wasserstein(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2.0) -> Float[Tensor, ""]:
    r"""Return :math:`d_p(\mu,\nu) = (\int W_p(\mu^s,\nu^s)^p\,d\theta(s))^{1/p}`, the distance of masked attention.

    Mass moves between atoms of the same position only. Infinite when the two measures do not have the same mass
    :math:`\theta` at every position. For p = ∞ the largest :math:`W_\infty(\mu^s,\nu^s)` of all positions.
    Differentiable as :func:`wasserstein` is.

    Example:
        >>> mu = DiscreteMeasure.from_sequence(torch.tensor([[0.0], [1.0]]), causal=True)
        >>> nu = DiscreteMeasure.from_sequence(torch.tensor([[1.0], [0.0]]), causal=True)
        >>> round(float(conditional_wasserstein(mu, nu)), 6), float(wasserstein(mu, nu))
        (1.0, 0.0)
    """
    plan = conditional_plan(mu, nu, p)
    return mu.points.new_tensor(math.inf) if plan is None else plan.cost(mu, nu, p)


def conditional_plan(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float = 2.0) -> TransportPlan | None:
    """Return an optimal coupling that keeps positions, or ``None`` when the masses at positions differ."""
    _check(mu, nu, p)
    if mu.positions is None or nu.positions is None:
        raise AssumptionError(
            "the conditional distance needs positions; use DiscreteMeasure.from_sequence(X, causal=True)."
        )
    groups = _matched_groups(mu.positions, nu.positions)
    if groups is None:
        return None
    parts = []
    for here, there in groups:
        mass, other = mu.weights[here].sum(), nu.weights[there].sum()
        same = max(SAME, ROUNDINGS * torch.finfo(mu.dtype).eps)
        if abs(float((mass - other).detach())) > same * float((mass + other).detach()):
            return None
        parts.append(_within(mu, here, nu, there, mass, p))
    return TransportPlan(
        source=torch.cat([plan.source for plan in parts]),
        target=torch.cat([plan.target for plan in parts]),
        mass=torch.cat([plan.mass for plan in parts]),
        shape=(len(mu), len(nu)),
    )


def _within(
    mu: DiscreteMeasure, here: Tensor, nu: DiscreteMeasure, there: Tensor, mass: Tensor, p: float
) -> TransportPlan:
    """Couple the atoms of one position."""
    if len(here) == len(there) == 1:
        return TransportPlan(source=here, target=there, mass=mass.reshape(1), shape=(1, 1))
    a = DiscreteMeasure(mu.points[here], mu.weights[here] / mass)
    b = DiscreteMeasure(nu.points[there], nu.weights[there] / nu.weights[there].sum())
    plan = transport_plan(a, b, p)
    return TransportPlan(source=here[plan.source], target=there[plan.target], mass=mass * plan.mass, shape=plan.shape)


def _matched_groups(first: Tensor, second: Tensor) -> list[tuple[Tensor, Tensor]] | None:
    """Return the atoms of both measures at each position, or ``None`` when one has a position that the other lacks."""
    places, mine = first.unique(return_inverse=True)
    others, theirs = second.unique(return_inverse=True)
    if len(places) != len(others) or float((places - others).detach().abs().max()) > SAME:
        return None
    by_place = [x.argsort(stable=True).split(x.bincount().tolist()) for x in (mine, theirs)]
    return list(zip(*by_place, strict=True))


def _sorted_plan(mu: DiscreteMeasure, nu: DiscreteMeasure) -> TransportPlan:
    """Couple two measures on the line quantile by quantile: optimal for every p."""
    orders = [measure.points[:, 0].detach().argsort().cpu().numpy() for measure in (mu, nu)]
    first, second = (_whole(measure)[order] for measure, order in zip((mu, nu), orders, strict=True))
    gap = first.sum() - second.sum()
    # rounding of the total belongs to the heaviest atom: to a light one it would be a change
    first[first.argmax()] += max(-gap, 0)
    second[second.argmax()] += max(gap, 0)
    a, b = first.cumsum(), second.cumsum()
    cuts = np.union1d(a, b)
    mass = np.diff(cuts, prepend=0)
    source, target = (order[np.searchsorted(x, cuts)] for order, x in zip(orders, (a, b), strict=True))
    return _plan(source, target, np.array([int(m) / UNITS for m in mass]), mu, nu)


def _whole(measure: DiscreteMeasure) -> np.ndarray:
    return _whole_numbers(measure.weights.detach().double().cpu().numpy())


def _whole_numbers(masses: np.ndarray) -> np.ndarray:
    """Return masses as whole numbers of the smallest float.

    Why not sums of floats: next to one they have no digits for a mass of 1e-15.
    """
    ratios = map(float.as_integer_ratio, masses.tolist())
    return np.array([top * (UNITS // bottom) for top, bottom in ratios], dtype=object)


@torch.no_grad()
def _optimal(mu: DiscreteMeasure, nu: DiscreteMeasure, p: float, matched: bool) -> TransportPlan:
    r"""Minimise the cost :math:`(\min(|x-y|, c)/c)^p`, for a cap c that no step of the plan exceeds.

    What is optimal for capped costs and takes no capped step is optimal: other plans cost more without the cap. The
    first cap is the largest distance. If the longest step of a plan is shorter by so much that its cost is rounded
    away beside the largest (large p, or clusters far apart), the cap comes down to it, and the problem is solved again.
    """
    distances, _unit = distances_in_unit(mu.points, nu.points)
    growth = max(LARGEST_COST, len(mu)) ** (1 / p)
    cap, best, dual = float(distances.max()), None, None
    if p > LARGE_POWER:
        shortest = _bottleneck(mu, nu, matched)
        cap = min(cap, growth * _longest(shortest, distances))
        best = shortest if cap == 0 else None  # otherwise its masses are rounded more than those of others
    while cap > 0 or best is None:
        costs = (np.minimum(distances, cap) / (cap or 1.0)) ** p
        if matched:
            source, target = linear_sum_assignment(costs)
            plan = _plan(source, target, np.full(len(mu), 1 / len(mu)), mu, nu)
        else:
            plan, dual = _linear_program(mu, nu, costs, p)
        if best is None or bool(plan.cost(mu, nu, p) < best.cost(mu, nu, p)):
            best = plan
        lower_cap = growth * _longest(plan, distances)
        if lower_cap >= cap:
            break
        cap = lower_cap
    if dual is not None and cap > 0:
        _warn_of_duality_gap(best, distances / cap, dual, p)
    return best


def _warn_of_duality_gap(plan: TransportPlan, distances: np.ndarray, dual: float, p: float) -> None:
    """Warn where a plan may cost more than it has to."""
    with np.errstate(over="ignore"):
        costs = distances[plan.source.cpu().numpy(), plan.target.cpu().numpy()] ** p
        cost = float(plan.mass.double().cpu().numpy() @ costs)
    if (excess := _excess(cost, dual, p)) > DUALITY_GAP:
        warnings.warn(
            f"the distance may be too large by a share of {excess:.1e}: for p = {p:g} and these masses, costs differ "
            "by more than float64 can hold; take a smaller p.",
            ConvergenceWarning,
            stacklevel=5,
        )


def _longest(plan: TransportPlan, distances: np.ndarray) -> float:
    return float(distances[plan.source.cpu().numpy(), plan.target.cpu().numpy()].max())


def _bottleneck(mu: DiscreteMeasure, nu: DiscreteMeasure, matched: bool) -> TransportPlan:
    if matched and mu.d == 1:
        # why not quantile by quantile for all masses on the line: crumbs left by rounding would be the longest step
        source, target = (measure.points[:, 0].detach().argsort().cpu().numpy() for measure in (mu, nu))
        return _kept(source, target, np.full(len(mu), 1 / len(mu)), mu, nu)
    distances, _unit = distances_in_unit(mu.points, nu.points)
    if matched:
        return _kept(np.arange(len(mu)), bottleneck_assignment(distances), np.full(len(mu), 1 / len(mu)), mu, nu)
    eps = torch.finfo(mu.dtype).eps
    # no move is too light to be kept: each of them counts as much as any other
    return _kept(*bottleneck_coupling(distances, _whole(mu), _whole(nu), eps), mu, nu)


def _linear_program(
    mu: DiscreteMeasure, nu: DiscreteMeasure, costs: np.ndarray, p: float
) -> tuple[TransportPlan, float]:
    """Solve for costs between 0 and 1, since the tolerances of solvers are absolute; return the dual value too.

    Solvers know masses up to a rounding of their sum, and costs up to one of the largest. Small problems that need more
    are solved in whole numbers, and others come with a warning.
    """
    a, b = (measure.weights.detach().double().cpu().numpy() for measure in (mu, nu))
    a, b = a / a.sum(), b / b.sum()
    with_pot, small = importlib.util.find_spec("ot") is not None, costs.size <= EXACT_PAIRS
    if not small or with_pot:
        coupling, v = (_by_pot if with_pot else _by_scipy)(a, b, costs)
        # potentials are feasible up to rounding; the smallest reduced costs make them so
        potentials = (costs - v).min(1)
        dual = float(a @ potentials + b @ (costs - potentials[:, None]).min(0))
        cost = float((coupling * costs).sum())
        lost = _lost(a - coupling.sum(1), a) @ costs.max(1) + _lost(b - coupling.sum(0), b) @ costs.max(0)
        if not small and lost > p * DUALITY_GAP * cost:
            warnings.warn(
                f"the distance may be too small: the solver leaves out masses below 1e-10, which count for p = {p:g}; "
                f"take a smaller p, or at most {EXACT_PAIRS:,} pairs of atoms.",
                ConvergenceWarning,
                stacklevel=5,
            )
    if small and (not with_pot or lost > p * DUALITY_GAP * cost or _excess(cost, dual, p) > DUALITY_GAP):
        coupling = _exactly(a, b, costs)
        dual = float((coupling * costs).sum())
    source, target = coupling.nonzero()
    return _plan(source, target, coupling[source, target], mu, nu), dual


def _excess(cost: float, dual: float, p: float) -> float:
    """Return by which share a distance may be too large, by the value of the dual problem, which no plan undercuts."""
    return (1 - dual / cost) / p if cost > 0 else 0.0


def _lost(missing: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Return what atoms miss of which a visible share is missing: solvers know masses to a rounding of their sum."""
    return np.where(abs(missing) > DUALITY_GAP * masses, abs(missing), 0.0)


def _exactly(a: np.ndarray, b: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return the best coupling of masses, by shortest augmenting paths.

    Masses and costs are whole numbers: neither is rounded, so the lightest mass counts, and the smallest cost.
    """
    c = _whole_numbers(costs.ravel()).reshape(costs.shape)
    first, second = _whole_numbers(a), _whole_numbers(b)
    left, free = first * second.sum(), second * first.sum()
    total, far = left.sum(), np.asarray(c.sum() + 1, dtype=object)
    sent = np.zeros_like(c)
    while left.any():
        # distances from rows that have mass left, by Bellman and Ford
        rows, columns = np.where(left > 0, 0, far), np.full(len(free), far, dtype=object)
        to, back = np.full(len(free), -1), np.full(len(left), -1)
        while True:
            there = rows[:, None] + c
            nearer = there.min(0) < columns
            to[nearer], columns[nearer] = there.argmin(0)[nearer], there.min(0)[nearer]
            again = np.where(sent > 0, columns - c, far)
            nearer = again.min(1) < rows
            if not nearer.any():
                break
            back[nearer], rows[nearer] = again.argmin(1)[nearer], again.min(1)[nearer]
        j = int(np.where(free > 0, columns, far).argmin())
        forward, backward = [(int(to[j]), j)], []
        while (j := int(back[forward[-1][0]])) >= 0:
            backward.append((forward[-1][0], j))
            forward.append((int(to[j]), j))
        start, end = forward[-1][0], forward[0][1]
        amount = min(left[start], free[end], *(sent[step] for step in backward))
        for step in forward:
            sent[step] += amount
        for step in backward:
            sent[step] -= amount
        left[start] -= amount
        free[end] -= amount
    return (sent / total).astype(float)


def _by_pot(a: np.ndarray, b: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best coupling of masses and the potential of the second ones."""
    from ot import emd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # POT's own words; we say the same in ours
        coupling, log = emd(a, b, costs, numItermax=10**7, log=True)
    if log["warning"] is not None:
        warnings.warn(f"the transport problem was not solved: {log['warning']}", ConvergenceWarning, stacklevel=6)
    return coupling, log["v"]


def _by_scipy(a: np.ndarray, b: np.ndarray, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same without POT.

    The solver leaves masses below its tolerance where they are. So the coupling is not its own: masses flow, in whole
    numbers, over the steps that its potentials call worth their cost. Costs below its tolerance are all the same to it:
    reduced costs are solved for again at their own scale, as in the iterative refinement of linear programs.
    """
    n, k = costs.shape
    if costs.size > LARGEST_PROGRAM:
        raise AssumptionError(
            f"transport between {n:,} and {k:,} atoms of unequal masses needs a faster solver than scipy's; "
            + INSTALL_POT
        )
    margins = vstack([kron(eye(n), np.ones((1, k))), kron(np.ones((1, n)), eye(k))]).tocsr()
    masses, eps = (_whole_numbers(a), _whole_numbers(b)), np.finfo(float).eps
    v, rest, scale = np.zeros(k), costs, 1.0
    for _round in range(REFINEMENTS):
        # Costs far beyond the scale are those of steps that the potentials so far have ruled out.
        found = linprog(
            np.minimum(rest / scale, 1.0).ravel(),
            A_eq=margins,
            b_eq=np.concatenate([a, b]),
            method="highs-ds",
            options={"primal_feasibility_tolerance": HIGHS_TOLERANCE, "dual_feasibility_tolerance": HIGHS_TOLERANCE},
        )
        if found.x is None:
            raise AssumptionError(f"scipy did not solve the transport problem ({found.message}); {INSTALL_POT}")
        u = (costs - v - scale * found.eqlin.marginals[n:]).min(1)
        v = (costs - u[:, None]).min(0)
        rest, worth = costs - u[:, None] - v, 0.0
        while (steps := coupling_over(rest <= worth, *masses, eps)) is None:
            worth = max(10 * worth, eps)
        coupling = np.zeros_like(costs)
        coupling[steps.source, steps.target] = steps.mass
        if worth <= eps:
            break
        scale = worth / SOLVED_SHARE
    return coupling, v


def _plan(
    source: np.ndarray, target: np.ndarray, mass: np.ndarray, mu: DiscreteMeasure, nu: DiscreteMeasure
) -> TransportPlan:
    a, b = (measure.weights.detach().double().cpu().numpy() for measure in (mu, nu))
    keep = (mass > SLIVERS * torch.finfo(mu.dtype).eps) | (mass > SHARE * np.minimum(a[source], b[target]))
    return _kept(source[keep], target[keep], mass[keep], mu, nu)


def _kept(
    source: np.ndarray, target: np.ndarray, mass: np.ndarray, mu: DiscreteMeasure, nu: DiscreteMeasure
) -> TransportPlan:
    device = mu.points.device
    return TransportPlan(
        source=torch.as_tensor(source, device=device).long(),
        target=torch.as_tensor(target, device=device).long(),
        mass=torch.as_tensor(mass, device=device).to(mu.dtype),
        shape=(len(mu), len(nu)),
    )


def _equal_masses(measure: DiscreteMeasure) -> bool:
    return bool((measure.weights == measure.weights[0]).all())


def _check(mu: object, nu: object, p: float) -> None:
    for measure in (mu, nu):
        if not isinstance(measure, DiscreteMeasure):
            raise DtypeError(
                f"distances are between hs.transport.DiscreteMeasure, got {type(measure).__name__}; wrap points in one."
            )
    assert isinstance(mu, DiscreteMeasure)
    assert isinstance(nu, DiscreteMeasure)
    if mu.d != nu.d:
        raise ShapeError(f"both measures must have one dimension, got {mu.d} and {nu.d}.")
    if mu.dtype != nu.dtype:
        raise DtypeError(f"both measures must have one dtype, got {mu.dtype} and {nu.dtype}; convert with .to().")
    if not p >= 1:
        raise AssumptionError(f"p must be at least 1, or infinity, got {p}.", field="p")


class Steps(NamedTuple):
    """The moves of a coupling: mass ``mass[m]`` from atom ``source[m]`` to atom ``target[m]``."""

    source: np.ndarray
    target: np.ndarray
    mass: np.ndarray


def bottleneck_assignment(distances: np.ndarray) -> np.ndarray:
    r"""Return a permutation whose longest step is as short as it can be: where each row goes.

    :math:`W_\infty(\mu,\nu)\le t` exactly if mass can flow from atom to atom over steps no longer than t. Whether it
    can is a question of combinatorics, so it is asked of every distance that may be the answer, by bisection.
    """

    def matched(t: float) -> np.ndarray | None:
        found = maximum_bipartite_matching(csr_array(distances <= t), perm_type="column")
        return None if (found < 0).any() else found

    return _least(distances, matched)


def bottleneck_coupling(distances: np.ndarray, first: np.ndarray, second: np.ndarray, eps: float) -> Steps:
    r"""Return a coupling of masses whose longest step is as short as it can be.

    A rounding of masses must not send a crumb of mass far: that would be the answer. Masses are thus compared up to
    :math:`\delta = 16` eps *of each*: mass may flow if :math:`(1-\delta)\mu(A)\le\nu(A^t)` for all sets A of atoms
    and their neighbourhoods :math:`A^t`, and the same the other way round. However light an atom is, it counts. Masses
    are whole numbers of some small unit.
    """
    return _least(distances, lambda t: coupling_over(distances <= t, first, second, eps))


def coupling_over(near: np.ndarray, first: np.ndarray, second: np.ndarray, eps: float) -> Steps | None:
    """Return a coupling of masses over the allowed steps, up to their rounding; ``None`` if there is none."""
    # both totals are one up to rounding; made equal without any
    first, second = first * second.sum(), second * first.sum()
    least = [x - x * int(ROUNDINGS * eps * 2**64) // 2**64 for x in (first, second)]
    # One flow serves every atom of the first measure, the other every atom of the second; both are near couplings.
    if (there := flow(near, least[0], second)) is None or (back := flow(near.T, least[1], first)) is None:
        return None
    together = there + back.T
    source, target = together.nonzero()
    total = int(together.sum())
    return Steps(source, target, np.array([int(m) / total for m in together[source, target]]))


def flow(near: np.ndarray, supply: np.ndarray, room: np.ndarray) -> np.ndarray | None:
    """Send all of the supply to where there is room, over the allowed steps; ``None`` if that cannot be.

    Paths that free room are looked for, shortest first, in whole numbers: nothing is rounded.
    """
    sent = np.zeros(near.shape, dtype=object)
    left, free = supply.copy(), room.copy()
    for i in range(len(left)):  # greedily at first
        for j in near[i].nonzero()[0]:
            sent[i, j] = amount = min(left[i], free[j])
            left[i] -= amount
            free[j] -= amount
            if not left[i]:
                break
    while left.any():
        path = _path(near, sent > 0, left > 0, free > 0)
        if path is None:
            return None
        forward, backward = path[::2], path[1::2]
        start, end = forward[-1][0], forward[0][1]
        amount = min(left[start], free[end], *(sent[step] for step in backward))
        for step in forward:
            sent[step] += amount
        for step in backward:
            sent[step] -= amount
        left[start] -= amount
        free[end] -= amount
    return sent


def _path(near: np.ndarray, used: np.ndarray, begin: np.ndarray, end: np.ndarray) -> list[tuple[int, int]] | None:
    """Find a shortest path from a row that has mass left to a column with room, steps in reverse; by breadth first."""
    rows, columns = begin.copy(), np.zeros_like(end)
    to, back = np.full(len(end), -1), np.full(len(begin), -1)
    wave = begin.nonzero()[0]
    while len(wave) and (fresh := near[wave].any(0) & ~columns).any():
        to[fresh] = wave[near[wave][:, fresh].argmax(0)]
        columns |= fresh
        if (fresh & end).any():
            return _traced(int((fresh & end).argmax()), to, back)
        reached = fresh.nonzero()[0]
        again = used[:, reached].any(1) & ~rows
        back[again] = reached[used[again][:, reached].argmax(1)]
        rows |= again
        wave = again.nonzero()[0]
    return None


def _traced(j: int, to: np.ndarray, back: np.ndarray) -> list[tuple[int, int]]:
    path = [(int(to[j]), j)]
    while back[i := path[-1][0]] >= 0:
        j = int(back[i])
        path += [(i, j), (int(to[j]), j)]
    return path


def _least(distances: np.ndarray, solved: Callable[[float], T | None]) -> T:
    """Return the solution for the smallest distance that has one; the largest distance always has."""
    # every atom has to go somewhere, and be reached from somewhere: no step can be shorter than that
    floor = max(distances.min(0).max(), distances.min(1).max())
    if (answer := solved(float(floor))) is not None:
        return answer
    candidates = np.unique(distances[distances > floor])
    low, high, best = -1, len(candidates), None
    while high - low > 1:
        middle = (low + high) // 2
        answer = solved(float(candidates[middle]))
        low, high, best = (middle, high, best) if answer is None else (low, middle, answer)
    assert best is not None, "all mass may go anywhere"
    return best
