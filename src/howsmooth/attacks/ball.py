"""Balls of perturbations: all tokens together, or each of them, within eps."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PerturbationBall:
    r"""Perturbations of a sequence: :math:`\|E\|_F \le \epsilon`, or :math:`|e_i| \le \epsilon` for every token.

    Attributes:
        eps: The radius.
        norm: ``total`` or ``token``.
    """

    eps: float
    norm: str

    @property
    def per_token(self) -> bool:
        """Whether every token may move that far."""
        return self.norm == "token"

    def sizes(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m 1"]:
        """Return the norms that the radius bounds, in float64: one for each token, or one for each sequence."""
        axes = (-1,) if self.per_token else (-2, -1)
        return torch.linalg.vector_norm(E, dim=axes, keepdim=True, dtype=torch.float64)

    def surface(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        r"""Return the perturbation that maximises :math:`\langle G, E\rangle`; where G is zero, so is it.

        :math:`\epsilon\,G/\|G\|_F`, or :math:`\epsilon\,g_i/|g_i|` for every token.
        """
        # Why not divide by the sizes at once: the square of a tiny gradient underflows, and its direction is lost.
        axes = (-1,) if self.per_token else (-2, -1)
        largest = G.abs().amax(axes, keepdim=True)
        scaled = G / torch.where(largest > 0, largest, 1.0)
        return self.inside(scaled * (self.eps / self.sizes(scaled).clamp_min(1e-300)).to(G.dtype))

    def nearest(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project onto the ball."""
        return self.inside(E * (self.eps / self.sizes(E).clamp_min(self.eps)).to(E.dtype))

    def uphill(self, E: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the part of a gradient that leads along or into the ball: on its surface nothing moves outwards."""
        axes = (-1,) if self.per_token else (-2, -1)
        sizes = self.sizes(E)
        outwards = (E * G).sum(axes, keepdim=True, dtype=torch.float64) / sizes.square().clamp_min(1e-300)
        at_surface = sizes >= self.eps * (1 - 64 * torch.finfo(E.dtype).eps)
        return G - E * torch.where(at_surface & (outwards > 0), outwards, 0.0).to(E.dtype)

    def scale(self, n: int) -> float:
        """Return the largest Frobenius norm of a perturbation of ``n`` tokens."""
        return self.eps * math.sqrt(n) if self.per_token else self.eps

    def inside(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Shrink what rounding has put outside: the norm, added up in float64, is at most eps."""
        shrink = 1 - 2 * torch.finfo(E.dtype).eps
        while bool((outside := self.sizes(E) > self.eps).any()):
            E = torch.where(outside, E * shrink, E)
        return E
