r"""Smooth activations in a Taylor model.

A unit that moves by :math:`t = t_1+t_2`, :math:`t_1` linear and :math:`|t_2|\le s_2`, puts out

.. math:: \varphi(y+t) = \varphi(y) + \varphi'(y)\,t + \tfrac12\varphi''(y)\,t_1^2 + r,\qquad
          |r| \le \tfrac12|\varphi''(y)|\,s_2(2s_1+s_2) + \tfrac16\sup|\varphi'''|\,(s_1+s_2)^3,

or, where that is smaller, :math:`|r|\le\tfrac12\sup|\varphi''|(s_1+s_2)^2+\tfrac12|\varphi''(y)|s_1^2`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.mlp_stage import SMOOTH, derivative, largest_derivatives
from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import Activation
from howsmooth.verification.taylor_model import ExpandedStage, Forms, TaylorModel


class ActivationExpansion(ExpandedStage):
    """A smooth activation of every number around the centre of what enters it.

    Args:
        activation: The activation.
        model: What enters.
        forms: Whether what enters is bounded beyond its linear part by quadratic forms.
    """

    def __init__(self, activation: Activation, model: TaylorModel, *, forms: bool) -> None:
        if activation.name not in SMOOTH:
            raise AssumptionError(
                f"boxes are verified through relu, {', '.join(sorted(SMOOTH))}; this one has {activation.name}."
            )
        y, self.moved = model.centre, model.derivative.flatten(0, 1)
        self.sizes = model.symbols.linear_range(model.derivative)
        beyond = model.beyond_linear(model.coordinates(), forms=forms).size.view_as(y)
        size = self.sizes + beyond
        self.activation, self.largest = activation, y.abs() + size
        self.slope, self.curvature = activation.slope(y), derivative(activation, y)
        second, third = largest_derivatives(activation, y - size, y + size, order=3)
        bend = 0.5 * self.curvature.abs()
        cubic = bend * beyond * (2 * self.sizes + beyond) + third * size**3 / 6
        whole = 0.5 * second * size.square() + bend * self.sizes.square()
        self.remainder = torch.fmin(cubic, whole)
        if activation.name == "gelu_tanh":
            # files that write it out have its two constants in single precision, off by 2⁻²⁴ each: with the argument u
            # of the hyperbolic tangent, by at most ½|x| · 2 · 2⁻²⁴ max|u(1 - tanh²u)|, and that maximum is below ½
            self.remainder = self.remainder + 2.0**-25 * (y.abs() + size)
        self.value, self.linear = activation.value(y), self.slope.unsqueeze(-1) * model.derivative

    def pull_back(self, functionals: Float[Tensor, "f n h"], forms: Forms) -> Float[Tensor, "f n h"]:
        """Multiply by the slopes; add the squares and what is left of every unit."""
        squares = 0.5 * functionals * self.curvature
        ranges = (squares.abs() * self.sizes.square()).sum((1, 2))
        forms.add(self.moved, lambda: squares.flatten(1).unsqueeze(-1) * self.moved, ranges)
        forms.add_remainder((functionals.abs() * self.remainder).sum((1, 2)))
        return functionals * self.slope
