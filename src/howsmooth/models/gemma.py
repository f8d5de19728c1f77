"""Gemma: Llama with gains of 1 + w in its norms."""

from typing import Any

from howsmooth.models import llama
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward
from howsmooth.models.reading import rms_norm
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [
        Site(
            layer=i,
            attention=llama.attention(layer.self_attn, model),
            reads=f"layers.{i}.self_attn",
            writes=f"layers.{i}.self_attn.o_proj",
            block=f"layers.{i}",
            before=rms_norm(layer.input_layernorm, offset=1.0),
            feed_forward=FeedForward(map=llama.mlp(layer), before=rms_norm(layer.post_attention_layernorm, offset=1.0)),
        )
        for i, layer in enumerate(model.layers)
    ]


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(rms_norm(model.norm, offset=1.0),))
