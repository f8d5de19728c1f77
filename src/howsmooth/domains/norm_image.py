"""The image of a LayerNorm or an RMSNorm."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import draw_correlated, tokens
from howsmooth.domains.ellipsoid import Ellipsoid
from howsmooth.errors import AssumptionError, DtypeError


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
        """Check that there is an image to search."""
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
        image = self.norm.image.to(X.dtype, X.device)
        return image.gain * _normalised(image, X) + image.centre

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        r"""Return how the image moves when the norm's *input* climbs: :math:`JJ^\top G`, J the norm's derivative.

        At normalised z, J is the gain times a projection: along z, and for LayerNorm along 1, nothing moves. The
        projection taken twice is itself, so it is applied once.
        """
        image = self.norm.image.to(X.dtype, X.device)
        z, pulled = _normalised(image, X), image.gain * G
        if image.centred:
            pulled = pulled - pulled.mean(-1, keepdim=True)
        return image.gain * (pulled - z * (z * pulled).mean(-1, keepdim=True))

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw tokens around a common direction of z, from close together to independent and uniform."""
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
