"""GPT-Neo: scores without a scale, windows in every other layer."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, block, model.config) for i, block in enumerate(model.h)]


def _site(i: int, block: Any, config: Any) -> Site:
    own, path = block.attn.attention, f"h.{i}"
    window = config.window_size if own.attention_type == "local" else None
    return Site(
        layer=i,
        attention=Attention(
            **projections(own.q_proj, own.k_proj, own.v_proj, own.out_proj, own.num_heads, own.num_heads),
            scale=1.0,
            positions=Positions(causal=True, window=window),
        ),
        reads=f"{path}.attn",
        writes=f"{path}.attn.attention.out_proj",
        block=path,
        before=layer_norm(block.ln_1),
        feed_forward=FeedForward(
            map=mlp(block.mlp.c_fc, block.mlp.act, block.mlp.c_proj), before=layer_norm(block.ln_2)
        ),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.ln_f),))
