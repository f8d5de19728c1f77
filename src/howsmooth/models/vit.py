"""ViT and DeiT: patches instead of words, the norm in front."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model.config.num_attention_heads) for i, layer in enumerate(model.layers)]


def _site(i: int, layer: Any, heads: int) -> Site:
    own, path = layer.attention, f"layers.{i}"
    return Site(
        layer=i,
        attention=Attention(
            **projections(own.q_proj, own.k_proj, own.v_proj, own.o_proj, heads, heads), scale=own.scaling
        ),
        reads=f"{path}.attention",
        writes=f"{path}.attention.o_proj",
        block=path,
        before=layer_norm(layer.layernorm_before),
        feed_forward=FeedForward(
            map=mlp(layer.mlp.fc1, layer.mlp.activation_fn, layer.mlp.fc2), before=layer_norm(layer.layernorm_after)
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.layernorm),))
