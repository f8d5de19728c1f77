"""What errors do truly: the model run with them in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.budgets.effects import Effect
from howsmooth.budgets.places import Error, Places
from howsmooth.budgets.worst_errors import WorstCost

SECOND_ORDER = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What errors together do to the output, by a run of the model.

    The margin of a position is how far the score of the word or class that wins without errors is ahead of all others:
    where it becomes negative, another one wins. Embeddings have none.

    Attributes:
        costs: The cost at each position of each window.
        before: The margin without errors.
        after: The margin with them.
    """

    costs: Float[Tensor, "windows positions"]
    before: Float[Tensor, "windows positions"] | None
    after: Float[Tensor, "windows positions"] | None

    @property
    def flips(self) -> int | None:
        """At how many positions another word or class wins."""
        return None if self.after is None else int((self.after < 0).sum())


@torch.no_grad()
def outcome(places: Places, recipe: Mapping[str, str]) -> Outcome:
    """Run the model with the errors of a recipe in it."""
    costs, before, after = [], [], []
    for base, other in true_outputs(places, [recipe]):
        costs.append(places.subject.cost(base, other))
        if places.subject.kind != "embedding":
            winner = base.argmax(-1, keepdim=True)
            before.append(_margin(base, winner))
            after.append(_margin(other, winner))
    margins = (torch.stack(part) if part else None for part in (before, after))
    return Outcome(costs=torch.stack(costs), **dict(zip(("before", "after"), margins, strict=True)))


def _margin(scores: Float[Tensor, "t v"], winner: Tensor) -> Float[Tensor, " t"]:
    others = scores.scatter(-1, winner, -torch.inf).amax(-1)
    return scores.gather(-1, winner)[:, 0] - others


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What an error costs by the estimate and in truth.

    Attributes:
        predicted: The estimate.
        measured: The true cost.
        at_half: Four times the true cost of half of the error, which is the same as long as second order holds.
        worst: What the worst error of its size would cost, to second order; none if it was not asked for, for what is
            no matrix, and for what has no effect.
    """

    predicted: Effect
    measured: float
    at_half: float
    worst: WorstCost | None = None

    @property
    def second_order(self) -> bool:
        """Whether the whole error and half of it agree to 20 %."""
        return agrees_with_half(self.measured, self.at_half)


def agrees_with_half(measured: float, at_half: float) -> bool:
    """Tell whether a true cost and four times that of half of the error agree to 20 %, as second order has it."""
    return abs(measured - at_half) <= SECOND_ORDER * at_half


@torch.no_grad()
def true_costs(places: Places, recipes: Sequence[Mapping[str, str]], *, factor: float = 1.0) -> Float[Tensor, "r w t"]:
    """Run the model with a share of the errors of each recipe; return true costs, for windows and positions."""
    costs = [places.subject.cost(*outputs) for outputs in true_outputs(places, recipes, factor=factor)]
    return torch.stack(costs).unflatten(0, (-1, len(recipes))).transpose(0, 1)


def true_outputs(
    places: Places, recipes: Sequence[Mapping[str, str]], *, factor: float = 1.0
) -> Iterator[tuple[Float[Tensor, "t v"], Float[Tensor, "t v"]]]:
    """Yield the output without errors and with a share of those of each recipe, window after window; no gradients."""
    subject = places.subject

    def put(Y: Tensor, _errors: Sequence[Error], displaced: Tensor) -> Tensor:
        return Y + factor * displaced[0]

    once = places.weights(recipes[0], factor) if len(recipes) == 1 else None
    for window in range(len(subject.tokens)):
        base = subject.outputs(window)
        for recipe in recipes:
            weights = places.weights(recipe, factor) if once is None else once
            with places.attached(put, recipe) as arguments:
                yield base, subject.outputs(window, weights=weights, **arguments)
