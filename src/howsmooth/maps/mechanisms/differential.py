"""DifferentialAttention: the difference of two softmaxes."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.one_head import one_head
from howsmooth.maps.positions import Positions
from howsmooth.maps.query_key_transforms import Halves, Transforms
from howsmooth.maps.scored import Mechanism, ScoreAttention
from howsmooth.maps.tiles import Tile, in_place
from howsmooth.maps.weighting import Pick, softmax, softmax_derivative, softmax_sizes
from howsmooth.torch_internals import softmax_backward
from howsmooth.validation import require_agreement, require_finite, require_floating, require_shape


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

    @classmethod
    def single_head(
        cls,
        *,
        Q: Float[Tensor, "k2 d"],
        K: Float[Tensor, "k2 d"],
        V: Float[Tensor, "v d"],
        causal: bool = False,
        positions: Positions | None = None,
        weights: Float[Tensor, "... n"] | None = None,
        subtracted: float = 0.5,
    ) -> "DifferentialAttention":
        r"""Build one head of scale one.

        Args:
            Q: The query projections, one above the other.
            K: The key projections, one above the other.
            V: The value projection.
            causal: Whether a token sees only itself and the past.
            positions: Any other mask; not together with ``causal``.
            weights: The mass of each token.
            subtracted: λ.
        """
        query, key, value, seen = one_head(Q=Q, K=K, V=V, causal=causal, positions=positions)
        return cls(
            query=query,
            key=key,
            value=value,
            scale=1.0,
            positions=seen,
            weights=weights,
            subtracted=Q.new_full((1,), subtracted),
        )

    @property
    def score_scale(self) -> float:
        r"""What the scores are multiplied by, ``scale`` or :math:`1/\sqrt k` where none is given."""
        return 1 / math.sqrt(self.layout.k // 2) if self.scale is None else self.scale

    def _mechanism(self, X: Tensor) -> Mechanism:
        subtracted = self.subtracted.expand(*X.shape[:-2], -1).reshape(-1, self.layout.shared)
        return Mechanism(
            weighting=SoftmaxDifference(subtracted=subtracted),
            transforms=Transforms(Halves(), Halves()),
            value=self.value,
            lead=(2,),
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.layout.k % 2 or not self.layout.k:
            raise ShapeError(
                f"queries and keys have two halves, so their width must be even, got {self.layout.k}.", field="query"
            )
        require_floating(self.subtracted, "subtracted")
        require_shape(self.subtracted, (*self.query.shape[:-3], self.layout.heads), "subtracted")
        require_agreement(self.subtracted, self.query, "subtracted", "query")
        require_finite(self.subtracted, "subtracted")
        for what in ("rotary", "distances"):
            if getattr(self.positions, what) is not None:
                raise AssumptionError(f"differential attention does not know {what} positions.", field="positions")


@dataclass(frozen=True, eq=False)
class SoftmaxDifferenceWeights:
    r"""The weights :math:`P_1 - \lambda P_2`; their scores are stacked, those of :math:`P_1` first.

    Attributes:
        P: The difference.
        first: :math:`P_1`.
        second: :math:`P_2`.
        subtracted: λ for each row.
    """

    P: Float[Tensor, "stack rows columns"]
    first: Float[Tensor, "stack rows columns"]
    second: Float[Tensor, "stack rows columns"]
    subtracted: Float[Tensor, "stack rows 1"]

    def derivative(self, D: Float[Tensor, "twice rows columns"]) -> Float[Tensor, "stack rows columns"]:
        """Push a change of both scores forward."""
        one, two = D.chunk(2)
        moved, back = softmax_derivative(one, self.first), softmax_derivative(two, self.second)
        if in_place(moved, back, self.subtracted):
            return moved.addcmul_(back, self.subtracted, value=-1)
        return torch.addcmul(moved, back, self.subtracted, value=-1)

    def transpose(self, D: Float[Tensor, "stack rows columns"]) -> Float[Tensor, "twice rows columns"]:
        """Pull a cotangent of weights back to both scores."""
        if not in_place(D, self.first, self.subtracted):
            return torch.cat((softmax_backward(D, self.first), softmax_backward(-self.subtracted * D, self.second)))
        both = D.new_empty(2 * D.shape[0], *D.shape[1:])
        one, two = both.chunk(2)
        softmax_backward(torch.mul(D, -self.subtracted, out=two), self.second, out=two)
        softmax_backward(D, self.first, out=one)
        return both

    query_jvp, query_vjp = derivative, transpose

    def sizes(self, D: Float[Tensor, "twice rows columns"]) -> Float[Tensor, "stack rows columns"]:
        """Return the terms of every entry, without signs."""
        one, two = D.chunk(2)
        return softmax_sizes(one, self.first) + self.subtracted.abs() * softmax_sizes(two, self.second)

    def take(self, pick: Pick) -> "SoftmaxDifferenceWeights":
        """Return the weights of some entries of the batch."""
        return SoftmaxDifferenceWeights(pick(self.P), pick(self.first), pick(self.second), pick(self.subtracted))


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxDifference:
    """The rule from two stacked scores to the difference of their softmaxes."""

    subtracted: Float[Tensor, "stack shared"]

    whole = False
    matrices = 2
    may_see_nothing = False
    sums_to_one = False

    def __call__(self, S: Float[Tensor, "twice rows columns"], tile: Tile) -> SoftmaxDifferenceWeights:
        """Return the weights of two stacked tiles of scores."""
        first, second = softmax(S).chunk(2)
        subtracted = self.subtracted.repeat_interleave(tile.height, dim=1).unsqueeze(-1)
        return SoftmaxDifferenceWeights(torch.addcmul(first, second, subtracted, value=-1), first, second, subtracted)

    def rounding(self, n: int) -> float:
        """What is small after a subtraction is compared with what was there before."""
        return 2.0

    def take(self, pick: Pick) -> "SoftmaxDifference":
        """Return the rules of some entries of the batch."""
        return SoftmaxDifference(subtracted=pick(self.subtracted))
