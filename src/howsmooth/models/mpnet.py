"""MPNet: a bias for every bucket of distances, shared by all layers, inside the softmax."""

from typing import Any

import torch

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import dense_pair
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    encoder = model.encoder
    reach = model.config.max_position_embeddings
    offsets = torch.arange(1 - reach, reach)
    buckets = encoder.relative_position_bucket(offsets, num_buckets=model.config.relative_attention_num_buckets)
    bias = encoder.relative_attention_bias.weight.detach()[buckets].mT.contiguous()
    return [_site(i, layer, bias, model.config.num_attention_heads) for i, layer in enumerate(encoder.layer)]


def _site(i: int, layer: Any, bias: torch.Tensor, heads: int) -> Site:
    own, path = layer.attention.attn, f"encoder.layer.{i}"
    attention = Attention(
        **projections(own.q, own.k, own.v, own.o, heads, heads), positions=Positions(relative_bias=bias)
    )
    outer = layer_norm(layer.attention.LayerNorm)
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention.attn",
        writes=f"{path}.attention.attn.o",
        block=path,
        outer=outer,
        feed_forward=dense_pair(layer),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(reads="embeddings.LayerNorm", before=(layer_norm(model.embeddings.LayerNorm),))
