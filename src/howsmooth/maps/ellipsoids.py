"""Balls of tokens, and the image of a normalisation: a stretched sphere, with the smallest balls around it."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.values import Value
from howsmooth.validation import require_finite, require_floating

# Tokens are brought back to so many units in the last place below the radius: rounding leaves them inside.
ROUNDING_UNITS = 8
# Tokens nearer to the surface of a ball than this share of its radius lie on it.
SURFACE = 1e-5


@dataclass(frozen=True, eq=False)
class Ball(Value):
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
                raise ShapeError(f"centre must be one point, (d,), got {tuple(self.centre.shape)}.")
            require_finite(self.centre, "centre")
        if not 0 <= self.radius < math.inf or (self.radius == 0 and self.centre is None):
            raise AssumptionError(f"the radius of a ball must be positive and finite, got {self.radius}.")

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """How many tokens an input has, and of which dimension; ``None`` where any will do."""
        return None, None if self.centre is None else self.centre.numel()

    @property
    def scale(self) -> float:
        """The length by which steps are measured."""
        return self.radius

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project every token onto the ball; what lies inside does not move."""
        offset = self._offset(X)
        length = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        reach = self.radius * (1 - ROUNDING_UNITS * torch.finfo(X.dtype).eps)
        projected = offset * (reach / length.clamp_min(torch.finfo(X.dtype).tiny))
        projected = projected if self.centre is None else projected + self.centre.to(X)
        return torch.where(length <= self.radius, X, projected)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the direction of steepest ascent in the ball: tokens on its surface do not move outwards."""
        offset = self._offset(X)
        length = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        normal = offset / length.clamp_min(torch.finfo(X.dtype).tiny)
        outwards = (normal * G).sum(-1, keepdim=True)
        leaving = (length >= self.radius * (1 - SURFACE)) & (outwards > 0)
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
        length = self.radius * share * uniform[:, 1:] ** (1 / like.numel())
        X = (torch.nn.functional.normalize(gauss, dim=-1) * length).to(like)
        return self.nearest(X if self.centre is None else X + self.centre.to(X))

    def describe(self, n: int) -> str:
        """Say what an input of ``n`` tokens is, in words."""
        where = "" if self.centre is None else " around the given centre"
        return f"{n} token{'s' if n > 1 else ''} in the ball of radius {self.radius:g}{where}"

    def _offset(self, X: Tensor) -> Tensor:
        return X if self.centre is None else X - self.centre.to(X)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoid(Value):
    r"""The points :math:`\alpha\circ z + \beta` with :math:`|z| \le \sqrt d` and, if ``centred``, :math:`z \perp 1`.

    Attributes:
        gain: :math:`\alpha`, the stretch of each coordinate.
        centre: :math:`\beta`.
        centred: Whether ``z`` sums to zero.
    """

    gain: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    centred: bool

    @property
    def ball(self) -> Ball:
        r"""The smallest ball that contains the ellipsoid.

        By symmetry its centre is :math:`\beta`; its radius is the longest half-axis.
        """
        return Ball(centre=self.centre, radius=math.sqrt(self._d * self._top()))

    @property
    def radius(self) -> float:
        r"""The radius of the smallest ball around the origin that contains the ellipsoid.

        This is the R of the theorems, which take balls around zero:

        .. math:: R^2 = \max_{z} |\alpha\circ z+\beta|^2
                  = \min_{\lambda > \lambda_1}\; d\lambda + |\beta|^2 + w^\top(\lambda - \Pi\,\alpha^2\,\Pi)^{-1}w,

        :math:`w = \Pi(\alpha\circ\beta)`. Strong duality holds for one quadratic constraint, and every
        :math:`\lambda` gives a valid radius, so an inexact minimisation errs on the safe side.
        """
        alpha, beta = self._arrays()
        w = alpha * beta
        base = float(beta @ beta)
        top = self._top()
        if np.linalg.norm(w) <= 1e-100 * (1 + top):
            return math.sqrt(self._d * top + base)

        def dual(gap: float) -> float:
            inverse = 1.0 / (top - alpha**2 + gap)  # in this order no gap is too small to count
            shift = (w @ inverse) / inverse.sum() if self.centred else 0.0
            return self._d * (top + gap) + base + float(w @ ((w - shift) * inverse))

        # the derivative shows that the gap is at most |w|/√d at the minimum
        most = math.log(float(np.linalg.norm(w)) / math.sqrt(self._d))
        found = minimize_scalar(lambda t: dual(math.exp(t)), bounds=(most - 40.0, most + 1.0))
        return math.sqrt(found.fun)

    @property
    def _d(self) -> int:
        return self.gain.numel()

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self.gain.detach().double().cpu().numpy(), self.centre.detach().double().cpu().numpy()

    def _top(self) -> float:
        r"""Return :math:`\lambda_1`, the largest eigenvalue of :math:`\Pi\,\alpha^2\,\Pi`.

        Without centring it is :math:`\max\alpha_i^2`. With it, :math:`\lambda_1` lies between the two largest
        :math:`\alpha_i^2` and solves the secular equation :math:`\sum_i 1/(\alpha_i^2-\lambda) = 0`.
        """
        alpha, _beta = self._arrays()
        squares = np.sort(alpha**2)[::-1]
        if not self.centred:
            return float(squares[0])
        if self._d == 1:
            return 0.0
        low, high = float(squares[1]), float(squares[0])
        gap = high - low
        if gap <= 1e-14 * high:
            return high

        def secular(t: float) -> float:
            # t = λ − low; multiplied by the two nearest poles so that the ends are finite and of opposite sign
            rest = float(np.sum(1.0 / (squares[2:] - low - t))) if self._d > 2 else 0.0
            return -(gap - t) + t + rest * t * (gap - t)

        root = brentq(secular, 1e-18 * gap, gap, xtol=1e-300, rtol=1e-14)
        return low + float(root)
