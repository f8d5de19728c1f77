"""An activation on its own: every entry of every token alone."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError
from howsmooth.maps.activations import Activation, known_activation
from howsmooth.maps.protocols import take
from howsmooth.maps.tokenwise import TokenwiseJacobian
from howsmooth.validation import require_finite, require_floating


@dataclass(frozen=True, kw_only=True, eq=False)
class Pointwise:
    r"""Apply an activation to every entry: :math:`f(x)_j = \varphi(x_j)`.

    Attributes:
        activation: The activation, or its name.
        dtype: The numbers it computes with.
    """

    activation: Activation | str
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        """Look the activation up."""
        object.__setattr__(self, "activation", known_activation(self.activation))

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Apply it."""
        self._require(X)
        return known_activation(self.activation).value(X)

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "PointwiseJacobian":
        """Differentiate at ``X``."""
        self._require(X)
        n, d = X.shape[-2:]
        slopes = known_activation(self.activation).slope(X)
        return PointwiseJacobian(like=slopes, batch=tuple(X.shape[:-2]), n=n, d=d, out=d)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Pointwise":
        """Return the same map in another dtype; it has no parameters to move."""
        return self if dtype is None else dataclasses.replace(self, dtype=dtype)

    def _require(self, X: Tensor) -> None:
        require_floating(X, "tokens")
        if X.dtype != self.dtype:
            raise DtypeError(
                f"tokens must have the dtype of the map, {self.dtype}, got {X.dtype}; convert with .to().", field="X"
            )
        require_finite(X, "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class PointwiseJacobian(TokenwiseJacobian):
    """A diagonal operator, whose slopes are ``like``."""

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Push a perturbation forward."""
        self.check_perturbation(E)
        return self.like * E

    def vjp(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        self.check_cotangent(G)
        return self.like * G

    def take(self, index: Tensor) -> "PointwiseJacobian":
        """Pick some operators of the batch."""
        return dataclasses.replace(self, like=take(self.like, self.batch, index, event=2), batch=(len(index),))
