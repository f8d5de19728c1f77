"""The image of a normalisation: an ellipsoid with the smallest balls around it, and the domain of its surface."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from howsmooth.domains.domain import Ball, draw_correlated, require_gradient, require_inputs, require_point, tokens
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_finite, require_parameter


@dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoid(TensorDataclass):
    r"""The points :math:`\alpha\circ z + \beta` with :math:`|z| \le \sqrt d` and, if ``centred``, :math:`z \perp 1`.

    Attributes:
        gain: :math:`\alpha`, the stretch of each coordinate.
        centre: :math:`\beta`.
        centred: Whether ``z`` sums to zero.
    """

    gain: Float[Tensor, " d"]
    centre: Float[Tensor, " d"]
    centred: bool

    def __post_init__(self) -> None:
        require_point(self.gain, "gain")
        require_finite(self.gain, "gain")
        require_parameter(self.centre, (self._d,), self.gain, "centre", "gain")

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
            inverse = 1.0 / (top - alpha**2 + gap)
            rest = (w - ((w @ inverse) / inverse.sum() if self.centred else 0.0)) * inverse
            # λ₁ is known to a few units in the last place: what that may hide is added
            return self._d * (top + gap) + base + float(w @ rest) + 8 * unit * float(rest @ rest)

        # the derivative shows that the gap is at most |w|/√d at the minimum; below the rounding of λ₁ it is no gap
        unit = float(np.finfo(float).eps) * float((alpha**2).max())
        most = float(np.linalg.norm(w)) / math.sqrt(self._d)
        least = max(most * math.exp(-40.0), 64 * unit)
        if most * math.e <= least:
            square = dual(least)
        else:
            bounds = (math.log(least), math.log(most) + 1.0)
            square = float(minimize_scalar(lambda t: dual(math.exp(t)), bounds=bounds).fun)
        return math.sqrt(max(square, self._d * top)) * (1 + 1e-12)

    @property
    def _d(self) -> int:
        return self.gain.numel()

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        alpha, beta = (x.double().numpy(force=True) for x in (self.gain, self.centre))
        return alpha, beta

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


@dataclass(frozen=True, kw_only=True, eq=False)
class StretchedSphere:
    r"""The points :math:`x = \beta + Dz` with :math:`|z| = 1` and D diagonal (after centring), for tied pairs."""

    centre: Float[Tensor, " d"]  # β
    stretch: Float[Tensor, " d"]  # the diagonal of D
    centred: bool  # whether z sums to zero
    solid: bool  # whether |z| < 1 is allowed too

    @classmethod
    def ball(cls, d: int, radius: float, *, solid: bool) -> "StretchedSphere":
        """The ball of some radius around the origin of ``d`` dimensions, or its surface."""
        zero = torch.zeros(d, dtype=torch.float64)
        return cls(centre=zero, stretch=zero + radius, centred=False, solid=solid)

    @classmethod
    def image(cls, ellipsoid: Ellipsoid) -> "StretchedSphere":
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


@runtime_checkable
class HasImage(Protocol):
    """A norm, as far as a domain needs to know it. Norms import their image from here, so they cannot be named."""

    @property
    def image(self) -> Ellipsoid:
        """The closure of what the norm can output."""


@dataclass(frozen=True, eq=False)
class LayerNormImage:
    r"""What a LayerNorm or RMSNorm puts out for tokens whose spread is large against its ``eps``.

    .. math:: x = \alpha\circ z + \beta,\qquad |z| = \sqrt d\quad\text{and, for LayerNorm, } z \perp 1.

    Tokens are brought back through :math:`z = (x-\beta)/\alpha`, which is normalised again; this is not the nearest
    point unless the gains are equal. A coordinate without gain does not show in x: its z is whatever leaves most
    to the others.

    Example:
        >>> from howsmooth.maps.norms import LayerNorm
        >>> LayerNormImage(LayerNorm(gain=torch.tensor([1.0, 3.0]))).nearest(torch.tensor([[0.5, 0.0]]))
        tensor([[ 1., -3.]])
    """

    norm: HasImage

    def __post_init__(self) -> None:
        if not isinstance(self.norm, HasImage):
            raise DtypeError(
                f"norm must be an hs.maps.LayerNorm or an hs.maps.RMSNorm, got {type(self.norm).__name__}.",
                field="norm",
            )
        image = self.norm.image
        if not bool(image.gain.any()) or (image.centred and image.gain.numel() == 1):
            raise AssumptionError("the image of this norm is a single point: there is nothing to search.", field="norm")

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """Any number of tokens of the norm's dimension."""
        return None, self.norm.image.gain.numel()

    @property
    def scale(self) -> float:
        r"""The typical distance of a token from the bias, :math:`|\alpha|`."""
        return float(self.norm.image.gain.double().norm())

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Normalise every token once more."""
        require_inputs(X)
        image = self.norm.image.to(X.dtype, X.device)
        return image.gain * _normalised(image, X) + image.centre

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        r"""Return how the image moves when the norm's *input* climbs: :math:`JJ^\top G`, J the norm's derivative.

        At normalised z, J is the gain times a projection: along z, and for LayerNorm along 1, nothing moves. The
        projection taken twice is itself, so it is applied once.
        """
        require_gradient(X, G)
        image = self.norm.image.to(X.dtype, X.device)
        z, pulled = _normalised(image, X), image.gain * G
        if image.centred:
            pulled = pulled - pulled.mean(-1, keepdim=True)
        return image.gain * (pulled - z * (z * pulled).mean(-1, keepdim=True))

    def draw(self, count: int, n: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw tokens around a common direction of z, from close together to independent and uniform."""
        require_point(like, "like")
        image = self.norm.image.to(like.dtype, like.device)
        return self.nearest(image.gain * draw_correlated(count, n, like, generator) + image.centre)

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""
        return f"{tokens(n)} in the image of {type(self.norm).__name__}, d = {self.shape[1]}"


def _normalised(image: Ellipsoid, X: Tensor) -> Tensor:
    """Return the z that belong to the tokens."""
    z = _centred(image, (X - image.centre) / torch.where(image.gain == 0, 1.0, image.gain))
    zero = (z == 0).all(-1, keepdim=True)
    # no direction is left: any will do, so long as it is the same every time
    ramp = _centred(image, torch.arange(1, image.gain.numel() + 1, dtype=X.dtype, device=X.device))
    z = torch.where(zero, ramp, z)
    return z / z.square().mean(-1, keepdim=True).sqrt()


def _centred(image: Ellipsoid, z: Tensor) -> Tensor:
    """Let z sum to zero, if it has to; coordinates without gain take that upon them."""
    silent = image.gain == 0
    z = torch.where(silent, 0.0, z)
    if not image.centred:
        return z
    total = z.sum(-1, keepdim=True)
    return torch.where(silent, -total / silent.sum(), z) if bool(silent.any()) else z - total / z.shape[-1]
