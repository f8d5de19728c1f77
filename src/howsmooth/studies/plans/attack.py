"""Attacks on a map at windows of a text: checked against the model and the text, and listed."""

from dataclasses import dataclass
from typing import cast

from howsmooth.studies.kinds.attack import Ask
from howsmooth.studies.plans.at_text import Ground, ground
from howsmooth.studies.plans.attacking import Attacking
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.facts import keep_model, keep_words
from howsmooth.studies.runs.plans import plan_of
from howsmooth.studies.runs.store import Store


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedAttacks:
    """Everything that attacks need, checked; what is left is work.

    Attributes:
        ground: The model and the text.
        asks: One for each layer, window, radius and method.
        command: What to type to ask for them again.
    """

    ground: Ground
    asks: tuple[Ask, ...]
    command: str

    def begin(self, store: Store) -> None:
        """Keep what is known about the model, the windows and the plan before any work."""
        keep_model(store, self.ground.transformer, self.ground.inputs.notes)
        keep_words(store, self.asks, self.ground.inputs)
        store.keep_plan(plan_of(self.asks, command=self.command))


def planned_attacks(attacking: Attacking, resources: Resources) -> PlannedAttacks:
    """Check everything that is asked for against the model and the text, and list the asks.

    Raises:
        HowsmoothError: If anything cannot be had; before any long work.
    """
    part = attacking.map
    base = ground(attacking.model, attacking.windows, attacking.where, attacking.reading, resources, parts=[part])
    layers = base.layers(None if attacking.layer is None else [attacking.layer], part)
    asks = [
        cast(Ask, ask)
        for eps in sorted(set(attacking.eps))
        for method in dict.fromkeys(attacking.method)
        for ask in base.each(
            Ask,
            layers,
            part,
            eps=eps,
            method=method,
            norm=attacking.norm,
            budget=attacking.budget,
            bounded=attacking.bounded,
            solver=attacking.solver,
        )
    ]
    return PlannedAttacks(ground=base, asks=tuple(asks), command=attacking.command)
