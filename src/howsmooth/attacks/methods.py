"""Methods of attack: random noise, FGSM, PGD, singular directions, and ascent by conjugate gradients from these."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.attacks.objective import Objective
from howsmooth.linear_operators import LinearOperator
from howsmooth.metrics import Euclidean
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.metric_norms import isometric
from howsmooth.spectral.operators import broadcast, flat, random_start

# PGD: steps of a run, and their total length in diameters of the ball.
PGD_STEPS, PGD_REACH = 40, 2.5
# The largest number of singular directions; each takes two forward passes.
MAX_DIRECTIONS = 8
# A singular direction is good enough to start from when its residual is this small, relative to its value.
RESIDUAL = 0.01
# The shares of the budget of ascent for singular directions, and for power iteration in other metrics.
DIRECTIONS_SHARE, BLOCK_POWER_SHARE = 0.3, 0.1
# Passes in which a run comes near its maximum; a run is begun if there are as many for it.
PASSES_PER_RUN = 32
# Steps of ascent are angles, as seen from the centre of the ball: the first, the longest, and when a run has converged.
FIRST_STEP, LONGEST_STEP, SHORTEST_STEP = 1.0, 1.5, 1e-5


def random_search(objective: Objective, generator: torch.Generator) -> None:
    """Try random perturbations of full size."""
    while objective.left >= 1:
        objective.gain(objective.draw(generator))


def fgsm(objective: Objective, generator: torch.Generator) -> None:
    """Take single steps along the gradient, from random places; with a target the first step begins at zero."""
    E = torch.zeros_like(objective.X) if objective.targeted else objective.draw(generator)
    while objective.left >= 3:
        _value, G = objective.gain_and_gradient(E)
        objective.gain(objective.ball.surface(G))
        # the displacement has no gradient at E = 0, so every step begins at another random perturbation
        E = objective.draw(generator)


def pgd(objective: Objective, generator: torch.Generator) -> None:
    r"""Take steps of one length, from random places: :math:`E \leftarrow \Pi(E + \alpha\,\mathrm{surface}(G))`."""
    restarts = max(1, objective.left // (2 * PGD_STEPS))
    steps = max(1, objective.left // (2 * restarts))
    while objective.left >= 2:
        E = objective.draw(generator)
        for _step in range(min(steps, objective.left // 2)):
            _value, G = objective.gain_and_gradient(E)
            E = objective.ball.nearest(E + objective.ball.surface(G) * (PGD_REACH / steps))


def singular(objective: Objective, generator: torch.Generator) -> None:
    """Try the leading right singular vectors of the derivative, in both signs."""
    count = max(1, min(MAX_DIRECTIONS, objective.left // 4))
    J = isometric(objective.J, objective.ball.metric, objective.output)
    for v in singular_directions(J, count=count, products=objective.left - 2 * count, generator=generator):
        E = objective.ball.direction(v)
        for signed in (E, -E)[: objective.left]:
            objective.gain(signed)


def ascent(objective: Objective, generator: torch.Generator) -> None:
    """Climb from the best starts; after each round the worse half is given up, for each sequence by itself."""
    runs = [AscentRun.at(objective, E) for E in _starts(objective, generator) if objective.left >= 2]
    rounds = max(1, len(runs).bit_length())
    for round_ in range(rounds):
        share = objective.left // ((rounds - round_) * 2 * max(1, len(runs)))
        last = round_ == rounds - 1
        runs = [_advanced_by(run, objective, objective.left // 2 if last else share) for run in runs]
        runs = best_first(runs)[: (len(runs) + 1) // 2] if runs else runs


def _advanced_by(run: "AscentRun", objective: Objective, steps: int) -> "AscentRun":
    for _step in range(steps):
        if run.converged or objective.left < 2:
            break
        run = run.advanced(objective)
    return run


def _starts(objective: Objective, generator: torch.Generator) -> list[Float[Tensor, "*batch n d"]]:
    """Return where to begin: the better sign of every direction, the most promising first."""
    count = max(1, min(MAX_DIRECTIONS, int(objective.left * (1 - DIRECTIONS_SHARE)) // PASSES_PER_RUN))
    products = int(DIRECTIONS_SHARE * objective.budget)
    J = isometric(objective.J, objective.ball.metric, objective.output)
    directions = singular_directions(J, count=count, products=products, generator=generator)
    found = [objective.ball.direction(v) for v in directions]
    if not (isinstance(objective.ball.metric, Euclidean) and isinstance(objective.output, Euclidean)):
        found[0] = _worst_to_first_order(objective, found[0])
    signed = [_better(objective, E) for E in found if objective.left >= 4]
    # a scalar of the output has a gradient at no perturbation
    zero = [torch.zeros_like(objective.X)] if objective.targeted else []
    return zero + signed


def _better(objective: Objective, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """Return a perturbation or its negative, whichever gains more, for two forward passes."""
    return torch.where((objective.gain(E) >= objective.gain(-E))[..., None, None], E, -E)


def _worst_to_first_order(objective: Objective, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    r"""Maximise :math:`\|JE\|` where singular vectors do not: by steepest steps of supporting functionals."""
    for _step in range(max(1, int(BLOCK_POWER_SHARE * objective.budget / 2))):
        E = objective.ball.surface(objective.J.vjp(objective.output.support(objective.J.jvp(E))))
    return E


@torch.no_grad()
def singular_directions(
    J: LinearOperator, *, count: int, products: int, generator: torch.Generator
) -> list[Float[Tensor, "*batch n d"]]:
    """Return at most ``count`` leading directions by Golub–Kahan–Lanczos; fewer after fewer steps."""
    space = Bidiagonalisation(J, flat(random_start(J, generator), J.batch), generator)
    space.advance()
    while not space.complete and 2 * space.steps + 2 <= products and not space.residual_below(RESIDUAL).all():
        space.advance()
    return [v.reshape(*J.batch, *J.domain) for v in space.right_vectors(count)]


@dataclass(frozen=True, kw_only=True, eq=False)
class AscentRun:
    """The state of conjugate gradient ascent, for every sequence of a batch."""

    E: Float[Tensor, "*batch n d"]
    value: Float[Tensor, "*batch"]  # the objective there
    slope: Float[Tensor, "*batch n d"]  # the gradient there, projected onto the directions that stay in the ball
    heading: Float[Tensor, "*batch n d"]  # the direction of the next step
    step: Float[Tensor, "*batch"]  # the length of the next step, in radii

    @classmethod
    def at(cls, objective: Objective, E: Float[Tensor, "*batch n d"]) -> "AscentRun":
        """Begin at a perturbation, for a forward and a backward pass."""
        value, G = objective.gain_and_gradient(E)
        slope = objective.ball.uphill(E, G)
        return cls(E=E, value=value, slope=slope, heading=slope, step=torch.full_like(value, FIRST_STEP))

    @property
    def converged(self) -> bool:
        """Whether the steps of all sequences have become negligible."""
        return bool((self.step < SHORTEST_STEP).all())

    def advanced(self, objective: Objective) -> "AscentRun":
        r"""Take a step of conjugate gradients (Polak–Ribière, restarted), for a forward and a backward pass.

        .. math:: E' = \Pi(E + t\,\rho\,d/\|d\|), \qquad d' = s' + \beta d, \qquad
                  \beta = \max\bigl(0, \langle s', s'-s\rangle/\|s\|^2\bigr)

        with :math:`\Pi` the projection onto the ball of radius :math:`\rho` and s the slope. The length of a step
        follows the secant of the slopes at both ends; a step that lowers the value is rejected, and the next shorter.
        """
        # Why not the maximiser of the linearised displacement, E' = ρ s/‖s‖, which is power iteration: it converges as
        # the square of the second singular value over the first, conjugate gradients as Lanczos does, and far from
        # linear maps it overshoots.
        ball, length = objective.ball, _norm(self.heading)
        unit = self.heading / torch.where(length > 0, length, 1.0)
        trial = ball.nearest(self.E + broadcast(self.step, unit) * ball.scale(self.E) * unit)
        value, G = objective.gain_and_gradient(trial)
        slope = ball.uphill(trial, G)
        before, after = _dot(unit, self.slope), _dot(ball.uphill(trial, unit), slope)
        longer = torch.where(after < before, before / (before - after), 2.0).nan_to_num(0.2).clamp(0.2, 2.0)
        taken = AscentRun(
            E=trial,
            value=value,
            slope=slope,
            heading=self._heading(objective, trial, slope),
            step=(self.step * longer).clamp_max(LONGEST_STEP),
        )
        kept = replace(self, heading=self.slope, step=self.step * longer.clamp_max(0.5))
        return choose_runs(value > self.value, taken, kept)

    def _heading(self, objective: Objective, trial: Tensor, slope: Tensor) -> Tensor:
        carried = objective.ball.uphill(trial, self.heading)
        change = _dot(slope, slope - objective.ball.uphill(trial, self.slope))
        beta = (change / _dot(self.slope, self.slope).clamp_min(1e-300)).clamp_min(0.0)
        heading = slope + broadcast(beta, slope) * carried
        return torch.where(broadcast(_dot(heading, slope), slope) > 0, heading, slope)


def choose_runs(first: Bool[Tensor, "*batch"], this: AscentRun, that: AscentRun) -> AscentRun:
    """Return one run or the other, for each sequence."""
    pairs = ((name, getattr(this, name), getattr(that, name)) for name in this.__dataclass_fields__)
    return AscentRun(**{name: torch.where(broadcast(first.double(), a) > 0, a, b) for name, a, b in pairs})


def best_first(runs: list[AscentRun]) -> list[AscentRun]:
    """Sort runs by what they gain, for each sequence by itself."""
    order = torch.stack([run.value for run in runs]).argsort(dim=0, descending=True)
    sorted_ = {}
    for name in runs[0].__dataclass_fields__:
        entries = torch.stack([getattr(run, name) for run in runs])
        index = order.reshape(*order.shape, *(1 for _ in range(entries.ndim - order.ndim))).expand_as(entries)
        sorted_[name] = entries.gather(0, index)
    return [AscentRun(**{name: entries[place] for name, entries in sorted_.items()}) for place in range(len(runs))]


def _dot(A: Tensor, B: Tensor) -> Float[Tensor, "*batch"]:
    return (A * B).sum((-2, -1), dtype=torch.float64)


def _norm(A: Tensor) -> Float[Tensor, "*batch 1 1"]:
    return torch.linalg.vector_norm(A, dim=(-2, -1), keepdim=True)


METHODS: dict[str, Callable[[Objective, torch.Generator], None]] = {
    "random": random_search,
    "fgsm": fgsm,
    "pgd": pgd,
    "singular": singular,
    "ascent": ascent,
}
