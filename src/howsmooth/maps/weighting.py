"""From scores to weights, tile by tile: the value, its derivative, the transpose of that; the softmax."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.torch_internals import recorded, softmax, softmax_derivative

Pick = Callable[[Tensor], Tensor]
K = TypeVar("K", bound="Pickable")


@dataclass(frozen=True)
class Tile:
    """Some rows of the attention matrix, and the range of columns that their masks leave."""

    rows: slice
    columns: slice

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.rows.stop - self.rows.start

    @property
    def width(self) -> int:
        """The number of columns."""
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


def _picked(x: Any, pick: Pick) -> Any:
    return pick(x) if isinstance(x, Tensor) else x.take(pick) if hasattr(x, "take") else x


class Pickable:
    """A dataclass of tensors with one entry for each entry of the batch, and of numbers."""

    def take(self: K, pick: Pick) -> K:
        """Return the same for some entries of the batch."""
        fields = dataclasses.fields(cast(Any, self))
        return dataclasses.replace(cast(Any, self), **{f.name: _picked(getattr(self, f.name), pick) for f in fields})


@dataclass(frozen=True, eq=False)
class Weights(Pickable, ABC):
    """The weights P of one tile, and their derivative with respect to its scores; arguments may be written over.

    By default rows are independent, each with a symmetric derivative, so that one function serves all products.
    """

    P: Float[Tensor, "stack rows columns"]

    @abstractmethod
    def jvp(self, D: Tensor) -> Tensor:
        """Return dP for the change ``D`` of all scores."""

    def vjp(self, D: Tensor) -> Tensor:
        """Return the cotangent of scores for the cotangent ``D`` of weights."""
        return self.jvp(D)

    def query_jvp(self, D: Tensor) -> Tensor:
        """Return dP when each row's query moves and keys stay fixed."""
        return self.jvp(D)

    def query_vjp(self, D: Tensor) -> Tensor:
        """Return the transpose of :meth:`query_jvp`."""
        return self.vjp(D)

    @abstractmethod
    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the sums of absolute terms in :meth:`jvp`, entry by entry; ``D`` stays what it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighting(Pickable, ABC):
    """The rule from scores to weights."""

    # whether rows depend on each other, so that all of them form one tile
    couples_rows: ClassVar[bool] = False
    # how many matrices are kept for each matrix of scores
    matrices: ClassVar[int] = 1

    @property
    def allows_empty_rows(self) -> bool:
        """Whether a mask may hide every token of a row."""
        return False

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights of every row sum to one."""
        return True

    @abstractmethod
    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> Weights:
        """Return the weights of a tile of scores; ``S`` may be written over."""

    def rounding(self, n: int) -> float:
        """Bound the relative error of weights, as a multiple of the absolute error of scores."""
        return 1.0


@dataclass(frozen=True, eq=False)
class SoftmaxWeights(Weights):
    """Softmax weights: the rows of P sum to one, or to less where there is a sink."""

    def jvp(self, D: Tensor) -> Tensor:
        """Apply the derivative of the softmax."""
        return softmax_derivative(D, self.P)

    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the sum of the absolute values of both terms of every entry."""
        return softmax_magnitudes(D, self.P)


@dataclass(frozen=True, kw_only=True, eq=False)
class Softmax(Weighting):
    r"""The softmax of every row, :math:`P_{ij} = e^{S_{ij}}/\sum_le^{S_{il}}`; a sink c adds :math:`e^c` below."""

    sink: Float[Tensor, "stack shared"] | None = None  # the score of the sink of every head, or none

    @property
    def allows_empty_rows(self) -> bool:
        """A sink can always be seen."""
        return self.sink is not None

    @property
    def sums_to_one(self) -> bool:
        """A sink takes a share of the weights."""
        return self.sink is None

    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> SoftmaxWeights:
        """Return the weights of a tile of scores."""
        if self.sink is None:
            return SoftmaxWeights(softmax(S))
        by_head, sink = S.unflatten(1, (-1, tile.height)), self.sink[:, :, None, None]
        # Why not exp(S − log of the sum): for large scores the logarithm has few digits, and so would the weights
        largest = torch.maximum(by_head.detach().amax(-1, keepdim=True), sink.detach())
        exponentials = (by_head - largest).exp()
        total = exponentials.sum(-1, keepdim=True) + (sink - largest).exp()
        return SoftmaxWeights((exponentials / total).flatten(1, 2))


def softmax_magnitudes(D: Tensor, P: Tensor) -> Tensor:
    r"""Return :math:`P\circ(|D| + \mathrm{rowsum}(P\circ|D|))`: rounding of the derivative is a share of it."""
    first = P * D.abs()
    return first + P * first.sum(-1, keepdim=True)
