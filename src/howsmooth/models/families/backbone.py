"""What the reader of a family returns, and the builder that all readers share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.parts.ends import EndMap, Stem


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
