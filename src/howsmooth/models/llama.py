"""Llama and its kin (Mistral, Qwen2, SmolLM): RMSNorm, rotary embeddings, grouped queries, sliding windows."""

from typing import Any

from howsmooth.errors import UnsupportedModelError
from howsmooth.maps.attention import Attention
from howsmooth.maps.mlp import GatedMLP
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, gated
from howsmooth.models.reading import projections, rms_norm, rotary, rotary_gain
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [site(i, layer, model, feed_forward(layer)) for i, layer in enumerate(model.layers)]


def site(i: int, layer: Any, model: Any, behind: FeedForward) -> Site:
    """Read one layer, with what stands behind its attention."""
    return Site(
        layer=i,
        attention=attention(layer.self_attn, model),
        reads=f"layers.{i}.self_attn",
        writes=f"layers.{i}.self_attn.o_proj",
        block=f"layers.{i}",
        before=rms_norm(layer.input_layernorm),
        feed_forward=behind,
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(rms_norm(model.norm),))


def feed_forward(layer: Any) -> FeedForward:
    """Read the gated MLP behind attention."""
    return FeedForward(map=mlp(layer), before=rms_norm(layer.post_attention_layernorm))


def mlp(layer: Any) -> GatedMLP:
    """Read the gated MLP of a layer."""
    own = layer.mlp
    return gated(own.gate_proj, own.up_proj, own.act_fn, own.down_proj)


def attention(own: Any, model: Any, *, kind: str | None = None, causal: bool = True, **options: Any) -> Attention:
    """Read one attention module; Gemma 3 and OLMo 3 have frequencies for each ``kind`` of layer."""
    config = model.config
    if getattr(own, "is_causal", True) != causal:
        raise UnsupportedModelError(
            f"the family {config.model_type!r} heeds use_bidirectional_attention in part only, so that its mask is not "
            "known; take it out of the configuration.",
            field="model",
        )
    gain = rotary_gain(model, key=kind)
    return Attention(
        **projections(
            own.q_proj, own.k_proj, own.v_proj, own.o_proj, config.num_attention_heads, config.num_key_value_heads
        ),
        scale=own.scaling * gain**2,
        positions=Positions(causal=causal, window=window(own, config), rotary=rotary(model, key=kind)),
        **options,
    )


def window(own: Any, config: Any) -> int | None:
    """Return how many tokens a layer sees; Mistral and Mixtral say it once, others for each layer."""
    if hasattr(own, "sliding_window"):
        return own.sliding_window
    return getattr(config, "sliding_window", None) if config.model_type in ("mistral", "mixtral") else None
