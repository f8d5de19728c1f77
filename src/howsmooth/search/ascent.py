"""How bad it gets: ascent on the local Lipschitz constant over the inputs of a domain, and near a given input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from howsmooth.domains.domain import Domain, Neighbourhood
from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnmeasurableError
from howsmooth.maps.attention import Attention
from howsmooth.metrics import Metric, Metrics, as_metrics
from howsmooth.search.measure_search import MeasureMap, over_masses
from howsmooth.search.norm_gradient import (
    KRYLOV_STEPS,
    NormGradient,
    measurable_inputs,
    norm_gradient_or_skip,
    products_of,
)
from howsmooth.search.starts import Starts, check_starts, empty_token, gather_starts
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.operators import Differentiable, broadcast, measurable, require_map
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.around_input.neighbourhood import neighbourhood_upper
from howsmooth.theory.results import Bound, Witness
from howsmooth.validation import Seed, generator_from, plain_mode, tokens_for

# So many trials every run gets.
STEPS = 100
# Variants of the starts are added up to this many runs, while all runs together have at most this many numbers.
MAX_RUNS, MAX_NUMBERS = 32, 4096
# Where the starts alone have so many numbers, products are dear: starts are told apart to a part in a hundred, runs
# that fall behind end until so many are left, and a gradient takes so many Krylov steps.
LARGE, LARGE_RTOL, LARGE_RUNS, LARGE_STEPS = 2**18, 1e-2, 2, 2
# A search ends early when its best value has not grown for so many trials: by then a step has shrunk a millionfold.
PATIENCE = 40
# The first step of a token, as a share of the domain's scale, and the longest.
FIRST_STEP, LONGEST_STEP = 0.05, 0.1
GROW, SHRINK = 1.3, 0.7
# The gradients of a run are averaged over about so many trials.
MEMORY = 10
# After so many trials the weaker half of the runs is replaced by variants of the best.
GENERATION = 8


@plain_mode()
def maximise(
    f: Callable[[Tensor], Any],
    *,
    n: int,
    domain: Domain,
    starts: Starts = 4,
    steps: int = STEPS,
    d: int | None = None,
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
    weights: bool = False,
    metric: str | Metric | Metrics = "total",
) -> Witness:
    r"""Search a domain for the input with the largest local Lipschitz constant.

    .. math:: \max_{X\in\mathrm{domain}} \|D_Xf\|_2

    All starts climb in lockstep, see :class:`~howsmooth.search.ascent.PopulationAscent`. The value is
    attained by the returned input, and never below that of any start; larger values may exist. Inputs where the map
    cannot be measured (:class:`~howsmooth.errors.UnmeasurableError`) are left out. A trial costs each run about a dozen
    products with the Jacobian.

    Args:
        f: A map whose ``jacobian`` autograd can differentiate, or a callable or module that is twice differentiable.
        n: How many tokens an input has.
        domain: Where to search: a ``Ball``, ``Sphere``, ``LayerNormImage``, ``Neighbourhood``, or another ``Domain``.
        starts: How many random inputs to start from, or inputs of your own: a tensor ``(starts, n, d)``, or a list of
            inputs and witnesses, which are brought into the domain. For attention the inputs that theory builds from
            its weights are added.
        steps: How many trials every run gets; fewer are taken when nothing improves.
        d: The dimension of a token, where neither map nor domain nor starts tell.
        seed: Seeds everything random: a whole number, or a torch.Generator to draw from.
        progress: Called with the number of trials taken and the best value so far, after every trial.
        weights: Whether to search over measures with ``n`` atoms: places and masses. The constant is then that of
            moving atoms, in the metric of the masses; ``starts`` may be measures. For unmasked attention of any kind;
            kinds that count tokens count ``n`` unless ``count`` is set.
        metric: The metric of the constant, as in :func:`local_lipschitz`, but none that is relative to the input.

    Returns:
        The best input, measured once more from a random start. Its ``trace`` begins with the best start.

    Example:
        >>> from howsmooth.maps.attention import Attention
        >>> from howsmooth.domains.domain import Ball
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> maximise(Attention.single_head(A=identity, V=identity), n=10, domain=Ball(5.0)).value > 22.5
        True
    """
    witness, _products = maximise_counting(
        f,
        n=n,
        domain=domain,
        starts=starts,
        steps=steps,
        d=d,
        seed=seed,
        progress=progress,
        weights=weights,
        metric=metric,
    )
    return witness


def maximise_counting(
    f: Callable[[Tensor], Any],
    *,
    n: int,
    domain: Domain,
    starts: Starts = 4,
    steps: int = STEPS,
    d: int | None = None,
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
    weights: bool = False,
    metric: str | Metric | Metrics = "total",
) -> tuple[Witness, int]:
    """Do what :func:`maximise` does; return the input, and the number of products with Jacobians."""
    _check(f, n, domain, steps, progress)
    metrics = _fixed(metric, weights)
    if weights:
        f, domain, starts, d = over_masses(f, n, domain, starts)
    wanted = check_starts(starts, n)
    like = empty_token(f, domain, wanted, d)
    f = measurable(f)
    generator = generator_from(seed)
    with torch.inference_mode(False):
        X = gather_starts(f, n, domain, wanted, like, generator)
        _require_one_map(f, X)
        large = steps > 0 and X.numel() >= LARGE
        solver = {"rtol": LARGE_RTOL, "certify": False} if large else {}
        some, first = measurable_inputs(lambda _index: f, X, generator, metrics, **solver)
        X = X[some]
        ended, trace, products = _ascend(f, domain, X, first, steps, generator, progress, metrics, large)
        begun = int(first.lower.argmax())
        last = _measured(f, ended, generator, metrics)
        products += first.products + (0 if last is None else last.products)
        better = last is not None and bool(last.lower > first.lower[begun])
        there = last if better else (_measured(f, X[begun], generator, metrics) if large else None)
        products += 0 if there is None or better else there.products
    best = ended if better else X[begun]
    witness = Witness(
        tokens=best[:, :-1] if isinstance(f, MeasureMap) else best,
        measured=first[begun] if there is None else there,
        name="ascent",
        domain=domain.describe(n) + ("" if metrics.name == "total" else f", metric {metrics.name}"),
        trace=tuple(trace),
        weights=f.masses(best) if isinstance(f, MeasureMap) else None,
    )
    return witness, products


def _fixed(metric: str | Metric | Metrics, weights: bool) -> Metrics:
    """Return the metrics of a search; inputs are compared in the same ones."""
    metrics = as_metrics(metric)
    if metrics.depend_on_tokens or (weights and metrics.name != "total"):
        raise AssumptionError(
            "a search compares inputs in one metric: total, token, entries, sum or hs.metrics.weighted; over measures "
            f"in total, got {metrics.name!r}.",
            field="metric",
        )
    return metrics


def _measured(f: Any, X: Float[Tensor, "n d"], generator: torch.Generator, metrics: Metrics) -> NormEstimate | None:
    """Measure where a search ended; an input measured in a batch may be unmeasurable by itself."""
    try:
        return local_lipschitz(f, X, metric=metrics, seed=generator)
    except UnmeasurableError:
        return None


def _ascend(
    f: Callable[[Tensor], Any],
    domain: Domain,
    X: Tensor,
    first: NormEstimate,
    steps: int,
    generator: torch.Generator,
    progress: Callable[[int, float], None] | None,
    metrics: Metrics,
    large: bool,
) -> tuple[Tensor, list[float], int]:
    """PopulationAscent from the starts ``X`` and variants of them.

    Return the best input, the best value after every trial, and how many products that took.
    """
    trace = [float(first.lower.max())]
    if steps == 0:
        return X[first.lower.argmax()], trace, 0
    room = max(0, min(MAX_RUNS, MAX_NUMBERS // X[0].numel()) - len(X))
    parents = torch.arange(len(X) + room, device=X.device) % len(X)
    runs = torch.cat((X, domain.nearest(vary(X[parents[len(X) :]], generator)))) if room else X
    krylov, products = LARGE_STEPS if large else KRYLOV_STEPS, 0

    def slope(Y: Tensor, guess: Tensor) -> NormGradient:
        nonlocal products
        products += len(Y) * products_of(krylov)
        return norm_gradient_or_skip(lambda _index: f, Y, guess, generator, metrics, krylov)

    least = LARGE_RUNS if large else len(runs)
    climb = PopulationAscent(slope, domain, runs, first.direction[parents], generator, least=least)
    for step in range(1, steps + 1):
        climb.advance()
        trace.append(max(trace[-1], float(climb.value.max())))
        if progress is not None:
            progress(step, trace[-1])
        if step > PATIENCE and trace[-1] <= trace[-1 - PATIENCE] * (1 + 1e-6):
            break
    return climb.tokens[climb.value.argmax()], trace, products


class PopulationAscent:
    r"""Runs that climb the local constant in lockstep, each with a step of its own.

    A run tries :math:`x_i + t\,\bar g_i/\mathrm{rms}(g_i)` for every token, :math:`\bar g` the mean of the gradients of
    its last trials, and goes there only if the constant grows; otherwise its step t shrinks. Worst inputs lie on
    narrow ridges, where several scores tie. There the gradients of failed trials are averaged with the others: those
    from both sides of a ridge cancel across it and add up along it.

    There are many local maxima, which differ in the numbers of tokens at each place. No small step leads from one to
    another, so periodically the weaker half of the runs restarts from the best, with one token put on another; or ends,
    as long as more than ``least`` are left.

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
        *,
        least: int | None = None,
    ) -> None:
        """Start at ``tokens``, whose most sensitive directions are nearly ``directions``; by default no run ends."""
        self._slope, self._domain, self._generator = slope, domain, generator
        self._trials, self._least = 0, len(tokens) if least is None else least
        here = slope(tokens, directions)
        self.tokens, self.value, self._direction = tokens, here.value, here.direction
        self._age = torch.zeros_like(here.value)
        self._step = torch.full_like(here.value, FIRST_STEP)
        self._mean, self._square = torch.zeros_like(tokens), torch.zeros_like(tokens[..., :1])
        self._learn(tokens, here)

    def advance(self) -> None:
        """Take one trial for every run."""
        self._trials += 1
        over = self._trials % GENERATION == 0
        ending = over and len(self.value) > self._least
        if ending:
            self._keep(self.value.argsort(descending=True)[: max(self._least, (len(self.value) + 1) // 2)])
        trial, guess = self._trial(), self._direction
        fresh = torch.zeros_like(self.value, dtype=torch.bool)
        if over and not ending:
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

    def _keep(self, some: Int[Tensor, " some"]) -> None:
        """Go on with some of the runs."""
        self.tokens, self.value, self._direction = self.tokens[some], self.value[some], self._direction[some]
        self._age, self._step = self._age[some], self._step[some]
        self._mean, self._square = self._mean[some], self._square[some]

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


def _check(f: object, n: object, domain: object, steps: object, progress: object) -> None:
    """Refuse what no search can work with, before anything is computed."""
    require_map(f)
    if not (isinstance(n, int) and n >= 1):
        raise AssumptionError(f"n must be a whole number, at least 1, got {n}.", field="n")
    if not (isinstance(steps, int) and steps >= 0):
        raise AssumptionError(f"steps must be a whole number, 0 or more, got {steps}.", field="steps")
    if isinstance(domain, type) or not isinstance(domain, Domain):
        got = domain.__name__ if isinstance(domain, type) else type(domain).__name__
        raise DtypeError(
            f"domain must be a set of inputs such as hs.domains.Ball(5.0) or hs.domains.Sphere(5.0), got {got}.",
            field="domain",
        )
    if domain.shape[0] not in (None, n):
        raise ShapeError(
            f"the domain has inputs of {domain.shape[0]} tokens, got n = {n}; let them agree.", field="domain"
        )
    if not (progress is None or callable(progress)):
        raise DtypeError(
            f"progress must be callable with a step and a value, got {type(progress).__name__}.", field="progress"
        )


def _require_one_map(f: Any, X: Float[Tensor, "s n d"]) -> None:
    """Refuse a batch of maps, whose batch axes would be taken for those of the runs."""
    if not isinstance(f, Differentiable):
        return
    for start in X:
        try:
            with torch.no_grad():
                batch = f.jacobian(start).batch
        except UnmeasurableError:
            continue  # another start will tell
        if batch:
            raise ShapeError(
                f"a search takes one map, got a batch of shape {batch}; search them one at a time.", field="f"
            )
        return


# So many tokens are measured together.
TOKENS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Nearby:
    """The worst input that was found near a given one.

    Attributes:
        centre: The given input.
        there: The constant at the given input.
        witness: The worst input, whose constant is at least that.
        upper: An upper bound for all inputs so near; none where no theorem applies.
        refused: The reason why none applies; empty if one does.
        alone: For each token, the constant if it alone moves to its place in the worst input.
    """

    centre: Float[Tensor, "n d"]
    there: NormEstimate
    witness: Witness
    upper: Bound | None
    refused: str
    alone: tuple[float, ...]

    @property
    def moved(self) -> tuple[float, ...]:
        """How far each token is from its place in the given input, in the Euclidean norm."""
        return tuple((self.witness.tokens.double() - self.centre.double()).norm(dim=-1).tolist())

    @property
    def growth(self) -> float | None:
        """How many times larger the constant is than at the given input, at least; none if nothing moves there."""
        upper = float(self.there.upper)
        # the given input is itself one of those near it
        return max(1.0, self.witness.value / upper) if upper > 0 else None


@plain_mode()
def worst_nearby(
    f: Callable[[Tensor], Any],
    X: Float[Tensor, "n d"],
    *,
    eps: float,
    metric: str | Metric = "token",
    starts: int = 4,
    steps: int = STEPS,
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Nearby:
    r"""Search the inputs within ``eps`` of ``X`` for the one with the largest constant, and bound what is not found.

    If each token may move, all of them move as far as allowed. Their contributions are compared by the constant when
    one of them moves alone, which takes ``n`` more measurements.

    Args:
        f: As for :func:`maximise`.
        X: The given input, which is the first start.
        eps: How far tokens may move.
        metric: How that is measured: each token, :math:`|z_i-x_i| \le \epsilon`, or in another metric, as in
            :class:`~howsmooth.domains.Neighbourhood`. The constant is the Euclidean one.
        starts: As for :func:`maximise`.
        steps: Likewise.
        seed: Seeds everything random: a whole number, or a torch.Generator to draw from.
        progress: Called with the number of trials taken and the best value so far.
    """
    generator, X = generator_from(seed), tokens_for(X, f)
    domain = Neighbourhood(X, eps, metric=metric)
    there = local_lipschitz(f, X, seed=generator)
    witness = maximise(f, n=len(X), domain=domain, starts=starts, steps=steps, seed=generator, progress=progress)
    upper, refused = _proven(f, X, eps, metric)
    alone = _alone(f, X, witness.tokens, generator)
    return Nearby(centre=X, there=there, witness=witness, upper=upper, refused=refused, alone=tuple(alone))


def _proven(f: Any, X: Tensor, eps: float, metric: str | Metric) -> tuple[Bound | None, str]:
    """Bound the constant at every input so near; or say why no theorem does."""
    if not isinstance(f, Attention):
        return None, "the theorem is about attention in closed form."
    try:
        return neighbourhood_upper(f, X, eps=eps, metric=metric), ""
    except AssumptionError as error:
        return None, str(error)


def _alone(f: Any, X: Tensor, Z: Tensor, generator: torch.Generator) -> list[float]:
    moves = torch.eye(len(X), dtype=torch.bool, device=X.device)[..., None]
    inputs = torch.where(moves, Z.to(X), X)
    if not isinstance(f, Attention):  # a module may know of one input only
        return [float(local_lipschitz(f, Y, seed=generator).lower) for Y in inputs]
    parts = inputs.split(max(1, TOKENS // len(X)))
    return [value for Y in parts for value in local_lipschitz(f, Y, seed=generator).lower.tolist()]
