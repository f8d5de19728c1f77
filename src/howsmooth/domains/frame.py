"""Where the tokens of a tied pair may lie: a ball, its surface, or an ellipsoid, all in one form."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.ellipsoid import Ellipsoid


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    r"""Where tokens may lie: :math:`x = \beta + Dz` with :math:`|z| = 1` and D diagonal (after centring).

    Attributes:
        centre: :math:`\beta`.
        stretch: The diagonal of D.
        centred: Whether z sums to zero.
        solid: Whether :math:`|z| < 1` is allowed too.
    """

    centre: Float[Tensor, " d"]
    stretch: Float[Tensor, " d"]
    centred: bool
    solid: bool

    @classmethod
    def ball(cls, d: int, radius: float, *, solid: bool) -> "Frame":
        """The ball of some radius around the origin of ``d`` dimensions, or its surface."""
        zero = torch.zeros(d, dtype=torch.float64)
        return cls(centre=zero, stretch=zero + radius, centred=False, solid=solid)

    @classmethod
    def image(cls, ellipsoid: Ellipsoid) -> "Frame":
        """The surface of an ellipsoid: where a norm sends tokens whose spread is large against its eps."""
        gain, centre = (x.detach().to("cpu", torch.float64) for x in (ellipsoid.gain, ellipsoid.centre))
        return cls(centre=centre, stretch=math.sqrt(gain.numel()) * gain, centred=ellipsoid.centred, solid=False)

    def pull(self, rows: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Return rows · D."""
        pulled = rows * self.stretch
        return pulled - pulled.mean(-1, keepdim=True) if self.centred else pulled

    def point(self, z: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """Return β + Dz."""
        return self.centre + self.stretch * (z - z.mean() if self.centred else z)
