"""Gemma 2: soft-capped scores, windows in every other layer, norms on both sides of attention, gains of 1 + w."""

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
            attention=llama.attention(layer.self_attn, model, softcap=layer.self_attn.attn_logit_softcapping),
            reads=f"layers.{i}.self_attn",
            writes=f"layers.{i}.self_attn.o_proj",
            block=f"layers.{i}",
            before=rms_norm(layer.input_layernorm, offset=1.0),
            after=rms_norm(layer.post_attention_layernorm, offset=1.0),
            feed_forward=feed_forward(layer),
        )
        for i, layer in enumerate(model.layers)
    ]


def feed_forward(layer: Any) -> FeedForward:
    """Read the gated MLP, which has norms on both sides too."""
    return FeedForward(
        map=llama.mlp(layer),
        before=rms_norm(layer.pre_feedforward_layernorm, offset=1.0),
        after=rms_norm(layer.post_feedforward_layernorm, offset=1.0),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(rms_norm(model.norm, offset=1.0),))
