"""What stands in front of a model's first block and behind its last one."""

from dataclasses import dataclass
from typing import Any

from howsmooth.maps.dense import Dense
from howsmooth.maps.norms import LayerNorm, RMSNorm

End = LayerNorm | RMSNorm | Dense


@dataclass(frozen=True, kw_only=True, eq=False)
class Ends:
    """The maps around the blocks.

    Attributes:
        reads: The module that reads the sum of the embeddings; none where that is what enters the first block.
        before: From the sum of the embeddings to what enters the first block.
        after: From what the last block puts out to the model's last hidden states.
    """

    reads: str | None = None
    before: tuple[End, ...] = ()
    after: tuple[End, ...] = ()


def linear(module: Any) -> Dense:
    """Read a linear layer."""
    return Dense(weight=module.weight.detach(), bias=None if module.bias is None else module.bias.detach())
