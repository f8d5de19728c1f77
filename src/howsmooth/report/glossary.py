"""What the words of a report mean and what its numbers are worth: only of those that it uses."""

import functools
import tomllib
from collections.abc import Collection
from dataclasses import dataclass

from howsmooth.report.embedding import asset
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.theory.results import Side


@dataclass(frozen=True, kw_only=True)
class Term:
    """A word of the report.

    Attributes:
        key: How the page refers to it.
        name: The word.
        meaning: What it means.
        worth: What its numbers are worth, where that is not said already.
    """

    key: str
    name: str
    meaning: str
    worth: str = ""


@functools.cache
def every_term() -> tuple[Term, ...]:
    """Return all words, in the order in which a report explains them."""
    return tuple(Term(**term) for term in tomllib.loads(asset("glossary.toml"))["terms"])


def terms(measurements: Collection[Measurement], kinds: Collection[str]) -> list[Term]:
    """Return the words that a report on these measurements and kinds of questions uses."""
    used = {kind for kind in kinds if kind in ("regimes", "splitting", "measures", "whole")}
    if measurements or set(kinds) & {"text", "extremal"}:
        used |= {"worst", "radius"}
    if "certificate" in kinds:
        used |= {"certified"}
    if set(kinds) & {"extremal", "bounds"}:
        used |= {"inputs", "any"}
    for m in measurements:
        used |= _of(m)
    return [term for term in every_term() if term.key in used]


def _of(m: Measurement) -> set[str]:
    layers = m.layers
    told = {
        "typical": any(layer.typical is not None for layer in layers),
        "growth": any(layer.growth is not None for layer in layers),
        "certificate": any(layer.local_upper is not None for layer in layers),
        "any": any(layer.any_input is not None for layer in layers),
        "inputs": any(bound.side is Side.LOWER for layer in layers for bound in layer.ladder.rungs),
        "tokens": bool(m.tokens),
    }
    return {key for key, used in told.items() if used}
