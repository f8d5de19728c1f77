"""Encoders: BERT and its relatives, T5, BART (or its decoder alone), ViT, DeiT, and the towers of CLIP."""

from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.positions import Distances, Positions
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.families.parameters import (
    fused_gated_mlp,
    fused_projections,
    gated_mlp,
    layer_norm,
    linear,
    mlp,
    post_norm_mlp,
    pre_norm_mlp,
    projections,
    read_layers,
    rms_norm,
    rotary,
    rotary_gain,
    separate_projections,
    stacked,
)
from howsmooth.models.parts.block import FeedForward
from howsmooth.models.parts.ends import Backbone, Stem


def bert(model: Any) -> Backbone:
    """Read BERT, RoBERTa, XLM-RoBERTa, CamemBERT and ELECTRA: biases everywhere."""
    config = model.config

    def read(block: Any) -> dict[str, Any]:
        attn, out = block.attention.self, block.attention.output
        weights = projections(attn.query, attn.key, attn.value, out.dense, config.num_attention_heads)
        attention = Attention(**weights, scale=attn.scaling, positions=Positions(causal=bool(config.is_decoder)))
        return {"attention": attention, **_norms_and_mlp(block, out.LayerNorm)}

    norm = layer_norm(model.embeddings.LayerNorm)
    # ELECTRA's embeddings may be narrower than its layers
    project = getattr(model, "embeddings_project", None)
    return Backbone(
        layers=read_layers(model.encoder.layer, "encoder.layer", "attention.self", "attention.output.dense", read),
        stem=Stem(path="embeddings.LayerNorm", maps=(norm,) if project is None else (norm, linear(project))),
    )


def _norms_and_mlp(block: Any, norm: Any) -> dict[str, Any]:
    """Read the norms and the MLP of a block of BERT, MPNet or DeBERTa."""
    up, out = block.intermediate, block.output
    return post_norm_mlp(norm, out.LayerNorm, up.dense, up.intermediate_act_fn, out.dense)


def _embedding_norm(model: Any) -> Stem:
    return Stem(path="embeddings.LayerNorm", maps=(layer_norm(model.embeddings.LayerNorm),))


def distilbert(model: Any) -> Backbone:
    """Read DistilBERT: BERT's layers under other names."""

    def read(block: Any) -> dict[str, Any]:
        attn, ffn = block.attention, block.ffn
        weights = projections(attn.q_lin, attn.k_lin, attn.v_lin, attn.out_lin, model.config.n_heads)
        norms = block.sa_layer_norm, block.output_layer_norm
        attention = Attention(**weights, scale=attn.scaling)
        return {"attention": attention, **post_norm_mlp(*norms, ffn.lin1, ffn.activation, ffn.lin2)}

    layers = read_layers(model.transformer.layer, "transformer.layer", "attention", "attention.out_lin", read)
    return Backbone(layers=layers, stem=_embedding_norm(model))


def albert(model: Any) -> Backbone:
    """Read ALBERT: one set of weights serves many layers."""
    config = model.config
    layers: list[AttentionLayer] = []
    per_group = config.num_hidden_layers / config.num_hidden_groups
    for i in range(config.num_hidden_layers):
        group = int(i / per_group)
        for inner, block in enumerate(model.encoder.albert_layer_groups[group].albert_layers):
            attn, path = block.attention, f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
            weights = projections(attn.query, attn.key, attn.value, attn.dense, config.num_attention_heads)
            layers.append(
                AttentionLayer(
                    index=len(layers),
                    attention=Attention(**weights, scale=attn.scaling),
                    attention_path=f"{path}.attention",
                    projection_path=f"{path}.attention.dense",
                    residual_inside=True,
                    block_path=path,
                    **post_norm_mlp(
                        attn.LayerNorm, block.full_layer_layer_norm, block.ffn, block.activation, block.ffn_output
                    ),
                )
            )
    stem = (layer_norm(model.embeddings.LayerNorm), linear(model.encoder.embedding_hidden_mapping_in))
    return Backbone(layers=layers, stem=Stem(path="embeddings.LayerNorm", maps=stem))


