"""Gemma 2: soft-capped scores, windows in every other layer, norms on both sides of attention, gains of 1 + w."""

from typing import Any

from howsmooth.models import llama
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
        )
        for i, layer in enumerate(model.layers)
    ]
