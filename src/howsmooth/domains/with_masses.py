"""Domains of atoms with masses: a place, and the logarithm of the mass as one more coordinate."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Domain

# Masses differ by at most this factor's logarithm.
WIDEST = 200.0
# How far apart the logarithms of masses are at the most unbalanced start.
WIDE_START = 20.0


@dataclass(frozen=True, kw_only=True, eq=False)
class WithMasses:
    """A domain of atoms with masses: the places lie in ``places``, the masses are free."""

    places: Domain
    unit: float

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """The number of atoms, and one coordinate more than a place has."""
        n, d = self.places.shape
        return n, None if d is None else d + 1

    @property
    def scale(self) -> float:
        """The unit of length for steps."""
        return self.places.scale

    def nearest(self, X: Float[Tensor, "*batch n d1"]) -> Float[Tensor, "*batch n d1"]:
        """Bring the places back into their domain, and keep masses within the range of the numbers."""
        logs = X[..., -1:] - X[..., -1:].mean(-2, keepdim=True)
        most = WIDEST / 2 / self.unit
        return torch.cat((self.places.nearest(X[..., :-1]), logs.clamp(-most, most)), dim=-1)

    def direction(self, X: Float[Tensor, "*batch n d1"], G: Float[Tensor, "*batch n d1"]) -> Tensor:
        """Move places within their domain, and masses freely."""
        return torch.cat((self.places.direction(X[..., :-1], G[..., :-1]), G[..., -1:]), dim=-1)

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d1"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d1"]:
        """Draw places from their domain, and masses from nearly equal to very unbalanced ones."""
        places = self.places.draw(count, n, like[:-1], generator)
        device = like.device if generator is None else generator.device
        spread = torch.linspace(0, 1, count, dtype=like.dtype, device=device)[:, None, None] * WIDE_START
        logs = spread * torch.randn(count, n, 1, dtype=like.dtype, device=device, generator=generator) / self.unit
        # small and large balls meet balanced and unbalanced masses
        logs = logs[torch.randperm(count, device=device, generator=generator)]
        return self.nearest(torch.cat((places, logs.to(places)), dim=-1))

    def describe(self, n: int) -> str:
        """Describe an input in words."""
        return f"measures, {self.places.describe(n).replace('token', 'atom')}"
