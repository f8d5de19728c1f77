"""Phi 3 and 4: one matrix for queries, keys and values, partial rotary embedding, frequencies for long contexts."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, joined_gated
from howsmooth.models.reading import columns, rms_norm, rotary, rows, stretched
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model) for i, layer in enumerate(model.layers)]


def _site(i: int, layer: Any, model: Any) -> Site:
    own, config, path = layer.self_attn, model.config, f"layers.{i}"
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    query, key, value = rows(own.qkv_proj.weight, heads + 2 * groups).split((heads, groups, groups))
    read = {"query": query, "key": key, "value": value, "output": columns(own.o_proj.weight, heads)}
    positions = Positions(causal=True, window=config.sliding_window, rotary=rotary(model))
    return Site(
        layer=i,
        attention=Attention(**stretched(read, model), scale=own.scaling, positions=positions),
        reads=f"{path}.self_attn",
        writes=f"{path}.self_attn.o_proj",
        block=path,
        before=rms_norm(layer.input_layernorm),
        feed_forward=FeedForward(
            map=joined_gated(layer.mlp.gate_up_proj, layer.mlp.activation_fn, layer.mlp.down_proj),
            before=rms_norm(layer.post_attention_layernorm),
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(rms_norm(model.norm),))
