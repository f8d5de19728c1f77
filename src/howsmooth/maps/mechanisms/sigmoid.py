"""SigmoidAttention: every weight on its own."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.mechanisms.counting import CountingAttention, token_counts
from howsmooth.maps.one_head import one_head
from howsmooth.maps.positions import Positions
from howsmooth.maps.query_key_transforms import TokenScaling, Transforms
from howsmooth.maps.scored import Mechanism
from howsmooth.maps.tiles import Tile, in_place
from howsmooth.maps.weighting import Pick, SymmetricWeights
from howsmooth.torch_internals import sigmoid_backward


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SigmoidAttention(CountingAttention):
    r"""Attention whose weights do not compete :cite:`ramapuram2025`.

    .. math:: f(X)_i = \sum_h W_h \sum_j m_j\,\sigma\bigl(s\,\langle Q_h x_i + b_q,\; K_h x_j + b_k\rangle + b\bigr)
              \,(V_h x_j + b_v) + b_o

    The bias is :math:`-\log n` by default, so that weights add up to about one. Each token counts once,
    :math:`m_j = 1`; with masses :math:`m_j = N a_j/\sum_l a_l`, where N is ``count``: the number of tokens that all
    mass stands for. On measures this is :math:`\int N\sigma(\cdot - \log N)\,Vy\,d\mu(y)`, and ``count`` has to be
    given.

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

    @classmethod
    def single_head(
        cls,
        *,
        Q: Float[Tensor, "k d"],
        K: Float[Tensor, "k d"],
        V: Float[Tensor, "v d"],
        causal: bool = False,
        positions: Positions | None = None,
        weights: Float[Tensor, "... n"] | None = None,
        bias: float | None = None,
        count: float | None = None,
    ) -> "SigmoidAttention":
        r"""Build one head of scale one: :math:`\sum_j\sigma(\langle Qx_i,Kx_j\rangle+b)\,Vx_j`.

        Args:
            Q: The query projection.
            K: The key projection.
            V: The value projection.
            causal: Whether a token sees only itself and the past.
            positions: Any other mask; not together with ``causal``.
            weights: The mass of each token.
            bias: b; :math:`-\log n` by default.
            count: How many tokens all mass stands for; as many as there are by default.
        """
        query, key, value, seen = one_head(Q=Q, K=K, V=V, causal=causal, positions=positions)
        return cls(
            query=query, key=key, value=value, scale=1.0, positions=seen, weights=weights, bias=bias, count=count
        )

    def _mechanism(self, X: Tensor) -> Mechanism:
        n = X.shape[-2]
        bias = -math.log(n if self.count is None else self.count) if self.bias is None else self.bias
        masses = token_counts(self.weights, self.count, n, X)
        by_token = None if masses is None else TokenScaling(masses[..., None, :, None])
        return Mechanism(
            weighting=Sigmoid(bias=bias),
            transforms=Transforms(value=by_token),
            value=self.value,
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

    def derivative(self, D: Tensor) -> Tensor:
        """Push a change of scores forward, or pull a cotangent of weights back."""
        return sigmoid_backward(D, self.P, out=D if in_place(D, self.P) else None)

    def sizes(self, D: Tensor) -> Tensor:
        """Return the two terms of every entry, without signs."""
        return (self.P + self.P.square()) * D.abs()

    def take(self, pick: Pick) -> "SigmoidWeights":
        """Return the weights of some entries of the batch."""
        return SigmoidWeights(pick(self.P))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sigmoid:
    r"""The rule :math:`P_{ij} = \sigma(S_{ij} + b)`."""

    bias: float

    whole = False
    matrices = 1
    may_see_nothing = True
    sums_to_one = False

    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> SigmoidWeights:
        """Return the weights of a tile of scores."""
        if in_place(S):
            return SigmoidWeights(S.add_(self.bias).sigmoid_())
        return SigmoidWeights(torch.sigmoid(S + self.bias))

    def rounding(self, n: int) -> float:
        """A weight moves by no larger share than its score moves."""
        return 1.0

    def take(self, pick: Pick) -> "Sigmoid":
        """Return the rules of some entries of the batch: all are alike."""
        return self
