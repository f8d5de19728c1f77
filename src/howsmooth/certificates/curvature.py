r"""How far activations bend: the largest :math:`|\varphi''|` and :math:`|\varphi'''|` on an interval."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import ACTIVATIONS, Activation, known_activation

# Beyond this the activations of neural networks are straight to the last digit, or bend less and less.
FAR, POINTS = 24.0, 2**16
# What a peak may rise between two points of the grid, or be lost in rounding: h²/8 times two more derivatives, at most.
BETWEEN = 1e-5
# Those whose second derivative has a derivative everywhere.
SMOOTH = frozenset(ACTIVATIONS) - {"relu", "relu_squared"}


def require_known(activation: Activation | str) -> Activation:
    """Return an activation whose curvature is known.

    Raises:
        AssumptionError: If it is not one of ours: autograd would call a kink straight.
    """
    found = known_activation(activation)
    if ACTIVATIONS.get(found.name) is not found:
        raise AssumptionError(
            f"certificates need an activation whose curvature is known ({', '.join(ACTIVATIONS)}), got {found.name}.",
            field="classifier",
        )
    return found


def derivative(activation: Activation, x: Tensor, order: int = 2) -> Tensor:
    r"""Return :math:`\varphi''(x)` or a higher derivative."""
    watched = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        found = activation.slope(watched)
        for _ in range(order - 1):
            if not found.requires_grad:  # a constant
                return torch.zeros_like(x)
            (found,) = torch.autograd.grad(found.sum(), watched, create_graph=True)
    return found.detach()


def curvature(activation: Activation, x: Tensor, order: int = 2) -> Tensor:
    r"""Return :math:`|\varphi''(x)|`."""
    return derivative(activation, x, order).abs()


def largest_curvature(
    activation: Activation, low: Float[Tensor, "*any"], high: Float[Tensor, "*any"], order: int = 2
) -> Tensor:
    r"""Bound :math:`\sup|\varphi''|` over every interval: at its ends, or at a peak inside."""
    found = torch.maximum(curvature(activation, low, order), curvature(activation, high, order))
    for place, height in peaks(activation, order):
        inside = (low - 2 * FAR / POINTS <= place) & (place <= high + 2 * FAR / POINTS)
        found = torch.where(inside, found.clamp_min(height), found)
    return found + BETWEEN


@cache
def peaks(activation: Activation, order: int = 2) -> tuple[tuple[float, float], ...]:
    r"""Return where :math:`|\varphi''|` has local maxima above ``BETWEEN``, and how high they are on the grid."""
    grid = torch.linspace(-FAR, FAR, POINTS + 1, dtype=torch.float64)
    height = curvature(activation, grid, order)
    middle = height[1:-1]
    # a plateau counts where it begins; inside it the ends of an interval tell its height
    top = (middle > height[:-2]) & (middle >= height[2:]) & (middle > BETWEEN)
    return tuple(zip(grid[1:-1][top].tolist(), middle[top].tolist(), strict=True))
