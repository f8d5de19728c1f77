"""Whole models as maps: from what enters a layer to the output of another, or of the model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.composition import Chain
from howsmooth.maps.dense import Dense
from howsmooth.maps.pooling import Pooling
from howsmooth.maps.protocols import Map
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models import blocks
from howsmooth.models.frame import Frame
from howsmooth.models.map_names import FROM_EMBEDDINGS, RANGES, WHOLE, Span, span
from howsmooth.models.padded_calls import RealTokensCall
from howsmooth.models.rest import Rest
from howsmooth.models.sites import Measurable, Site

if TYPE_CHECKING:  # activations ask for their maps
    from howsmooth.models.activations import Activations


def check_whole(sites: tuple[Site, ...], frame: Frame, name: str) -> Span:
    """Return which layers a map of many layers has in a model.

    Raises:
        AssumptionError: If the model has no such map; it says why, and which it has.
    """
    found = span(name, len(sites))
    if (why := _missing(frame, name)) is not None:
        known = (part for part in (*WHOLE, *RANGES) if _missing(frame, part) is None)
        raise AssumptionError(
            f"the model has no map {name!r}: {why}; of whole maps it has {', '.join(known)}.", field="map"
        )
    return found


def whole_map(found: "Activations", layer: int, name: str) -> tuple[Measurable, Float[Tensor, "batch n d"]]:
    """Return a map of many layers, and the tokens that enter it.

    Raises:
        AssumptionError: If the model has no such map, or it begins at another layer.
    """
    part = check_whole(found.sites, found.frame, name)
    if layer not in (0, part.first):
        raise AssumptionError(f"the map {name!r} begins at layer {part.first}, got layer {layer}.", field="layer")
    embedded = found.embedded if part.from_embeddings else None
    X = found.blocks[part.first] if embedded is None else embedded.tokens.detach()
    inner = _in_closed_form(found, part) or _by_running(found, part)
    return _among_real_tokens(found, _with_tail(found, inner, X, name)), X


def _missing(frame: Frame, name: str) -> str | None:
    """Return why a model has no such map, or ``None`` if it has."""
    if name in FROM_EMBEDDINGS and frame.ends is None:
        return "where its embeddings are added up is not known for its family"
    told = {"logits": frame.head, "sentence": frame.sentence, "classes": frame.classes}.get(name)
    return told if isinstance(told, str) else None


def _in_closed_form(found: "Activations", part: Span) -> Chain | None:
    """Return the layers one after the other, or ``None`` if one of them has no closed form."""
    sites, ends = found.sites[part.first : part.last + 1], found.frame.ends
    if ends is None or any(site.attention is None or site.feed_forward is None for site in sites):
        return None
    maps: list[Map] = list(ends.before) if part.from_embeddings else []
    for site in sites:
        maps.extend(blocks.block(site, site.padded(found.padding)).maps)
    return Chain(*maps, *(ends.after if part.to_the_end else ()))


def _by_running(found: "Activations", part: Span) -> Callable[[Tensor], Tensor]:
    """Return the layers as the model runs them, which autograd differentiates."""
    if part.from_embeddings and found.embedded is not None:
        enters = (str(found.frame.ends and found.frame.ends.reads), 0)
    else:
        enters = _turn(found.sites, part.first)
    return Rest(run=found.run, enters=enters, leaves=None if part.to_the_end else _turn(found.sites, part.last))


def _turn(sites: tuple[Site, ...], layer: int) -> tuple[str, int]:
    """Return the block of a layer, and how often it has run before: layers may share their weights."""
    path = sites[layer].block
    return path, [site.block for site in sites[:layer]].count(path)


def _with_tail(found: "Activations", inner: Any, X: Tensor, name: str) -> Measurable:
    """Add what makes a sentence or scores of words of the last hidden states."""
    tail = _tail(found, X, name)
    if not tail:
        return inner
    return Chain(*inner.maps, *tail) if isinstance(inner, Chain) else lambda Z: Chain(*tail)(inner(Z))


def _tail(found: "Activations", X: Tensor, name: str) -> tuple[Map, ...]:
    frame = found.frame
    if name == "sentence" and not isinstance(frame.sentence, str):
        return frame.sentence.maps(X, found.padding, _width(frame, X))
    if name == "classes" and not isinstance(frame.classes, str):
        return frame.classes.maps(X, found.run.tokens, found.padding)
    if name == "logits" and not isinstance(frame.head, str):
        last = (
            Pooling.last(n=X.shape[-2], like=X) if found.padding is None else Pooling.last(real=found.padding, like=X)
        )
        return (last, *frame.head)
    return ()


def _width(frame: Frame, X: Tensor) -> int:
    """Return the dimension of the last hidden states: that of the tokens, unless a linear layer changes it."""
    after = () if frame.ends is None else frame.ends.after
    return next((end.weight.shape[0] for end in reversed(after) if isinstance(end, Dense)), X.shape[-1])


def _among_real_tokens(found: "Activations", f: Any) -> Measurable:
    if found.padding is None or bool(found.padding.all()):
        return f
    if isinstance(f, Chain):
        return RealTokens(map=f, real=found.padding)
    return RealTokensCall(call=f, real=found.padding)
