"""SharedSequence: the inputs of each layer at sequences whose tokens several processes share out."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.composition import Chain
from howsmooth.maps.protocols import Map
from howsmooth.maps.sharded_attention import sharded
from howsmooth.models.map_names import MapName
from howsmooth.models.parts import block
from howsmooth.models.parts.ends import embed
from howsmooth.token_ring import TokenRing

if TYPE_CHECKING:  # which runs on these tokens
    from howsmooth.models.transformer import Transformer

# Maps are compared with the module at so many tokens of the first sequence.
COMPARED = 256


class SharedSequence:
    """Sequences on their way through a model: every process holds some of their tokens, and they stand in one block.

    Blocks in closed form are applied to the tokens of this process, and their attention goes around the ring. Where a
    block has none, every process runs the model on all tokens, and keeps its own.

    Args:
        transformer: The model.
        tokens: The sequences, all of one length.
        ring: Who shares them out.
    """

    def __init__(self, transformer: "Transformer", tokens: Int[Tensor, "batch n"], ring: TokenRing):
        self.ring, self._transformer, self._tokens = ring, transformer, tokens
        self._beginning = transformer.activations(tokens[:1, :COMPARED])
        self._whole: Any = None
        self._restart()

    def _restart(self) -> None:
        """Go back to where no block has run."""
        stem, embedded = self._transformer.ends.stem, embed(self._transformer, self._tokens)
        self._embedded = embedded[:, self.ring.positions.to(embedded.device)]
        self._index = 0
        self._entering = Chain(*stem.maps)(self._embedded) if stem is not None and stem.maps else self._embedded

    @torch.no_grad()
    def at(self, layer: int, name: str) -> tuple[Map, Float[Tensor, "batch own d"]]:
        """Return a map of a layer, or of many, on the tokens of this process, and what enters it there."""
        parsed = MapName.parse(name)
        span = parsed.span(len(self._transformer.layers)) if parsed.spans_layers else None
        self._advance(layer if span is None else span.first)
        if self._whole is not None:
            f, X = self._whole.at(layer, name)
            return sharded(f, self.ring), X[:, self.ring.positions.to(X.device)]
        f, _few = self._beginning.at(layer, name)
        X, part = self._entering, self._beginning.layers[layer]
        if span is not None:
            X = self._embedded if span.from_embeddings else X
        elif parsed.kind == "mlp":
            X = sharded(block.entering(part, part.closed_form), self.ring)(X)
        elif not parsed.reads_block and part.pre_norm is not None:
            X = part.pre_norm(X)
        return sharded(f, self.ring), X

    def _advance(self, layer: int) -> None:
        """Move the sequences to a layer, block by block."""
        if layer < self._index:
            self._restart()
        while self._index < layer and self._whole is None:
            part = self._beginning.layers[self._index]
            try:
                step = sharded(block.block(part, part.closed_form), self.ring)
            except AssumptionError:  # the same in all processes, before anybody talks
                self._whole = self._transformer.activations(self._tokens)
                return
            self._entering = step(self._entering)
            self._index += 1


def check_shared(transformer: "Transformer", layer: int, name: str, ring: TokenRing) -> None:
    """Refuse a map that is not shared out over processes."""
    parsed = MapName.parse(name)
    if not parsed.spans_layers:
        part = transformer.layers[layer]
        sharded(part.closed_form if part.is_closed(parsed) else part.map(name), ring)
    elif parsed.kind not in ("model", "network") and not parsed.layers:
        raise AssumptionError(f"the map {name!r} is not shared out over processes.", field="map")
    elif transformer.stream is not None:
        raise AssumptionError(
            f"the map {name!r} of many layers is not shared out over processes where weights are streamed; leave "
            "streamed out, or measure a part of one layer.",
            field="map",
        )
    else:
        for part in transformer.layers:
            sharded(block.block(part, part.closed_form), ring)
