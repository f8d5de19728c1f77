"""Questions about a model with errors in it, at windows of a text: what recipes and true runs share."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from howsmooth.studies.asks import AtText
from howsmooth.studies.settings import Solver
from howsmooth.wording import number

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.budgets.error_budget import Budget
    from howsmooth.budgets.places import Places
    from howsmooth.studies.resources import Resources

PASSES, WINDOWS = 32, 4
# A pass costs about so much of a measurement of one layer.
PASS_COST = 2.0
# What costs of embeddings count, as answers have it.
COSINE = "1 − cosine"


def cost_in_words(value: float, cost: str) -> str:
    """Say a cost with what it counts.

    >>> cost_in_words(0.5, "nats a token"), cost_in_words(0.5, COSINE)
    ('0.5 nats a token', '0.5 of cosine distance')
    """
    if cost.startswith("nats"):
        return f"{number(value)} {cost}"
    return f"{number(value)} of {'cosine distance' if cost == COSINE else cost}"


class AtWindows(AtText, frozen=True, kw_only=True):
    """A question about a whole budget: schemes, and windows from the first on."""

    layer: int = 0
    map: str = "model"
    schemes: tuple[str, ...]  # the schemes
    windows: int = WINDOWS  # at how many windows, from the first on
    passes: int = PASSES  # how many backward passes at each
    solver: Solver = Solver()  # the seed

    @property
    def cost(self) -> float:
        """Passes at every window."""
        return super().cost * self.passes * PASS_COST * self.windows

    @property
    def alone(self) -> bool:
        """Errors are put into the weights of the model while it runs, which no other thread may read then."""
        return True

    @property
    def batch(self) -> Hashable:
        """Questions about the same schemes share their draws."""
        return self.kind, self.model, self.schemes, self.window, self.windows, self.passes, self.solver.seed


def windows_of(ask: AtText, windows: range, resources: "Resources") -> "Tensor":
    """Return windows of the text that is asked about."""
    transformer = resources.transformer(ask.model, ask.where, ask.reading)
    inputs = resources.inputs(transformer, resources.source(ask.window), special_tokens=ask.window.special_tokens)
    return inputs.at(list(windows), length=ask.window.length, stride=ask.window.stride)


def places_of(ask: AtText, schemes: Sequence[str], windows: range, resources: "Resources") -> "Places":
    """Return where errors enter the model at windows."""
    from howsmooth.budgets.places import Places
    from howsmooth.budgets.schemes import scheme
    from howsmooth.budgets.subject import Subject

    transformer = resources.transformer(ask.model, ask.where, ask.reading)
    subject = Subject.of(transformer, windows_of(ask, windows, resources))
    return Places(subject=subject, schemes=[scheme(label) for label in schemes])


def budget_of(ask: AtWindows, places: "Places", seed: int) -> "Budget":
    """Draw the budget that a question is about."""
    from howsmooth.budgets.error_budget import Budget
    from howsmooth.budgets.passes import inner_products

    products = inner_products(places, passes=ask.passes, seed=seed)
    return Budget(model=ask.model, products=products, cost=places.subject.unit, places=places, seed=seed)
