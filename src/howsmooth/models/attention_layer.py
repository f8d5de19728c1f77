"""One attention layer of a transformer: its closed form, its norms, and the paths of its modules."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.maps.real_tokens import RealTokens
from howsmooth.markup import table
from howsmooth.models.autograd.hooks import ModuleCall, positions_of
from howsmooth.models.autograd.module_calls import HeadCall, PartCall
from howsmooth.models.autograd.traced_parts import (
    NO_PRE_NORM,
    NO_PROJECTION,
    NO_RESIDUAL,
    TensorLocation,
    TracedParts,
)
from howsmooth.models.map_names import MAPS, MapName
from howsmooth.models.parts import block
from howsmooth.models.parts.block import FeedForward

Measurable = Map | Callable[[Tensor], Any]
COLUMNS = ("layer", "attention", "maps", "block")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttentionLayer:
    """One attention layer.

    Attributes:
        index: Its number, from 0.
        attention: Its closed form: heads and output projection, with masks, biases and positions. None for an unknown
            family: then the module itself is differentiated.
        attention_path: The module whose hidden states are the input of attention.
        projection_path: The module whose output is that of attention.
        block_path: The module of the whole block.
        residual_inside: Whether the attention module adds the residual itself, as in ALBERT and BLOOM.
        pre_norm: The norm in front of attention.
        output_norm: The norm behind attention, before the residual is added.
        post_norm: The norm behind the residual sum.
        residual_scale: The factor of the output of attention in the residual sum.
        residual_after_norm: Whether the residual branches off behind the norm in front, not before it.
        feed_forward: The MLP of the block; none if it has no closed form here.
        traced: Where its parts are, for an unknown family; none until it was seen to run. With attention in closed
            form, where the parts of its block are.
    """

    index: int
    attention: Attention | None
    attention_path: str
    projection_path: str
    block_path: str
    residual_inside: bool = False
    pre_norm: Norm | None = None
    output_norm: Norm | None = None
    post_norm: Norm | None = None
    residual_scale: float = 1.0
    residual_after_norm: bool = False
    feed_forward: FeedForward | None = None
    traced: TracedParts | None = None

    def __repr__(self) -> str:
        how = f"by autograd: {', '.join(self.map_names)}" if self.attention is None else str(self.attention)
        return f"AttentionLayer(layer {self.index}, {how})"

    def _repr_html_(self) -> str:
        return table(COLUMNS, [self.as_row()])

    def as_row(self) -> tuple[object, ...]:
        """Return the row of this layer in a table of layers."""
        what = "by autograd" if self.attention is None else str(self.attention)
        return self.index, what, ", ".join(self.map_names), self.block_path

    @property
    def map_names(self) -> tuple[str, ...]:
        """The names of the maps that the layer has; ``head:0`` stands for all heads."""
        found = []
        for name in MAPS:
            name = "head:0" if MapName.parse(name).kind == "head" else name
            try:
                self.check(name)
            except AssumptionError:
                continue
            found.append(name)
        return tuple(found)

    def is_closed(self, name: MapName) -> bool:
        """Whether a part is in closed form; of a block of the user's own around torch's attention, attention is."""
        if self.attention is None or (name.kind == "block" and self.feed_forward is None):
            return False
        return self.traced is None or name.kind in ("attention", "heads", "head")

    @property
    def output_path(self) -> str:
        """The outermost module with the output of attention, since a hook may follow the projection."""
        inside = self.projection_path.startswith(f"{self.attention_path}.") and not self.residual_inside
        return self.attention_path if inside else self.projection_path

    @property
    def closed_form(self) -> Attention:
        """The attention map in closed form."""
        if self.attention is None:
            raise AssumptionError(
                "this model's family has no closed form here: use transformer.activations(tokens).at(…), where its "
                "modules are differentiated as they are called.",
                field="map",
            )
        return self.attention

    @property
    def head_count(self) -> int:
        """The number of heads that can be measured one by one."""
        if self.attention is not None or self.traced is None:
            return self.closed_form.layout.heads
        self.traced.locations(MapName.parse("head:0"))
        return int(self.traced.head_count)

    def map(self, name: str = "attention", *, padding: Bool[Tensor, "*batch n"] | None = None) -> Map:
        """Return the map of a part of the layer.

        ``attention``, ``heads`` and ``head:3`` read the input of attention, ``mlp`` reads the input of the feed-forward
        part; ``normed``, ``residual`` and ``block`` read the input of the block.

        Args:
            name: Which part.
            padding: True for real tokens, if some are padding: the map is then restricted to real tokens.
        """
        found = self._part(MapName.parse(name), self.padded(padding))
        return found if padding is None or bool(padding.all()) else RealTokens(map=found, real=padding)

    def _part(self, name: MapName, attention: Attention) -> Map:
        match name.kind:
            case "attention":
                return attention
            case "heads":
                return dataclasses.replace(attention, output=None, output_bias=None)
            case "head":
                h, heads = int(name.head or 0), attention.layout.heads
                if not 0 <= h < heads:
                    raise AssumptionError(
                        f"layer {self.index} has the heads 0 to {heads - 1}, got head:{h}.", field="map"
                    )
                return attention.head(h)
            case "normed":
                # the first layer of ModernBERT reads embeddings that are normed already
                if self.pre_norm is None and (self.output_norm is not None or self.post_norm is not None):
                    raise AssumptionError(NO_PRE_NORM, field="map")
                return block.chain(self.pre_norm, attention)
            case "residual":
                return block.residual_sum(self, attention)
            case "mlp":
                return block.feed_forward(self).map
            case "block":
                return block.block(self, attention)
        raise AssumptionError(
            f"the map {name.text!r} is not of one layer; use transformer.activations(tokens).at(…).", field="map"
        )

    def mlp_input(self, X: Float[Tensor, "*batch n d"], padding: Bool[Tensor, "*batch n"] | None = None) -> Tensor:
        """Return the input of the feed-forward part if the input of the block is ``X``."""
        return block.entering(self, self.padded(padding))(X)

    def check(self, name: str) -> None:
        """Raise an AssumptionError for a part that this layer does not have."""
        parsed = MapName.parse(name)
        if parsed.kind == "mlp":
            block.feed_forward(self)
        elif self.traced is not None and not self.is_closed(parsed):
            self.traced.locations(parsed)
        elif self.attention is not None and parsed.kind != "block":
            self.map(name)

    def called(self, name: str, attention: ModuleCall, block: ModuleCall) -> Callable[[Tensor], Tensor]:
        """Return a part of the layer as the model called it: the whole block, or a part of an unknown family."""
        self.check(name)
        if name == "block":
            return block
        if self.traced is None:
            raise AssumptionError(
                f"{self.attention_path!r} was not seen to run, so that its parts are not known.", field="map"
            )
        return self._called_part(MapName.parse(name), self.traced, attention, block)

    def _called_part(
        self, name: MapName, traced: TracedParts, attention: ModuleCall, block: ModuleCall
    ) -> PartCall | HeadCall:
        locations = traced.locations(name)
        if name.reads_block:
            return PartCall(call=block, root=self.block_path, locations=locations)
        if all(f"{location.path}.".startswith(f"{self.attention_path}.") for location in locations):
            found = PartCall(call=attention, root=self.attention_path, locations=locations)
        else:  # the projection is outside: the block runs, and only the input of attention is replaced
            found = PartCall(call=block, root=self.block_path, locations=locations, enters=(self.attention_path, 0))
        if name.head is None:
            return found
        projection = found.module(traced.projection)
        return HeadCall.of(found, projection, name.head, int(traced.head_count), attention.tokens)

    def padded(self, padding: Bool[Tensor, "*batch n"] | None) -> Attention:
        """Return the closed form if some tokens are padding: those are masked, and are not counted as positions."""
        attention = self.closed_form
        if padding is None:
            return attention
        positions = attention.positions
        if positions.position_bias is not None:
            # ALiBi does not count padding: the bias is that of the position among real tokens
            real_positions = (padding.cumsum(-1) - 1).clamp(min=0)
            bias = positions.position_bias[:, real_positions].movedim(0, -2)
            positions = dataclasses.replace(positions, position_bias=bias)
        if positions.window is None and bool(padding[..., 0].all()):
            return dataclasses.replace(attention, positions=dataclasses.replace(positions, padding=padding))
        # a padded token could be left without any key; it attends to itself, since its output is not used
        itself = torch.eye(padding.shape[-1], dtype=torch.bool, device=padding.device)
        mask = padding[..., None, None, :] | itself
        if positions.mask is not None and positions.mask.dtype == torch.bool:
            mask = mask & (positions.mask | itself)
        return dataclasses.replace(attention, positions=dataclasses.replace(positions, mask=mask))

    def as_called(self, call: ModuleCall, *, padding: bool = False) -> "AttentionLayer":
        """Return the layer with the masks that torch's attention was called with; others have theirs in their maps.

        Args:
            call: The call of its attention.
            padding: Whether the caller masks padding, so that the map gets this mask anyway.
        """
        if self.attention is None or not isinstance(call.module, nn.MultiheadAttention):
            return self
        try:
            positions = positions_of(call, heads=call.module.num_heads, padding=padding)
        except AssumptionError:
            return self.by_autograd()
        return dataclasses.replace(self, attention=dataclasses.replace(self.attention, positions=positions))

    def by_autograd(self) -> "AttentionLayer":
        """Return the layer without its closed form, so that its modules are differentiated as they are called."""
        attention = (TensorLocation(path=self.output_path, side="output"),)
        traced = TracedParts(
            attention=attention,
            heads=NO_PROJECTION
            if self.projection_path == self.attention_path
            else (TensorLocation(path=self.projection_path, side="input"),),
            normed=attention if self.pre_norm is not None else NO_PRE_NORM,
            residual=NO_RESIDUAL,
            projection=self.projection_path,
            head_count=self.closed_form.layout.heads,
        )
        return AttentionLayer(
            index=self.index,
            attention=None,
            attention_path=self.attention_path,
            projection_path=self.projection_path,
            block_path=self.block_path,
            traced=traced,
        )

    def bidirectional(self) -> "AttentionLayer":
        """Return a decoder's layer without its causal mask, as the configuration of some models asks for."""
        if self.attention is None or not self.attention.positions.causal:
            return self
        window = self.attention.positions.window
        # a causal window of w tokens includes the token itself; a symmetric one reaches w tokens to each side
        positions = dataclasses.replace(
            self.attention.positions, causal=False, window=None if window is None else window + 1
        )
        return dataclasses.replace(self, attention=dataclasses.replace(self.attention, positions=positions))
