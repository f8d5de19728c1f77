"""What a run keeps beside its records, so that it can be read without its models: notes on them, bounds of layers."""

import json

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.models.base import Transformer
from howsmooth.studies.measurement import NO_BOUNDS
from howsmooth.studies.store import Store
from howsmooth.theory.bounds import table
from howsmooth.theory.results import Ladder, Refusal

# How many heads a worst input is looked for at: the ladder is quick, and the best heads win almost always.
PROMISING = 1


def keep_notes(store: Store, transformer: Transformer) -> None:
    """Keep what a reader has to know about a model."""
    store.keep(_notes(transformer.name), json.dumps(transformer.notes))


def kept_notes(store: Store, model: str) -> tuple[str, ...]:
    """Return what :func:`keep_notes` kept."""
    return tuple(json.loads(store.fact(_notes(model)) or "[]"))


def keep_ladder(store: Store, transformer: Transformer, part: str, layer: int, n: int, radius: float) -> Ladder:
    """Keep every bound for a layer, n tokens and a radius, unless they are kept already; return them."""
    name = _ladder(transformer.name, part, layer, n, radius)
    if store.fact(name) is None:
        store.keep(name, _bounds(transformer, part, layer, n, radius).to_json())
    return kept_ladder(store, transformer.name, part, layer, n, radius)


def kept_ladder(store: Store, model: str, part: str, layer: int, n: int, radius: float) -> Ladder:
    """Return what :func:`keep_ladder` kept, or no bounds."""
    kept = store.fact(_ladder(model, part, layer, n, radius))
    return NO_BOUNDS if kept is None else Ladder.from_json(kept)


def _bounds(transformer: Transformer, part: str, layer: int, n: int, radius: float) -> Ladder:
    site = transformer.sites[layer]
    f = None if site.attention is None or part == "block" else site.map(part)
    if not isinstance(f, Attention):
        return Ladder(rungs=(), refused=(Refusal(name="all", reason="the theorems are about attention alone."),))
    try:
        return table(f, n=n, radius=radius, heads=PROMISING)
    except AssumptionError as error:
        return Ladder(rungs=(), refused=(Refusal(name="all", reason=str(error)),))


def _notes(model: str) -> str:
    return f"notes on {model}"


def _ladder(model: str, part: str, layer: int, n: int, radius: float) -> str:
    return f"bounds of {model}, {part}, layer {layer}, n = {n}, R = {radius:.12g}"
