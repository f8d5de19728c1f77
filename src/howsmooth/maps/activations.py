"""Activations: functions of one number with their derivatives in closed form, and as maps on tokens."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from howsmooth.errors import AssumptionError, DtypeError, nearest
from howsmooth.linear_operators import SeparableOperator, on_tokens
from howsmooth.validation import require_finite, require_floating

# quick_gelu approximates the normal distribution function by σ(1.702 x).
QUICK = 1.702
# gelu_tanh approximates it by (1 + tanh(ROOT · (x + CUBE · x³))) / 2.
ROOT, CUBE = math.sqrt(2 / math.pi), 0.044715


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A function of one number, applied to every entry, and its derivative."""

    name: str
    value: Callable[[Tensor], Tensor]  # the function
    slope: Callable[[Tensor], Tensor]  # its derivative

    def __repr__(self) -> str:
        return self.name


def soft_cap(cap: float) -> Activation:
    r"""Return :math:`x \mapsto c\tanh(x/c)`, which keeps numbers between :math:`-c` and :math:`c`."""
    if not 0 < cap < math.inf:
        raise AssumptionError(f"a soft cap must be positive and finite, got {cap}.", field="cap")
    return Activation(
        name=f"soft cap at {cap:g}",
        value=lambda x: cap * torch.tanh(x / cap),
        slope=lambda x: 1 - torch.tanh(x / cap).square(),
    )


def entrywise(function: Callable[[Tensor], Tensor], name: str) -> Activation:
    """Return an activation whose slope autograd computes, for functions without a closed form here.

    The sum of all entries has the slopes as its gradient, since each entry depends on its own argument alone.
    """

    def slope(x: Tensor) -> Tensor:
        inputs = x.detach().requires_grad_()
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(function(inputs).sum(), inputs)
        return slopes

    return Activation(name=name, value=function, slope=slope)


def known_activation(name: object) -> Activation:
    """Return the activation of a name."""
    if isinstance(name, Activation):
        return name
    if not isinstance(name, str):
        raise DtypeError(f"activation must be a name such as 'gelu', got {type(name).__name__}.", field="activation")
    if name not in ACTIVATIONS:
        raise AssumptionError(f"there is no activation {name!r}{nearest(name, ACTIVATIONS)}", field="activation")
    return ACTIVATIONS[name]


def _gelu_slope(x: Tensor) -> Tensor:
    return torch.special.ndtr(x) + x * torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    t = torch.tanh(ROOT * (x + CUBE * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t.square()) * ROOT * (1 + 3 * CUBE * x.square())


def _sigmoid_slope(x: Tensor, steepness: float = 1.0) -> Tensor:
    r"""Return the slope of :math:`x\,\sigma(sx)`: :math:`\sigma + sx\,\sigma(1-\sigma)`."""
    s = torch.sigmoid(steepness * x)
    return s * (1 + steepness * x * (1 - s))


ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation(name="gelu", value=lambda x: x * torch.special.ndtr(x), slope=_gelu_slope),
        Activation(name="gelu_tanh", value=lambda x: functional.gelu(x, approximate="tanh"), slope=_gelu_tanh_slope),
        Activation(
            name="quick_gelu", value=lambda x: x * torch.sigmoid(QUICK * x), slope=lambda x: _sigmoid_slope(x, QUICK)
        ),
        Activation(name="silu", value=functional.silu, slope=_sigmoid_slope),
        # at the kink torch takes the slope zero, and so do we
        Activation(name="relu", value=torch.relu, slope=lambda x: (x > 0).to(x.dtype)),
        Activation(name="relu_squared", value=lambda x: torch.relu(x).square(), slope=lambda x: 2 * torch.relu(x)),
        Activation(name="tanh", value=torch.tanh, slope=lambda x: 1 - torch.tanh(x).square()),
        Activation(name="identity", value=lambda x: x, slope=torch.ones_like),
    )
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Pointwise:
    r"""Apply an activation to every entry: :math:`f(x)_j = \varphi(x_j)`."""

    activation: Activation | str  # the activation, or its name
    dtype: torch.dtype = torch.float32  # the dtype of the tokens

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", known_activation(self.activation))

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Apply it."""
        self._require(X)
        return known_activation(self.activation).value(X)

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "PointwiseJacobian":
        """Differentiate at ``X``."""
        self._require(X)
        return PointwiseJacobian(slopes=known_activation(self.activation).slope(X), **on_tokens(X))

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
class PointwiseJacobian(SeparableOperator):
    """The derivative of a pointwise map: a diagonal operator."""

    slopes: Float[Tensor, "*batch n d"]

    batched: ClassVar[dict[str, int]] = {"slopes": 2}

    def _push(self, E: Tensor) -> Tensor:
        return self.slopes * E

    def _pull(self, G: Tensor) -> Tensor:
        return self.slopes * G
