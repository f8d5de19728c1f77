"""Decoders: GPT and its relatives (LayerNorm, plain MLPs), Llama and its relatives (RMSNorm, gated MLPs)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import UnsupportedModelError
from howsmooth.maps.attention import Attention
from howsmooth.maps.mlp import GatedMLP
from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.positions import Positions, Rotary
from howsmooth.models.families.parameters import (
    fused_gated_mlp,
    fused_projections,
    gated_mlp,
    interleaved,
    layer_norm,
    linear,
    mlp,
    post_norm_mlp,
    pre_norm_mlp,
    read_layers,
    rms_norm,
    rotary,
    rotary_gain,
    separate_projections,
    stacked,
    with_rotary_gain,
)
from howsmooth.models.parts.block import AutogradMLP, FeedForward
from howsmooth.models.parts.ends import Backbone, Stem

# BLOOM has no longest sequence, but a table of biases must end somewhere.
REACH = 2**14


def gpt2(model: Any) -> Backbone:
    """Read GPT-2: one matrix for queries, keys and values, stored transposed."""

    def read(block: Any) -> dict[str, Any]:
        attn, heads = block.attn, block.attn.num_heads
        weights = fused_projections(attn.c_attn, attn.c_proj, heads, stacked(heads))
        attention = Attention(**weights, scale=attn.scaling, positions=Positions(causal=True))
        norms, mlp = (block.ln_1, block.ln_2), block.mlp
        return {"attention": attention, **pre_norm_mlp(*norms, mlp.c_fc, mlp.act, mlp.c_proj)}

    layers = read_layers(model.h, "h", "attn", "attn.c_proj", read)
    return Backbone(layers=layers, final=(layer_norm(model.ln_f),))


def gpt_neo(model: Any) -> Backbone:
    """Read GPT-Neo: scores without a scale, windows in every other layer."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.attn.attention
        window = model.config.window_size if attn.attention_type == "local" else None
        attention = Attention(
            **separate_projections(attn, attn.out_proj, attn.num_heads),
            scale=1.0,
            positions=Positions(causal=True, window=window),
        )
        norms, mlp = (block.ln_1, block.ln_2), block.mlp
        return {"attention": attention, **pre_norm_mlp(*norms, mlp.c_fc, mlp.act, mlp.c_proj)}

    layers = read_layers(model.h, "h", "attn", "attn.attention.out_proj", read)
    return Backbone(layers=layers, final=(layer_norm(model.ln_f),))


def gptj(model: Any) -> Backbone:
    """Read GPT-J: attention and MLP in parallel, no biases, interleaved pairs in a partial rotary embedding."""

    def read(block: Any) -> dict[str, Any]:
        attn, norm, mlp = block.attn, block.ln_1, block.mlp
        attention = Attention(
            **separate_projections(attn, attn.out_proj, attn.num_attention_heads),
            positions=Positions(causal=True, rotary=Rotary(dim=attn.rotary_dim, interleaved=True)),
        )
        return {"attention": attention, **pre_norm_mlp(norm, norm, mlp.fc_in, mlp.act, mlp.fc_out, parallel=True)}

    layers = read_layers(model.h, "h", "attn", "attn.out_proj", read)
    return Backbone(layers=layers, final=(layer_norm(model.ln_f),))


def gpt_neox(model: Any) -> Backbone:
    """Read GPT-NeoX and Pythia: queries, keys and values interleaved head by head, partial rotary embedding."""
    heads, positions = model.config.num_attention_heads, Positions(causal=True, rotary=rotary(model))

    def read(block: Any) -> dict[str, Any]:
        attn = block.attention
        weights = fused_projections(attn.query_key_value, attn.dense, heads, interleaved(heads))
        attention = Attention(**with_rotary_gain(weights, model), scale=attn.scaling, positions=positions)
        norms, mlp = (block.input_layernorm, block.post_attention_layernorm), block.mlp
        modules = (mlp.dense_h_to_4h, mlp.act, mlp.dense_4h_to_h)
        return {"attention": attention, **pre_norm_mlp(*norms, *modules, parallel=block.use_parallel_residual)}

    layers = read_layers(model.layers, "layers", "attention", "attention.dense", read)
    return Backbone(layers=layers, final=(layer_norm(model.final_layer_norm),))


def phi(model: Any) -> Backbone:
    """Read Phi 1 and 2: attention and MLP in parallel, biases everywhere, partial rotary embedding."""
    heads, groups = model.config.num_attention_heads, model.config.num_key_value_heads
    positions = Positions(causal=True, rotary=rotary(model))

    def read(block: Any) -> dict[str, Any]:
        attn, norm, mlp = block.self_attn, block.input_layernorm, block.mlp
        weights = separate_projections(attn, attn.dense, heads, groups)
        if attn.qk_layernorm:
            weights |= {"query_norm": layer_norm(attn.q_layernorm), "key_norm": layer_norm(attn.k_layernorm)}
        attention = Attention(**with_rotary_gain(weights, model), scale=attn.scaling, positions=positions)
        parallel = pre_norm_mlp(norm, norm, mlp.fc1, mlp.activation_fn, mlp.fc2, parallel=True)
        return {"attention": attention, **parallel}

    layers = read_layers(model.layers, "layers", "self_attn", "self_attn.dense", read)
    return Backbone(layers=layers, final=(layer_norm(model.final_layernorm),))


