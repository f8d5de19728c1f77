"""DeBERTa v2 and v3: tokens meet distances in the scores (disentangled attention), the norm behind the residual sum."""

from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.distances import Distances
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends, linear
from howsmooth.models.feed_forward import dense_pair
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer; a convolution behind the first one, in the largest models, is no part of it."""
    table = model.encoder.get_rel_embedding() if model.encoder.relative_attention else None
    return [_site(i, layer, table, model.config) for i, layer in enumerate(model.encoder.layer)]


def _site(i: int, layer: Any, table: Tensor | None, config: Any) -> Site:
    own, out, path = layer.attention.self, layer.attention.output, f"encoder.layer.{i}"
    heads = own.num_attention_heads
    kinds = sum(kind in own.pos_att_type for kind in ("c2p", "p2c"))
    # in float32, as the model takes the root
    size = torch.sqrt(torch.tensor(own.attention_head_size, dtype=torch.float32) * (1 + kinds))
    distances = None if table is None or not kinds else _distances(own, table.detach(), config.max_position_embeddings)
    attention = Attention(
        **projections(own.query_proj, own.key_proj, own.value_proj, out.dense, heads, heads),
        scale=1 / float(size),
        positions=Positions(distances=distances),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.attention.self",
        writes=f"{path}.attention.output.dense",
        block=path,
        outer=layer_norm(out.LayerNorm),
        # behind a layer that a convolution follows, the next one does not read what it puts out
        feed_forward=None if getattr(config, "conv_kernel_size", 0) and i == 0 else dense_pair(layer),
    )


def _distances(own: Any, table: Tensor, reach: int) -> Distances:
    """Return the keys and queries of every distance; far ones share theirs."""
    span = own.pos_ebd_size
    offsets = torch.arange(1 - reach, reach, device=table.device)  # j − i
    rows = (span + _buckets(-offsets, own)).clamp(0, 2 * span - 1)
    kinds = {"c2p": ("key_proj", "pos_key_proj"), "p2c": ("query_proj", "pos_query_proj")}
    met = {}
    for kind, (shared, alone) in kinds.items():
        if kind in own.pos_att_type:
            projected = getattr(own, shared if own.share_att_key else alone)(table[: 2 * span]).detach()
            met[kind] = projected[rows].unflatten(-1, (own.num_attention_heads, -1)).transpose(0, 1).contiguous()
    nothing = torch.zeros_like(next(iter(met.values())))
    return Distances(keys=met.get("c2p", nothing), queries=met.get("p2c", nothing))


def _buckets(distance: Tensor, own: Any) -> Tensor:
    """Return the bucket of i − j: near distances have their own, far ones share theirs, on a logarithmic scale."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    if own.position_buckets <= 0 or own.max_relative_positions <= 0:
        return distance
    return make_log_bucket_position(distance, own.position_buckets, own.max_relative_positions).long()


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    norm = layer_norm(model.embeddings.LayerNorm)
    project = getattr(model.embeddings, "embed_proj", None)
    if project is None:
        return Ends(reads="embeddings.LayerNorm", before=(norm,))
    return Ends(reads="embeddings.embed_proj", before=(linear(project), norm))
