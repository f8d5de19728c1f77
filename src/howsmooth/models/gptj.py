"""GPT-J: attention and MLP side by side, no biases, interleaved pairs in a partial rotary embedding."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.maps.rotary import Rotary
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, block) for i, block in enumerate(model.h)]


def _site(i: int, block: Any) -> Site:
    own, path, heads = block.attn, f"h.{i}", block.attn.num_attention_heads
    norm = layer_norm(block.ln_1)
    return Site(
        layer=i,
        attention=Attention(
            **projections(own.q_proj, own.k_proj, own.v_proj, own.out_proj, heads, heads),
            positions=Positions(causal=True, rotary=Rotary(dim=own.rotary_dim, interleaved=True)),
        ),
        reads=f"{path}.attn",
        writes=f"{path}.attn.out_proj",
        block=path,
        before=norm,
        feed_forward=FeedForward(map=mlp(block.mlp.fc_in, block.mlp.act, block.mlp.fc_out), before=norm, parallel=True),
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    return Ends(after=(layer_norm(model.ln_f),))