def opt(model: Any) -> Backbone:
    """Read OPT: pre-norm, or post-norm in the 350M model."""
    decoder = model.decoder

    def read(block: Any) -> dict[str, Any]:
        attn, norm_and_mlp = block.self_attn, pre_norm_mlp if block.do_layer_norm_before else post_norm_mlp
        weights = separate_projections(attn, attn.out_proj, attn.num_heads)
        attention = Attention(**weights, scale=attn.scaling, positions=Positions(causal=True))
        norms = block.self_attn_layer_norm, block.final_layer_norm
        return {"attention": attention, **norm_and_mlp(*norms, block.fc1, block.activation_fn, block.fc2)}

    norm = () if decoder.final_layer_norm is None else (layer_norm(decoder.final_layer_norm),)
    # the embeddings of the 350M model are narrower than its layers
    project = () if decoder.project_out is None else (linear(decoder.project_out),)
    layers = read_layers(decoder.layers, "decoder.layers", "self_attn", "self_attn.out_proj", read)
    return Backbone(layers=layers, final=(*norm, *project))


def bloom(model: Any) -> Backbone:
    """Read BLOOM: queries, keys and values interleaved head by head, ALiBi."""
    heads, weight = model.config.n_head, model.ln_f.weight
    bias = alibi_slopes(heads).to(weight)[:, None] * torch.arange(REACH).to(weight)
    after_norm = model.config.apply_residual_connection_post_layernorm

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attention
        return {
            "attention": Attention(
                **fused_projections(attn.query_key_value, attn.dense, heads, interleaved(heads)),
                positions=Positions(causal=True, position_bias=bias),
            ),
            "residual_inside": True,
            "pre_norm": layer_norm(block.input_layernorm),
            "residual_after_norm": after_norm,
            "feed_forward": FeedForward(
                map=mlp(block.mlp.dense_h_to_4h, block.mlp.gelu_impl, block.mlp.dense_4h_to_h),
                pre_norm=layer_norm(block.post_attention_layernorm),
                residual_after_norm=after_norm,
            ),
        }

    return Backbone(
        layers=read_layers(model.h, "h", "self_attention", "self_attention.dense", read),
        stem=Stem(path="word_embeddings_layernorm", maps=(layer_norm(model.word_embeddings_layernorm),)),
        final=(layer_norm(model.ln_f),),
    )


def alibi_slopes(heads: int) -> Tensor:
    """Return the slope of the bias of each head: powers of one number, and of its root for further heads."""
    whole = 2 ** math.floor(math.log2(heads))
    return torch.cat((_powers(whole, range(1, whole + 1)), _powers(2 * whole, range(1, 2 * (heads - whole) + 1, 2))))


def _powers(heads: int, exponents: range) -> Tensor:
    # in float32, as in the model
    return torch.tensor(2 ** (-8 / heads), dtype=torch.float32) ** torch.tensor(exponents, dtype=torch.int32)


def falcon(model: Any) -> Backbone:
    """Read Falcon: keys and values shared by all heads or by groups, rotary embedding or ALiBi, one or two norms."""
    config, positions = model.config, _falcon_positions(model)
    gain = 1.0 if config.alibi else rotary_gain(model) ** 2

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attention
        norm = layer_norm(block.ln_attn if hasattr(block, "ln_attn") else block.input_layernorm)

        def split(x: Tensor) -> list[Tensor]:
            # stored group by group: the queries of a group, then its key, then its value
            by_group = x.unflatten(0, (attn.num_kv_heads, -1, attn.head_dim))
            return [part.flatten(0, 1) for part in by_group.split((by_group.shape[1] - 2, 1, 1), dim=1)]

        weights = fused_projections(attn.query_key_value, attn.dense, attn.num_heads, split)
        return {
            "attention": Attention(**weights, scale=attn.inv_norm_factor * gain, positions=positions),
            "pre_norm": norm,
            "feed_forward": _falcon_feed_forward(block, config, norm),
        }

    layers = read_layers(model.h, "h", "self_attention", "self_attention.dense", read)
    return Backbone(layers=layers, final=(layer_norm(model.ln_f),))


def _falcon_positions(model: Any) -> Positions:
    config = model.config
    if not config.alibi:
        return Positions(causal=True, rotary=rotary(model))
    # the model rounds slopes, positions and their products to bfloat16, so they are not linear in the position
    slopes = alibi_slopes(config.num_attention_heads).bfloat16()
    bias = (slopes[:, None] * torch.arange(config.max_position_embeddings)).to(model.ln_f.weight)
    # the mask includes ALiBi already, and the module's own loop, which runs without a fused kernel, adds it once more
    times = 1 if config._attn_implementation == "sdpa" else 2
    scale = times / math.sqrt(config.hidden_size // config.num_attention_heads)
    return Positions(causal=True, position_bias=scale * bias)


def _falcon_feed_forward(block: Any, config: Any, norm: LayerNorm) -> FeedForward:
    """Read the MLP: behind attention, or in parallel with a norm of its own or the same one."""
    read = mlp(block.mlp.dense_h_to_4h, block.mlp.act, block.mlp.dense_4h_to_h)
    if not (config.new_decoder_architecture or config.parallel_attn):
        return FeedForward(map=read, pre_norm=layer_norm(block.post_attention_layernorm))
    pre_norm = layer_norm(block.ln_mlp) if hasattr(block, "ln_mlp") else norm
    return FeedForward(map=read, pre_norm=pre_norm, parallel=True)


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
        **separate_projections(attn, attn.o_proj, heads, groups),
        scale=attn.scaling * rotary_gain(model, key=kind) ** 2,
        positions=Positions(causal=causal, window=_window(attn, config), rotary=rotary(model, key=kind)),
        **options,
    )


def _window(attn: Any, config: Any) -> int | None:
    """Return the sliding window of a layer; Mistral and Mixtral set it once, others for each layer."""
    if hasattr(attn, "sliding_window"):
        return attn.sliding_window
    return getattr(config, "sliding_window", None) if config.model_type in ("mistral", "mixtral") else None
