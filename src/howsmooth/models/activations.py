"""The inputs of each layer of a transformer on real tokens, and the maps that are measured there."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.markup import table
from howsmooth.models.attention_layer import AttentionLayer, Measurable
from howsmooth.models.autograd.hooks import ModuleCall
from howsmooth.models.autograd.module_calls import RealTokensCall
from howsmooth.models.autograd.partial_forward import ForwardPass
from howsmooth.models.map_names import MapName
from howsmooth.models.parts.ends import Ends
from howsmooth.models.parts.model_maps import model_map


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
    """

    layers: tuple[AttentionLayer, ...]
    padding: Bool[Tensor, "batch n"] | None
    ends: Ends
    run: ForwardPass
    embedded: ModuleCall | None
    attention_calls: tuple[ModuleCall, ...]
    block_calls: tuple[ModuleCall, ...]

    def __repr__(self) -> str:
        """Return the shape of the input and the number of layers."""
        count, n, d = self.blocks[0].shape
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
        X = (self.blocks if parsed.reads_block else self.attention)[layer]
        if parsed.kind == "mlp":
            X = part.mlp_input(X, self.padding)
        elif part.attention is None or (parsed.kind == "block" and part.feed_forward is None):
            call = part.called(name, self.attention_calls[layer], self.block_calls[layer])
            if self.padding is None or bool(self.padding.all()):
                return call, X
            return RealTokensCall(call=call, real=self.padding), X
        return part.map(name, padding=self.padding), X

    def per_head(self, layer: int) -> tuple[Attention | RealTokens, Float[Tensor, "batch 1 n d"]]:
        """Return all heads of a layer as one batch of maps, and the tokens that enter them.

        ``hs.local_lipschitz(*found.per_head(layer))`` measures every head at every window in one Krylov iteration, with
        estimates of the shape ``(windows, heads)``: entry ``[w, h]`` is that of ``found.at(layer, f"head:{h}")``.

        Raises:
            AssumptionError: If the model has no such layer, or its family is not known.
        """
        # the axis of size one is that of the heads, which read the same tokens
        X = self.attention[self._layer(layer).index].unsqueeze(-3)
        heads = self.layers[layer].padded(self.padding).per_head()
        if self.padding is None or bool(self.padding.all()):
            return heads, X
        return RealTokens(map=heads, real=self.padding.unsqueeze(-2)), X

    def _layer(self, layer: int) -> AttentionLayer:
        if not 0 <= layer < len(self.layers):
            raise AssumptionError(
                f"layer must name one of {len(self.layers)}, 0 to {len(self.layers) - 1}, got {layer}.", field="layer"
            )
        return self.layers[layer]