def mpnet(model: Any) -> Backbone:
    """Read MPNet: a bias for every bucket of distances, shared by all layers, inside the softmax."""
    encoder, config = model.encoder, model.config
    reach = config.max_position_embeddings
    offsets = torch.arange(1 - reach, reach)
    buckets = encoder.relative_position_bucket(offsets, num_buckets=config.relative_attention_num_buckets)
    positions = Positions(relative_bias=encoder.relative_attention_bias.weight.detach()[buckets].mT.contiguous())

    def read(block: Any) -> dict[str, Any]:
        attn = block.attention.attn
        weights = projections(attn.q, attn.k, attn.v, attn.o, config.num_attention_heads)
        attention = Attention(**weights, positions=positions)
        return {"attention": attention, **_norms_and_mlp(block, block.attention.LayerNorm)}

    layers = read_layers(encoder.layer, "encoder.layer", "attention.attn", "attention.attn.o", read)
    return Backbone(layers=layers, stem=_embedding_norm(model))


def deberta_v2(model: Any) -> Backbone:
    """Read DeBERTa v2 and v3: the scores combine tokens with distances (disentangled attention).

    The convolution behind the first layer of the largest models is no part of that layer.
    """
    config, encoder = model.config, model.encoder
    table = encoder.get_rel_embedding() if encoder.relative_attention else None
    convolution = bool(getattr(config, "conv_kernel_size", 0))

    def read(block: Any) -> dict[str, Any]:
        attn, out = block.attention.self, block.attention.output
        terms = sum(term in attn.pos_att_type for term in ("c2p", "p2c"))
        # in float32, as the model takes the root
        size = torch.sqrt(torch.tensor(attn.attention_head_size, dtype=torch.float32) * (1 + terms))
        reach = config.max_position_embeddings
        attention = Attention(
            **projections(attn.query_proj, attn.key_proj, attn.value_proj, out.dense, attn.num_attention_heads),
            scale=1 / float(size),
            positions=Positions(
                distances=None if table is None or not terms else _distances(attn, table.detach(), reach)
            ),
        )
        # the layer behind a convolution does not read the output of this block
        without_mlp = {"feed_forward": None} if convolution and block is encoder.layer[0] else {}
        return {"attention": attention, **_norms_and_mlp(block, out.LayerNorm), **without_mlp}

    layers = read_layers(encoder.layer, "encoder.layer", "attention.self", "attention.output.dense", read)
    project = getattr(model.embeddings, "embed_proj", None)
    if project is None:
        return Backbone(layers=layers, stem=_embedding_norm(model))
    norm = layer_norm(model.embeddings.LayerNorm)
    return Backbone(layers=layers, stem=Stem(path="embeddings.embed_proj", maps=(linear(project), norm)))


def _distances(attn: Any, table: Tensor, reach: int) -> Distances:
    """Return the keys and queries of every distance; large distances share theirs."""
    span = attn.pos_ebd_size
    offsets = torch.arange(1 - reach, reach, device=table.device)  # j − i
    rows = (span + _buckets(-offsets, attn)).clamp(0, 2 * span - 1)
    modules = {"c2p": ("key_proj", "pos_key_proj"), "p2c": ("query_proj", "pos_query_proj")}
    terms = {}
    for term, (shared, separate) in modules.items():
        if term in attn.pos_att_type:
            project = getattr(attn, shared if attn.share_att_key else separate)
            projected = project(table[: 2 * span].to(project.weight.device)).detach()  # weights may still be in files
            terms[term] = projected[rows].unflatten(-1, (attn.num_attention_heads, -1)).transpose(0, 1).contiguous()
    zeros = torch.zeros_like(next(iter(terms.values())))
    return Distances(keys=terms.get("c2p", zeros), queries=terms.get("p2c", zeros))


