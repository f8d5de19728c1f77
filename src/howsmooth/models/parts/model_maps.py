"""Maps of many layers: from the input of a layer to the output of another, or of the model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.composition import Chain
from howsmooth.maps.mlp import Dense
from howsmooth.maps.pooling import Pooling
from howsmooth.maps.protocols import Map
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models.attention_layer import AttentionLayer, Measurable
from howsmooth.models.autograd.module_calls import RealTokensCall
from howsmooth.models.autograd.partial_forward import PartialForward
from howsmooth.models.map_names import MODEL_MAPS, SPANS, LayerSpan, MapName
from howsmooth.models.parts import block
from howsmooth.models.parts.ends import Ends

if TYPE_CHECKING:  # activations return these maps
    from howsmooth.models.activations import Activations


def check_model_map(layers: tuple[AttentionLayer, ...], ends: Ends, name: MapName) -> LayerSpan:
    """Return the layers of a map of many layers in a model."""
    span = name.span(len(layers))
    if (why := _missing(ends, name)) is not None:
        known = (part for part in (*MODEL_MAPS, *SPANS) if _missing(ends, MapName.parse(part)) is None)
        raise AssumptionError(
            f"the model has no map {name.text!r}: {why}; of whole maps it has {', '.join(known)}.", field="map"
        )
    return span


def model_map(found: "Activations", layer: int, name: MapName) -> tuple[Measurable, Float[Tensor, "batch n d"]]:
    """Return a map of many layers, and the tokens that enter it."""
    span = check_model_map(found.layers, found.ends, name)
    if layer not in (0, span.first):
        raise AssumptionError(f"the map {name.text!r} begins at layer {span.first}, got layer {layer}.", field="layer")
    embedded = found.embedded if span.from_embeddings else None
    X = found.blocks[span.first] if embedded is None else embedded.tokens.detach()
    f: Any = _closed_form(found, span) or _partial_forward(found, span)
    if head := _head(found, X, name):
        f = Chain(*f.maps, *head) if isinstance(f, Chain) else _followed_by(f, Chain(*head))
    if found.padding is None or bool(found.padding.all()):
        return f, X
    if isinstance(f, Chain):
        return RealTokens(map=f, real=found.padding), X
    return RealTokensCall(call=f, real=found.padding), X


def _missing(ends: Ends, name: MapName) -> str | None:
    """Return why a model has no such map, or ``None`` if it has."""
    if name.from_embeddings and ends.stem is None:
        return "where its embeddings are added up is not known for its family"
    heads = {"logits": ends.language_head, "sentence": ends.sentence_embedding, "classes": ends.class_head}
    head = heads.get(name.kind)
    return head if isinstance(head, str) else None


def _closed_form(found: "Activations", span: LayerSpan) -> Chain | None:
    """Return the chain of the layers, or ``None`` if one of them has no closed form."""
    layers, stem = found.layers[span.first : span.last + 1], found.ends.stem
    if stem is None or any(layer.attention is None or layer.feed_forward is None for layer in layers):
        return None
    maps: list[Map] = list(stem.maps) if span.from_embeddings else []
    for layer in layers:
        maps.extend(block.block(layer, layer.padded(found.padding)).maps)
    return Chain(*maps, *(found.ends.final if span.to_the_end else ()))


def _partial_forward(found: "Activations", span: LayerSpan) -> Callable[[Tensor], Tensor]:
    """Return the layers as the model runs them, which autograd differentiates."""
    if span.from_embeddings and found.embedded is not None:
        enters = (str(found.ends.stem and found.ends.stem.path), 0)
    else:
        enters = _block_and_turn(found.layers, span.first)
    leaves = None if span.to_the_end else _block_and_turn(found.layers, span.last)
    return PartialForward(run=found.run, enters=enters, leaves=leaves)


def _block_and_turn(layers: tuple[AttentionLayer, ...], index: int) -> tuple[str, int]:
    """Return the block of a layer, and how many calls came before: layers may share their weights."""
    path = layers[index].block_path
    return path, [layer.block_path for layer in layers[:index]].count(path)


def _followed_by(f: Callable[[Tensor], Tensor], g: Chain) -> Callable[[Tensor], Tensor]:
    return lambda X: g(f(X))


def _head(found: "Activations", X: Tensor, name: MapName) -> tuple[Map, ...]:
    """Return the maps from the last hidden states to a sentence embedding, class scores or the next word's logits."""
    ends = found.ends
    if name.kind == "sentence" and not isinstance(ends.sentence_embedding, str):
        # the last hidden states are as wide as the tokens, unless a projection changes that
        projections = [end.weight.shape[0] for end in ends.final if isinstance(end, Dense)]
        return ends.sentence_embedding.maps(X, found.padding, [X.shape[-1], *projections][-1])
    if name.kind == "classes" and not isinstance(ends.class_head, str):
        return ends.class_head.maps(X, found.run.tokens, found.padding)
    if name.kind == "logits" and not isinstance(ends.language_head, str):
        real: Any = {"n": X.shape[-2]} if found.padding is None else {"real": found.padding}
        return (Pooling.last(like=X, **real), *ends.language_head)
    return ()
