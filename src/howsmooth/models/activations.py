"""What enters each layer of a transformer on real tokens, and the maps that are measured there."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.models import views
from howsmooth.models.calls import Call
from howsmooth.models.frame import Frame
from howsmooth.models.map_names import is_whole
from howsmooth.models.padded_calls import RealTokensCall
from howsmooth.models.rest import Run
from howsmooth.models.sites import Measurable, Site, reads_the_block
from howsmooth.models.whole import whole_map


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Activations:
    """What enters each layer.

    Attributes:
        sites: The layers.
        padding: True for real tokens, where some are padding.
        attention_calls: How the model called each attention module.
        block_calls: How it called each block.
        frame: What stands around the blocks.
        run: How the model was run.
        embedded: How it called what reads the sum of the embeddings, where that is not the first block.
    """

    sites: tuple[Site, ...]
    padding: Bool[Tensor, "batch n"] | None
    frame: Frame
    run: Run
    embedded: Call | None
    attention_calls: tuple[Call, ...]
    block_calls: tuple[Call, ...]

    def __repr__(self) -> str:
        """Say what was run."""
        return views.activations_line(self)

    def _repr_html_(self) -> str:
        return views.activations_html(self)

    @property
    def attention(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """What attention reads, one tensor for each layer."""
        return tuple(call.tokens.detach() for call in self.attention_calls)

    @property
    def blocks(self) -> tuple[Float[Tensor, "batch n d"], ...]:
        """What the block reads, likewise."""
        return tuple(call.tokens.detach() for call in self.block_calls)

    def at(self, layer: int, name: str = "attention") -> tuple[Measurable, Float[Tensor, "batch n d"]]:
        """Return a map of a layer or of many, and the tokens that enter it: what :func:`hs.local_lipschitz` takes.

        Of a layer: ``attention``, ``heads``, ``head:3``, ``normed``, ``residual``, ``mlp``, ``block``. Of many:
        ``model`` (from what enters the first block to the last hidden states), ``network`` (the same from the sum of
        the embeddings), ``sentence`` and ``logits`` (a sequence of one token), ``to:3``, ``from:3``, ``layers:2-4``;
        then ``layer`` is the one at which the map begins, or 0.
        Where some tokens are padding it is the map among the real ones, so that every sequence has the constant that it
        has alone.
        """
        site = self._site(layer)
        if is_whole(name):
            return whole_map(self, layer, name)
        X = (self.blocks if reads_the_block(name) else self.attention)[layer]
        if name == "mlp":
            X = site.feeding(X, self.padding)
        elif site.attention is None or (name == "block" and site.feed_forward is None):
            return self._called(site.called(name, self.attention_calls[layer], self.block_calls[layer])), X
        return site.map(name, padding=self.padding), X

    def _called(self, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return what was called among real tokens."""
        if self.padding is None or bool(self.padding.all()):
            return call
        return RealTokensCall(call=call, real=self.padding)

    def per_head(self, layer: int) -> tuple[Attention | RealTokens, Float[Tensor, "batch 1 n d"]]:
        """Return all heads of a layer as one batch of maps, and the tokens that enter them.

        ``hs.local_lipschitz(*found.per_head(layer))`` measures every head at every window in one Krylov iteration, with
        estimates of the shape ``(windows, heads)``: entry ``[w, h]`` is that of ``found.at(layer, f"head:{h}")``.

        Raises:
            AssumptionError: If the model has no such layer, or its family is not known.
        """
        site = self._site(layer)
        # the axis of size one is where the heads stand: they read the same tokens
        X = self.attention[layer].unsqueeze(-3)
        heads = site.padded(self.padding).per_head()
        if self.padding is None or bool(self.padding.all()):
            return heads, X
        return RealTokens(map=heads, real=self.padding.unsqueeze(-2)), X

    def _site(self, layer: int) -> Site:
        if not 0 <= layer < len(self.sites):
            raise AssumptionError(
                f"layer must name one of {len(self.sites)}, 0 to {len(self.sites) - 1}, got {layer}.", field="layer"
            )
        return self.sites[layer]
