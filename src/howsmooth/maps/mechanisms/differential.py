"""DifferentialAttention: the difference of two softmaxes."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.projections import Halves, Transforms
from howsmooth.maps.weighting import Pick, Tile, softmax_magnitudes
from howsmooth.torch_internals import in_place, softmax, softmax_backward, softmax_derivative
from howsmooth.validation import require_parameter


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DifferentialAttention(ScoreAttention):
    r"""Attention whose weights are the difference of two softmaxes, so that they may be negative :cite:`ye2025`.

    .. math:: f(X)_i = \sum_h W_h \sum_j\bigl(P^{h1}_{ij} - \lambda_hP^{h2}_{ij}\bigr)(V_h x_j + b_v) + b_o

    Queries and keys of a head are twice as wide: the first half of their coordinates makes :math:`P^{h1}`, the second
    :math:`P^{h2}`. The norm that follows in a Differential Transformer is not part of this map.

    Attributes:
        query: ``(heads, 2k, d)``.
        key: ``(groups, 2k, d)``.
        scale: ``None`` means :math:`1/\sqrt k`.
        subtracted: :math:`\lambda`, ``(heads,)``.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> zero, one = torch.zeros(2, 1), torch.eye(1)
        >>> DifferentialAttention.single_head(Q=zero, K=zero, V=one, subtracted=0.5)(torch.tensor([[1.0], [3.0]]))
        tensor([[1.],
                [1.]])
    """

    subtracted: Float[Tensor, "*w heads"]

    for_each_head: ClassVar[tuple[str, ...]] = ("subtracted",)
    single_head_defaults: ClassVar[dict[str, Any]] = {"scale": 1.0, "subtracted": 0.5}

    @property
    def score_scale(self) -> float:
        r"""The factor of the scores, ``scale`` or :math:`1/\sqrt k` where none is given."""
        return 1 / math.sqrt(self.layout.k // 2) if self.scale is None else self.scale

    def _mechanism(self, X: Tensor) -> Mechanism:
        subtracted = self.subtracted.expand(*X.shape[:-2], -1).reshape(-1, self.layout.shared)
        return Mechanism(
            weighting=SoftmaxDifference(subtracted=subtracted),
            value=self.value,
            transforms=Transforms(Halves(), Halves()),
            lead=(2,),
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.layout.k % 2 or not self.layout.k:
            raise ShapeError(
                f"queries and keys have two halves, so their width must be even, got {self.layout.k}.", field="query"
            )
        shape = (*self.query.shape[:-3], self.layout.heads)
        require_parameter(self.subtracted, shape, self.query, "subtracted", "query")
        for what in ("rotary", "distances"):
            if getattr(self.positions, what) is not None:
                raise AssumptionError(f"differential attention does not know {what} positions.", field="positions")


@dataclass(frozen=True, eq=False)
class SoftmaxDifferenceWeights:
    r"""The weights :math:`P_1 - \lambda P_2`; their scores are stacked, those of :math:`P_1` first."""

    P: Float[Tensor, "stack rows columns"]  # the difference
    first: Float[Tensor, "stack rows columns"]  # P₁
    second: Float[Tensor, "stack rows columns"]  # P₂
    subtracted: Float[Tensor, "stack rows 1"]  # λ for each row

    def jvp(self, D: Float[Tensor, "twice rows columns"]) -> Float[Tensor, "stack rows columns"]:
        """Push a change of both scores forward."""
        one, two = D.chunk(2)
        moved, back = softmax_derivative(one, self.first), softmax_derivative(two, self.second)
        if in_place(moved, back, self.subtracted):
            return moved.addcmul_(back, self.subtracted, value=-1)
        return torch.addcmul(moved, back, self.subtracted, value=-1)

    def vjp(self, D: Float[Tensor, "stack rows columns"]) -> Float[Tensor, "twice rows columns"]:
        """Pull a cotangent of weights back to both scores."""
        if not in_place(D, self.first, self.subtracted):
            return torch.cat((softmax_backward(D, self.first), softmax_backward(-self.subtracted * D, self.second)))
        # both cotangents are written where they will be read, stacked: a concatenation would copy two tiles
        both = D.new_empty(2 * D.shape[0], *D.shape[1:])
        one, two = both.chunk(2)
        softmax_backward(torch.mul(D, -self.subtracted, out=two), self.second, out=two)
        softmax_backward(D, self.first, out=one)
        return both

    query_jvp, query_vjp = jvp, vjp

    def magnitudes(self, D: Float[Tensor, "twice rows columns"]) -> Float[Tensor, "stack rows columns"]:
        """Return the sum of the absolute values of the terms of every entry."""
        one, two = D.chunk(2)
        return softmax_magnitudes(one, self.first) + self.subtracted.abs() * softmax_magnitudes(two, self.second)

    def take(self, pick: Pick) -> "SoftmaxDifferenceWeights":
        """Return the weights of some entries of the batch."""
        return SoftmaxDifferenceWeights(pick(self.P), pick(self.first), pick(self.second), pick(self.subtracted))


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxDifference:
    """The rule from two stacked scores to the difference of their softmaxes."""

    subtracted: Float[Tensor, "stack shared"]

    couples_rows = False
    matrices = 2
    allows_empty_rows = False
    sums_to_one = False

    def __call__(self, S: Float[Tensor, "twice rows columns"], tile: Tile) -> SoftmaxDifferenceWeights:
        """Return the weights of two stacked tiles of scores."""
        first, second = softmax(S).chunk(2)
        subtracted = self.subtracted.repeat_interleave(tile.height, dim=1).unsqueeze(-1)
        return SoftmaxDifferenceWeights(torch.addcmul(first, second, subtracted, value=-1), first, second, subtracted)

    def rounding(self, n: int) -> float:
        """Two weights are subtracted, each with the error of a softmax."""
        return 2.0

    def take(self, pick: Pick) -> "SoftmaxDifference":
        """Return the rules of some entries of the batch."""
        return SoftmaxDifference(subtracted=pick(self.subtracted))
