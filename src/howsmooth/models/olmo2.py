"""OLMo 2 and 3: Llama with norms over the queries and keys of all heads, and with norms behind its parts."""

from typing import Any

from howsmooth.models import llama
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward
from howsmooth.models.reading import rms_norm
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model) for i, layer in enumerate(model.layers)]


def _site(i: int, layer: Any, model: Any) -> Site:
    own = layer.self_attn
    attention = llama.attention(
        own,
        model,
        kind=getattr(own, "attention_type", None),  # OLMo 3 has windows, and frequencies, for each kind of layer
        query_norm=rms_norm(own.q_norm),
        key_norm=rms_norm(own.k_norm),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"layers.{i}.self_attn",
        writes=f"layers.{i}.self_attn.o_proj",
        block=f"layers.{i}",
        after=rms_norm(layer.post_attention_layernorm),
        feed_forward=FeedForward(map=llama.mlp(layer), after=rms_norm(layer.post_feedforward_layernorm)),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return llama.ends(model)
