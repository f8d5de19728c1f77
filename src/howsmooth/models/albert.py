"""ALBERT: one set of weights serves many layers."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.models.ends import Ends, linear
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer, in the order in which they run."""
    encoder, config = model.encoder, model.config
    per_group = config.num_hidden_layers / config.num_hidden_groups
    found: list[Site] = []
    for i in range(config.num_hidden_layers):
        group = int(i / per_group)
        for inner, layer in enumerate(encoder.albert_layer_groups[group].albert_layers):
            path = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
            found.append(_site(len(found), layer, path, config.num_attention_heads))
    return found


def _site(i: int, layer: Any, path: str, heads: int) -> Site:
    own = layer.attention
    attention = Attention(**projections(own.query, own.key, own.value, own.dense, heads, heads), scale=own.scaling)
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention",
        writes=f"{path}.attention.dense",
        residual_inside=True,
        block=path,
        outer=layer_norm(own.LayerNorm),
        feed_forward=FeedForward(
            map=mlp(layer.ffn, layer.activation, layer.ffn_output), outer=layer_norm(layer.full_layer_layer_norm)
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    widen = linear(model.encoder.embedding_hidden_mapping_in)
    return Ends(reads="embeddings.LayerNorm", before=(layer_norm(model.embeddings.LayerNorm), widen))
