"""ModernBERT: rotary embeddings, windows in two layers of three, one matrix for queries, keys and values."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, joined_gated
from howsmooth.models.reading import columns, layer_norm, rotary, rotary_gain, rows
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model) for i, layer in enumerate(model.layers)]


def _site(i: int, layer: Any, model: Any) -> Site:
    # the embeddings end in a norm, so the first layer has none of its own
    before = layer_norm(layer.attn_norm) if hasattr(layer.attn_norm, "weight") else None
    return Site(
        layer=i,
        attention=_attention(layer.attn, model, kind=layer.attention_type),
        reads=f"layers.{i}.attn",
        writes=f"layers.{i}.attn.Wo",
        block=f"layers.{i}",
        before=before,
        feed_forward=FeedForward(
            map=joined_gated(layer.mlp.Wi, layer.mlp.act, layer.mlp.Wo), before=layer_norm(layer.mlp_norm)
        ),
    )


def _attention(own: Any, model: Any, *, kind: str) -> Attention:
    heads = model.config.num_attention_heads
    query, key, value = (rows(part, heads) for part in own.Wqkv.weight.chunk(3))
    shift = own.Wqkv.bias
    biases = (None, None, None) if shift is None else shift.detach().unflatten(0, (3, heads, -1))
    query_bias, key_bias, value_bias = biases
    return Attention(
        query=query,
        key=key,
        value=value,
        output=columns(own.Wo.weight, heads),
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=None if own.Wo.bias is None else own.Wo.bias.detach(),
        scale=own.head_dim**-0.5 * rotary_gain(model, key=kind) ** 2,
        # windows and other layers turn at frequencies of their own
        positions=Positions(window=own.sliding_window, rotary=rotary(model, key=kind)),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(
        reads="embeddings.norm", before=(layer_norm(model.embeddings.norm),), after=(layer_norm(model.final_norm),)
    )
