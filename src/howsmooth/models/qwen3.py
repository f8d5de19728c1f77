"""Qwen3: Llama with norms on queries and keys."""

from typing import Any

from howsmooth.models import llama
from howsmooth.models.ends import Ends
from howsmooth.models.reading import rms_norm
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    found = []
    for i, layer in enumerate(model.layers):
        own = layer.self_attn
        attention = llama.attention(own, model, query_norm=rms_norm(own.q_norm), key_norm=rms_norm(own.k_norm))
        before = rms_norm(layer.input_layernorm)
        found.append(
            Site(
                layer=i,
                attention=attention,
                reads=f"layers.{i}.self_attn",
                writes=f"layers.{i}.self_attn.o_proj",
                block=f"layers.{i}",
                before=before,
                feed_forward=llama.feed_forward(layer),
            )
        )
    return found


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return llama.ends(model)
