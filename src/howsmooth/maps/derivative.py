"""The closed-form Jacobian of attention: products with J and Jᵀ, tile by tile, no autograd."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.distances import Distances
from howsmooth.maps.pattern import Pattern, Room, rows_of, softmax_derivative, unstack
from howsmooth.maps.projections import Projections
from howsmooth.maps.values import take
from howsmooth.validation import require_like

# Power steps on the value path alone, in a space of one token: together they cost about one product.
GUESS_STEPS = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionJacobian:
    r"""The derivative of multi-head attention at one input (or a batch of inputs).

    With ``P = softmax(s q kᵀ)`` and ``o = P v`` for each head (``s`` rides on ``q`` and ``k``),

    .. math::
        \mathrm{JVP}:&\quad dS = s(dq\,k^\top + q\,dk^\top),\quad dP = \mathrm{softmax}'(dS),\quad do = dP\,v + P\,dv \\
        \mathrm{VJP}:&\quad dP = g\,v^\top,\quad dS = s\,\mathrm{softmax}'(dP),\quad
                      dq = dS\,k,\quad dk = dS^\top q,\quad dv = P^\top g

    where :math:`\mathrm{softmax}'(D) = P\circ(D - \mathrm{rowsum}(P\circ D))` is symmetric. The two parts of
    :math:`dS` in the JVP are one matrix product, :math:`[dq\,|\,q]\,[k\,|\,dk]^\top`.
    Both products can be differentiated by autograd with respect to the tokens and the weights.

    Attributes:
        projections: The derivative of tokens ↦ queries, keys, values.
        pattern: The attention weights, kept or rebuilt.
        scaled_k: The keys times the scale of the scores (the pattern's queries are scaled, its keys are not).
        output: The output projection of all heads side by side, or ``None`` for the concatenated heads.
        batch: The batch axes.
        domain: The shape ``(n, d)`` of one perturbation.
        distances: Keys and queries of distances times the scale of the scores, if there are any: what they add to
            scores is linear in ``dq`` and ``dk``.
    """

    projections: Projections
    pattern: Pattern
    scaled_k: Float[Tensor, "stack n k"]
    output: Float[Tensor, "... out hv"] | None
    batch: tuple[int, ...]
    domain: tuple[int, ...]
    distances: Distances | None = None

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape ``(n, out)`` of one response."""
        layout = self.projections.layout
        out = layout.heads * layout.v if self.output is None else self.output.shape[-2]
        return (self.domain[0], out)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.pattern.o.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.pattern.o.device

    @property
    def forward_rounding(self) -> float:
        r"""The share of a weight that rounding may have changed: :math:`\epsilon(\max_i|q_i|\max_j|k_j| + 8)`.

        A weight is the exponential of a score, so it is wrong by the *absolute* error of the score. The weight of a
        token that is alone is one.
        """
        if self.domain[0] == 1:
            return 0.0
        q, k = (torch.linalg.vector_norm(x.detach(), dim=-1).max() for x in (self.pattern.q, self.pattern.k))
        return torch.finfo(self.dtype).eps * (float(q) * float(k) + 8)

    def cancelled(self, E: Float[Tensor, "*batch n d"]) -> float:
        r"""Return how much longer the answers of heads to ``E`` are than their sum: :math:`\sum_h|W_hJ_hE|/|JE|`.

        The rounding of weights is a share of the first, not of the second.
        """
        if self.output is None or self.projections.layout.heads == 1:
            return 1.0
        joined = project_heads(self._moved_means(*self.projections.jvp(E)), None, self.batch)
        widths = (joined.split(self.projections.layout.v, -1), self.output.split(self.projections.layout.v, -1))
        answers = [o @ W.mT for o, W in zip(*widths, strict=True)]
        parts = torch.stack([x.flatten(-2).norm(dim=-1) for x in answers]).sum(0)
        total = torch.stack(answers).sum(0).flatten(-2).norm(dim=-1)
        return float(torch.where(parts > 0, parts / total, 1.0).max())

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push the perturbation ``E`` of the tokens forward: J E."""
        require_like(E, self.pattern.o, (*self.batch, *self.domain), "the perturbation")
        dq, dk, dv = self.projections.jvp(E)
        return project_heads(self._moved_means(dq, dk, dv), self.output, self.batch)

    def _moved_means(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        pattern = self.pattern
        dq, dk, dv = dq.reshape(pattern.q.shape), dk.reshape(pattern.k.shape), dv.reshape(pattern.v.shape).contiguous()
        if (P := pattern.whole) is not None and self.distances is None:
            # on short sequences the number of operations is what is waited for: here nothing is cut and stitched
            dS = torch.bmm(dq.flatten(1, 2), self.scaled_k.mT).baddbmm_(pattern.q.flatten(1, 2), dk.mT)
            return torch.bmm(softmax_derivative(dS, P), pattern.v).baddbmm_(P, dv).view(pattern.o.shape)
        # Why one product of doubled width and not two: a tile of dS is written once, and memory is what is waited for.
        left = torch.cat((dq, pattern.q), dim=-1)
        right = torch.cat((self.scaled_k, dk), dim=-1)
        room, moved = Room(left, right), []
        for tile, P, slope in pattern.weights():
            dS = torch.bmm(rows_of(left, tile), right[:, tile.columns].mT, out=room(tile))
            if self.distances is not None:
                parts = pattern.scores.parts(dq, dk, tile)
                pattern.scores.by_head(dS, tile).add_(self.distances.scores(*parts, tile.rows, tile.columns))
            if slope is not None:
                dS = dS * slope
            dP = softmax_derivative(dS, P)
            do = torch.bmm(dP, pattern.v[:, tile.columns]).baddbmm_(P, dv[:, tile.columns])
            moved.append(unstack(do, tile))
        return stitch(moved)

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull the cotangent ``G`` of the output back: Jᵀ G."""
        require_like(G, self.pattern.o, (*self.batch, *self.codomain), "the cotangent")
        layout, pattern = self.projections.layout, self.pattern
        g = G if self.output is None else G @ self.output
        g = g.unflatten(-1, (layout.heads, layout.v)).transpose(-2, -3).contiguous().view(pattern.o.shape)
        dq, dk, dv = self._pulled_back(g)
        shape = (*self.batch, -1, self.domain[0])
        return self.projections.vjp(dq.view(*shape, layout.k), dk.view(*shape, layout.k), dv.view(*shape, layout.v))

    def _pulled_back(self, g: Float[Tensor, "stack shared n v"]) -> tuple[Tensor, Tensor, Tensor]:
        pattern = self.pattern
        if (P := pattern.whole) is not None and self.distances is None:
            g = g.flatten(1, 2)
            dS = softmax_derivative(torch.bmm(g, pattern.v.mT), P)
            return torch.bmm(dS, self.scaled_k), torch.bmm(dS.mT, pattern.q.flatten(1, 2)), torch.bmm(P.mT, g)
        room, moved = Room(g, pattern.v), []
        dk, dv = Columns(pattern.k), Columns(pattern.v)
        for tile, P, slope in pattern.weights():
            columns, g_rows = tile.columns, rows_of(g, tile)
            dP = torch.bmm(g_rows, pattern.v[:, columns].mT, out=room(tile))
            dS = softmax_derivative(dP, P)
            if slope is not None:
                dS = dS * slope
            dq = unstack(torch.bmm(dS, self.scaled_k[:, columns]), tile)
            dk.add(columns, dS.mT, rows_of(pattern.q, tile))
            dv.add(columns, P.mT, g_rows)
            if self.distances is not None:
                met, meeting = self.distances.pull_back(pattern.scores.by_head(dS, tile), tile.rows, columns)
                dq = dq + met.reshape(dq.shape)
                dk.total[:, columns].add_(meeting.reshape(-1, *meeting.shape[-2:]))
            moved.append(dq)
        return stitch(moved), dk.total, dv.total

    def take(self, index: Tensor) -> "AttentionJacobian":
        """Pick some operators of the batch."""
        stack = self.scaled_k.unflatten(0, (math.prod(self.batch), -1))
        return dataclasses.replace(
            self,
            projections=self.projections.take(self.batch, index),
            pattern=self.pattern.take(index),
            scaled_k=stack[index].flatten(0, 1),
            output=take(self.output, self.batch, index, event=2),
            distances=None if self.distances is None else self.distances.take(self.batch, index),
            batch=(len(index),),
        )

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

    def compress(self) -> tuple["AttentionJacobian", Callable[[Tensor], Tensor]]:
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


class Columns:
    """A sum over tiles of matrix products, each added to the tokens that its tile sees."""

    def __init__(self, like: Float[Tensor, "stack n k"]) -> None:
        self._like = like
        self._total: Tensor | None = None

    @property
    def total(self) -> Float[Tensor, "stack n k"]:
        """The sum so far."""
        return torch.zeros_like(self._like) if self._total is None else self._total

    def add(self, columns: slice, a: Tensor, b: Tensor) -> None:
        """Add the product of ``a`` and ``b`` to the tokens ``columns``."""
        if self._total is None and columns.stop - columns.start == self._like.shape[1]:
            self._total = torch.bmm(a, b)  # the first tile sees everything: nothing to add to
            return
        self._total = self.total
        self._total[:, columns].baddbmm_(a, b)


def stitch(tiles: list[Tensor]) -> Float[Tensor, "stack shared n v"]:
    """Put the rows of all tiles together."""
    return torch.cat(tiles, dim=-2) if len(tiles) > 1 else tiles[0]


def project_heads(
    o: Float[Tensor, "stack shared n v"], output: Float[Tensor, "... out hv"] | None, batch: tuple[int, ...]
) -> Float[Tensor, "*batch n out"]:
    """Concatenate the heads and apply the output projection."""
    n, v = o.shape[-2:]
    joined = o.reshape(*batch, -1, n, v).transpose(-2, -3).flatten(-2)
    return joined if output is None else joined @ output.mT
