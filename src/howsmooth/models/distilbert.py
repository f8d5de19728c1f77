"""DistilBERT: BERT's layers under other names."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model.config) for i, layer in enumerate(model.transformer.layer)]


def _site(i: int, layer: Any, config: Any) -> Site:
    own, path = layer.attention, f"transformer.layer.{i}"
    attention = Attention(
        **projections(own.q_lin, own.k_lin, own.v_lin, own.out_lin, config.n_heads, config.n_heads), scale=own.scaling
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention",
        writes=f"{path}.attention.out_lin",
        block=path,
        outer=layer_norm(layer.sa_layer_norm),
        feed_forward=FeedForward(
            map=mlp(layer.ffn.lin1, layer.ffn.activation, layer.ffn.lin2), outer=layer_norm(layer.output_layer_norm)
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(reads="embeddings.LayerNorm", before=(layer_norm(model.embeddings.LayerNorm),))
