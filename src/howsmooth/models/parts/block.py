"""A block in closed form: attention and the feed-forward part, in sequence or in parallel, with norms and residuals."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual, Sum
from howsmooth.maps.protocols import Map
from howsmooth.models.parts.feed_forward import FeedForward

if TYPE_CHECKING:  # an attention layer returns its block
    from howsmooth.models.attention_layer import AttentionLayer


def block(layer: "AttentionLayer", attention: Attention) -> Chain:
    """Return the whole block of a layer, with its attention as padding changes it."""
    mlp = feed_forward(layer)
    if mlp.parallel:
        return Chain(_parallel(layer, mlp, attention))
    return Chain(*_maps(residual_sum(layer, attention)), *_second_half(mlp).maps)


def residual_sum(layer: "AttentionLayer", attention: Attention) -> Chain | Residual:
    """Return the residual sum around attention, normed if the layer is post-norm."""
    attention = _scaled(attention, layer.residual_scale)
    if layer.residual_after_norm:
        return chain(layer.pre_norm, Residual(attention), layer.post_norm)
    residual = Residual(chain(layer.pre_norm, attention, layer.output_norm))
    return residual if layer.post_norm is None else Chain(residual, layer.post_norm)


def entering(layer: "AttentionLayer", attention: Attention) -> Callable[[Tensor], Tensor]:
    """Return the map from the input of the block to the input of its MLP; the arguments are those of :func:`block`."""
    mlp = feed_forward(layer)
    maps = () if mlp.parallel else _maps(residual_sum(layer, attention))
    maps = maps if mlp.pre_norm is None else (*maps, mlp.pre_norm)
    return Chain(*maps) if maps else lambda X: X


def feed_forward(layer: "AttentionLayer") -> FeedForward:
    """Return the feed-forward part of a layer."""
    if layer.feed_forward is None:
        raise AssumptionError(
            "the feed-forward part of this model's family has no closed form here; use map='block', which is measured "
            "as the model calls it.",
            field="map",
        )
    return layer.feed_forward


def chain(*parts: Map | None) -> Chain:
    """Chain the parts that are not None."""
    return Chain(*(part for part in parts if part is not None))


def _parallel(layer: "AttentionLayer", mlp: FeedForward, attention: Attention) -> Residual:
    attention = _scaled(attention, layer.residual_scale)
    if mlp.pre_norm is layer.pre_norm and mlp.pre_norm is not None:  # both read one norm, which is applied once
        both = Sum(chain(attention, layer.output_norm), chain(mlp.scaled, mlp.output_norm))
        return Residual(Chain(mlp.pre_norm, both))
    return Residual(
        Sum(chain(layer.pre_norm, attention, layer.output_norm), chain(mlp.pre_norm, mlp.scaled, mlp.output_norm))
    )


def _second_half(mlp: FeedForward) -> Chain:
    if mlp.residual_after_norm:
        return chain(mlp.pre_norm, Residual(chain(mlp.scaled, mlp.output_norm)), mlp.post_norm)
    return chain(Residual(chain(mlp.pre_norm, mlp.scaled, mlp.output_norm)), mlp.post_norm)


def _scaled(attention: Attention, factor: float) -> Attention:
    """Multiply the output of attention: the values carry the factor, whether heads are mixed or not."""
    if factor == 1.0:
        return attention
    biases = {"value_bias": attention.value_bias, "output_bias": attention.output_bias}
    changed: dict[str, Any] = {name: factor * bias for name, bias in biases.items() if bias is not None}
    return dataclasses.replace(attention, value=factor * attention.value, **changed)


def _maps(f: Map) -> tuple[Map, ...]:
    return f.maps if isinstance(f, Chain) else (f,)
