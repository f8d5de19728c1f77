"""Activations: functions of one number with their slopes, both in closed form."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from howsmooth.errors import AssumptionError, DtypeError, nearest

# The steepness of the logistic curve that stands for the normal distribution.
QUICK = 1.702
# The argument of tanh that stands for the error function: ROOT · (x + CUBE · x³).
ROOT, CUBE = math.sqrt(2 / math.pi), 0.044715


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A function of one number, applied to every entry, and its derivative.

    Attributes:
        name: What it is called.
        value: The function.
        slope: Its derivative.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def __repr__(self) -> str:
        """Say what it is called."""
        return self.name


def soft_cap(cap: float) -> Activation:
    r"""Return :math:`x \mapsto c\tanh(x/c)`, which keeps numbers between :math:`-c` and :math:`c`.

    Raises:
        AssumptionError: If ``cap`` is not positive.
    """
    if not 0 < cap < math.inf:
        raise AssumptionError(f"a soft cap must be positive and finite, got {cap}.", field="cap")
    return Activation(
        name=f"soft cap at {cap:g}",
        value=lambda x: cap * torch.tanh(x / cap),
        slope=lambda x: 1 - torch.tanh(x / cap).square(),
    )


def entrywise(function: Callable[[Tensor], Tensor], name: str) -> Activation:
    """Return an activation whose slope autograd finds, for functions that have no closed form here.

    The sum of all entries has the slopes as its gradient, since each entry depends on its own argument alone.
    """

    def slope(x: Tensor) -> Tensor:
        watched = x.detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(function(watched).sum(), watched)
        return found

    return Activation(name=name, value=function, slope=slope)


def known_activation(name: object) -> Activation:
    """Return the activation of a name.

    Raises:
        AssumptionError: If there is none of that name.
        DtypeError: If it is neither a name nor an activation.
    """
    if isinstance(name, Activation):
        return name
    if not isinstance(name, str):
        raise DtypeError(f"activation must be a name such as 'gelu', got {type(name).__name__}.", field="activation")
    if name not in ACTIVATIONS:
        raise AssumptionError(f"there is no activation {name!r}{nearest(name, ACTIVATIONS)}", field="activation")
    return ACTIVATIONS[name]


def _normal(x: Tensor) -> Tensor:
    r"""Return the distribution function :math:`\Phi` of the standard normal law."""
    return torch.special.ndtr(x)


def _gelu_slope(x: Tensor) -> Tensor:
    return _normal(x) + x * torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    t = torch.tanh(ROOT * (x + CUBE * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t.square()) * ROOT * (1 + 3 * CUBE * x.square())


def _sigmoid_slope(x: Tensor, steepness: float = 1.0) -> Tensor:
    r"""Return the slope of :math:`x\,\sigma(sx)`: :math:`\sigma + sx\,\sigma(1-\sigma)`."""
    s = torch.sigmoid(steepness * x)
    return s * (1 + steepness * x * (1 - s))


ACTIVATIONS = {
    found.name: found
    for found in (
        Activation(name="gelu", value=lambda x: x * _normal(x), slope=_gelu_slope),
        Activation(name="gelu_tanh", value=lambda x: functional.gelu(x, approximate="tanh"), slope=_gelu_tanh_slope),
        Activation(
            name="quick_gelu", value=lambda x: x * torch.sigmoid(QUICK * x), slope=lambda x: _sigmoid_slope(x, QUICK)
        ),
        Activation(name="silu", value=functional.silu, slope=_sigmoid_slope),
        # the kink of these is a single number; torch says that the slope there is zero, and so do we
        Activation(name="relu", value=torch.relu, slope=lambda x: (x > 0).to(x.dtype)),
        Activation(name="relu_squared", value=lambda x: torch.relu(x).square(), slope=lambda x: 2 * torch.relu(x)),
        Activation(name="tanh", value=torch.tanh, slope=lambda x: 1 - torch.tanh(x).square()),
        Activation(name="identity", value=lambda x: x, slope=torch.ones_like),
    )
}
