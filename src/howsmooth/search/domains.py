"""Where a search looks: sets of inputs that tokens can be brought back to, moved along, and drawn from."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.ellipsoids import Ball
from howsmooth.maps.norms import Norm, NormJacobian
from howsmooth.validation import require_finite, require_floating


@runtime_checkable
class Domain(Protocol):
    """A set of inputs ``(n, d)``. :class:`~howsmooth.Ball` is one; so is anything with these methods."""

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """How many tokens an input has, and of which dimension; ``None`` where any will do."""

    @property
    def scale(self) -> float:
        """The length by which the step of one token is measured."""

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Bring inputs back into the domain."""

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Turn the gradient ``G`` at ``X`` into a direction of ascent that does not leave the domain to first order."""

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw ``count`` inputs of ``n`` tokens with the dimension, dtype and device of ``like``."""

    def describe(self, n: int) -> str:
        """Say what an input of ``n`` tokens is, in words."""


@dataclass(frozen=True)
class Sphere:
    r"""Inputs whose tokens all have the length ``radius``: what RMSNorm with equal gains puts out.

    Example:
        >>> Sphere(2.0).nearest(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
        tensor([[2., 0.],
                [0., 2.]])
    """

    radius: float

    def __post_init__(self) -> None:
        """Check the radius once."""
        if not 0 < self.radius < math.inf:
            raise AssumptionError(f"the radius of a sphere must be positive and finite, got {self.radius}.")

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """Any number of tokens of any dimension."""
        return None, None

    @property
    def scale(self) -> float:
        """The length by which steps are measured."""
        return self.radius

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Scale every token to the radius; the origin, which has no direction, goes along the first axis."""
        pole = torch.eye(1, X.shape[-1], dtype=X.dtype, device=X.device)
        lost = (X == 0).all(-1, keepdim=True)
        return self.radius * torch.nn.functional.normalize(torch.where(lost, pole, X), dim=-1, eps=0.0)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Drop the radial part of the gradient."""
        normal = X / self.radius
        return G - normal * (normal * G).sum(-1, keepdim=True)

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw tokens around a common direction, from close together to independent and uniform."""
        return self.nearest(correlated(count, n, like, generator))

    def describe(self, n: int) -> str:
        """Say what an input of ``n`` tokens is, in words."""
        return f"{n} token{'s' if n > 1 else ''} on the sphere of radius {self.radius:g}"


@dataclass(frozen=True, eq=False)
class LayerNormImage:
    r"""What a LayerNorm or RMSNorm puts out for tokens whose spread is large against its ``eps``.

    .. math:: x = \alpha\circ z + \beta,\qquad |z| = \sqrt d\quad\text{and, for LayerNorm, } z \perp 1.

    Tokens are brought back through :math:`z = (x-\beta)/\alpha`, which is normalised again; this is not the nearest
    point unless the gains are equal. A coordinate without gain does not show in x: its z is whatever leaves most
    length to the others.

    Example:
        >>> from howsmooth.maps.norms import LayerNorm
        >>> LayerNormImage(LayerNorm(gain=torch.tensor([1.0, 3.0]))).nearest(torch.tensor([[0.5, 0.0]]))
        tensor([[ 1., -3.]])
    """

    norm: Norm

    def __post_init__(self) -> None:
        """Check that there is an image to search."""
        if not isinstance(self.norm, Norm):
            raise DtypeError(f"norm must be an hs.LayerNorm or an hs.RMSNorm, got {type(self.norm).__name__}.")
        if not bool(self.norm.gain.any()) or (self.norm.centred and self.norm.gain.numel() == 1):
            raise AssumptionError("the image of this norm is a single point: there is nothing to search.")

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """Any number of tokens of the norm's dimension."""
        return None, self.norm.gain.numel()

    @property
    def scale(self) -> float:
        r"""The typical distance of a token from the bias, :math:`|\alpha|`."""
        return float(self.norm.gain.double().norm())

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Normalise every token once more."""
        norm = self.norm.to(X.dtype, X.device)
        return norm.gain * self._normalised(norm, X) + (0.0 if norm.bias is None else norm.bias)

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        r"""Return how the image moves when the norm's *input* climbs: :math:`JJ^\top G`, J the norm's derivative."""
        norm = self.norm.to(X.dtype, X.device)
        J = NormJacobian(
            gain=norm.gain, z=self._normalised(norm, X), scale=torch.ones_like(X[..., :1]), centred=norm.centred
        )
        return J.jvp(J.vjp(G))

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw tokens around a common direction of z, from close together to independent and uniform."""
        norm = self.norm.to(like.dtype, like.device)
        X = norm.gain * correlated(count, n, like, generator)
        return self.nearest(X if norm.bias is None else X + norm.bias)

    def describe(self, n: int) -> str:
        """Say what an input of ``n`` tokens is, in words."""
        return f"{n} token{'s' if n > 1 else ''} in the image of {type(self.norm).__name__}, d = {self.shape[1]}"

    def _normalised(self, norm: Norm, X: Tensor) -> Tensor:
        """Return the z that belong to the tokens."""
        gain, bias = norm.gain, norm.bias
        z = self._centred(norm, (X if bias is None else X - bias) / torch.where(gain == 0, 1.0, gain))
        lost = (z == 0).all(-1, keepdim=True)
        # no direction is left: any will do, so long as it is the same every time
        ramp = self._centred(norm, torch.arange(1, gain.numel() + 1, dtype=X.dtype, device=X.device))
        return dataclasses.replace(norm, gain=torch.ones_like(gain), bias=None, eps=0.0).apply(
            torch.where(lost, ramp, z)
        )

    def _centred(self, norm: Norm, z: Tensor) -> Tensor:
        """Let z sum to zero, if it has to; coordinates without gain take that upon them."""
        silent = norm.gain == 0
        z = torch.where(silent, 0.0, z)
        if not norm.centred:
            return z
        total = z.sum(-1, keepdim=True)
        return torch.where(silent, -total / silent.sum(), z) if bool(silent.any()) else z - total / z.shape[-1]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    r"""The inputs near a given one: :math:`\|Z-X\|_F \le \epsilon`, or :math:`|z_i-x_i| \le \epsilon` for every token.

    Attributes:
        X: The given input.
        eps: How far its neighbours are.
        per_token: Whether every token may move that far, or all of them together.

    Example:
        >>> Neighbourhood(torch.zeros(2, 1), eps=5.0).nearest(torch.tensor([[6.0], [8.0]]))
        tensor([[3.0000],
                [4.0000]])
    """

    X: Float[Tensor, "n d"]
    eps: float
    per_token: bool = False

    def __post_init__(self) -> None:
        """Check the input once."""
        require_floating(self.X, "X")
        if self.X.ndim != 2 or not self.X.numel():
            raise ShapeError(f"X must be one input, (n, d), got {tuple(self.X.shape)}.")
        require_finite(self.X, "X")
        if not 0 < self.eps < math.inf:
            raise AssumptionError(f"eps must be positive and finite, got {self.eps}.")

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """The shape of the given input."""
        n, d = self.X.shape
        return n, d

    @property
    def scale(self) -> float:
        """The length by which the step of one token is measured."""
        return self.eps if self.per_token else self.eps / math.sqrt(self.X.shape[0])

    def nearest(self, Z: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project onto the neighbourhood."""
        return self.X.to(Z) + self._ball.nearest(self._apart(Z - self.X.to(Z))).reshape(Z.shape)

    def direction(self, Z: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the direction of steepest ascent in the neighbourhood: on its surface nothing moves outwards."""
        return self._ball.direction(self._apart(Z - self.X.to(Z)), self._apart(G)).reshape(Z.shape)

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw from concentric neighbourhoods, from a small one to the whole; the first is the given input itself."""
        whole = self._apart(self.X.to(like))
        offsets = self._ball.draw(count, whole.shape[0], whole[0], generator)
        offsets[:1] = 0
        return self.X.to(like) + offsets.reshape(count, *self.X.shape)

    def describe(self, n: int) -> str:
        """Say what an input of ``n`` tokens is, in words."""
        how = "every one" if self.per_token else "all together"
        return f"{n} token{'s' if n > 1 else ''} within {self.eps:g} of a given input, {how}"

    @property
    def _ball(self) -> Ball:
        return Ball(self.eps)

    def _apart(self, Z: Tensor) -> Tensor:
        """Return what may move on its own: the tokens, or the whole input as one long token."""
        return Z if self.per_token else Z.flatten(-2).unsqueeze(-2)


def correlated(
    count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None
) -> Float[Tensor, "count n d"]:
    r"""Draw Gaussian tokens with a common part, :math:`\sqrt{1-s}\,g_0 + \sqrt s\,g_i`, s from 0 to 1 over the inputs.

    Tokens far apart saturate the softmax, and a saturated softmax has no slope to climb.
    """
    device = like.device if generator is None else generator.device
    gauss = torch.randn(count, n + 1, like.numel(), dtype=like.dtype, device=device, generator=generator)
    uniform = torch.rand(count, 1, 1, dtype=like.dtype, device=device, generator=generator)
    share = (torch.arange(count, device=device)[:, None, None] + uniform) / count
    return ((1 - share).sqrt() * gauss[:, :1] + share.sqrt() * gauss[:, 1:]).to(like.device)
