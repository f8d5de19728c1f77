"""T5 and BART: the layers of their encoders, or of a decoder without its encoder."""

from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.positions import Positions
from howsmooth.models.families.parameters import (
    gated_mlp,
    layer_norm,
    mlp,
    post_norm_mlp,
    projections,
    read_layers,
    rms_norm,
)
from howsmooth.models.parts.block import FeedForward
from howsmooth.models.parts.ends import Backbone, Stem

# T5 has no longest sequence, but a table of biases has an end; attention over more tokens than this does not fit.
REACH = 2**15


def t5(model: Any) -> Backbone:
    """Read T5's encoder: no scaling, no biases, and a bias for each distance, by the first layer's table."""
    # T5EncoderModel has the stack inside
    stack, path = (model.encoder, "encoder.block") if hasattr(model, "encoder") else (model, "block")
    bias = _relative_bias(stack.block[0].layer[0].SelfAttention)

    def read(block: Any) -> dict[str, Any]:
        first, last = block.layer[0], block.layer[-1]
        attn = first.SelfAttention
        attention = Attention(
            **projections(attn.q, attn.k, attn.v, attn.o, attn.n_heads),
            scale=attn.scaling,
            positions=Positions(causal=attn.is_causal, relative_bias=bias),
        )
        return {
            "attention": attention,
            "pre_norm": rms_norm(first.layer_norm),
            "feed_forward": FeedForward(map=_t5_mlp(last.DenseReluDense), pre_norm=rms_norm(last.layer_norm)),
        }

    layers = read_layers(stack.block, path, "layer.0.SelfAttention", "layer.0.SelfAttention.o", read)
    return Backbone(layers=layers, final=(rms_norm(stack.final_layer_norm),))


def _t5_mlp(module: Any) -> MLP | GatedMLP:
    if hasattr(module, "wi"):
        return mlp(module.wi, module.act, module.wo)
    return gated_mlp(module.wi_0, module.wi_1, module.act, module.wo)


def _relative_bias(attn: Any) -> Tensor:
    """Return the bias of every distance, which all layers share."""
    buckets = attn._relative_position_bucket(
        torch.arange(1 - REACH, REACH),
        bidirectional=not attn.is_decoder,
        num_buckets=attn.relative_attention_num_buckets,
        max_distance=attn.relative_attention_max_distance,
    )
    return attn.relative_attention_bias.weight.detach()[buckets].mT.contiguous()


def bart(model: Any) -> Backbone:
    """Read BART: post-norm."""
    # a causal language model is a wrapper around its decoder
    stack, prefix = (model.decoder, "decoder.") if hasattr(model, "decoder") else (model, "")

    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        attention = Attention(
            **projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.out_proj, attn.num_heads),
            scale=attn.scaling,
            positions=Positions(causal=attn.is_causal),
        )
        norms = block.self_attn_layer_norm, block.final_layer_norm
        return {"attention": attention, **post_norm_mlp(*norms, block.fc1, block.activation_fn, block.fc2)}

    return Backbone(
        layers=read_layers(stack.layers, f"{prefix}layers", "self_attn", "self_attn.out_proj", read),
        stem=Stem(path=f"{prefix}layernorm_embedding", maps=(layer_norm(stack.layernorm_embedding),)),
    )
