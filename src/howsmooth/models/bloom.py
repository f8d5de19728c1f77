"""BLOOM: queries, keys and values interleaved head by head, scores that fall off with the distance (ALiBi)."""

import math
from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import columns, layer_norm, rows
from howsmooth.models.sites import Site

# The model itself has no limit; a table of biases must end somewhere.
REACH = 2**14


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    weight = model.h[0].self_attention.dense.weight
    bias = slopes(model.config.n_head).to(weight)[:, None] * torch.arange(REACH).to(weight)
    return [_site(i, block, bias, model.config) for i, block in enumerate(model.h)]


def slopes(heads: int) -> Tensor:
    """Return how fast the scores of each head fall off: powers of a number, of its root where heads are more."""
    whole = 2 ** math.floor(math.log2(heads))
    return torch.cat((_powers(whole, range(1, whole + 1)), _powers(2 * whole, range(1, 2 * (heads - whole) + 1, 2))))


def _powers(heads: int, exponents: range) -> Tensor:
    # in float32, as the model has them
    return torch.tensor(2 ** (-8 / heads), dtype=torch.float32) ** torch.tensor(exponents, dtype=torch.int32)


def _site(i: int, block: Any, bias: Tensor, config: Any) -> Site:
    own, path, heads = block.self_attention, f"h.{i}", config.n_head
    query, key, value = rows(own.query_key_value.weight, heads).chunk(3, dim=1)
    query_bias, key_bias, value_bias = own.query_key_value.bias.detach().unflatten(0, (heads, -1)).chunk(3, dim=1)
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=columns(own.dense.weight, heads),
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=own.dense.bias.detach(),
        positions=Positions(causal=True, position_bias=bias),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.self_attention",
        writes=f"{path}.self_attention.dense",
        residual_inside=True,
        block=path,
        before=layer_norm(block.input_layernorm),
        adds_normed=config.apply_residual_connection_post_layernorm,
        feed_forward=FeedForward(
            map=mlp(block.mlp.dense_h_to_4h, block.mlp.gelu_impl, block.mlp.dense_4h_to_h),
            before=layer_norm(block.post_attention_layernorm),
            adds_normed=config.apply_residual_connection_post_layernorm,
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    norm = layer_norm(model.word_embeddings_layernorm)
    return Ends(reads="word_embeddings_layernorm", before=(norm,), after=(layer_norm(model.ln_f),))
