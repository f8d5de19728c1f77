"""One step along the gradient, as long as the ball allows."""

import torch

from howsmooth.attacks.objective import Objective


def search(objective: Objective, generator: torch.Generator) -> None:
    """Step from random places; a target has a gradient at no perturbation, which is where the first step begins."""
    E = torch.zeros_like(objective.X) if objective.targeted else objective.draw(generator)
    while objective.left >= 3:
        _value, G = objective.climb_from(E)
        objective.try_(objective.ball.surface(G))
        # the displacement has no gradient at E = 0, so it is taken somewhere else, and elsewhere the next time
        E = objective.draw(generator)
