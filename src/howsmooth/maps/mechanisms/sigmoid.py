"""SigmoidAttention, and the masses of every kind of attention that counts tokens.

For these kinds, twice as many tokens are not the same as twice the mass.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.mean_field_maps import Atoms
from howsmooth.maps.projections import TokenScaling, Transforms
from howsmooth.maps.weighting import Pick, SymmetricWeights, Tile
from howsmooth.torch_internals import in_place, sigmoid_backward

C = TypeVar("C", bound="CountingAttention")


def require_count(count: float | None) -> None:
    """Refuse a number of tokens that is not positive and finite."""
    if count is not None and not 0 < count < math.inf:
        raise AssumptionError(f"count must be positive and finite, got {count}.", field="count")


def require_count_on_measures(count: float | None) -> None:
    """Refuse a map on measures that would depend on the number of atoms."""
    if count is None:
        raise AssumptionError(
            "this attention counts tokens, so on measures it needs count=…, the number of tokens that the mass of one "
            "stands for.",
            field="count",
        )


def token_counts(
    weights: Float[Tensor, "... n"] | None, count: float | None, n: int, like: Tensor
) -> Float[Tensor, "... n"] | None:
    r"""Return the number of tokens that each token counts for, :math:`m_j = \mathrm{count}\cdot a_j/\sum_la_l`.

    ``None`` means one each, so it is for equal masses of as many tokens as there are.
    """
    if weights is None:
        return None if count is None or count == n else like.new_full((n,), count / n)
    return weights * ((n if count is None else count) / weights.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CountingAttention(ScoreAttention):
    """Attention by scores without normalisation by mass: each token counts once."""

    count: float | None = None  # the number of tokens that the total mass represents; none means as many as there are

    def on(self: C, measure: Atoms) -> C:
        """Return the map that moves the atoms of a measure; ``count`` has to be given."""
        require_count_on_measures(self.count)
        return super().on(measure)

    def _check_options(self) -> None:
        super()._check_options()
        require_count(self.count)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SigmoidAttention(CountingAttention):
    r"""Attention whose weights do not compete :cite:`ramapuram2025`.

    .. math:: f(X)_i = \sum_h W_h \sum_j m_j\,\sigma\bigl(s\,\langle Q_h x_i + b_q,\; K_h x_j + b_k\rangle + b\bigr)
              \,(V_h x_j + b_v) + b_o

    The bias is :math:`-\log n` by default, so that weights add up to about one. Each token counts once,
    :math:`m_j = 1`; with masses :math:`m_j = N a_j/\sum_l a_l`, where N is ``count``: the number of tokens that the
    total mass represents. On measures this is :math:`\int N\sigma(\cdot - \log N)\,Vy\,d\mu(y)`, and ``count`` is
    needed.

    Attributes:
        bias: :math:`b`; ``None`` means :math:`-\log N`.
        count: :math:`N`; ``None`` means the number of tokens.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> one = torch.eye(1)
        >>> SigmoidAttention.single_head(Q=0 * one, K=0 * one, V=one, bias=0.0)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    bias: float | None = None

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"sigmoid": {}}
    counting_kinds: ClassVar[tuple[str, ...]] = ("sigmoid",)

    def _mechanism(self, X: Tensor) -> Mechanism:
        n = X.shape[-2]
        bias = -math.log(n if self.count is None else self.count) if self.bias is None else self.bias
        masses = token_counts(self.weights, self.count, n, X)
        by_token = None if masses is None else TokenScaling(masses[..., None, :, None])
        return Mechanism(
            weighting=Sigmoid(bias=bias),
            value=self.value,
            transforms=Transforms(value=by_token),
            masses_in_scores=False,
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.bias is not None and not math.isfinite(self.bias):
            raise AssumptionError(f"bias must be finite, got {self.bias}.", field="bias")


@dataclass(frozen=True, eq=False)
class SigmoidWeights(SymmetricWeights):
    r"""Weights that move with their own scores alone: :math:`dP = P\circ(1-P)\circ dS`."""

    P: Float[Tensor, "stack rows columns"]

    def jvp(self, D: Tensor) -> Tensor:
        """Push a change of scores forward, or pull a cotangent of weights back."""
        return sigmoid_backward(D, self.P, out=D if in_place(D, self.P) else None)

    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the sum of the absolute values of both terms of every entry."""
        return (self.P + self.P.square()) * D.abs()

    def take(self, pick: Pick) -> "SigmoidWeights":
        """Return the weights of some entries of the batch."""
        return SigmoidWeights(pick(self.P))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sigmoid:
    r"""The rule :math:`P_{ij} = \sigma(S_{ij} + b)`."""

    bias: float

    couples_rows = False
    matrices = 1
    allows_empty_rows = True
    sums_to_one = False

    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> SigmoidWeights:
        """Return the weights of a tile of scores."""
        if in_place(S):
            return SigmoidWeights(S.add_(self.bias).sigmoid_())
        return SigmoidWeights(torch.sigmoid(S + self.bias))

    def rounding(self, n: int) -> float:
        """The relative error of a weight is at most the absolute error of its score."""
        return 1.0

    def take(self, pick: Pick) -> "Sigmoid":
        """Return the rules of some entries of the batch: all are alike."""
        return self
