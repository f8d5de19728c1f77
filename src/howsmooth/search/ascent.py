"""How bad it gets: ascent on the local Lipschitz constant over the inputs of a domain."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Domain
from howsmooth.errors import AssumptionError, DtypeError, ShapeError, UnmeasurableError
from howsmooth.search.measure_search import MeasureMap, over_masses
from howsmooth.search.norm_gradient import PRODUCTS, measurable_inputs, norm_gradient_or_skip
from howsmooth.search.population_ascent import PopulationAscent, vary
from howsmooth.search.starts import Starts, checked, empty_token, gather
from howsmooth.spectral.estimates import NormEstimate
from howsmooth.spectral.protocols import Differentiable, measurable, require_map
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.results import Witness

# Variants of the starts are added up to this many runs, while all runs together have at most this many numbers.
MAX_RUNS, MAX_NUMBERS = 32, 4096
# A search ends early when its best value has not grown for so many trials: by then a step has shrunk a millionfold.
PATIENCE = 40


def maximise(
    f: Callable[[Tensor], Any],
    *,
    n: int,
    domain: Domain,
    starts: Starts = 4,
    steps: int = 100,
    d: int | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[int, float], None] | None = None,
    weights: bool = False,
) -> Witness:
    r"""Search a domain for the input with the largest local Lipschitz constant.

    .. math:: \max_{X\in\mathrm{domain}} \|D_Xf\|_2

    All starts climb in lockstep, see :class:`~howsmooth.search.population_ascent.PopulationAscent`. The value is
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
        generator: The source of randomness; one with a fixed seed by default.
        progress: Called with the number of trials taken and the best value so far, after every trial.
        weights: Whether to search over measures with ``n`` atoms: places and masses. The constant is then that of
            moving atoms, in the metric of the masses; ``starts`` may be measures. For unmasked attention of any kind;
            kinds that count tokens count ``n`` unless ``count`` is set.

    Returns:
        The best input, measured once more from a random start. Its ``trace`` begins with the best start.

    Example:
        >>> from howsmooth.maps.attention import Attention
        >>> from howsmooth.domains.ball import Ball
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> maximise(Attention.single_head(A=identity, V=identity), n=10, domain=Ball(5.0)).value > 22.5
        True
    """
    witness, _products = maximise_counting(
        f, n=n, domain=domain, starts=starts, steps=steps, d=d, generator=generator, progress=progress, weights=weights
    )
    return witness


def maximise_counting(
    f: Callable[[Tensor], Any],
    *,
    n: int,
    domain: Domain,
    starts: Starts = 4,
    steps: int = 100,
    d: int | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[int, float], None] | None = None,
    weights: bool = False,
) -> tuple[Witness, int]:
    """Do what :func:`maximise` does; return the input, and the number of products with Jacobians."""
    _check(f, n, domain, steps, generator, progress)
    if weights:
        f, domain, starts, d = over_masses(f, n, domain, starts)
    wanted = checked(starts, n)
    like = empty_token(f, domain, wanted, d)
    f = measurable(f)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.inference_mode(False):
        X = gather(f, n, domain, wanted, like, generator)
        _require_one_map(f, X)
        some, first = measurable_inputs(lambda _index: f, X, generator)
        X = X[some]
        ended, trace, products = _ascend(f, domain, X, first, steps, generator, progress)
        begun = int(first.lower.argmax())
        last = _measured(f, ended, generator)
    better = last is not None and bool(last.lower > first.lower[begun])
    best = ended if better else X[begun]
    witness = Witness(
        tokens=best[:, :-1] if isinstance(f, MeasureMap) else best,
        measured=last if last is not None and better else first[begun],
        name="ascent",
        domain=domain.describe(n),
        trace=tuple(trace),
        weights=f.masses(best) if isinstance(f, MeasureMap) else None,
    )
    return witness, first.products + products + (0 if last is None else last.products)


def _measured(f: Any, X: Float[Tensor, "n d"], generator: torch.Generator) -> NormEstimate | None:
    """Measure where a search ended; an input measured in a batch may be unmeasurable by itself."""
    try:
        return local_lipschitz(f, X, generator=generator)
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
) -> tuple[Tensor, list[float], int]:
    """PopulationAscent from the starts ``X`` and variants of them.

    Return the best input, the best value after every trial, and how many products that took.
    """
    trace = [float(first.lower.max())]
    if steps == 0:
        return X[first.lower.argmax()], trace, 0
    room = max(0, min(MAX_RUNS, MAX_NUMBERS // X[0].numel()) - len(X))
    parents = torch.arange(len(X) + room, device=X.device) % len(X)
    runs = torch.cat((X, domain.nearest(vary(X[parents[len(X) :]], generator))))
    climb = PopulationAscent(
        lambda Y, guess: norm_gradient_or_skip(lambda _index: f, Y, guess, generator),
        domain,
        runs,
        first.direction[parents],
        generator,
    )
    for step in range(1, steps + 1):
        climb.advance()
        trace.append(max(trace[-1], float(climb.value.max())))
        if progress is not None:
            progress(step, trace[-1])
        if step > PATIENCE and trace[-1] <= trace[-1 - PATIENCE] * (1 + 1e-6):
            break
    return climb.tokens[climb.value.argmax()], trace, len(trace) * len(runs) * PRODUCTS


def _check(f: object, n: object, domain: object, steps: object, generator: object, progress: object) -> None:
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
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise DtypeError(f"generator must be a torch.Generator, got {type(generator).__name__}.", field="generator")
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
