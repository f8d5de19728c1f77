"""Two inputs near each other and how far apart their outputs are: what no derivative can argue away."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Domain
from howsmooth.errors import UnmeasurableError

# How far apart the two are, as shares of the domain's scale.
STEPS = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
# How many units in the last place an output may be wrong by, for its size.
UNITS = 16
# Rounding inside the map is seen at so many points between two inputs, and allowed for so many times.
POINTS, ALLOWANCE = 9, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class SecantPair:
    r"""Two inputs of a domain, and bounds on :math:`\|f(Y)-f(Z)\|/\|Y-Z\|`.

    Attributes:
        first: Y.
        second: Z.
        ratio: The ratio, less what the rounding of the outputs may have added to it.
        upper: The ratio, and what rounding may have taken from it.
    """

    first: Float[Tensor, "n d"]
    second: Float[Tensor, "n d"]
    ratio: float
    upper: float


@torch.no_grad()
def steepest_pair(
    f: Callable[[Tensor], Tensor],
    X: Float[Tensor, "n d"],
    direction: Float[Tensor, "n d"],
    domain: Domain,
) -> SecantPair:
    r"""Return the best pair along a direction through ``X``, over a range of distances.

    Rounding may have added to the difference of two outputs, by more than their last digits where the map computes in
    float32 inside or large numbers cancel. It is seen in the second differences of the outputs at points in between,
    :math:`f(X_{k+1}) - 2f(X_k) + f(X_{k-1})`: a smooth map has hardly any at small distances.

    Args:
        f: The map, on single inputs and on batches.
        X: Where.
        direction: Which way.
        domain: Where both have to lie.
    """
    best: SecantPair | None = None
    here = f(X)
    for step in STEPS:
        move = step * domain.scale * direction
        ends = [domain.nearest(X + move), domain.nearest(X - move)]
        for first, second in (ends, (ends[0], X), (X, ends[1])):
            try:
                there, back = (here if end is X else f(end) for end in (first, second))
                pair = _bounded(f, first, second, there, back)
            except UnmeasurableError:
                continue  # nearer ones may do
            if best is None or pair.ratio > best.ratio:
                best = pair
    return SecantPair(first=X, second=X, ratio=0.0, upper=0.0) if best is None else best


def _bounded(f: Callable[[Tensor], Tensor], first: Tensor, second: Tensor, there: Tensor, back: Tensor) -> SecantPair:
    way, moved = float((first - second).double().norm()), float((there - back).double().norm())
    if not way > 0:
        return SecantPair(first=first, second=second, ratio=0.0, upper=0.0)
    shares = torch.linspace(0, 1, POINTS, dtype=first.dtype, device=first.device)[1:-1, None, None]
    between = torch.cat((there[None], f(first + shares * (second - first)), back[None])).double()
    bends = (between[2:] - 2 * between[1:-1] + between[:-2]).flatten(1).norm(dim=1)
    size = float(there.double().norm() + back.double().norm())
    noise = UNITS * torch.finfo(there.dtype).eps * size + ALLOWANCE * float(bends.max())
    # what is no number is no ratio
    ratio = (moved - noise) / way if moved > noise else 0.0
    return SecantPair(first=first, second=second, ratio=ratio, upper=(moved + noise) / way)
