"""The inputs of each layer of a transformer on real tokens, and the maps that are measured there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.affine import Pooling
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain
from howsmooth.maps.mlp import Dense
from howsmooth.maps.protocols import Map
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.markup import table
from howsmooth.models.attention_layer import AttentionLayer, Measurable
from howsmooth.models.autograd.hooks import ModuleCall
from howsmooth.models.autograd.module_calls import OUTPUT, PartCall, RealTokensCall
from howsmooth.models.autograd.traced_parts import TensorLocation
from howsmooth.models.map_names import MODEL_MAPS, SPANS, LayerSpan, MapName
from howsmooth.models.parts import block
from howsmooth.models.parts.ends import Ends

T = TypeVar("T")


class OnDemand(Generic[T]):
    """Like a tuple, but every entry is made when it is asked for."""

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> T:
        return self._make(range(self._length)[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._length))


Layers = tuple[AttentionLayer, ...] | OnDemand[AttentionLayer]
Calls = tuple[ModuleCall, ...] | OnDemand[ModuleCall]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Activations:
    """The inputs of each layer in one forward pass.

    Attributes:
        layers: The layers.
        padding: True for real tokens, if some are padding.
        ends: The stem and the output heads of the model.
        run: The forward pass.
        embedded: The call of the module that reads the sum of the embeddings, if that is not the first block.
        attention_calls: The call of each attention module.
        block_calls: The call of each block.
        streamed: Returns consecutive blocks, with maps before and behind them, as one map, if weights are streamed.
    """

    layers: Layers
    padding: Bool[Tensor, "batch n"] | None
    ends: Ends
    run: ModuleCall
    embedded: ModuleCall | None
    attention_calls: Calls
    block_calls: Calls
    streamed: Callable[[int, int, Sequence[Map], Sequence[Map]], Map] | None = None

    def __repr__(self) -> str:
        count, n, d = self.block_calls[0].tokens.shape
        real = "" if self.padding is None else f", {int(self.padding.sum())} of {count * n} tokens real"
        return f"Activations({count} × {n} tokens, d = {d}, {len(self.layers)} layers{real})"

    def _repr_html_(self) -> str:
        head = ("layer", "attention reads, |x|", "the block reads, |x|")
        rows = [
            (layer.index, *(f"{self._radius(X[layer.index]):.3g}" for X in (self.attention, self.blocks)))
            for layer in self.layers
        ]
        return table(head, rows, caption=repr(self))

    def _radius(self, X: Tensor) -> float:
        """Return the root mean square of the norms of real tokens."""
        norms = X.double().norm(dim=-1)
        real = norms if self.padding is None else norms[self.padding]
        return float(real.square().mean().sqrt())

    @property
    def attention(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """The input of attention, one tensor for each layer."""
        return tuple(call.tokens.detach() for call in self.attention_calls)

    @property
    def blocks(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """The input of the block, one tensor for each layer."""
        return tuple(call.tokens.detach() for call in self.block_calls)

    def at(self, layer: int, name: str = "attention") -> tuple[Measurable, Float[Tensor, "batch n d"]]:
        """Return a map of a layer or of many, and the tokens that enter it: what :func:`hs.local_lipschitz` takes.

        Of a layer: ``attention``, ``heads``, ``head:3``, ``normed``, ``residual``, ``mlp``, ``block``. Of many:
        ``model`` (from the input of the first block to the last hidden states), ``network`` (the same from the sum of
        the embeddings), ``sentence`` and ``logits`` (a sequence of one token), ``to:3``, ``from:3``, ``layers:2-4``;
        then ``layer`` is the one at which the map begins, or 0.
        If some tokens are padding, the map is restricted to the real ones, so that every sequence has the constant that
        it has alone.
        """
        part, parsed = self._layer(layer), MapName.parse(name)
        if parsed.spans_layers:
            return model_map(self, layer, parsed)
        X = (self.block_calls if parsed.reads_block else self.attention_calls)[layer].tokens.detach()
        if parsed.kind == "mlp":
            X = part.mlp_input(X, self.padding)
        elif not part.is_closed(parsed):
            call = part.called(name, self.attention_calls[layer], self.block_calls[layer])
            if self.padding is None or bool(self.padding.all()):
                return call, X
            return RealTokensCall(call=call, real=self.padding), X
        return part.map(name, padding=self.padding), X

    def per_head(self, layer: int) -> tuple[Attention | RealTokens, Float[Tensor, "batch 1 n d"]]:
        """Return all heads of a layer as one batch of maps, and the tokens that enter them.

        ``hs.local_lipschitz(*found.per_head(layer))`` measures every head at every window in one Krylov iteration, with
        estimates of the shape ``(windows, heads)``: entry ``[w, h]`` is that of ``found.at(layer, f"head:{h}")``.
        """
        # the axis of size one is that of the heads, which read the same tokens
        heads = self._layer(layer).padded(self.padding).per_head()
        X = self.attention_calls[layer].tokens.detach().unsqueeze(-3)
        if self.padding is None or bool(self.padding.all()):
            return heads, X
        return RealTokens(map=heads, real=self.padding.unsqueeze(-2)), X

    def _layer(self, layer: int) -> AttentionLayer:
        if not 0 <= layer < len(self.layers):
            raise AssumptionError(
                f"layer must name one of {len(self.layers)}, 0 to {len(self.layers) - 1}, got {layer}.", field="layer"
            )
        return self.layers[layer]


def check_model_map(layers: Layers, ends: Ends, name: MapName) -> LayerSpan:
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
    X = (found.block_calls[span.first] if embedded is None else embedded).tokens.detach()
    head = _head(found, X, name)
    f: Any = _streamed(found, span, head) or _closed_form(found, span) or _partial_forward(found, span)
    if head and found.streamed is None:
        f = Chain(*f.maps, *head) if isinstance(f, Chain) else _followed_by(f, Chain(*head))
    if found.padding is None or bool(found.padding.all()):
        return f, X
    if isinstance(f, Chain) or found.streamed is not None:
        return RealTokens(map=f, real=found.padding), X
    return RealTokensCall(call=f, real=found.padding), X


def _missing(ends: Ends, name: MapName) -> str | None:
    """Return why a model has no such map, or ``None`` if it has."""
    heads = {"logits": ends.language_head, "sentence": ends.sentence_embedding, "classes": ends.class_head}
    head = heads.get(name.kind)
    if isinstance(head, str):
        return head
    if name.from_embeddings and ends.stem is None:
        return "where its embeddings are added up is not known for its family"
    return None


def _streamed(found: "Activations", span: LayerSpan, head: tuple[Map, ...]) -> Map | None:
    """Return the layers as they come from their files, or ``None`` if they are in memory."""
    if found.streamed is None:
        return None
    stem = () if found.ends.stem is None or not span.from_embeddings else found.ends.stem.maps
    return found.streamed(span.first, span.last, stem, (*(found.ends.final if span.to_the_end else ()), *head))


def _closed_form(found: "Activations", span: LayerSpan) -> Chain | None:
    """Return the chain of the layers, or ``None`` if one of them has no closed form."""
    layers, stem = tuple(found.layers)[span.first : span.last + 1], found.ends.stem
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
    path, turn = _block_and_turn(found.layers, span.last)
    leaves = OUTPUT if span.to_the_end else TensorLocation(path=path, side="output", turn=turn)
    return PartCall(call=found.run, enters=enters, locations=(leaves,))


def _block_and_turn(layers: Layers, index: int) -> tuple[str, int]:
    """Return the block of a layer, and how many calls came before: layers may share their weights."""
    path = layers[index].block_path
    return path, [layer.block_path for layer in tuple(layers)[:index]].count(path)


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
