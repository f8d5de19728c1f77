"""Tiles of the attention matrix, the memory they share, and whether autograd watches."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from howsmooth.torch_internals import inside_transform


@dataclass(frozen=True)
class Tile:
    """Some rows of the attention matrix and the columns that they may see."""

    rows: slice
    columns: slice

    @property
    def height(self) -> int:
        """How many rows there are."""
        return self.rows.stop - self.rows.start

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.columns.stop - self.columns.start


def rows_of(x: Float[Tensor, "stack shared n k"], tile: Tile) -> Float[Tensor, "stack rows k"]:
    """Return the rows of a tile, the heads of a group stacked."""
    return x[:, :, tile.rows].flatten(1, 2)


def unstack(x: Float[Tensor, "stack rows k"], tile: Tile) -> Float[Tensor, "stack shared n k"]:
    """Undo the stacking of :func:`rows_of`."""
    return x.unflatten(1, (-1, tile.height))


class Workspace:
    """One tile's worth of memory, used again and again; autograd gets fresh memory every time."""

    def __init__(self, *operands: Tensor) -> None:
        """Prepare for products of ``operands`` (the first one: the queries)."""
        self._recorded = recorded(*operands)
        self._like = operands[0]
        self._memory: Tensor | None = None

    def __call__(self, tile: Tile) -> Tensor | None:
        """Return memory for the scores of ``tile``, or ``None`` when autograd needs its own."""
        if self._recorded:
            return None
        shape = (self._like.shape[0], self._like.shape[1] * tile.height, tile.width)
        size = shape[0] * shape[1] * shape[2]
        if self._memory is None or self._memory.numel() < size:
            self._memory = self._like.new_empty(size)
        return self._memory[:size].view(shape)


def recorded(*operands: Tensor) -> bool:
    """Tell whether autograd, in either mode, or a transform of torch.func watches an operation on ``operands``."""
    if inside_transform() or any(forward_ad.unpack_dual(x).tangent is not None for x in operands):
        return True
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def in_place(*operands: Tensor) -> bool:
    """Tell whether a result may be written over its operands: nothing watches, and the kernels allow it."""
    return operands[0].device.type == "cpu" and not recorded(*operands)
