"""Maps in context: what becomes of points, given the masses of all, for maps of every kind."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError
from howsmooth.maps.composition import Chain, Residual, Sum
from howsmooth.maps.mean_field import MeasureMovingMap
from howsmooth.maps.protocols import Map
from howsmooth.spectral.autograd import JacobianOperator
from howsmooth.transport.measures import DiscreteMeasure

# Points, masses and positions (or none) → outputs.
InContext = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class PointsWithMasses:
    """Points with masses that need not be positive: a point without mass sees the others, and nobody sees it."""

    points: Float[Tensor, "n d"]
    weights: Float[Tensor, " n"]
    positions: Float[Tensor, " n"] | None


def counting(f: Any, n: float) -> Any:
    """Return a map that counts tokens with the number it counts; others as they are.

    Sigmoid attention, for one, is no map on measures before it is said how many tokens all mass stands for: here as
    many as the measure has atoms, unless the map says otherwise.
    """
    if isinstance(f, MeasureMovingMap) and getattr(f, "count", 0) is None:
        return dataclasses.replace(f, count=float(n))  # type: ignore[type-var]
    return f


def in_context(f: Any, n: int) -> InContext:
    r"""Return :math:`(x, \mu)\mapsto\Gamma_\mu(x)` of a map on measures: points and masses in, outputs out.

    Attention brings its own; compositions are put together from their parts; maps that treat each token alone have no
    context; any other callable is taken as a function of points and masses.

    Args:
        f: The map.
        n: How many atoms the measure has, for maps that depend on the number of tokens.

    Raises:
        DtypeError: If it is nothing of that kind.
    """
    if isinstance(f, MeasureMovingMap):
        fixed = counting(f, n)

        def attend(points: Tensor, masses: Tensor, positions: Tensor | None) -> Tensor:
            return fixed.on(PointsWithMasses(points=points, weights=masses, positions=positions))(points)

        return attend
    if isinstance(f, Residual):
        inner = in_context(f.map, n)
        return lambda points, masses, positions: points + inner(points, masses, positions)
    if isinstance(f, Sum):
        terms = [in_context(part, n) for part in f.maps]
        return lambda points, masses, positions: torch.stack([g(points, masses, positions) for g in terms]).sum(0)
    if isinstance(f, Chain):
        links = [in_context(part, n) for part in f.maps]

        def follow(points: Tensor, masses: Tensor, positions: Tensor | None) -> Tensor:
            for link in links:
                points = link(points, masses, positions)
            return points

        return follow
    if isinstance(f, Map):
        return lambda points, masses, positions: f(points)
    if callable(f):
        return lambda points, masses, positions: f(points, masses)
    raise DtypeError(f"f must be a map, or a callable on points and masses, got {type(f).__name__}.", field="f")


def is_causal(f: Any) -> bool:
    """Tell whether atoms see only those at their position or before, anywhere in the map."""
    if isinstance(f, Residual):
        return is_causal(f.map)
    if isinstance(f, Sum | Chain):
        return any(is_causal(part) for part in f.maps)
    return bool(getattr(getattr(f, "positions", None), "causal", False))


def outputs_at(context: InContext, mu: DiscreteMeasure, Y: Float[Tensor, "m d"], positions: Tensor | None) -> Tensor:
    r"""Return :math:`\Gamma_\mu` at places: atoms without mass, which see the measure and are seen by nobody."""
    masses = torch.cat((mu.weights, torch.zeros_like(Y[:, 0])))
    where = None if mu.positions is None or positions is None else torch.cat((mu.positions, positions))
    return context(torch.cat((mu.points, Y)), masses, where)[len(mu) :]


def moving(context: InContext, mu: DiscreteMeasure) -> tuple[Callable[[Tensor], Tensor], Float[Tensor, "n d"]]:
    r"""Return a map whose plain derivative at a point is :math:`J_\mu = D^{1/2}JD^{-1/2}`, and that point."""
    roots = mu.weights.sqrt().unsqueeze(-1)
    return lambda Z: roots * context(Z / roots, mu.weights, mu.positions), roots * mu.points


def own_side(context: InContext, mu: DiscreteMeasure) -> JacobianOperator:
    r"""Return the operators :math:`D_x\Gamma_\mu(x_i)`, one for each atom: it moves and what it sees does not.

    By autograd: a copy of every atom without mass, whose output moves with itself alone.
    """
    return JacobianOperator(lambda Y: outputs_at(context, mu, Y, mu.positions), mu.points, batch_axes=1)
