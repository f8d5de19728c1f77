"""Llama and its kin (Mistral, Qwen2, SmolLM): RMSNorm, rotary embeddings, grouped queries, sliding windows."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.reading import projections, rms_norm, rotary, rotary_gain
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [
        Site(
            layer=i,
            attention=attention(layer.self_attn, model),
            reads=f"layers.{i}.self_attn",
            writes=f"layers.{i}.self_attn.o_proj",
            block=f"layers.{i}",
            before=rms_norm(layer.input_layernorm),
        )
        for i, layer in enumerate(model.layers)
    ]


def attention(own: Any, model: Any, **options: Any) -> Attention:
    """Read one attention module."""
    config = model.config
    gain = rotary_gain(model)
    return Attention(
        **projections(
            own.q_proj, own.k_proj, own.v_proj, own.o_proj, config.num_attention_heads, config.num_key_value_heads
        ),
        scale=own.scaling * gain**2,
        positions=Positions(causal=True, window=window(own, config), rotary=rotary(model)),
        **options,
    )


def window(own: Any, config: Any) -> int | None:
    """Return how many tokens a layer sees; Mistral says it once, others for each layer."""
    if hasattr(own, "sliding_window"):
        return own.sliding_window
    return getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
