"""Maps on measures as functions of points and masses, for maps of every kind."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError
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
