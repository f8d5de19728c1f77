"""From scores to weights: the value, its derivative, the transpose of that; the softmax, with or without sink."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.tiles import Tile, in_place
from howsmooth.torch_internals import softmax_backward

Pick = Callable[[Tensor], Tensor]


@runtime_checkable
class Weights(Protocol):
    """The weights P of one tile, and how they move with its scores."""

    @property
    def P(self) -> Float[Tensor, "stack rows columns"]:
        """The weights."""

    def derivative(self, D: Tensor) -> Tensor:
        """Return dP for the change ``D`` of all scores; ``D`` may be written over."""

    def transpose(self, D: Tensor) -> Tensor:
        """Return the cotangent of scores for the cotangent ``D`` of weights; ``D`` may be written over."""

    def query_jvp(self, D: Tensor) -> Tensor:
        """Return dP when every row is moved by the query of its own token alone, in a context that stays."""

    def query_vjp(self, D: Tensor) -> Tensor:
        """Return the transpose of :meth:`query_jvp`."""

    def sizes(self, D: Tensor) -> Tensor:
        """Return what the entries of :meth:`derivative` are added up from, without signs; ``D`` may be written over."""

    def take(self, pick: Pick) -> "Weights":
        """Return the weights of some entries of the batch."""


@runtime_checkable
class Weighting(Protocol):
    """The rule from scores to weights."""

    @property
    def whole(self) -> bool:
        """Whether rows depend on each other, so that all have to be there at once."""

    @property
    def matrices(self) -> int:
        """How many matrices are kept for each matrix of scores."""

    @property
    def may_see_nothing(self) -> bool:
        """Whether a row may be left with nothing to see."""

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights of every row sum to one."""

    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> Weights:
        """Return the weights of a tile of scores; ``S`` may be written over."""

    def rounding(self, n: int) -> float:
        """Return how many times the relative error of weights exceeds the absolute error of scores."""

    def take(self, pick: Pick) -> "Weighting":
        """Return the rules of some entries of the batch."""


class SymmetricWeights(ABC):
    """Weights whose rows do not know each other, each with a symmetric derivative: one function serves all products."""

    @abstractmethod
    def derivative(self, D: Tensor) -> Tensor:
        """Push a change of scores forward."""

    def transpose(self, D: Tensor) -> Tensor:
        """Pull a cotangent of weights back."""
        return self.derivative(D)

    def query_jvp(self, D: Tensor) -> Tensor:
        """Push a change of each row's own query forward: other rows do not change it."""
        return self.derivative(D)

    def query_vjp(self, D: Tensor) -> Tensor:
        """Pull a cotangent of weights back to each row's own query."""
        return self.derivative(D)


@dataclass(frozen=True, eq=False)
class SoftmaxWeights(SymmetricWeights):
    """Softmax weights: the rows of P sum to one, or to less where there is a sink."""

    P: Float[Tensor, "stack rows columns"]

    def derivative(self, D: Tensor) -> Tensor:
        """Push a change of scores forward, or pull a cotangent of weights back."""
        return softmax_derivative(D, self.P)

    def sizes(self, D: Tensor) -> Tensor:
        """Return the two terms of every entry, without signs."""
        return softmax_sizes(D, self.P)

    def take(self, pick: Pick) -> "SoftmaxWeights":
        """Return the weights of some entries of the batch."""
        return SoftmaxWeights(pick(self.P))


@dataclass(frozen=True, kw_only=True, eq=False)
class Softmax:
    r"""The softmax of every row, :math:`P_{ij} = e^{S_{ij}}/\sum_le^{S_{il}}`; a sink c adds :math:`e^c` below.

    Attributes:
        sink: The score of the sink of every head, or ``None``.
    """

    sink: Float[Tensor, "stack shared"] | None = None

    whole = False
    matrices = 1

    @property
    def may_see_nothing(self) -> bool:
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
        # Why not exp(S − log of the sum): of large scores the logarithm has few digits, and so would the sum of weights
        most = torch.maximum(by_head.detach().amax(-1, keepdim=True), sink.detach())
        exponentials = (by_head - most).exp()
        total = exponentials.sum(-1, keepdim=True) + (sink - most).exp()
        return SoftmaxWeights((exponentials / total).flatten(1, 2))

    def rounding(self, n: int) -> float:
        """A weight is the exponential of a score."""
        return 1.0

    def take(self, pick: Pick) -> "Softmax":
        """Return the rules of some entries of the batch."""
        return dataclasses.replace(self, sink=None if self.sink is None else pick(self.sink))


def softmax(S: Tensor) -> Tensor:
    """Return the row-wise softmax of ``S``, in place of ``S`` where nothing watches."""
    if not in_place(S):  # elsewhere the kernel may not allow its output to be its input
        return torch.softmax(S, dim=-1)
    return torch.softmax(S, dim=-1, out=S)


def softmax_derivative(D: Tensor, P: Tensor) -> Tensor:
    r"""Return :math:`P\circ(D - \mathrm{rowsum}(P\circ D))`, in place of ``D`` where nothing watches.

    The derivative of a softmax with weights P is symmetric, so it serves both products. Subtracting the row's mean
    *before* multiplying is what keeps digits where the softmax is saturated and both are large.
    """
    if not in_place(D, P):
        return softmax_backward(D, P)
    return softmax_backward(D, P, out=D)


def softmax_sizes(D: Tensor, P: Tensor) -> Tensor:
    r"""Return :math:`P\circ(|D| + \mathrm{rowsum}(P\circ|D|))`: rounding of the derivative is a share of it."""
    moved = P * D.abs()
    return moved + P * moved.sum(-1, keepdim=True)
