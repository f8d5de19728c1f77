"""Random perturbations of full size: what noise does."""

import torch

from howsmooth.attacks.objective import Objective


def search(objective: Objective, generator: torch.Generator) -> None:
    """Try one after the other."""
    while objective.left >= 1:
        objective.try_(objective.draw(generator))
