"""Domains of tokens: the protocol, balls, spheres, the inputs near a given one, and atoms with masses."""

import functools
import math
from dataclasses import dataclass, field
from typing import Protocol, SupportsFloat, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.metrics import Metric, as_metrics, total
from howsmooth.rounding import DOMAIN_UNITS
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_finite, require_floating, require_like, require_numbers, require_sequences

# Tokens nearer to the surface of a ball than this share of its radius lie on it.
SURFACE = 1e-5
# What rounding carried outside is shrunk so often before it is given up for the centre.
SHRINKINGS = 4


@runtime_checkable
class Domain(Protocol):
    """A set of inputs ``(n, d)``. :class:`~howsmooth.domains.Ball` is one; so is anything with these methods."""

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """How many tokens an input has, and of which dimension; ``None`` where any will do."""

    @property
    def scale(self) -> float:
        """The unit of length for the steps of a token."""

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project inputs onto the domain."""

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Turn the gradient ``G`` at ``X`` into a direction of ascent that does not leave the domain to first order."""

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw ``count`` inputs of ``n`` tokens with the dimension, dtype and device of ``like``."""

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""


def draw_correlated(
    count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None
) -> Float[Tensor, "count n d"]:
    r"""Draw Gaussian tokens with a common part, :math:`\sqrt{1-s}\,g_0 + \sqrt s\,g_i`, s from 0 to 1 over the inputs.

    Tokens far apart saturate the softmax, and a saturated softmax has no gradient to climb.
    """
    require_point(like, "like")
    device = like.device if generator is None else generator.device
    gauss = torch.randn(count, n + 1, like.numel(), dtype=like.dtype, device=device, generator=generator)
    uniform = torch.rand(count, 1, 1, dtype=like.dtype, device=device, generator=generator)
    share = (torch.arange(count, device=device)[:, None, None] + uniform) / count
    return ((1 - share).sqrt() * gauss[:, :1] + share.sqrt() * gauss[:, 1:]).to(like.device)


def require_point(x: Tensor, name: str) -> None:
    """Refuse anything but one point, whatever its numbers."""
    require_floating(x, name)
    if x.ndim != 1 or not x.numel():
        raise ShapeError(f"{name} must be one point, (d,), got {tuple(x.shape)}.", field=name)
    require_numbers(x, name)


def surface(X: Tensor) -> float:
    """Return the share of a radius below which tokens lie on the surface: where rounding brings them, at least."""
    return max(SURFACE, 2 * DOMAIN_UNITS * torch.finfo(X.dtype).eps)


def require_inputs(X: Tensor) -> None:
    """Refuse anything but finite inputs; there may be none of them."""
    require_floating(X, "tokens")
    if X.ndim < 3 or X.numel() or 0 in X.shape[-2:]:
        require_sequences(X)


def require_gradient(X: Tensor, G: Tensor) -> None:
    """Refuse inputs that are none, and a gradient of another shape; one that leaves the range of numbers passes."""
    require_inputs(X)
    require_like(G, X, tuple(X.shape), "G")


def tokens(n: int) -> str:
    """Write a number of tokens."""
    return f"{n} token{'s' if n > 1 else ''}"


@dataclass(frozen=True, eq=False)
class Ball(TensorDataclass):
    r"""All points within ``radius`` of ``centre``; as a domain of inputs, every token lies in it.

    A ball of whole inputs, in any metric, is a :class:`Neighbourhood` of a given one, such as zero.

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
        if self.centre is not None:
            require_point(self.centre, "centre")
            require_finite(self.centre, "centre")
        if not (isinstance(self.radius, SupportsFloat) and 0 <= self.radius < math.inf) or (
            self.radius == 0 and self.centre is None
        ):
            raise AssumptionError(
                f"the radius of a ball must be positive and finite, got {self.radius!r}.", field="radius"
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
        require_inputs(X)
        offset = self._offset(X)
        norm = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        reach = self.radius * (1 - DOMAIN_UNITS * torch.finfo(X.dtype).eps)
        projected = offset * (reach / norm.clamp_min(torch.finfo(X.dtype).tiny))
        projected = projected if self.centre is None else projected + self.centre.to(X)
        return torch.where(norm <= self.radius, X, projected)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the direction of steepest ascent in the ball: tokens on its surface do not move outwards."""
        require_gradient(X, G)
        offset = self._offset(X)
        norm = torch.linalg.vector_norm(offset, dim=-1, keepdim=True)
        normal = offset / norm.clamp_min(torch.finfo(X.dtype).tiny)
        outwards = (normal * G).sum(-1, keepdim=True)
        leaving = (norm >= self.radius * (1 - surface(X))) & (outwards > 0)
        return torch.where(leaving, G - normal * outwards, G)

    def draw(self, count: int, n: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw inputs whose tokens are uniform in concentric balls, from a small one to the whole.

        Tokens far apart saturate the softmax, and a saturated softmax has no slope to climb.
        """
        require_point(like, "like")
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


@dataclass(frozen=True)
class Sphere:
    r"""Inputs whose tokens all have the norm ``radius``: what RMSNorm with equal gains puts out.

    Example:
        >>> Sphere(2.0).nearest(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
        tensor([[2., 0.],
                [0., 2.]])
    """

    radius: float

    shape = (None, None)  # any number of tokens of any dimension

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, SupportsFloat) and 0 < self.radius < math.inf):
            raise AssumptionError(
                f"the radius of a sphere must be positive and finite, got {self.radius!r}.", field="radius"
            )

    @property
    def scale(self) -> float:
        """The unit of length for steps."""
        return self.radius

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Scale every token to the radius; the origin, which has no direction, goes along the first axis."""
        require_inputs(X)
        pole = torch.eye(1, X.shape[-1], dtype=X.dtype, device=X.device)
        zero = (X == 0).all(-1, keepdim=True)
        return self.radius * torch.nn.functional.normalize(torch.where(zero, pole, X), dim=-1, eps=0.0)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Drop the radial part of the gradient."""
        require_gradient(X, G)
        normal = X / self.radius
        return G - normal * (normal * G).sum(-1, keepdim=True)

    def draw(self, count: int, n: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw tokens around a common direction, from close together to independent and uniform."""
        return self.nearest(draw_correlated(count, n, like, generator))

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""
        return f"{tokens(n)} on the sphere of radius {self.radius:g}"


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    r"""The inputs near a given one: :math:`\|Z-X\| \le \epsilon` in a metric.

    Attributes:
        X: The given input.
        eps: How far its neighbours are.
        metric: How that is measured: ``total`` for all tokens together, ``token`` for each of them, or any other name
            or value of ``hs.metrics``; a relative one is that at X.

    Example:
        >>> Neighbourhood(torch.zeros(2, 1), eps=5.0).nearest(torch.tensor([[6.0], [8.0]])).round(decimals=4)
        tensor([[3.],
                [4.]])
    """

    X: Float[Tensor, "n d"]
    eps: float
    metric: str | Metric = total

    def __post_init__(self) -> None:
        require_floating(self.X, "X")
        if self.X.ndim != 2 or not self.X.numel():
            raise ShapeError(f"X must be one input, (n, d), got {tuple(self.X.shape)}.", field="X")
        require_numbers(self.X, "X")
        require_finite(self.X, "X")
        if not (isinstance(self.eps, SupportsFloat) and 0 < self.eps < math.inf):
            raise AssumptionError(f"eps must be positive and finite, got {self.eps!r}.", field="eps")
        as_metrics(self.metric)

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """The shape of the given input."""
        n, d = self.X.shape
        return n, d

    @functools.cached_property
    def size(self) -> Metric:
        """The metric at the given input."""
        return as_metrics(self.metric).input.at(self.X)

    @property
    def scale(self) -> float:
        """The unit of length for the steps of a token."""
        n, d = self.X.shape
        return self.eps * self.size.euclidean_ratios((n, d))[0] / math.sqrt(n)

    def nearest(self, Z: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Bring inputs into the neighbourhood; what rounding carries outside is brought back, at worst to the centre.

        The distance is taken in float64: near a large token, float32 has few numbers within a small ``eps``.
        """
        require_inputs(Z)
        X = self.X.to(Z.device, torch.float64)
        within = self.eps * (1 - DOMAIN_UNITS * torch.finfo(Z.dtype).eps)
        offset = Z.double() - X
        offset = torch.where(self._outside(offset), self.size.nearest(offset, within), offset)
        for attempt in range(1, SHRINKINGS + 1):
            rounded = (X + offset).to(Z.dtype)
            outside = self._outside(rounded.double() - X)
            if not bool(outside.any()):
                return rounded
            # by more and more than what is too much: the next rounding may carry outwards again
            excess = (self.size.size(rounded.double() - X) / self.eps - 1)[..., None, None]
            offset = torch.where(outside, offset * (1 - 2**attempt * excess).clamp_min(0.5), offset)
        return (X + torch.where(outside, 0.0, offset)).to(Z.dtype)

    def direction(self, Z: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the direction of steepest ascent in the neighbourhood: on its surface nothing moves outwards."""
        require_gradient(Z, G)
        return self.size.along(Z - self.X.to(Z), G, self.eps * (1 - surface(Z)))

    def draw(self, count: int, n: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw on concentric surfaces, from a small one to the whole; the first is the given input itself."""
        require_point(like, "like")
        X = self.X.to(like)
        share = torch.arange(count, dtype=like.dtype, device=like.device)[:, None, None] / max(1, count - 1)
        return self.nearest(X + self.eps * share * self.size.draw(X.expand(count, *X.shape), generator))

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""
        how = {"token": "every one", "total": "all together"}.get(self.size.name, f"metric {self.size.name}")
        return f"{tokens(n)} within {self.eps:g} of a given input, {how}"

    def _outside(self, offset: Tensor) -> Tensor:
        return (self.size.size(offset) > self.eps)[..., None, None]


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

    def draw(self, count: int, n: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
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
