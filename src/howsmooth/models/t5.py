"""T5's encoder: no scaling, no biases, and scores that depend on the distance, by the first layer's table."""

from typing import Any

import torch
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, gated, mlp
from howsmooth.models.reading import projections, rms_norm
from howsmooth.models.sites import Site

# T5 has no longest sequence, but a table of scores has an end; attention over more tokens than this is out of reach.
REACH = 2**15


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    stack, place = _stack(model)
    bias = _relative_bias(stack.block[0].layer[0].SelfAttention)
    return [_site(i, block, f"{place}block.{i}", bias) for i, block in enumerate(stack.block)]


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    stack, _place = _stack(model)
    return Ends(after=(rms_norm(stack.final_layer_norm),))


def _stack(model: Any) -> tuple[Any, str]:
    # T5EncoderModel has the stack inside
    return (model.encoder, "encoder.") if hasattr(model, "encoder") else (model, "")


def _site(i: int, block: Any, path: str, bias: Tensor) -> Site:
    own, norm = block.layer[0].SelfAttention, block.layer[0].layer_norm
    attention = Attention(
        **projections(own.q, own.k, own.v, own.o, own.n_heads, own.n_heads),
        scale=own.scaling,
        positions=Positions(causal=own.is_causal, relative_bias=bias),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.layer.0.SelfAttention",
        writes=f"{path}.layer.0.SelfAttention.o",
        block=path,
        before=rms_norm(norm),
        feed_forward=FeedForward(map=_mlp(block.layer[-1].DenseReluDense), before=rms_norm(block.layer[-1].layer_norm)),
    )


def _mlp(own: Any) -> MLP | GatedMLP:
    if hasattr(own, "wi"):
        return mlp(own.wi, own.act, own.wo)
    return gated(own.wi_0, own.wi_1, own.act, own.wo)


def _relative_bias(own: Any) -> Tensor:
    """Return the score of every distance, which all layers share."""
    buckets = own._relative_position_bucket(
        torch.arange(1 - REACH, REACH),
        bidirectional=not own.is_decoder,
        num_buckets=own.relative_attention_num_buckets,
        max_distance=own.relative_attention_max_distance,
    )
    return own.relative_attention_bias.weight.detach()[buckets].mT.contiguous()
