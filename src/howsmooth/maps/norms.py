"""LayerNorm and RMSNorm as maps, with their derivatives and the ellipsoid each sends tokens to."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.ellipsoid import Ellipsoid
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.protocols import take
from howsmooth.maps.weighting import recorded
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.torch_internals import is_batched, project_out
from howsmooth.validation import require_finite, require_floating, require_like, require_parameter, require_tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(TensorDataclass):
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
                f"gain must have one axis with an entry for each coordinate, got {tuple(self.gain.shape)}.",
                field="gain",
            )
        require_finite(self.gain, "gain")
        if not 0 <= self.eps < math.inf:
            raise AssumptionError(f"eps must not be negative and must be finite, got {self.eps}.", field="eps")
        if self.bias is not None:
            require_parameter(self.bias, tuple(self.gain.shape), self.gain, "bias", "gain")

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

    def value_and_jacobian(
        self, X: Float[Tensor, "*batch n d"], *, memory: int = 0
    ) -> tuple[Float[Tensor, "*batch n d"], "NormJacobian"]:
        """Return the value and the derivative at ``X``, which share ``z``; ``memory`` is for maps with weights."""
        found = self.jacobian(X)
        scaled = self.gain * found.z
        return scaled if self.bias is None else scaled + self.bias, found

    def linearise(self, X: Float[Tensor, "*batch n d"]) -> "NormJacobian":
        """Differentiate at ``X``, unchecked."""
        z, scale = self._normalised(X)
        return NormJacobian(z=z, stretch=self.gain / scale, centred=self.centred)

    def _normalised(self, X: Tensor) -> tuple[Tensor, Tensor]:
        centred = X - X.mean(-1, keepdim=True) if self.centred else X
        scale = (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()
        require_spread(scale, self.eps)
        return centred / scale, scale

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the gain."""
        return self.gain.dtype

    @property
    def image(self) -> Ellipsoid:
        r"""The closure of what the norm can output.

        Since :math:`|z|^2 \le d`, with equality in the limit, this is the ellipsoid
        :math:`\{\alpha\circ z+\beta : |z|\le\sqrt d\}`, for LayerNorm with :math:`z \perp 1`.
        """
        bias = torch.zeros_like(self.gain) if self.bias is None else self.bias
        return Ellipsoid(gain=self.gain, centre=bias, centred=self.centred)


def require_spread(scale: Tensor, eps: float) -> None:
    """Refuse tokens that no norm can scale: without eps a constant one has no direction, and 0/0 is no number."""
    if eps == 0 and not is_batched(scale) and bool((scale == 0).any()):
        raise AssumptionError(
            "eps = 0 and a token without spread: the norm is not differentiable there; give eps.", field="eps"
        )


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

    .. math:: J E = (\alpha/\sigma)\circ\Pi E,\quad J^\top G = \Pi\bigl((\alpha/\sigma)\circ G\bigr),\quad
              \Pi E = \bar E - z\,\mathrm{mean}(z\circ\bar E),

    with :math:`\bar E` the centred perturbation for LayerNorm and ``E`` itself for RMSNorm.

    Attributes:
        z: The normalised tokens.
        stretch: :math:`\alpha/\sigma`, the gain over each token's scale.
        centred: Whether tokens are centred.
    """

    z: Float[Tensor, "*batch n d"]
    stretch: Float[Tensor, "*batch n d"]
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
        """The dtype of the tokens."""
        return self.z.dtype

    @property
    def device(self) -> torch.device:
        """The device of the tokens."""
        return self.z.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Push a perturbation of the tokens forward."""
        require_like(E, self.z, tuple(self.z.shape), "the perturbation")
        return self.stretch * self._projected(E)

    def vjp(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent of the output back."""
        require_like(G, self.z, tuple(self.z.shape), "the cotangent")
        return self._projected(self.stretch * G)

    def take(self, index: Tensor) -> "NormJacobian":
        """Pick some operators of the batch."""
        return self.taken(self.batch, index, event=2)

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "NormJacobian":
        """Pick entries of the leading ``batch`` axes, ``event`` axes being left."""
        z, stretch = (take(x, batch, index, event=event) for x in (self.z, self.stretch))
        return dataclasses.replace(self, z=z, stretch=stretch)

    def _projected(self, E: Tensor) -> Tensor:
        if self.centred:
            if not recorded(E, self.z):
                return project_out(E, self.z)
            E = E - E.mean(-1, keepdim=True)
        return torch.addcmul(E, self.z, (self.z * E).mean(-1, keepdim=True), value=-1)
