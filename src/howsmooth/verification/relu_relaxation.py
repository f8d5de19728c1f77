r"""ReLUs in a Taylor model: units that may bend get a line and a symbol.

On :math:`[l,u]\ni0` a unit is :math:`\mathrm{relu}(y) = \sigma y + g(1+\eta)` with :math:`\sigma = u/(u-l)`,
:math:`g = -\sigma l/2` and :math:`|\eta|\le1`; all others are linear.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.verification.taylor_model import ExpandedStage, Forms, TaylorModel


class ReLURelaxation(ExpandedStage):
    """A ReLU of every number around the centre of what enters it.

    Args:
        model: What enters.
        forms: Whether units beyond their first order are bounded by quadratic forms where they may bend.

    Attributes:
        centre: What enters at the centre.
        derivative: Its linear part.
        lower: The least value of each unit.
        upper: The largest.
        beyond_linear: How far each may be from its linear part.
        bent: Which of them may bend.
    """

    bent: Bool[Tensor, "n h"]

    def __init__(self, model: TaylorModel, *, forms: bool) -> None:
        self.centre, self.derivative = model.centre, model.derivative
        self._bound(model, forms)
        self.slope = torch.where(self.bent, self.upper / (self.upper - self.lower), (self.lower >= 0).to(torch.float64))
        self.gap = torch.where(self.bent, -self.slope * self.lower / 2, 0.0)
        self.value = self.slope * self.centre + self.gap
        token, unit = self.bent.nonzero(as_tuple=True)
        symbols = self.derivative.new_zeros(*self.centre.shape, len(token))
        symbols[token, unit, torch.arange(len(token))] = self.gap[token, unit]
        self.linear = torch.cat([self.slope.unsqueeze(-1) * self.derivative, symbols], -1)

    def _bound(self, model: TaylorModel, forms: bool) -> None:
        every = model.coordinates()
        linear = model.symbols.linear_range(self.derivative)
        found = model.beyond_linear(every, forms=False)
        below, above = ((x + found.remainder).view_as(self.centre) for x in (found.below, found.above))
        self.lower, self.upper = self.centre - linear - below, self.centre + linear + above
        may_bend = ((self.lower < 0) & (self.upper > 0)).flatten().nonzero().squeeze(-1)
        if forms and len(may_bend):
            closer = model.beyond_linear(every[may_bend], forms=True)
            for bound, part in ((below, closer.below), (above, closer.above)):
                flat = bound.view(-1)
                flat[may_bend] = torch.minimum(flat[may_bend], part + closer.remainder)
            self.lower, self.upper = self.centre - linear - below, self.centre + linear + above
        self.beyond_linear = torch.maximum(below, above)
        self.bent = (self.lower < 0) & (self.upper > 0)

    def pull_back(self, functionals: Float[Tensor, "f n h"], forms: Forms) -> Float[Tensor, "f n h"]:
        """Multiply by the slopes; a line has no second order."""
        return functionals * self.slope
