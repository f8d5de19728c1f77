"""GPT-NeoX and Pythia: queries, keys and values interleaved head by head, partial rotary embedding."""

from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.reading import columns, layer_norm, rotary, rotary_gain, rows
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model) for i, layer in enumerate(model.layers)]


def _site(i: int, layer: Any, model: Any) -> Site:
    own, heads = layer.attention, model.config.num_attention_heads
    query, key, value = rows(own.query_key_value.weight, heads).chunk(3, dim=1)
    shift = own.query_key_value.bias
    biases = (None, None, None) if shift is None else shift.detach().unflatten(0, (heads, -1)).chunk(3, dim=1)
    query_bias, key_bias, value_bias = biases
    gain = _gain(model, like=query[0, :, 0])
    attention = Attention(
        query=query * gain[:, None],
        key=key * gain[:, None],
        value=value,
        output=columns(own.dense.weight, heads),
        query_bias=None if query_bias is None else query_bias * gain,
        key_bias=None if key_bias is None else key_bias * gain,
        value_bias=value_bias,
        output_bias=None if own.dense.bias is None else own.dense.bias.detach(),
        scale=own.scaling,
        positions=Positions(causal=True, rotary=rotary(model)),
    )
    path = f"layers.{i}"
    before = layer_norm(layer.input_layernorm)
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention",
        writes=f"{path}.attention.dense",
        block=path,
        before=before,
    )


def _gain(model: Any, *, like: Tensor) -> Tensor:
    """Return what stretched contexts multiply queries and keys by: the rotated coordinates only."""
    gain = torch.ones_like(like)
    gain[: rotary(model).dim] = rotary_gain(model)
    return gain
