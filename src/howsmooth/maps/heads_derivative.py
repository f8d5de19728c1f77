"""What derivatives of attention share: from tokens to heads and back, products without autograd."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.projections import Projections
from howsmooth.validation import require_like

# Power steps on the value path alone, in a space of one token: together they cost about one product.
GUESS_STEPS = 12
J = TypeVar("J", bound="HeadsJacobian")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadsJacobian(ABC):
    r"""The derivative of attention of any kind at one input (or a batch of inputs).

    Tokens move queries, keys and values; these move the means of every head; the output projection mixes the heads.
    What is between queries, keys, values and means is left to each kind.

    Attributes:
        projections: The derivative of tokens ↦ queries, keys, values.
        output: The output projection of all heads side by side, or ``None`` for the concatenated heads.
        batch: The batch axes.
        domain: The shape ``(n, d)`` of one perturbation.
    """

    projections: Projections
    output: Float[Tensor, "... out hv"] | None
    batch: tuple[int, ...]
    domain: tuple[int, ...]

    @property
    @abstractmethod
    def means(self) -> Float[Tensor, "stack shared n v"]:
        """The means of every head."""

    @property
    @abstractmethod
    def lead(self) -> tuple[int, ...]:
        """Axes of queries and keys before those of the batch."""

    @abstractmethod
    def moved_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push perturbations of queries, keys and values to the means."""

    def moved_sizes(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Return what :meth:`moved_means` adds up, without signs; the sums themselves, where that is not known."""
        return self.moved_means(dq, dk, dv).abs()

    @abstractmethod
    def pulled_back(self, g: Float[Tensor, "stack shared n v"]) -> tuple[Tensor, Tensor, Tensor]:
        """Pull a cotangent of the means back to queries, keys and values."""

    @abstractmethod
    def moved_by_queries(self, dq: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push a perturbation of each token's own query to its mean, in a context that stays."""

    @abstractmethod
    def pulled_to_queries(self, g: Float[Tensor, "stack shared n v"]) -> Tensor:
        """Pull a cotangent of each token's mean back to its own query."""

    @property
    @abstractmethod
    def query_rounding(self) -> float:
        """How far the products of queries alone may be off, relative to the projections."""

    @property
    @abstractmethod
    def forward_rounding(self) -> float:
        """The share of a weight that rounding may have changed."""

    @property
    def derivative_rounding(self) -> float:
        """How far the product with a unit vector may be off beyond that share: nothing, where there are no norms."""
        return 0.0

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape ``(n, out)`` of one response."""
        layout = self.projections.layout
        out = layout.heads * layout.v if self.output is None else self.output.shape[-2]
        return (self.domain[0], out)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.means.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.means.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push the perturbation ``E`` of the tokens forward: J E."""
        require_like(E, self.means, (*self.batch, *self.domain), "the perturbation")
        dq, dk, dv = self.projections.jvp(E)
        return project_heads(self.moved_means(dq, dk, dv), self.output, self.batch)

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull the cotangent ``G`` of the output back: Jᵀ G."""
        require_like(G, self.means, (*self.batch, *self.codomain), "the cotangent")
        dq, dk, dv = self.pulled_back(self.by_head(G))
        shape = (*self.batch, -1, self.domain[0])
        dq, dk = (x.view(*self.lead, *shape, x.shape[-1]) for x in (dq, dk))
        return self.projections.vjp(dq, dk, dv.view(*shape, dv.shape[-1]))

    def cancelled(self, E: Float[Tensor, "*batch n d"]) -> tuple[float, float]:
        r"""Return how much longer than :math:`JE` the answers of its heads are, and the terms these are added up from.

        The first is :math:`\sum_h|W_hJ_hE|/|JE|`: the rounding of weights is a share of those answers, not of their
        sum. Products within a head are rounded by units of their terms, which are long beside a large bias.
        """
        moves, v = self.projections.jvp(E), self.projections.layout.v
        means, terms = (
            project_heads(x, None, self.batch) for x in (self.moved_means(*moves), self.moved_sizes(*moves))
        )
        within = _ratio(_length(terms), _length(means))
        between = torch.ones_like(within)
        if self.output is not None:
            by_head = zip(means.split(v, -1), self.output.split(v, -1), strict=True)
            answers = torch.stack([o @ W.mT for o, W in by_head])
            between = _ratio(_length(answers).sum(0), _length(answers.sum(0)))
        return float(between.max()), float((between * within).max())

    def by_head(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "stack shared n v"]:
        """Pull a cotangent of the output back to the means of every head."""
        layout = self.projections.layout
        g = G if self.output is None else G @ self.output
        return g.unflatten(-1, (layout.heads, layout.v)).transpose(-2, -3).contiguous().view(self.means.shape)

    def guess(self) -> Float[Tensor, "*batch n d"]:
        r"""Return a direction that is likely to be stretched, for one product.

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
        n = self.domain[0]
        small = dataclasses.replace(self, projections=projections, output=output, domain=(n, p))
        return small, lambda E: E @ basis.mT


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
    """Return how much longer parts are than their sum; nothing is as long as itself."""
    return torch.where(parts > 0, parts / total, 1.0)
