"""Projected gradient ascent with steps of one length, from several random places."""

import torch

from howsmooth.attacks.objective import Objective

# A run has about so many steps, each so long that it could cross the ball twice over.
STEPS, REACH = 40, 2.5


def search(objective: Objective, generator: torch.Generator) -> None:
    r"""Take steepest steps of the chosen norm: :math:`E \leftarrow \Pi(E + \alpha\,\mathrm{surface}(G))`."""
    restarts = max(1, objective.left // (2 * STEPS))
    steps = max(1, objective.left // (2 * restarts))
    while objective.left >= 2:
        E = objective.draw(generator)
        for _step in range(min(steps, objective.left // 2)):
            _value, G = objective.climb_from(E)
            E = objective.ball.nearest(E + objective.ball.surface(G) * (REACH / steps))
