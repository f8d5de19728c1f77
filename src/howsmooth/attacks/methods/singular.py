"""Along the leading right singular vectors of the derivative, and against them: what the constant itself suggests."""

import torch

from howsmooth.attacks.leading import leading
from howsmooth.attacks.objective import Objective

# So many directions are tried at most; each takes two forward passes.
MOST = 8


def search(objective: Objective, generator: torch.Generator) -> None:
    """Spend what is needed on the directions, and the rest on trying them."""
    count = max(1, min(MOST, objective.left // 4))
    for v in leading(objective.J, count=count, products=objective.left - 2 * count, generator=generator):
        E = objective.ball.surface(v)
        for signed in (E, -E)[: objective.left]:
            objective.try_(signed)
