"""What the reader of a family returns, and the builder that all readers share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.families.parameters import layer_norm, mlp
from howsmooth.models.parts.ends import EndMap, Stem
from howsmooth.models.parts.feed_forward import FeedForward


@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone:
    """A model without its head.

    Attributes:
        layers: Its layers, in the order in which they run.
        stem: The maps from the sum of the embeddings to the first layer; none for an unknown family.
        final: The maps behind the last layer.
    """

    layers: list[AttentionLayer]
    stem: Stem | None = field(default_factory=Stem)
    final: tuple[EndMap, ...] = ()


def read_layers(
    blocks: Iterable[Any], path: str, attention: str, projection: str, read: Callable[[Any], dict[str, Any]]
) -> list[AttentionLayer]:
    """Read a list of blocks.

    Args:
        blocks: The modules.
        path: The path of their list.
        attention: The path of the attention module within a block.
        projection: The path of the output projection within a block.
        read: Returns the other arguments of :class:`AttentionLayer` for a block.
    """
    return [
        AttentionLayer(
            index=i,
            attention_path=f"{path}.{i}.{attention}",
            projection_path=f"{path}.{i}.{projection}",
            block_path=f"{path}.{i}",
            **read(block),
        )
        for i, block in enumerate(blocks)
    ]


def pre_norm_mlp(
    norm: Any, mlp_norm: Any, up: Any, activation: Any, down: Any, *, parallel: bool = False
) -> dict[str, Any]:
    """Read a LayerNorm in front of attention and one in front of a plain MLP; parallel parts may share one module."""
    pre_norm = layer_norm(norm)
    second = pre_norm if mlp_norm is norm else layer_norm(mlp_norm)
    feed_forward = FeedForward(map=mlp(up, activation, down), pre_norm=second, parallel=parallel)
    return {"pre_norm": pre_norm, "feed_forward": feed_forward}


def post_norm_mlp(norm: Any, mlp_norm: Any, up: Any, activation: Any, down: Any) -> dict[str, Any]:
    """Read a plain MLP, and a LayerNorm behind each residual sum."""
    feed_forward = FeedForward(map=mlp(up, activation, down), post_norm=layer_norm(mlp_norm))
    return {"post_norm": layer_norm(norm), "feed_forward": feed_forward}
