"""Many perturbations climb, one after the other: conjugate gradients along the surface of the ball."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.attacks.objective import Objective
from howsmooth.spectral.vectors import broadcast

# A step is an angle, as seen from the centre of the ball: at first, and at most.
FIRST, LONGEST = 1.0, 1.5
# A run whose steps have become so short has arrived.
SHORTEST = 1e-5


@dataclass(frozen=True, kw_only=True, eq=False)
class AscentRun:
    """A perturbation of every sequence on its way up.

    Attributes:
        E: Where it is.
        value: What it gains there.
        slope: The gradient there, as far as it leads along or into the ball.
        heading: Where the next step goes.
        step: How long that is, in radii.
    """

    E: Float[Tensor, "*batch n d"]
    value: Float[Tensor, "*batch"]
    slope: Float[Tensor, "*batch n d"]
    heading: Float[Tensor, "*batch n d"]
    step: Float[Tensor, "*batch"]

    @classmethod
    def at(cls, objective: Objective, E: Float[Tensor, "*batch n d"]) -> "AscentRun":
        """Begin at a perturbation, for a forward and a backward pass."""
        value, G = objective.climb_from(E)
        slope = objective.ball.uphill(E, G)
        return cls(E=E, value=value, slope=slope, heading=slope, step=torch.full_like(value, FIRST))

    @property
    def arrived(self) -> bool:
        """Whether no sequence has anything left to climb."""
        return bool((self.step < SHORTEST).all())

    def advanced(self, objective: Objective) -> "AscentRun":
        r"""Take a step of conjugate gradients (Polak–Ribière, restarted), for a forward and a backward pass.

        .. math:: E' = \Pi(E + t\,\rho\,d/\|d\|), \qquad d' = s' + \beta d, \qquad
                  \beta = \max\bigl(0, \langle s', s'-s\rangle/\|s\|^2\bigr)

        with :math:`\Pi` the projection onto the ball of radius :math:`\rho` and s the slope. The length of a step
        follows the secant of the slopes at both ends; one that leads down is not taken, and the next is shorter.
        """
        # Why not the maximiser of the linearised displacement, E' = ρ s/‖s‖, which is power iteration: it converges as
        # the square of the second singular value over the first, conjugate gradients as Lanczos does, and far from
        # linear maps it overshoots.
        ball, length = objective.ball, _norm(self.heading)
        unit = self.heading / torch.where(length > 0, length, 1.0)
        trial = ball.nearest(self.E + broadcast(self.step, unit) * ball.scale(self.E.shape[-2]) * unit)
        value, G = objective.climb_from(trial)
        slope = ball.uphill(trial, G)
        before, after = _dot(unit, self.slope), _dot(ball.uphill(trial, unit), slope)
        longer = torch.where(after < before, before / (before - after), 2.0).nan_to_num(0.2).clamp(0.2, 2.0)
        taken = AscentRun(
            E=trial,
            value=value,
            slope=slope,
            heading=self._heading(objective, trial, slope),
            step=(self.step * longer).clamp_max(LONGEST),
        )
        stays = replace(self, heading=self.slope, step=self.step * longer.clamp_max(0.5))
        return either(value > self.value, taken, stays)

    def _heading(self, objective: Objective, trial: Tensor, slope: Tensor) -> Tensor:
        carried = objective.ball.uphill(trial, self.heading)
        turned = _dot(slope, slope - objective.ball.uphill(trial, self.slope))
        beta = (turned / _dot(self.slope, self.slope).clamp_min(1e-300)).clamp_min(0.0)
        heading = slope + broadcast(beta, slope) * carried
        return torch.where(broadcast(_dot(heading, slope), slope) > 0, heading, slope)


def either(first: Bool[Tensor, "*batch"], this: AscentRun, that: AscentRun) -> AscentRun:
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
