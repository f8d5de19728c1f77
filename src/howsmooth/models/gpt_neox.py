"""GPT-NeoX and Pythia: queries, keys and values interleaved head by head, partial rotary embedding."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import columns, layer_norm, rotary, rows, stretched
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
    read = {
        "query": query,
        "key": key,
        "value": value,
        "output": columns(own.dense.weight, heads),
        "query_bias": query_bias,
        "key_bias": key_bias,
        "value_bias": value_bias,
        "output_bias": None if own.dense.bias is None else own.dense.bias.detach(),
    }
    positions = Positions(causal=True, rotary=rotary(model))
    attention = Attention(**stretched(read, model), scale=own.scaling, positions=positions)
    path = f"layers.{i}"
    before = layer_norm(layer.input_layernorm)
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention",
        writes=f"{path}.attention.dense",
        block=path,
        before=before,
        feed_forward=FeedForward(
            map=mlp(layer.mlp.dense_h_to_4h, layer.mlp.act, layer.mlp.dense_4h_to_h),
            before=layer_norm(layer.post_attention_layernorm),
            parallel=layer.use_parallel_residual,
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.final_layer_norm),))
