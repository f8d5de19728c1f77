"""The worst input near a given one: the growth of the constant, and the contribution of each token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Neighbourhood
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.metrics import Metric
from howsmooth.search.ascent import maximise
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.around_input.neighbourhood import neighbourhood_upper
from howsmooth.theory.results import Bound, Witness
from howsmooth.validation import Seed, generator_from

# So many tokens are measured together.
TOKENS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearby:
    """The worst input that was found near a given one.

    Attributes:
        centre: The given input.
        there: The constant at the given input.
        witness: The worst input, whose constant is at least that.
        upper: An upper bound for all inputs so near; none where no theorem applies.
        refused: The reason why none applies; empty if one does.
        alone: For each token, the constant if it alone moves to its place in the worst input.
    """

    centre: Float[Tensor, "n d"]
    there: NormEstimate
    witness: Witness
    upper: Bound | None
    refused: str
    alone: tuple[float, ...]

    @property
    def moved(self) -> tuple[float, ...]:
        """How far each token is from its place in the given input, in the Euclidean norm."""
        return tuple((self.witness.tokens.double() - self.centre.double()).norm(dim=-1).tolist())

    @property
    def growth(self) -> float | None:
        """How many times larger the constant is than at the given input, at least; none if nothing moves there."""
        upper = float(self.there.upper)
        # the given input is itself one of those near it
        return max(1.0, self.witness.value / upper) if upper > 0 else None


def worst_nearby(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "n d"],
    *,
    eps: float,
    metric: str | Metric = "token",
    starts: int = 4,
    steps: int = 100,
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Nearby:
    r"""Search the inputs within ``eps`` of ``X`` for the one with the largest constant, and bound what is not found.

    If each token may move, all of them move as far as allowed. Their contributions are compared by the constant when
    one of them moves alone, which takes ``n`` more measurements.

    Args:
        f: As for :func:`maximise`.
        X: The given input, which is the first start.
        eps: How far tokens may move.
        metric: How that is measured: each token, :math:`|z_i-x_i| \le \epsilon`, or in another metric, as in
            :class:`~howsmooth.domains.Neighbourhood`. The constant is the Euclidean one.
        starts: As for :func:`maximise`.
        steps: Likewise.
        seed: Seeds everything random: a whole number, or a torch.Generator to draw from.
        progress: Called with the number of trials taken and the best value so far.
    """
    generator = generator_from(seed)
    domain = Neighbourhood(X, eps, metric=metric)
    there = local_lipschitz(f, X, seed=generator)
    witness = maximise(f, n=len(X), domain=domain, starts=starts, steps=steps, seed=generator, progress=progress)
    upper, refused = _proven(f, X, eps, metric)
    alone = _alone(f, X, witness.tokens, generator)
    return Nearby(centre=X, there=there, witness=witness, upper=upper, refused=refused, alone=tuple(alone))


def _proven(f: Any, X: Tensor, eps: float, metric: str | Metric) -> tuple[Bound | None, str]:
    """Bound the constant at every input so near; or say why no theorem does."""
    if not isinstance(f, Attention):
        return None, "the theorem is about attention in closed form."
    try:
        return neighbourhood_upper(f, X, eps=eps, metric=metric), ""
    except AssumptionError as error:
        return None, str(error)


def _alone(f: Any, X: Tensor, Z: Tensor, generator: torch.Generator) -> list[float]:
    moves = torch.eye(len(X), dtype=torch.bool, device=X.device)[..., None]
    inputs = torch.where(moves, Z.to(X), X)
    if not isinstance(f, Attention):  # a module may know of one input only
        return [float(local_lipschitz(f, Y, seed=generator).lower) for Y in inputs]
    parts = inputs.split(max(1, TOKENS // len(X)))
    return [value for Y in parts for value in local_lipschitz(f, Y, seed=generator).lower.tolist()]
