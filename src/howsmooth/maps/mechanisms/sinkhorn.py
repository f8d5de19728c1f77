"""SinkhornAttention: weights whose rows and columns sum to one."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.mechanisms.potentials import DoublyStochastic, balance
from howsmooth.maps.one_head import one_head
from howsmooth.maps.positions import Positions
from howsmooth.maps.query_key_transforms import Transforms
from howsmooth.maps.scored import Mechanism, ScoreAttention
from howsmooth.maps.tiles import Tile
from howsmooth.maps.weighting import Pick, softmax_derivative, softmax_sizes
from howsmooth.memory import require_memory

MAX_STEPS = 1000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SinkhornAttention(ScoreAttention):
    r"""Attention with doubly stochastic weights :cite:`sander2022`.

    .. math:: P^h_{ij} = e^{S_{ij} + f_i + g_j}a_j,\qquad \sum_jP^h_{ij} = 1,\quad \sum_ia_iP^h_{ij} = a_j

    The potentials f and g are found by Sinkhorn's iteration and Newton's, to rounding; scores for which they are not
    found are refused. Derivatives are those of the potentials, not of the loop: one triangular factor of an n × n
    matrix for each head when the Jacobian is made, one solve with it for each product. All weights are kept.

    A mask would leave nothing to balance; biases of distance and position are fine.

    Attributes:
        max_steps: How many iterations the potentials may take.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> one = torch.eye(1)
        >>> SinkhornAttention.single_head(Q=0 * one, K=one, V=one)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    max_steps: int = MAX_STEPS

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
    ) -> "SinkhornAttention":
        r"""Build one head of scale one: scores :math:`\langle Qx_i,Kx_j\rangle`, values :math:`Vx_j`.

        Args:
            Q: The query projection.
            K: The key projection.
            V: The value projection.
            causal: Refused: only the identity is triangular and doubly stochastic.
            positions: Biases of distance and position.
            weights: The mass of each token.
        """
        query, key, value, seen = one_head(Q=Q, K=K, V=V, causal=causal, positions=positions)
        return cls(query=query, key=key, value=value, scale=1.0, positions=seen, weights=weights)

    def _mechanism(self, X: Tensor) -> Mechanism:
        n = X.shape[-2]
        pairs = math.prod(X.shape[:-2]) * self.layout.heads * n**2
        require_memory(3 * pairs * X.element_size(), "balancing all weights at once", field="X")
        masses = X.new_full((n,), 1 / n) if self.weights is None else self.weights / self.weights.sum(-1, keepdim=True)
        masses = masses.expand(*X.shape[:-2], n).reshape(-1, 1, n).repeat_interleave(self.layout.groups, dim=0)
        return Mechanism(
            weighting=Sinkhorn(masses=masses, max_steps=self.max_steps),
            transforms=Transforms(),
            value=self.value,
            masses_in_scores=False,
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.max_steps < 1:
            raise AssumptionError(f"max_steps must be at least 1, got {self.max_steps}.", field="max_steps")
        seen = self.positions
        if seen.causal or seen.window is not None or seen.padding is not None or seen.mask is not None:
            raise AssumptionError(
                "weights whose rows and columns sum to one have no mask: under a causal one they are the identity. "
                "Use hs.Attention, or leave the mask away.",
                field="positions",
            )


@dataclass(frozen=True, eq=False)
class SinkhornWeights:
    r"""DoublyStochastic weights, which move with all scores of their matrix.

    With L the derivative of the row-wise softmax, :math:`dP = L(dS + 1\,dg^\top)`, where :math:`dg` keeps the columns:
    :math:`G^{-1}dg = -\sum_ia_i\,(L\,dS)_{i\cdot}`. The transpose is :math:`L(D - a\,w^\top)`,
    :math:`w = G\sum_i(LD)_{i\cdot}`: one pass, one solve, one more pass.

    Attributes:
        balanced: P with its masses and the factor of :math:`G^{-1}`.
    """

    balanced: DoublyStochastic

    @property
    def P(self) -> Float[Tensor, "stack rows n"]:
        """The weights."""
        return self.balanced.P.flatten(1, 2)

    def derivative(self, D: Tensor) -> Tensor:
        """Push a change of scores forward."""
        found = self.balanced
        moved = softmax_derivative(D, self.P).view(found.P.shape)
        dg = -found.solve((found.masses.mT * moved).sum(-2, keepdim=True))
        return (moved + found.P * (dg - found.P @ dg.mT)).flatten(1, 2)

    def transpose(self, D: Tensor) -> Tensor:
        """Pull a cotangent of weights back."""
        found = self.balanced
        moved = softmax_derivative(D, self.P).view(found.P.shape)
        w = found.solve(moved.sum(-2, keepdim=True))
        return (moved - found.masses.mT * found.P * (w - found.P @ w.mT)).flatten(1, 2)

    def query_jvp(self, D: Tensor) -> Tensor:
        """Push a change of each row's own query forward: g belongs to the context, f normalises the row."""
        return softmax_derivative(D, self.P)

    query_vjp = query_jvp

    def sizes(self, D: Tensor) -> Tensor:
        """Return the terms of the row-wise softmax and the entries themselves, without signs."""
        return softmax_sizes(D, self.P) + self.derivative(D).abs()

    def take(self, pick: Pick) -> "SinkhornWeights":
        """Return the weights of some entries of the batch."""
        return SinkhornWeights(self.balanced.take(pick))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sinkhorn:
    """The rule from scores to balanced weights.

    Attributes:
        masses: The mass of every token; they sum to one.
        max_steps: How many iterations it may take.
    """

    masses: Float[Tensor, "stack 1 n"]
    max_steps: int

    whole = True
    matrices = 2
    may_see_nothing = False
    sums_to_one = True

    def __call__(self, S: Float[Tensor, "stack rows n"], tile: Tile) -> SinkhornWeights:
        """Return the weights of all scores."""
        by_head = S.unflatten(1, (-1, tile.height))
        return SinkhornWeights(balance(by_head, self.masses.unsqueeze(1), max_steps=self.max_steps))

    def rounding(self, n: int) -> float:
        """Potentials follow the scores of all rows."""
        return float(n)

    def take(self, pick: Pick) -> "Sinkhorn":
        """Return the rules of some entries of the batch."""
        return Sinkhorn(masses=pick(self.masses), max_steps=self.max_steps)
