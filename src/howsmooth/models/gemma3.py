"""Gemma 3: Gemma 2 with norms on queries and keys instead of the soft cap, and frequencies for each kind of layer."""

from typing import Any

from howsmooth.models import gemma2, llama
from howsmooth.models.ends import Ends
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
        kind=own.layer_type,
        causal=own.is_causal,  # models of embeddings see both sides
        query_norm=rms_norm(own.q_norm, offset=1.0),
        key_norm=rms_norm(own.k_norm, offset=1.0),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"layers.{i}.self_attn",
        writes=f"layers.{i}.self_attn.o_proj",
        block=f"layers.{i}",
        before=rms_norm(layer.input_layernorm, offset=1.0),
        after=rms_norm(layer.post_attention_layernorm, offset=1.0),
        feed_forward=gemma2.feed_forward(layer),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(rms_norm(model.norm, offset=1.0),))
