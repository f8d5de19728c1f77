"""Many inputs climbing at once: trials along the mean gradient, and variants of the best input."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.domains.domain import Domain
from howsmooth.search.norm_gradient import NormGradient
from howsmooth.spectral.operators import broadcast

# The first step of a token, as a share of the domain's scale, and the longest.
FIRST_STEP, LONGEST_STEP = 0.05, 0.1
GROW, SHRINK = 1.3, 0.7
# The gradients of a run are averaged over about so many trials.
MEMORY = 10
# After so many trials the weaker half of the runs is replaced by variants of the best.
GENERATION = 8


class PopulationAscent:
    r"""Runs that climb the local constant in lockstep, each with a step of its own.

    A run tries :math:`x_i + t\,\bar g_i/\mathrm{rms}(g_i)` for every token, :math:`\bar g` the mean of the gradients of
    its last trials, and goes there only if the constant grows; otherwise its step t shrinks. Worst inputs lie on
    narrow ridges, where several scores tie. There the gradients of failed trials are averaged with the others: those
    from both sides of a ridge cancel across it and add up along it.

    There are many local maxima, which differ in the numbers of tokens at each place. No small step leads from one to
    another, so periodically the weaker half of the runs restarts from the best, with one token put on another.

    Attributes:
        tokens: The current inputs.
        value: Their local constants.
    """

    def __init__(
        self,
        slope: Callable[[Tensor, Tensor], NormGradient],
        domain: Domain,
        tokens: Float[Tensor, "runs n d"],
        directions: Float[Tensor, "runs n e"],
        generator: torch.Generator,
    ) -> None:
        """Start at ``tokens``, whose most sensitive directions are nearly ``directions``."""
        self._slope, self._domain, self._generator = slope, domain, generator
        self._trials = 0
        here = slope(tokens, directions)
        self.tokens, self.value, self._direction = tokens, here.value, here.direction
        self._age = torch.zeros_like(here.value)
        self._step = torch.full_like(here.value, FIRST_STEP)
        self._mean, self._square = torch.zeros_like(tokens), torch.zeros_like(tokens[..., :1])
        self._learn(tokens, here)

    def advance(self) -> None:
        """Take one trial for every run."""
        self._trials += 1
        trial, guess = self._trial(), self._direction
        fresh = torch.zeros_like(self.value, dtype=torch.bool)
        if self._trials % GENERATION == 0:
            fresh = self._weaker_half()
            best = self.value.argmax()
            variants = self._domain.nearest(vary(self.tokens[best].expand_as(trial), self._generator))
            trial = _choose(fresh, variants, trial)
            guess = _choose(fresh, guess[best].expand_as(guess), guess)
        self._judge(trial, self._slope(trial, guess), fresh)

    def _trial(self) -> Tensor:
        # a token whose gradients vanish, or leave the range of numbers, stays where it is
        heading = (self._mean / self._square.sqrt()).nan_to_num(0.0, 0.0, 0.0)
        return self._domain.nearest(self.tokens + broadcast(self._domain.scale * self._step, heading) * heading)

    def _weaker_half(self) -> Bool[Tensor, " runs"]:
        rank = self.value.argsort(descending=True).argsort()
        return 2 * rank >= len(rank) + 1

    def _judge(self, trial: Tensor, there: NormGradient, fresh: Tensor) -> None:
        """Accept trials whose constant grew, and the starts of new runs."""
        kept = fresh | (there.value > self.value)
        self.tokens = _choose(kept, trial, self.tokens)
        self._direction = _choose(kept, there.direction, self._direction)
        self.value = torch.where(kept, there.value, self.value)
        step = torch.where(kept, (GROW * self._step).clamp_max(LONGEST_STEP), SHRINK * self._step)
        self._step = torch.where(fresh, FIRST_STEP, step)
        self._age = torch.where(fresh, 0.0, self._age)
        self._learn(trial, there)

    def _learn(self, trial: Tensor, there: NormGradient) -> None:
        """Add a gradient to the averages: a running one of gradients, and one over the whole life of their squares."""
        self._age = self._age + 1
        along = self._domain.direction(trial, there.gradient)
        rate = (1 / self._age).clamp_min(1 / MEMORY)
        self._mean = self._mean + broadcast(rate, along) * (along - self._mean)
        square = along.square().sum(-1, keepdim=True)
        self._square = self._square + broadcast(1 / self._age, square) * (square - self._square)


def vary(X: Float[Tensor, "runs n d"], generator: torch.Generator) -> Float[Tensor, "runs n d"]:
    """Put one token of each input in the place of another."""
    runs, n = X.shape[:2]
    device = generator.device
    place = torch.randint(n, (runs,), device=device, generator=generator)
    shift = torch.randint(1, max(n, 2), (runs,), device=device, generator=generator)
    each = torch.arange(runs, device=X.device)
    varied = X.clone()
    varied[each, place.to(X.device)] = X[each, ((place + shift) % n).to(X.device)]
    return varied


def _choose(which: Bool[Tensor, " runs"], a: Tensor, b: Tensor) -> Tensor:
    return torch.where(which[:, None, None], a, b)
