"""OPT: pre-norm, or post-norm in the 350M model."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def sites(model: Any) -> list[Site]:
    """Read every layer."""
    return [_site(i, layer) for i, layer in enumerate(model.decoder.layers)]


def _site(i: int, layer: Any) -> Site:
    own, path = layer.self_attn, f"decoder.layers.{i}"
    heads = own.num_heads
    attention = Attention(
        **projections(own.q_proj, own.k_proj, own.v_proj, own.out_proj, heads, heads),
        scale=own.scaling,
        positions=Positions(causal=True),
    )
    norm = layer_norm(layer.self_attn_layer_norm)
    place = {"before" if layer.do_layer_norm_before else "outer": norm}
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.self_attn",
        writes=f"{path}.self_attn.out_proj",
        block=path,
        **place,
    )
