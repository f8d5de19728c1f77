"""Phi 1 and 2: attention and MLP side by side, biases everywhere, partial rotary embedding."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections, rotary, stretched
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model) for i, layer in enumerate(model.layers)]


def _site(i: int, layer: Any, model: Any) -> Site:
    own, config, path = layer.self_attn, model.config, f"layers.{i}"
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    read = projections(own.q_proj, own.k_proj, own.v_proj, own.dense, heads, groups)
    if own.qk_layernorm:
        read |= {"query_norm": layer_norm(own.q_layernorm), "key_norm": layer_norm(own.k_layernorm)}
    positions, norm = Positions(causal=True, rotary=rotary(model)), layer_norm(layer.input_layernorm)
    return Site(
        layer=i,
        attention=Attention(**stretched(read, model), scale=own.scaling, positions=positions),
        reads=f"{path}.self_attn",
        writes=f"{path}.self_attn.dense",
        block=path,
        before=norm,
        feed_forward=FeedForward(
            map=mlp(layer.mlp.fc1, layer.mlp.activation_fn, layer.mlp.fc2), before=norm, parallel=True
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.final_layernorm),))
