"""The constant on a ball between the best input and the best theorem."""

import dataclasses
from collections.abc import Callable

from howsmooth.domains.domain import Ball
from howsmooth.errors import AssumptionError
from howsmooth.maps.heads import MultiHead
from howsmooth.metrics import Metric, as_metrics
from howsmooth.search.ascent import maximise
from howsmooth.search.mechanisms import is_plain_softmax
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.bounds import smallest_upper
from howsmooth.theory.inputs import candidates
from howsmooth.theory.results import Bound, Bracket
from howsmooth.validation import Seed


def bracket(
    attention: MultiHead,
    *,
    n: int,
    radius: float,
    search: bool = False,
    metric: str | Metric = "total",
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Bracket:
    r"""Bracket the Lipschitz constant on sequences of ``n`` tokens in a ball.

    Above: the smallest upper bound that applies. Below: the best of the explicit inputs, each measured on the whole
    layer, or with ``search`` what ascent makes of them. Other mechanisms than softmax are always searched, since no
    explicit inputs are known for them.

    Args:
        attention: The map.
        n: How many tokens.
        radius: The radius of the ball that every token lies in.
        search: Whether to improve the input by ascent on the local constant.
        metric: The metric of the constant: one that :func:`howsmooth.bounds.table` has theorems about.
        seed: Seeds the starts of the search.
        progress: Called with the step and the best value after every step of the search.

    Raises:
        AssumptionError: If no theorem, or no explicit input, applies to this map.

    Example:
        >>> from howsmooth.maps.attention import Attention
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> round(bracket(Attention.single_head(A=-identity, V=identity), n=200, radius=4.0).ratio, 2)
        1.19
    """
    upper = smallest_upper(attention, n=n, radius=radius, metric=metric)
    return bracket_below(
        upper, attention, n=n, radius=radius, search=search, metric=metric, seed=seed, progress=progress
    )


def bracket_below(
    upper: Bound,
    attention: MultiHead,
    *,
    n: int,
    radius: float,
    search: bool = False,
    metric: str | Metric = "total",
    seed: Seed = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Bracket:
    """Bracket the constant below an upper bound on the same ball that is known already, as from a table of bounds."""
    if search or not is_plain_softmax(attention):
        # from the same inputs, and never below the best of them
        found = maximise(attention, n=n, domain=Ball(radius), metric=metric, seed=seed, progress=progress)
        return Bracket(lower=found, upper=upper)
    explicit = candidates(attention, n, radius)
    if not explicit:
        raise AssumptionError(
            "no explicit input applies to this map; use search=True, which needs none.", field="search"
        )
    if as_metrics(metric).name != "total":
        measured = [local_lipschitz(attention, each.tokens, metric=metric, seed=seed) for each in explicit]
        explicit = tuple(
            dataclasses.replace(each, measured=there, formula=None, domain=upper.domain)
            for each, there in zip(explicit, measured, strict=True)
        )
    return Bracket(lower=max(explicit, key=lambda witness: witness.value), upper=upper)
