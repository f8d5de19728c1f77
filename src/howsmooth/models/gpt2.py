"""GPT-2: one matrix for queries, keys and values, stored columns first."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import columns, layer_norm, rows
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, block) for i, block in enumerate(model.h)]


def _site(i: int, block: Any) -> Site:
    own, heads = block.attn, block.attn.num_heads
    query, key, value = (rows(part, heads) for part in own.c_attn.weight.detach().mT.chunk(3))
    query_bias, key_bias, value_bias = (part.unflatten(0, (heads, -1)) for part in own.c_attn.bias.detach().chunk(3))
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=columns(own.c_proj.weight.mT, heads),
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=own.c_proj.bias.detach(),
        scale=own.scaling,
        positions=Positions(causal=True),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"h.{i}.attn",
        writes=f"h.{i}.attn.c_proj",
        block=f"h.{i}",
        before=layer_norm(block.ln_1),
        feed_forward=FeedForward(
            map=mlp(block.mlp.c_fc, block.mlp.act, block.mlp.c_proj), before=layer_norm(block.ln_2)
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.ln_f),))
