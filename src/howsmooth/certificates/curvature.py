r"""How far activations bend: the largest :math:`|\varphi''|` on an interval."""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.activations import Activation

# Beyond this the activations of neural networks are straight to the last digit, or bend less and less.
FAR, POINTS = 24.0, 2**16
# What a peak may rise between two points of the grid: its height is known to a tenth of this.
BETWEEN = 1e-6
# Where an activation is nearly straight, its curvature is a difference of nearly equal numbers.
ROUNDING = 1e-12


def curvature(activation: Activation, x: Tensor) -> Tensor:
    r"""Return :math:`|\varphi''(x)|`."""
    watched = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(activation.slope(watched).sum(), watched, allow_unused=True)
    return torch.zeros_like(x) if found is None else found.abs()


def largest_curvature(activation: Activation, low: Float[Tensor, "*any"], high: Float[Tensor, "*any"]) -> Tensor:
    r"""Return :math:`\sup|\varphi''|` over every interval: at its ends, or at a peak inside."""
    found = torch.maximum(curvature(activation, low), curvature(activation, high))
    for place, height in peaks(activation):
        inside = (low - 2 * FAR / POINTS <= place) & (place <= high + 2 * FAR / POINTS)
        found = torch.where(inside, found.clamp_min(height), found)
    return found + ROUNDING


@cache
def peaks(activation: Activation) -> tuple[tuple[float, float], ...]:
    r"""Return where :math:`|\varphi''|` has its local maxima, and how high they are at most."""
    grid = torch.linspace(-FAR, FAR, POINTS + 1, dtype=torch.float64)
    height = curvature(activation, grid)
    middle = height[1:-1]
    # a plateau counts where it begins; inside it the ends of an interval tell its height
    top = (middle > height[:-2]) & (middle >= height[2:]) & (middle > BETWEEN)
    return tuple(
        (place, value + BETWEEN) for place, value in zip(grid[1:-1][top].tolist(), middle[top].tolist(), strict=True)
    )
