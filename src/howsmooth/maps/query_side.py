"""The derivative of each token's output with respect to its own query alone."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.linear_operators import Operator, fields_of
from howsmooth.maps.heads_derivative import HeadsJacobian, project_heads
from howsmooth.maps.joint_norm import of_each_head


@dataclass(frozen=True, kw_only=True, eq=False)
class QuerySide(Operator):
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
        layout, (n, d), (_n, out) = jacobian.projections.layout, jacobian.domain, jacobian.codomain
        fields = fields_of(jacobian) | {"batch": (n,), "domain": (d,), "codomain": (out,)}
        return cls(jacobian=jacobian, weight=jacobian.projections.weight[: layout.heads * layout.k], **fields)

    @property
    def rounding(self) -> float:
        """Bound the rounding error of a product: operators of smaller norm are treated as zero.

        A token that sees only itself, or equal tokens, has the operator zero, which rounding turns into noise.
        """
        norms = [_norm_bound(x) for x in (self.weight, self.jacobian.output) if x is not None]
        return self.jacobian.query_rounding * math.prod(norms)

    def jvp(self, E: Float[Tensor, "n d"]) -> Float[Tensor, "n out"]:
        """Move every token's query, and nothing else."""
        J = self.jacobian
        self.check_perturbation(E)
        layout, norm, rotation = J.projections.layout, of_each_head(J.projections.query_norm), J.projections.rotation
        transform = J.projections.transforms.query
        dq = (self._spread(E) @ self.weight.mT).unflatten(-1, (layout.heads, layout.k)).transpose(0, 1)
        dq = dq if norm is None else norm.jvp(dq)
        dq = dq if rotation is None else rotation(dq)
        dq = dq if transform is None else transform.jvp(dq)
        return self._gather(project_heads(J.push_queries(dq), J.output, ()))

    def vjp(self, G: Float[Tensor, "n out"]) -> Float[Tensor, "n d"]:
        """Pull a cotangent of every token's output back through its query alone."""
        J = self.jacobian
        self.check_cotangent(G)
        layout, norm, rotation = J.projections.layout, of_each_head(J.projections.query_norm), J.projections.rotation
        transform = J.projections.transforms.query
        dq = J.pull_queries(J.by_head(self._spread(G)))
        dq = dq.reshape(*J.lead, layout.heads, -1, dq.shape[-1])
        dq = dq if transform is None else transform.vjp(dq)
        dq = dq if rotation is None else rotation.T(dq)
        dq = dq if norm is None else norm.vjp(dq)
        return self._gather(dq.transpose(0, 1).flatten(-2) @ self.weight)

    def take(self, index: Int[Tensor, " m"]) -> "QuerySide":
        """Pick some tokens; a product still costs as much as for all."""
        tokens = index if self.tokens is None else self.tokens[index]
        return dataclasses.replace(self, tokens=tokens, batch=(len(tokens),))

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
        return dataclasses.replace(self, weight=triangle.mT, domain=(p,)), lambda E: E @ basis.mT


def _norm_bound(x: Tensor) -> float:
    """Bound the spectral norm by the largest row and column sums."""
    return math.sqrt(float(x.abs().sum(-1).max()) * float(x.abs().sum(-2).max()))