def _buckets(distance: Tensor, attn: Any) -> Tensor:
    """Return the bucket of i − j: small distances have one each, large ones share buckets on a logarithmic scale."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    if attn.position_buckets <= 0 or attn.max_relative_positions <= 0:
        return distance
    return make_log_bucket_position(distance, attn.position_buckets, attn.max_relative_positions).long()


def modernbert(model: Any) -> Backbone:
    """Read ModernBERT: pre-norm, rotary embeddings, windows in two layers of three, one matrix for Q, K and V."""
    heads = model.config.num_attention_heads

    def read(block: Any) -> dict[str, Any]:
        attn, kind = block.attn, block.attention_type
        attention = Attention(
            **fused_projections(attn.Wqkv, attn.Wo, heads, stacked(heads)),
            scale=attn.head_dim**-0.5 * rotary_gain(model, key=kind) ** 2,
            # layers with and without a window have frequencies of their own
            positions=Positions(window=attn.sliding_window, rotary=rotary(model, key=kind)),
        )
        return {
            "attention": attention,
            # the embeddings end in a norm, so the first layer has none of its own
            "pre_norm": layer_norm(block.attn_norm) if hasattr(block.attn_norm, "weight") else None,
            "feed_forward": FeedForward(
                map=fused_gated_mlp(block.mlp.Wi, block.mlp.act, block.mlp.Wo), pre_norm=layer_norm(block.mlp_norm)
            ),
        }

    return Backbone(
        layers=read_layers(model.layers, "layers", "attn", "attn.Wo", read),
        stem=Stem(path="embeddings.norm", maps=(layer_norm(model.embeddings.norm),)),
        final=(layer_norm(model.final_norm),),
    )


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
        weights = projections(attn.q, attn.k, attn.v, attn.o, attn.n_heads)
        positions = Positions(causal=attn.is_causal, relative_bias=bias)
        attention = Attention(**weights, scale=attn.scaling, positions=positions)
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
        weights = separate_projections(attn, attn.out_proj, attn.num_heads)
        attention = Attention(**weights, scale=attn.scaling, positions=Positions(causal=attn.is_causal))
        norms = block.self_attn_layer_norm, block.final_layer_norm
        return {"attention": attention, **post_norm_mlp(*norms, block.fc1, block.activation_fn, block.fc2)}

    return Backbone(
        layers=read_layers(stack.layers, f"{prefix}layers", "self_attn", "self_attn.out_proj", read),
        stem=Stem(path=f"{prefix}layernorm_embedding", maps=(layer_norm(stack.layernorm_embedding),)),
    )


def vit(model: Any) -> Backbone:
    """Read ViT and DeiT: patches instead of words."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.attention
        weights = separate_projections(attn, attn.o_proj, model.config.num_attention_heads)
        attention = Attention(**weights, scale=attn.scaling)
        norms = block.layernorm_before, block.layernorm_after
        return {"attention": attention, **pre_norm_mlp(*norms, block.mlp.fc1, block.mlp.activation_fn, block.mlp.fc2)}

    layers = read_layers(model.layers, "layers", "attention", "attention.o_proj", read)
    return Backbone(layers=layers, final=(layer_norm(model.layernorm),))


def clip_text(model: Any) -> Backbone:
    """Read CLIP's tower for text, which is causal."""
    return Backbone(layers=_clip_layers(model, causal=True), final=(layer_norm(model.final_layer_norm),))


def clip_vision(model: Any) -> Backbone:
    """Read CLIP's tower for pictures; the norm behind its last layer belongs to the pooler."""
    stem = Stem(path="pre_layrnorm", maps=(layer_norm(model.pre_layrnorm),))
    return Backbone(layers=_clip_layers(model, causal=False), stem=stem)


def _clip_layers(tower: Any, *, causal: bool) -> Any:
    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        weights = separate_projections(attn, attn.out_proj, attn.num_heads)
        attention = Attention(**weights, scale=attn.scale, positions=Positions(causal=causal))
        norms = block.layer_norm1, block.layer_norm2
        return {"attention": attention, **pre_norm_mlp(*norms, block.mlp.fc1, block.mlp.activation_fn, block.mlp.fc2)}

    return read_layers(tower.encoder.layers, "encoder.layers", "self_attn", "self_attn.out_proj", read)
