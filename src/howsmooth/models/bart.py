"""BART: the layers of its encoder, or of a decoder that stands alone; the norm behind the residual sum."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    stack, place = _stack(model)
    return [_site(i, layer, f"{place}layers.{i}") for i, layer in enumerate(stack.layers)]


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    stack, place = _stack(model)
    return Ends(reads=f"{place}layernorm_embedding", before=(layer_norm(stack.layernorm_embedding),))


def _stack(model: Any) -> tuple[Any, str]:
    # a causal language model is a wrapper around its decoder
    return (model.decoder, "decoder.") if hasattr(model, "decoder") else (model, "")


def _site(i: int, layer: Any, path: str) -> Site:
    own = layer.self_attn
    attention = Attention(
        **projections(own.q_proj, own.k_proj, own.v_proj, own.out_proj, own.num_heads, own.num_heads),
        scale=own.scaling,
        positions=Positions(causal=own.is_causal),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.self_attn",
        writes=f"{path}.self_attn.out_proj",
        block=path,
        outer=layer_norm(layer.self_attn_layer_norm),
        feed_forward=FeedForward(
            map=mlp(layer.fc1, layer.activation_fn, layer.fc2), outer=layer_norm(layer.final_layer_norm)
        ),
    )
