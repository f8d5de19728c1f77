"""BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA: biases everywhere, the norm behind the residual sum."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends, linear
from howsmooth.models.feed_forward import dense_pair
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer, model.config) for i, layer in enumerate(model.encoder.layer)]


def _site(i: int, layer: Any, config: Any) -> Site:
    own, out = layer.attention.self, layer.attention.output
    heads = config.num_attention_heads
    attention = Attention(
        **projections(own.query, own.key, own.value, out.dense, heads, heads),
        scale=own.scaling,
        positions=Positions(causal=bool(config.is_decoder)),
    )
    path = f"encoder.layer.{i}"
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention.self",
        writes=f"{path}.attention.output.dense",
        block=path,
        outer=layer_norm(out.LayerNorm),
        feed_forward=dense_pair(layer),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    norm = layer_norm(model.embeddings.LayerNorm)
    # ELECTRA's embeddings may be narrower than its layers
    project = getattr(model, "embeddings_project", None)
    return Ends(reads="embeddings.LayerNorm", before=(norm,) if project is None else (norm, linear(project)))
