"""Maps on measures as functions of points and masses, and their secants: a little mass that moves far."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Ball
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.composition import ComposedMap, leaves
from howsmooth.maps.mean_field_maps import MeasureMovingMap
from howsmooth.maps.protocols import Map
from howsmooth.spectral.autograd import JacobianOperator
from howsmooth.transport.measures import DiscreteMeasure

# Points, masses and positions (or none) → outputs.
InContext = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class PointsWithMasses:
    """Points with masses that may be zero: a point without mass sees the others, and no other point sees it."""

    points: Float[Tensor, "n d"]
    weights: Float[Tensor, " n"]
    positions: Float[Tensor, " n"] | None


def counting(f: Any, n: float) -> Any:
    """Set ``count`` of a map that counts tokens, where it is missing; return other maps as they are.

    Sigmoid attention, for one, is a map on measures only if ``count`` is given, the number of tokens that unit mass
    represents: here the number of atoms, unless the map sets another.
    """
    if isinstance(f, MeasureMovingMap) and getattr(f, "count", 0) is None:
        return dataclasses.replace(f, count=float(n))  # type: ignore[type-var]
    return f


def in_context(f: Any, n: int) -> InContext:
    r"""Return :math:`(x, \mu)\mapsto\Gamma_\mu(x)` of a map on measures: points and masses in, outputs out.

    Attention defines one; compositions are evaluated part by part; maps that treat each token alone do not depend on
    the measure; any other callable is taken as a function of points and masses.
    """
    if isinstance(f, MeasureMovingMap):
        fixed = counting(f, n)

        def attend(points: Tensor, masses: Tensor, positions: Tensor | None) -> Tensor:
            return fixed.on(PointsWithMasses(points=points, weights=masses, positions=positions))(points)

        return attend
    if isinstance(f, ComposedMap):
        return lambda points, masses, positions: f.evaluate(
            points, lambda part, x: in_context(part, n)(x, masses, positions)
        )
    if isinstance(f, Map):
        return lambda points, masses, positions: f(points)
    if callable(f):
        return lambda points, masses, positions: f(points, masses)
    raise DtypeError(f"f must be a map, or a callable on points and masses, got {type(f).__name__}.", field="f")


def is_causal(f: Any) -> bool:
    """Tell whether any attention in the map is causal."""
    return any(getattr(getattr(leaf, "positions", None), "causal", False) for leaf in leaves(f))


def outputs_at(context: InContext, mu: DiscreteMeasure, Y: Float[Tensor, "m d"], positions: Tensor | None) -> Tensor:
    r"""Return :math:`\Gamma_\mu` at places: atoms without mass, which see the measure and which no atom sees."""
    masses = torch.cat((mu.weights, torch.zeros_like(Y[:, 0])))
    where = None if mu.positions is None or positions is None else torch.cat((mu.positions, positions))
    return context(torch.cat((mu.points, Y)), masses, where)[len(mu) :]


def moving(context: InContext, mu: DiscreteMeasure) -> tuple[Callable[[Tensor], Tensor], Float[Tensor, "n d"]]:
    r"""Return a map whose plain derivative at a point is :math:`J_\mu = D^{1/2}JD^{-1/2}`, and that point."""
    roots = mu.weights.sqrt().unsqueeze(-1)
    return lambda Z: roots * context(Z / roots, mu.weights, mu.positions), roots * mu.points


def query_jacobians(context: InContext, mu: DiscreteMeasure) -> JacobianOperator:
    r"""Return the operators :math:`D_x\Gamma_\mu(x_i)`, one for each atom, with the measure held fixed.

    By autograd, with a copy of every atom that has no mass.
    """
    return JacobianOperator(lambda Y: outputs_at(context, mu, Y, mu.positions), mu.points, batch_axes=1)


# Places to start from for every atom, steps of each, and the first step as a share of the radius.
PLACES, STEPS, FIRST_STEP = 32, 60, 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Secant:
    r"""An atom, a place, and the slope :math:`D_F(i,y)/D(i,y)` between them.

    Attributes:
        slope: How far the output of the little mass is from where it was, over its own way.
        atom: Which atom the little mass leaves.
        place: Where it goes.
    """

    slope: float
    atom: int
    place: Float[Tensor, " d"]


def steepest_secant(
    f: Any, measure: DiscreteMeasure, *, radius: float, generator: torch.Generator | None = None
) -> Secant:
    r"""Search a ball for the place where a little mass of an atom moves furthest for its way.

    A mass m that goes from :math:`x_i` to y costs :math:`\sqrt m\,D(i,y)` in :math:`W_2` and changes what others see by
    O(m) only, so for every y the slope is a lower bound on the local constant of the map in :math:`W_2`. Mass may be
    handed on: :math:`D^2` is the least sum of squared steps from :math:`x_i` over other atoms to y, :math:`D_F^2` the
    same among outputs; under a mask over atoms of the same position. The search is by ascent from random places and
    from other atoms: what it has not found may be larger.
    """
    if not 0 < radius < math.inf:
        raise AssumptionError(f"radius must be positive and finite, got {radius}.", field="radius")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    ball, best = Ball(radius), Secant(slope=0.0, atom=0, place=measure.points[0])
    costs = StepCosts.of(f, measure)
    for atom in range(len(measure)):
        drawn = ball.draw(PLACES, 1, measure.points[0], generator)[:, 0]
        places = ball.nearest(torch.cat((drawn, measure.points)))
        found, slope = _ascend(costs, atom, places, ball)
        if slope > best.slope:
            best = Secant(slope=slope, atom=atom, place=found)
    return best


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCosts:
    """A measure, what a map makes of it, and the least sums of squared steps between atoms and between outputs."""

    context: InContext  # the map, as a function of points and masses
    measure: DiscreteMeasure
    outputs: Float[Tensor, "n out"]  # what its atoms become
    before: Float[Tensor, "n n"]  # the least sum of squared steps between atoms; infinite where positions do not mix
    after: Float[Tensor, "n n"]  # the same between outputs

    @classmethod
    def of(cls, f: Any, measure: DiscreteMeasure) -> "StepCosts":
        """Find the least sums of squared steps."""
        context = in_context(f, len(measure))
        with torch.no_grad():
            outputs = context(measure.points, measure.weights, measure.positions)
            apart = torch.zeros(len(measure), len(measure), dtype=torch.bool, device=outputs.device)
            if is_causal(f) and measure.positions is not None:
                apart = measure.positions[:, None] != measure.positions
            before, after = (_least_step_costs(points, apart) for points in (measure.points, outputs))
        return cls(context=context, measure=measure, outputs=outputs, before=before, after=after)

    def slopes(self, atom: int, Y: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor]:
        """Return the slopes from an atom to places, and their gradients; zero where the place is the atom itself."""
        x = self.measure.points
        with torch.enable_grad():
            Y = Y.detach().requires_grad_()
            positions = self.measure.positions
            at = None if positions is None else positions[atom].expand(len(Y))
            there = outputs_at(self.context, self.measure, Y, at)
            way, moved = _shortest(self.before[atom], x, Y), _shortest(self.after[atom], self.outputs, there)
            apart = way.detach().sqrt() > 1e-6 * (1 + x[atom].norm())  # nearer, differences are rounding
            slope = (moved.clamp_min(1e-300) / torch.where(apart, way, 1.0)).sqrt()
            (gradient,) = torch.autograd.grad(slope.sum(), Y)
        return torch.where(apart, slope, 0.0).detach(), torch.where(apart[:, None], gradient, 0.0).nan_to_num()


def _least_step_costs(points: Float[Tensor, "n d"], apart: Tensor) -> Float[Tensor, "n n"]:
    """Return the least sums of squared steps between points, by Floyd and Warshall."""
    cost = (points[:, None] - points).square().sum(-1).masked_fill(apart, torch.inf)
    for k in range(len(points)):
        cost = torch.minimum(cost, cost[:, k, None] + cost[k])
    return cost


def _shortest(cost: Float[Tensor, " n"], points: Float[Tensor, "n d"], Y: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
    """Return the least sum of squared steps to new places; ``cost`` is that to each point."""
    return (cost + (Y[:, None] - points).square().sum(-1)).amin(-1)


def _ascend(costs: StepCosts, atom: int, Y: Tensor, ball: Ball) -> tuple[Tensor, float]:
    step = torch.full_like(Y[:, :1], FIRST_STEP * ball.radius)
    value, gradient = costs.slopes(atom, Y)
    for _step in range(STEPS):
        trial = ball.nearest(Y + step * torch.nn.functional.normalize(gradient, dim=-1))
        there, along = costs.slopes(atom, trial)
        better = (there > value)[:, None]
        Y, gradient = torch.where(better, trial, Y), torch.where(better, along, gradient)
        value, step = torch.maximum(there, value), torch.where(better, 1.3 * step, 0.6 * step)
    return Y[value.argmax()], float(value.max())
