"""Balls of tokens, and how a ball is put into words."""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import tokens
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_finite, require_floating

# Tokens are brought back to so many units in the last place below the radius: rounding leaves them inside.
ROUNDING_UNITS = 8
# Tokens nearer to the surface of a ball than this share of its radius lie on it.
SURFACE = 1e-5


@dataclass(frozen=True, eq=False)
class Ball(TensorDataclass):
    r"""All points within ``radius`` of ``centre``; as a domain of inputs, every token lies in it.

    Attributes:
        radius: The radius; zero only around a given centre, where it means that one point.
        centre: The centre; ``None`` is the origin.

    Example:
        >>> Ball(5.0).nearest(torch.tensor([[3.0, 0.0], [0.0, 20.0]]))
        tensor([[3.0000, 0.0000],
                [0.0000, 5.0000]])
    """

    radius: float
    centre: Float[Tensor, " d"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers once."""
        if self.centre is not None:
            require_floating(self.centre, "centre")
            if self.centre.ndim != 1 or not self.centre.numel():
                raise ShapeError(f"centre must be one point, (d,), got {tuple(self.centre.shape)}.", field="centre")
            require_finite(self.centre, "centre")
        if not 0 <= self.radius < math.inf or (self.radius == 0 and self.centre is None):
            raise AssumptionError(
                f"the radius of a ball must be positive and finite, got {self.radius}.", field="radius"
            )

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """How many tokens an input has, and of which dimension; ``None`` where any will do."""
        return None, None if self.centre is None else self.centre.numel()

    @property
    def scale(self) -> float:
        """The unit of length for steps."""
        return self.radius

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project every token onto the ball; what lies inside does not move."""
        offset = self._offset(X)
        norm = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        reach = self.radius * (1 - ROUNDING_UNITS * torch.finfo(X.dtype).eps)
        projected = offset * (reach / norm.clamp_min(torch.finfo(X.dtype).tiny))
        projected = projected if self.centre is None else projected + self.centre.to(X)
        return torch.where(norm <= self.radius, X, projected)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the direction of steepest ascent in the ball: tokens on its surface do not move outwards."""
        offset = self._offset(X)
        norm = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        normal = offset / norm.clamp_min(torch.finfo(X.dtype).tiny)
        outwards = (normal * G).sum(-1, keepdim=True)
        leaving = (norm >= self.radius * (1 - SURFACE)) & (outwards > 0)
        return torch.where(leaving, G - normal * outwards, G)

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw inputs whose tokens are uniform in concentric balls, from a small one to the whole.

        Tokens far apart saturate the softmax, and a saturated softmax has no slope to climb.

        Args:
            count: How many inputs.
            n: How many tokens each.
            like: The dimension, dtype and device of a token.
            generator: The source of randomness.
        """
        device = like.device if generator is None else generator.device
        gauss = torch.randn(count, n, like.numel(), dtype=like.dtype, device=device, generator=generator)
        uniform = torch.rand(count, n + 1, 1, dtype=like.dtype, device=device, generator=generator)
        share = (torch.arange(count, device=device)[:, None, None] + uniform[:, :1]) / count
        norm = self.radius * share * uniform[:, 1:] ** (1 / like.numel())
        X = (torch.nn.functional.normalize(gauss, dim=-1) * norm).to(like)
        return self.nearest(X if self.centre is None else X + self.centre.to(X))

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""
        where = "" if self.centre is None else " around the given centre"
        return f"{tokens(n)} in the ball of radius {self.radius:g}{where}"

    def _offset(self, X: Tensor) -> Tensor:
        return X if self.centre is None else X - self.centre.to(X)


def in_ball(n: int, radius: float) -> str:
    """Say where a statement about ``n`` tokens in the ball around the origin holds."""
    return Ball(radius).describe(n)


def measures_in_ball(radius: float) -> str:
    """Say where a statement about measures in the ball around the origin holds."""
    return f"measures in the ball of radius {radius:g}"
