"""HeadsJacobian: the part of the derivative that every kind of attention shares, and its part in the queries alone."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.linear_operators import Operator, fields_of
from howsmooth.maps.norms import of_each_head
from howsmooth.maps.projections import Projections

# Power steps on the value path alone, in a space of one token: together they cost about one product.
GUESS_STEPS = 12
J = TypeVar("J", bound="HeadsJacobian")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadsJacobian(Operator, ABC):
    r"""The derivative of attention of any kind at one input (or a batch of inputs).

    A perturbation of the tokens is pushed to queries, keys and values, from there to the means of every head, and
    through the output projection. Subclasses supply the step from queries, keys and values to means.
    """

    projections: Projections  # the derivative of tokens ↦ queries, keys, values
    output: Float[Tensor, "... out hv"] | None  # the output projections side by side; none for concatenated heads

    @property
    @abstractmethod
    def means(self) -> Float[Tensor, "stack shared n v"]:
        """The means of every head."""

    @property
    def lead(self) -> tuple[int, ...]:
        """Axes of queries and keys before those of the batch."""
        return ()

    @abstractmethod
    def push_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push perturbations of queries, keys and values to the means."""

    def push_terms(self, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`push_means`, and the sums of its absolute terms; by default the absolute sums."""
        means = self.push_means(dq, dk, dv)
        return means, means.abs()

    @abstractmethod
    def pull_means(self, g: Float[Tensor, "stack shared n v"]) -> tuple[Tensor, Tensor, Tensor]:
        """Pull a cotangent of the means back to queries, keys and values."""

    @abstractmethod
    def push_queries(self, dq: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push a perturbation of each token's query to its mean, with keys and values fixed."""

    @abstractmethod
    def pull_queries(self, g: Float[Tensor, "stack shared n v"]) -> Tensor:
        """Pull a cotangent of each token's mean back to its query."""

    @property
    @abstractmethod
    def query_rounding(self) -> float:
        """Bound the rounding error of products with queries alone, relative to the projections."""

    @property
    @abstractmethod
    def forward_rounding(self) -> float:
        """Bound the relative rounding error of the attention weights."""

    @property
    def derivative_rounding(self) -> float:
        """Bound the absolute rounding error of a product with a unit vector beyond that; zero without norms."""
        return 0.0

    def _push(self, E: Tensor) -> Tensor:
        dq, dk, dv = self.projections.jvp(E)
        return project_heads(self.push_means(dq, dk, dv), self.output, self.batch)

    def _pull(self, G: Tensor) -> Tensor:
        dq, dk, dv = self.pull_means(self.by_head(G))
        shape = (*self.batch, -1, self.domain[0])
        dq, dk = (x.view(*self.lead, *shape, x.shape[-1]) for x in (dq, dk))
        return self.projections.vjp(dq, dk, dv.view(*shape, dv.shape[-1]))

    def cancelled(
        self, E: Float[Tensor, "*batch n d"], scale: Float[Tensor, "*batch #n 1"] | None = None
    ) -> tuple[float, float]:
        r"""Return the cancellation ratios of :math:`JE`: over heads, and over all terms.

        The first is :math:`\sum_h|W_hJ_hE|/|JE|`, since the rounding errors of weights are relative to each head's
        product, not to their sum. The second also counts the terms within a head, which are large if values have a
        large bias. Responses are multiplied by the ``scale`` of their tokens.
        """
        moves, v = self.projections.jvp(E), self.projections.layout.v
        n = self.domain[0]
        # the means of every head, as every operator of the batch has them
        means, terms = (x.reshape(*self.batch, -1, n, v) for x in self.push_terms(*moves))
        if scale is not None:
            share = (scale / scale.amax((-2, -1), keepdim=True)).to(means).unsqueeze(-3)
            means, terms = means * share, terms * share
        within = _ratio(terms.flatten(-3).norm(dim=-1), means.flatten(-3).norm(dim=-1))
        between = torch.ones_like(within)
        if self.output is not None:
            products = torch.einsum("...hnv, ...ohv -> ...hno", means, self.output.unflatten(-1, (-1, v)))
            between = _ratio(_length(products).sum(-1), _length(products.sum(-3)))
        return float(between.max()), float((between * within).max())

    def by_head(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "stack shared n v"]:
        """Pull a cotangent of the output back to the means of every head."""
        layout = self.projections.layout
        g = G if self.output is None else G @ self.output
        by_head = g.reshape(*g.shape[:-1], layout.heads, layout.v).transpose(-2, -3)
        return by_head.contiguous().view(self.means.shape)

    def guess(self) -> Float[Tensor, "*batch n d"]:
        r"""Return an approximate top right singular vector, at the cost of one product.

        Where attention is nearly uniform, J is nearly :math:`P\otimes M` with :math:`M = \sum_h W_hV_h`. Its top left
        singular vector u, found by a few power steps on M alone, is pulled back as if every output token moved along u.
        """
        layout = self.projections.layout
        V = self.projections.weight[..., -layout.groups * layout.v :, :]
        heads = torch.randn(*self.batch, 1, layout.heads * layout.v, generator=torch.Generator().manual_seed(0))
        heads = heads.to(dtype=self.dtype, device=self.device)
        for _step in range(GUESS_STEPS):
            u = heads if self.output is None else heads @ self.output.mT
            pulled = u if self.output is None else u @ self.output
            shared = pulled.unflatten(-1, (layout.groups, layout.shared, layout.v)).sum(-2).flatten(-2)
            # queries that share a value projection pull back to it together, and are pushed forward alike
            moved = (shared @ V @ V.mT).unflatten(-1, (layout.groups, 1, layout.v))
            heads = moved.expand(*moved.shape[:-2], layout.shared, layout.v).flatten(-3)
            heads = torch.nn.functional.normalize(heads, dim=-1)
        u = heads if self.output is None else heads @ self.output.mT
        return self.vjp(u.expand(*self.batch, *self.codomain).contiguous())

    def compress(self: J) -> tuple[J, Callable[[Tensor], Tensor]]:
        r"""Return an operator with the same singular values on a smaller space, and the isometry back to tokens.

        Heads see the tokens through :math:`[Q^\top K^\top V^\top]` only. When those columns are fewer than ``d``, a QR
        factorisation restricts perturbations to their span; the output is restricted likewise. When that saves
        nothing, the operator itself comes back with the identity.
        """
        # Why QR and not the d × d forms A and WV: it is exact, costs O(dp²), and p is small where this pays.
        p, d = self.projections.weight.shape[-2:]
        # a norm over all heads sees tokens through the queries of other heads too
        if p >= d or self.projections.joint:
            return self, lambda E: E
        projections, basis = self.projections.restricted()
        output = self.output
        if output is not None and output.shape[-1] < output.shape[-2]:
            _isometry, output = torch.linalg.qr(output)
        (n, _d), out = self.domain, self.codomain[-1] if output is None else output.shape[-2]
        small = dataclasses.replace(self, projections=projections, output=output, domain=(n, p), codomain=(n, out))
        return small, lambda E: E @ basis.mT

    def between(self: J, before: Tensor | None, after: Tensor | None) -> J | None:
        r"""Return :math:`E\mapsto J(E\,R)L` with matrices R and L, or none, that act on the coordinates of tokens.

        None is returned where a norm over all heads sees tokens past their projections.
        """
        if self.projections.joint:
            return None
        projections, output = self.projections, self.output
        if before is not None:
            weight = projections.weight @ before.mT.to(projections.weight)
            projections = dataclasses.replace(projections, weight=weight)
        if after is not None:
            after = after.mT.to(self.means)
            output = after if output is None else after @ output
        return dataclasses.replace(self, projections=projections, output=output)


def project_heads(
    o: Float[Tensor, "stack shared n v"], output: Float[Tensor, "... out hv"] | None, batch: tuple[int, ...]
) -> Float[Tensor, "*batch n out"]:
    """Concatenate the heads and apply the output projection."""
    n, v = o.shape[-2:]
    joined = o.reshape(*batch, -1, n, v).transpose(-2, -3).flatten(-2)
    return joined if output is None else joined @ output.mT


def _length(x: Float[Tensor, "*batch n w"]) -> Float[Tensor, "*batch"]:
    return x.flatten(-2).norm(dim=-1)


def _ratio(parts: Tensor, total: Tensor) -> Tensor:
    """Return the ratio of two lengths; one where both are zero."""
    return torch.where(parts > 0, parts / total, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class QuerySide(Operator):
    r"""The operators :math:`\sum_hW_hV_hC^h_iA_h`, one for each token i, as a batch of n operators.

    This is the part of the derivative that acts token by token. One product serves all tokens at once and costs less
    than one product with the Jacobian, from which it is read: the products of scores with keys and values alone.
    """

    jacobian: HeadsJacobian  # the whole derivative
    weight: Float[Tensor, "hk d"]  # the query projections of all heads, or what is left of them after compression
    tokens: Int[Tensor, " m"] | None = None  # which tokens, none for all

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

    def _push(self, E: Tensor) -> Tensor:
        J = self.jacobian
        layout, norm, rotation = J.projections.layout, of_each_head(J.projections.query_norm), J.projections.rotation
        transform = J.projections.transforms.query
        dq = (self._spread(E) @ self.weight.mT).unflatten(-1, (layout.heads, layout.k)).transpose(0, 1)
        dq = dq if norm is None else norm.jvp(dq)
        dq = dq if rotation is None else rotation(dq)
        dq = dq if transform is None else transform.jvp(dq)
        return self._gather(project_heads(J.push_queries(dq), J.output, ()))

    def _pull(self, G: Tensor) -> Tensor:
        J = self.jacobian
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
