"""CLIP's two towers: the text tower is causal, the one of pictures is not; the norm in front in both."""

from typing import Any

from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.models.ends import Ends
from howsmooth.models.feed_forward import FeedForward, mlp
from howsmooth.models.reading import layer_norm, projections
from howsmooth.models.sites import Site


def text_sites(model: Any) -> list[Site]:
    """Read every layer of the tower that reads words."""
    return _sites(model, "text_model", causal=True)


def vision_sites(model: Any) -> list[Site]:
    """Read every layer of the tower that reads pictures."""
    return _sites(model, "vision_model", causal=False)


def text_ends(model: Any) -> Ends:
    """Read what stands around the blocks of the tower that reads words."""
    tower, _place = _tower(model, "text_model")
    return Ends(after=(layer_norm(tower.final_layer_norm),))


def vision_ends(model: Any) -> Ends:
    """Read what stands around the blocks of the tower that reads pictures; the norm behind is its pooler's alone."""
    tower, place = _tower(model, "vision_model")
    return Ends(reads=f"{place}pre_layrnorm", before=(layer_norm(tower.pre_layrnorm),))


def _tower(model: Any, inner: str) -> tuple[Any, str]:
    # a tower with a projection behind it stands one module further in
    return (getattr(model, inner), f"{inner}.") if hasattr(model, inner) else (model, "")


def _sites(model: Any, inner: str, *, causal: bool) -> list[Site]:
    tower, place = _tower(model, inner)
    layers = tower.encoder.layers
    return [_site(i, layer, f"{place}encoder.layers.{i}", causal=causal) for i, layer in enumerate(layers)]


def _site(i: int, layer: Any, path: str, *, causal: bool) -> Site:
    own = layer.self_attn
    attention = Attention(
        **projections(own.q_proj, own.k_proj, own.v_proj, own.out_proj, own.num_heads, own.num_heads),
        scale=own.scale,
        positions=Positions(causal=causal),
    )
    return Site(
        layer=i,
        attention=attention,
        reads=f"{path}.self_attn",
        writes=f"{path}.self_attn.out_proj",
        block=path,
        before=layer_norm(layer.layer_norm1),
        feed_forward=FeedForward(
            map=mlp(layer.mlp.fc1, layer.mlp.activation_fn, layer.mlp.fc2), before=layer_norm(layer.layer_norm2)
        ),
    )
