"""Singular directions first, then climbing from several of them; those that do worse are given up."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.climb import AscentRun, best_first
from howsmooth.attacks.leading import leading
from howsmooth.attacks.objective import Objective

# What the directions may take of the budget, and what the linear problem for each token may.
DIRECTIONS, BLOCKS = 0.3, 0.1
# So many passes lead a run near the top of its hill; a run is begun if there are as many for it.
HILL = 32
MOST = 8


def search(objective: Objective, generator: torch.Generator) -> None:
    """Climb from the best starts; after each round the worse half is given up, for each sequence by itself."""
    runs = [AscentRun.at(objective, E) for E in _starts(objective, generator) if objective.left >= 2]
    rounds = max(1, len(runs).bit_length())
    for round_ in range(rounds):
        share = objective.left // ((rounds - round_) * 2 * max(1, len(runs)))
        last = round_ == rounds - 1
        runs = [_climbed(run, objective, objective.left // 2 if last else share) for run in runs]
        runs = best_first(runs)[: (len(runs) + 1) // 2] if runs else runs


def _climbed(run: AscentRun, objective: Objective, steps: int) -> AscentRun:
    for _step in range(steps):
        if run.arrived or objective.left < 2:
            break
        run = run.advanced(objective)
    return run


def _starts(objective: Objective, generator: torch.Generator) -> list[Float[Tensor, "*batch n d"]]:
    """Return where to begin: the better sign of every direction, the most promising first."""
    count = max(1, min(MOST, int(objective.left * (1 - DIRECTIONS)) // HILL))
    products = int(DIRECTIONS * objective.budget)
    directions = leading(objective.J, count=count, products=products, generator=generator)
    found = [objective.ball.surface(v) for v in directions]
    if objective.ball.per_token:
        found[0] = _worst_to_first_order(objective, found[0])
    signed = [_better(objective, E) for E in found if objective.left >= 4]
    # a scalar of the output has a gradient at no perturbation
    zero = [torch.zeros_like(objective.X)] if objective.targeted else []
    return zero + signed


def _better(objective: Objective, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """Return a perturbation or its negative, whichever gains more, for two forward passes."""
    return torch.where((objective.try_(E) >= objective.try_(-E))[..., None, None], E, -E)


def _worst_to_first_order(objective: Objective, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    r"""Maximise :math:`\|JE\|` where every token may move by eps: :math:`e_i \leftarrow \epsilon\,g_i/|g_i|`."""
    for _step in range(max(1, int(BLOCKS * objective.budget / 2))):
        E = objective.ball.surface(objective.J.vjp(objective.J.jvp(E)))
    return E
