"""OPT: pre-norm, or post-norm in the 350M model."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends, linear
from howsmooth.models.feed_forward import FeedForward, mlp
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
    first, last = layer_norm(layer.self_attn_layer_norm), layer_norm(layer.final_layer_norm)
    own_mlp, in_front = mlp(layer.fc1, layer.activation_fn, layer.fc2), layer.do_layer_norm_before
    place: dict[str, Any] = {
        "before" if in_front else "outer": first,
        "feed_forward": FeedForward(map=own_mlp, before=last if in_front else None, outer=None if in_front else last),
    }
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.self_attn",
        writes=f"{path}.self_attn.out_proj",
        block=path,
        **place,
    )


def ends(model: Any) -> Ends:
    """Read what stands around the blocks."""
    decoder = model.decoder
    norm = () if decoder.final_layer_norm is None else (layer_norm(decoder.final_layer_norm),)
    # the 350M model has embeddings that are narrower than its layers
    narrow = () if decoder.project_out is None else (linear(decoder.project_out),)
    return Ends(after=(*norm, *narrow))
