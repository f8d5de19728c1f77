"""LayerNorm and RMSNorm as maps, with their derivatives and the ellipsoid each sends tokens to."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.ellipsoids import Ellipsoid
from howsmooth.maps.values import Value, take
from howsmooth.validation import (
    require_agreement,
    require_finite,
    require_floating,
    require_like,
    require_shape,
    require_tokens,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(Value):
    r"""What LayerNorm and RMSNorm share: :math:`x \mapsto \alpha\circ z + \beta` with normalised :math:`z`.

    Attributes:
        gain: :math:`\alpha`.
        bias: :math:`\beta`, or ``None`` for zero.
        eps: Added to the mean square under the root.
    """

    gain: Float[Tensor, " d"]
    bias: Float[Tensor, " d"] | None = None
    eps: float = 1e-5

    centred = False  # overridden by LayerNorm

    def __post_init__(self) -> None:
        """Check the parameters once."""
        require_floating(self.gain, "gain")
        if self.gain.ndim != 1 or not self.gain.numel():
            raise ShapeError(
                f"gain must have one axis with an entry for each coordinate, got {tuple(self.gain.shape)}."
            )
        require_finite(self.gain, "gain")
        if not 0 <= self.eps < math.inf:
            raise AssumptionError(f"eps must not be negative and must be finite, got {self.eps}.")
        if self.bias is not None:
            require_floating(self.bias, "bias")
            require_shape(self.bias, tuple(self.gain.shape), "bias")
            require_agreement(self.bias, self.gain, "bias", "gain")
            require_finite(self.bias, "bias")

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Normalise every token."""
        require_tokens(X, self.gain)
        return self.apply(X)

    def apply(self, X: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalise every token, unchecked."""
        z, _scale = self._normalised(X)
        scaled = self.gain * z
        return scaled if self.bias is None else scaled + self.bias

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "NormJacobian":
        """Differentiate at ``X``."""
        require_tokens(X, self.gain)
        return self.linearise(X)

    def linearise(self, X: Float[Tensor, "*batch n d"]) -> "NormJacobian":
        """Differentiate at ``X``, unchecked."""
        z, scale = self._normalised(X)
        return NormJacobian(gain=self.gain, z=z, scale=scale, centred=self.centred)

    def _normalised(self, X: Tensor) -> tuple[Tensor, Tensor]:
        centred = X - X.mean(-1, keepdim=True) if self.centred else X
        scale = (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()
        # without eps, a constant token has no direction: a zero scale would divide zero by zero
        if self.eps == 0 and not torch._C._functorch.is_batchedtensor(scale) and bool((scale == 0).any()):
            raise AssumptionError("eps = 0 and a token without spread: the norm is not differentiable there; give eps.")
        return centred / scale, scale

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.gain.dtype

    @property
    def image(self) -> Ellipsoid:
        r"""The closure of what the norm can output.

        Since :math:`|z|^2 \le d`, with equality in the limit, this is the ellipsoid
        :math:`\{\alpha\circ z+\beta : |z|\le\sqrt d\}`, for LayerNorm with :math:`z \perp 1`.
        """
        bias = torch.zeros_like(self.gain) if self.bias is None else self.bias
        return Ellipsoid(gain=self.gain, centre=bias, centred=self.centred)


@dataclass(frozen=True, kw_only=True, eq=False)
class RMSNorm(Norm):
    r"""Divide every token by its root mean square.

    .. math:: f(x) = \alpha\circ z + \beta,\qquad z = x\big/\sqrt{\tfrac1d|x|^2 + \epsilon}

    Example:
        >>> RMSNorm(gain=torch.ones(2), eps=0.0)(torch.tensor([[3.0, 3.0]]))
        tensor([[1., 1.]])
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNorm(Norm):
    r"""Centre every token and divide it by its standard deviation.

    .. math:: f(x) = \alpha\circ z + \beta,\qquad z = (x-\bar x)\big/\sqrt{\mathrm{var}(x) + \epsilon}

    Example:
        >>> LayerNorm(gain=torch.ones(2), eps=0.0)(torch.tensor([[1.0, 5.0]]))
        tensor([[-1.,  1.]])
    """

    centred = True


@dataclass(frozen=True, kw_only=True, eq=False)
class NormJacobian:
    r"""The derivative of a norm: token by token, and symmetric but for the gain.

    .. math:: J E = \alpha\circ\mathrm{core}(E),\quad J^\top G = \mathrm{core}(\alpha\circ G),\quad
              \mathrm{core}(E) = (\bar E - z\,\mathrm{mean}(z\circ\bar E))/\sigma,

    with :math:`\bar E` the centred perturbation for LayerNorm and ``E`` itself for RMSNorm.
    """

    gain: Float[Tensor, " d"]
    z: Float[Tensor, "*batch n d"]
    scale: Float[Tensor, "*batch n 1"]
    centred: bool

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return tuple(self.z.shape[:-2])

    @property
    def domain(self) -> tuple[int, ...]:
        """The shape of one perturbation, ``(n, d)``."""
        return tuple(self.z.shape[-2:])

    codomain = domain

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.z.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.z.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Push a perturbation of the tokens forward."""
        require_like(E, self.z, tuple(self.z.shape), "the perturbation")
        return self.gain * self._core(E)

    def vjp(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent of the output back."""
        require_like(G, self.z, tuple(self.z.shape), "the cotangent")
        return self._core(self.gain * G)

    def take(self, index: Tensor) -> "NormJacobian":
        """Pick some operators of the batch."""
        return self.taken(self.batch, index, event=2)

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "NormJacobian":
        """Pick entries of the leading ``batch`` axes, ``event`` axes being left."""
        z, scale = (take(x, batch, index, event=event) for x in (self.z, self.scale))
        return dataclasses.replace(self, z=z, scale=scale)

    def _core(self, E: Tensor) -> Tensor:
        if self.centred:
            E = E - E.mean(-1, keepdim=True)
        return (E - self.z * (self.z * E).mean(-1, keepdim=True)) / self.scale
