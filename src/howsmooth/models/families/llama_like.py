"""Llama and its relatives: decoders with RMSNorm, rotary embeddings, grouped queries and gated MLPs."""

from collections.abc import Callable
from typing import Any

import torch

from howsmooth.errors import UnsupportedModelError
from howsmooth.maps.attention import Attention
from howsmooth.maps.mlp import GatedMLP
from howsmooth.maps.norms import RMSNorm
from howsmooth.maps.positions import Positions
from howsmooth.models.families.parameters import (
    fused_gated_mlp,
    fused_projections,
    gated_mlp,
    projections,
    read_layers,
    rms_norm,
    rotary,
    rotary_gain,
    with_rotary_gain,
)
from howsmooth.models.parts.block import AutogradMLP, FeedForward
from howsmooth.models.parts.ends import Backbone


def llama(model: Any) -> Backbone:
    """Read Llama, Mistral, Qwen2, SmolLM: the plain form."""
    return _backbone(model, lambda block: _pre_norm_block(block, _attention(block.self_attn, model)))


def granite(model: Any) -> Backbone:
    """Read Granite: a scale of its own for the scores, and one for the residual sums."""
    scale = model.config.residual_multiplier

    def read(block: Any) -> dict[str, Any]:
        parts = _pre_norm_block(block, _attention(block.self_attn, model), residual_scale=scale)
        return parts | {"residual_scale": scale}

    return _backbone(model, read)


def qwen3(model: Any) -> Backbone:
    """Read Qwen3: norms on queries and keys."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        attention = _attention(attn, model, query_norm=rms_norm(attn.q_norm), key_norm=rms_norm(attn.k_norm))
        return _pre_norm_block(block, attention)

    return _backbone(model, read)


def mixtral(model: Any) -> Backbone:
    """Read Mixtral: several MLPs, of which each token chooses; autograd differentiates them."""
    if model.dtype == torch.float64:
        model.set_experts_implementation("eager")  # torch's grouped matrix product has no float64

    def read(block: Any) -> dict[str, Any]:
        return _pre_norm_block(block, _attention(block.self_attn, model), mlp=AutogradMLP(module=block.mlp))

    return _backbone(model, read)


def olmo2(model: Any) -> Backbone:
    """Read OLMo 2 and 3: norms over the queries and keys of all heads, and norms behind attention and MLP."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        attention = _attention(
            attn,
            model,
            kind=getattr(attn, "attention_type", None),  # OLMo 3 has frequencies for each kind of layer
            query_norm=rms_norm(attn.q_norm),
            key_norm=rms_norm(attn.k_norm),
        )
        return {
            "attention": attention,
            "output_norm": rms_norm(block.post_attention_layernorm),
            "feed_forward": FeedForward(map=_mlp(block), output_norm=rms_norm(block.post_feedforward_layernorm)),
        }

    return _backbone(model, read)


def phi3(model: Any) -> Backbone:
    """Read Phi 3 and 4: one matrix for queries, keys and values, partial rotary embedding."""
    config = model.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    positions = Positions(causal=True, window=config.sliding_window, rotary=rotary(model))

    def read(block: Any) -> dict[str, Any]:
        attn, mlp = block.self_attn, block.mlp
        weights = fused_projections(
            attn.qkv_proj,
            attn.o_proj,
            heads,
            lambda x: x.unflatten(0, (heads + 2 * groups, -1)).split((heads, groups, groups)),
        )
        return {
            "attention": Attention(**with_rotary_gain(weights, model), scale=attn.scaling, positions=positions),
            "pre_norm": rms_norm(block.input_layernorm),
            "feed_forward": FeedForward(
                map=fused_gated_mlp(mlp.gate_up_proj, mlp.activation_fn, mlp.down_proj),
                pre_norm=rms_norm(block.post_attention_layernorm),
            ),
        }

    return _backbone(model, read)


