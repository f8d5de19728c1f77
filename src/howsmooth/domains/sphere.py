"""Spheres of tokens."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import draw_correlated, tokens
from howsmooth.errors import AssumptionError


@dataclass(frozen=True)
class Sphere:
    r"""Inputs whose tokens all have the norm ``radius``: what RMSNorm with equal gains puts out.

    Example:
        >>> Sphere(2.0).nearest(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
        tensor([[2., 0.],
                [0., 2.]])
    """

    radius: float

    def __post_init__(self) -> None:
        """Check the radius once."""
        if not 0 < self.radius < math.inf:
            raise AssumptionError(
                f"the radius of a sphere must be positive and finite, got {self.radius}.", field="radius"
            )

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """Any number of tokens of any dimension."""
        return None, None

    @property
    def scale(self) -> float:
        """The unit of length for steps."""
        return self.radius

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Scale every token to the radius; the origin, which has no direction, goes along the first axis."""
        pole = torch.eye(1, X.shape[-1], dtype=X.dtype, device=X.device)
        zero = (X == 0).all(-1, keepdim=True)
        return self.radius * torch.nn.functional.normalize(torch.where(zero, pole, X), dim=-1, eps=0.0)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Drop the radial part of the gradient."""
        normal = X / self.radius
        return G - normal * (normal * G).sum(-1, keepdim=True)

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw tokens around a common direction, from close together to independent and uniform."""
        return self.nearest(draw_correlated(count, n, like, generator))

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""
        return f"{tokens(n)} on the sphere of radius {self.radius:g}"
