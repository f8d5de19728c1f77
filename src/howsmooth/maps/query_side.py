"""The query side of the derivative: how each token's output moves when only its own query does."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.maps.heads_derivative import HeadsJacobian, project_heads
from howsmooth.maps.joint_norm import of_each_head
from howsmooth.validation import require_like


@dataclass(frozen=True, kw_only=True, eq=False)
class QuerySide:
    r"""The operators :math:`\sum_hW_hV_hC^h_iA_h`, one for each token i, as a batch of n operators.

    This is the part of the derivative that acts token by token. One product serves all tokens at once and costs less
    than one product with the Jacobian, from which it is read: the products of scores with keys and values alone.

    Attributes:
        jacobian: The whole derivative.
        weight: The query projections of all heads, or what is left of them after compression.
        tokens: Which tokens, ``None`` for all.
    """

    jacobian: HeadsJacobian
    weight: Float[Tensor, "hk d"]
    tokens: Int[Tensor, " m"] | None = None

    @classmethod
    def of(cls, jacobian: HeadsJacobian) -> "QuerySide":
        """Read the query side from the derivative at one sequence."""
        layout = jacobian.projections.layout
        return cls(jacobian=jacobian, weight=jacobian.projections.weight[: layout.heads * layout.k])

    @property
    def batch(self) -> tuple[int, ...]:
        """One operator for each token."""
        return (self.jacobian.domain[0] if self.tokens is None else len(self.tokens),)

    @property
    def domain(self) -> tuple[int, ...]:
        """The dimension of a token."""
        return (self.weight.shape[-1],)

    @property
    def codomain(self) -> tuple[int, ...]:
        """The dimension of an output token."""
        return (self.jacobian.codomain[-1],)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.jacobian.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.jacobian.device

    @property
    def rounding(self) -> float:
        """How far a product may be off: operators that move nothing further than this are as good as zero.

        A token that sees only itself, or equal tokens, has the operator zero, which rounding turns into noise.
        """
        norms = [_norm_bound(x) for x in (self.weight, self.jacobian.output) if x is not None]
        return self.jacobian.query_rounding * math.prod(norms)

    def jvp(self, E: Float[Tensor, "n d"]) -> Float[Tensor, "n out"]:
        """Move every token's query, and nothing else."""
        J = self.jacobian
        require_like(E, J.means, (*self.batch, *self.domain), "the perturbation")
        layout, norm, rotation = J.projections.layout, of_each_head(J.projections.query_norm), J.projections.rotation
        lift = J.projections.transforms.query
        dq = (self._spread(E) @ self.weight.mT).unflatten(-1, (layout.heads, layout.k)).transpose(0, 1)
        dq = dq if norm is None else norm.jvp(dq)
        dq = dq if rotation is None else rotation(dq)
        dq = dq if lift is None else lift.jvp(dq)
        return self._gather(project_heads(J.moved_by_queries(dq), J.output, ()))

    def vjp(self, G: Float[Tensor, "n out"]) -> Float[Tensor, "n d"]:
        """Pull a cotangent of every token's output back through its query alone."""
        J = self.jacobian
        require_like(G, J.means, (*self.batch, *self.codomain), "the cotangent")
        layout, norm, rotation = J.projections.layout, of_each_head(J.projections.query_norm), J.projections.rotation
        lift = J.projections.transforms.query
        dq = J.pulled_to_queries(J.by_head(self._spread(G)))
        dq = dq.reshape(*J.lead, layout.heads, -1, dq.shape[-1])
        dq = dq if lift is None else lift.vjp(dq)
        dq = dq if rotation is None else rotation.T(dq)
        dq = dq if norm is None else norm.vjp(dq)
        return self._gather(dq.transpose(0, 1).flatten(-2) @ self.weight)

    def take(self, index: Int[Tensor, " m"]) -> "QuerySide":
        """Pick some tokens; a product still costs as much as for all."""
        return dataclasses.replace(self, tokens=index if self.tokens is None else self.tokens[index])

    def _spread(self, x: Float[Tensor, "m w"]) -> Float[Tensor, "n w"]:
        if self.tokens is None:
            return x
        return x.new_zeros(self.jacobian.domain[0], x.shape[-1]).index_copy(0, self.tokens, x)

    def _gather(self, x: Float[Tensor, "n w"]) -> Float[Tensor, "m w"]:
        return x if self.tokens is None else x[self.tokens]

    def compress(self) -> tuple["QuerySide", Callable[[Tensor], Tensor]]:
        """Restrict tokens to what queries see, where that is less than everything."""
        p, d = self.weight.shape
        if p >= d:
            return self, lambda E: E
        basis, triangle = torch.linalg.qr(self.weight.mT)
        return dataclasses.replace(self, weight=triangle.mT), lambda E: E @ basis.mT


def _norm_bound(x: Tensor) -> float:
    """Bound the spectral norm by the largest row and column sums."""
    return math.sqrt(float(x.abs().sum(-1).max()) * float(x.abs().sum(-2).max()))