def gemma(model: Any) -> Backbone:
    """Read Gemma: gains of 1 + w in its norms."""

    def read(block: Any) -> dict[str, Any]:
        return _pre_norm_block(block, _attention(block.self_attn, model), norm=_gemma_norm)

    return _backbone(model, read, norm=_gemma_norm)


def gemma2(model: Any) -> Backbone:
    """Read Gemma 2: soft-capped scores, windows in every other layer, norms before and behind attention and MLP."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        return _sandwich_block(block, _attention(attn, model, softcap=attn.attn_logit_softcapping))

    return _backbone(model, read, norm=_gemma_norm)


def gemma3(model: Any) -> Backbone:
    """Read Gemma 3: norms on queries and keys instead of the soft cap, and frequencies for each kind of layer."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        attention = _attention(
            attn,
            model,
            kind=attn.layer_type,
            causal=attn.is_causal,  # embedding models are bidirectional
            query_norm=_gemma_norm(attn.q_norm),
            key_norm=_gemma_norm(attn.k_norm),
        )
        return _sandwich_block(block, attention)

    return _backbone(model, read, norm=_gemma_norm)


def _backbone(model: Any, read: Callable[[Any], dict[str, Any]], norm: Callable[[Any], RMSNorm] = rms_norm) -> Backbone:
    layers = read_layers(model.layers, "layers", "self_attn", "self_attn.o_proj", read)
    return Backbone(layers=layers, final=(norm(model.norm),))


def _pre_norm_block(
    block: Any,
    attention: Attention,
    *,
    norm: Callable[[Any], RMSNorm] = rms_norm,
    mlp: AutogradMLP | None = None,
    residual_scale: float = 1.0,
) -> dict[str, Any]:
    """Return the parts of a block with a norm before attention and one before the MLP."""
    feed_forward = FeedForward(
        map=_mlp(block) if mlp is None else mlp,
        pre_norm=norm(block.post_attention_layernorm),
        residual_scale=residual_scale,
    )
    return {"attention": attention, "pre_norm": norm(block.input_layernorm), "feed_forward": feed_forward}


def _sandwich_block(block: Any, attention: Attention) -> dict[str, Any]:
    """Return the parts of a block of Gemma 2 or 3, with norms before and behind attention and MLP."""
    return {
        "attention": attention,
        "pre_norm": _gemma_norm(block.input_layernorm),
        "output_norm": _gemma_norm(block.post_attention_layernorm),
        "feed_forward": FeedForward(
            map=_mlp(block),
            pre_norm=_gemma_norm(block.pre_feedforward_layernorm),
            output_norm=_gemma_norm(block.post_feedforward_layernorm),
        ),
    }


def _gemma_norm(module: Any) -> RMSNorm:
    return rms_norm(module, offset=1.0)


def _mlp(block: Any) -> GatedMLP:
    mlp = block.mlp
    return gated_mlp(mlp.gate_proj, mlp.up_proj, mlp.act_fn, mlp.down_proj)


def _attention(attn: Any, model: Any, *, kind: str | None = None, causal: bool = True, **options: Any) -> Attention:
    """Read one attention module; Gemma 3 and OLMo 3 have frequencies for each ``kind`` of layer."""
    config = model.config
    if getattr(attn, "is_causal", True) != causal:
        raise UnsupportedModelError(
            f"the family {config.model_type!r} heeds use_bidirectional_attention in part only, so that its mask is not "
            "known; take it out of the configuration.",
            field="model",
        )
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    return Attention(
        **projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, heads, groups),
        scale=attn.scaling * rotary_gain(model, key=kind) ** 2,
        positions=Positions(causal=causal, window=_window(attn, config), rotary=rotary(model, key=kind)),
        **options,
    )


def _window(attn: Any, config: Any) -> int | None:
    """Return the sliding window of a layer; Mistral and Mixtral set it once, others for each layer."""
    if hasattr(attn, "sliding_window"):
        return attn.sliding_window
    return getattr(config, "sliding_window", None) if config.model_type in ("mistral", "mixtral") else None
