"""Falcon: keys and values shared by all heads or by groups, rotary embedding or ALiBi, one or two norms in front."""

import math
from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.norms import LayerNorm
from howsmooth.maps.positions import Positions
from howsmooth.models.bloom import slopes
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import columns, layer_norm, rotary, rotary_gain
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    positions = _positions(model)
    return [_site(i, layer, model, positions) for i, layer in enumerate(model.h)]


def _positions(model: Any) -> Positions:
    config = model.config
    if not config.alibi:
        return Positions(causal=True, rotary=rotary(model))
    # the model rounds slopes, positions and their products to bfloat16, so they are not linear in the position
    rounded = slopes(config.num_attention_heads).bfloat16()[:, None] * torch.arange(config.max_position_embeddings)
    bias = rounded.to(model.h[0].self_attention.dense.weight)
    # the mask holds ALiBi already, and the module's own loop, which runs without a fused kernel, adds it once more
    times = 1 if config._attn_implementation == "sdpa" else 2
    scale = times / math.sqrt(config.hidden_size // config.num_attention_heads)
    return Positions(causal=True, position_bias=scale * bias)


def _site(i: int, layer: Any, model: Any, positions: Positions) -> Site:
    own, path, config = layer.self_attention, f"h.{i}", model.config
    query, key, value = _split(own.query_key_value.weight, own)
    shift = own.query_key_value.bias
    query_bias, key_bias, value_bias = (None, None, None) if shift is None else _split(shift, own)
    norm = layer_norm(layer.ln_attn if hasattr(layer, "ln_attn") else layer.input_layernorm)
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=columns(own.dense.weight, own.num_heads),
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=None if own.dense.bias is None else own.dense.bias.detach(),
        scale=own.inv_norm_factor * (1.0 if config.alibi else rotary_gain(model) ** 2),
        positions=positions,
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.self_attention",
        writes=f"{path}.self_attention.dense",
        block=path,
        before=norm,
        feed_forward=_feed_forward(layer, config, norm),
    )


def _feed_forward(layer: Any, config: Any, norm: LayerNorm) -> FeedForward:
    """Read the MLP: behind attention, or beside it with a norm of its own or the same one."""
    own = mlp(layer.mlp.dense_h_to_4h, layer.mlp.act, layer.mlp.dense_4h_to_h)
    if not (config.new_decoder_architecture or config.parallel_attn):
        return FeedForward(map=own, before=layer_norm(layer.post_attention_layernorm))
    before = layer_norm(layer.ln_mlp) if hasattr(layer, "ln_mlp") else norm
    return FeedForward(map=own, before=before, parallel=True)


def _split(weight: Tensor, own: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Split what is stored group by group: the queries of a group, then its key, then its value."""
    by_group = weight.detach().unflatten(0, (own.num_kv_heads, -1, own.head_dim))
    query, key, value = by_group.split((by_group.shape[1] - 2, 1, 1), dim=1)
    return query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.ln_f),))
