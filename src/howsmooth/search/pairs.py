"""Two inputs near each other and how far apart their outputs are: what no derivative can argue away."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Domain
from howsmooth.errors import UnmeasurableError

# How far apart the two are, as shares of the domain's scale.
STEPS = (0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
# How many units in the last place an output may be wrong by, for its size.
UNITS = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    r"""Two inputs of a domain, and a lower bound on :math:`\|f(Y)-f(Z)\|/\|Y-Z\|`.

    Attributes:
        first: Y.
        second: Z.
        ratio: The ratio, less what the rounding of the outputs may have added to it.
    """

    first: Float[Tensor, "n d"]
    second: Float[Tensor, "n d"]
    ratio: float


@torch.no_grad()
def steepest_pair(
    f: Callable[[Tensor], Tensor],
    X: Float[Tensor, "n d"],
    direction: Float[Tensor, "n d"],
    domain: Domain,
    *,
    unit: float,
) -> Pair:
    """Return the best pair along a direction through ``X``, over a range of distances.

    Args:
        f: The map.
        X: Where.
        direction: Which way.
        domain: Where both have to lie.
        unit: The rounding unit of the numbers that the map computes with inside.
    """
    best = Pair(first=X, second=X, ratio=0.0)
    here = f(X)
    for step in STEPS:
        move = step * domain.scale * direction
        ends = [domain.nearest(X + move), domain.nearest(X - move)]
        try:
            values = [f(end) for end in ends]
        except UnmeasurableError:
            continue  # nearer ones may do
        sides = [(ends[0], ends[1], *values), (ends[0], X, values[0], here), (X, ends[1], here, values[1])]
        for first, second, there, back in sides:
            ratio = _ratio(first, second, there, back, unit)
            if ratio > best.ratio:
                best = Pair(first=first, second=second, ratio=ratio)
    return best


def _ratio(first: Tensor, second: Tensor, there: Tensor, back: Tensor, unit: float) -> float:
    way, moved = float((first - second).double().norm()), float((there - back).double().norm())
    noise = UNITS * unit * float(there.double().norm() + back.double().norm())
    ratio = (moved - noise) / way if way > 0 else 0.0
    return ratio if ratio > 0 else 0.0  # what is no number is no ratio
