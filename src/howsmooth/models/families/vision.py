"""ViT, DeiT, and the two towers of CLIP, of which one reads text: pre-norm."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.families.parameters import layer_norm, pre_norm_mlp, projections, read_layers
from howsmooth.models.parts.ends import Backbone, Stem


def vit(model: Any) -> Backbone:
    """Read ViT and DeiT: patches instead of words."""

    def read(block: Any) -> dict[str, Any]:
        attn = block.attention
        weights = projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj, model.config.num_attention_heads)
        attention = Attention(**weights, scale=attn.scaling)
        norms = block.layernorm_before, block.layernorm_after
        return {"attention": attention, **pre_norm_mlp(*norms, block.mlp.fc1, block.mlp.activation_fn, block.mlp.fc2)}

    layers = read_layers(model.layers, "layers", "attention", "attention.o_proj", read)
    return Backbone(layers=layers, final=(layer_norm(model.layernorm),))


def clip_text(model: Any) -> Backbone:
    """Read CLIP's tower for text, which is causal."""
    tower, prefix = _tower(model, "text_model")
    final = (layer_norm(tower.final_layer_norm),)
    return Backbone(layers=_clip_layers(tower, prefix, causal=True), final=final)


def clip_vision(model: Any) -> Backbone:
    """Read CLIP's tower for pictures; the norm behind its last layer belongs to the pooler."""
    tower, prefix = _tower(model, "vision_model")
    stem = Stem(path=f"{prefix}pre_layrnorm", maps=(layer_norm(tower.pre_layrnorm),))
    return Backbone(layers=_clip_layers(tower, prefix, causal=False), stem=stem)


def _tower(model: Any, inner: str) -> tuple[Any, str]:
    # a tower with a projection behind it is one module further in
    return (getattr(model, inner), f"{inner}.") if hasattr(model, inner) else (model, "")


def _clip_layers(tower: Any, prefix: str, *, causal: bool) -> Any:
    def read(block: Any) -> dict[str, Any]:
        attn = block.self_attn
        weights = projections(attn.q_proj, attn.k_proj, attn.v_proj, attn.out_proj, attn.num_heads)
        attention = Attention(**weights, scale=attn.scale, positions=Positions(causal=causal))
        norms = block.layer_norm1, block.layer_norm2
        return {"attention": attention, **pre_norm_mlp(*norms, block.mlp.fc1, block.mlp.activation_fn, block.mlp.fc2)}

    return read_layers(tower.encoder.layers, f"{prefix}encoder.layers", "self_attn", "self_attn.out_proj", read)
