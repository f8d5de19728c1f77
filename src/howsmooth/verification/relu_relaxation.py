r"""ReLU layers in a Taylor model: units that may bend get a line and a symbol.

On :math:`[l,u]\ni0` a unit is :math:`\mathrm{relu}(y) = \sigma y + g(1+\eta)` with :math:`\sigma = u/(u-l)`,
:math:`g = -\sigma l/2` and :math:`|\eta|\le1`; all others are linear.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.mlp import MLP
from howsmooth.verification.taylor_model import ExpandedStage, Forms, TaylorModel


class ReLURelaxation(ExpandedStage):
    """A residual ReLU layer around the centre of what enters it.

    Args:
        f: The map.
        model: What enters.
        forms: Whether units beyond their first order are bounded by quadratic forms where they may bend.

    Attributes:
        centre: The pre-activations at the centre.
        derivative: Their linear parts.
        lower: The least value of each.
        upper: The largest.
        beyond_linear: How far each may be from its linear part.
        bent: Which of them may bend.
    """

    bent: Bool[Tensor, "n h"]

    def __init__(self, f: MLP, model: TaylorModel, *, forms: bool) -> None:
        if str(f.activation) != "relu":
            raise AssumptionError(f"boxes are verified for ReLU layers; this one has {f.activation}.")
        self.up, self.down = f.up, f.down
        up_bias = f.up.new_zeros(len(f.up)) if f.up_bias is None else f.up_bias
        down_bias = f.down.new_zeros(len(f.down)) if f.down_bias is None else f.down_bias
        self.centre = model.centre @ f.up.mT + up_bias
        self.derivative = torch.einsum("hd,ndr->nhr", f.up, model.derivative)
        self._bound(model, forms)
        self.slope = torch.where(self.bent, self.upper / (self.upper - self.lower), (self.lower >= 0).to(f.dtype))
        self.gap = torch.where(self.bent, -self.slope * self.lower / 2, 0.0)
        value = (self.slope * self.centre + self.gap) @ f.down.mT + down_bias
        derivative = model.derivative + torch.einsum("oh,nh,nhr->nor", f.down, self.slope, self.derivative)
        token, unit = self.bent.nonzero(as_tuple=True)
        symbols = derivative.new_zeros(*derivative.shape[:2], len(token))
        symbols[token, :, torch.arange(len(token))] = (f.down[:, unit] * self.gap[token, unit]).mT
        model.append(self, model.centre + value, torch.cat([derivative, symbols], -1))

    def _bound(self, model: TaylorModel, forms: bool) -> None:
        (n, d), hidden = model.centre.shape, len(self.up)
        every = torch.einsum("nm,hd->nhmd", torch.eye(n, dtype=self.up.dtype), self.up).reshape(-1, n, d)
        linear = model.symbols.linear_range(self.derivative)
        found = model.range(every, forms=False)
        below, above = ((x + found.remainder).reshape(n, hidden) for x in (found.below, found.above))
        self.lower, self.upper = self.centre - linear - below, self.centre + linear + above
        may_bend = ((self.lower < 0) & (self.upper > 0)).flatten().nonzero().squeeze(-1)
        if forms and model.stages and len(may_bend):
            closer = model.range(every[may_bend], forms=True)
            for bound, part in ((below, closer.below), (above, closer.above)):
                flat = bound.view(-1)
                flat[may_bend] = torch.minimum(flat[may_bend], part + closer.remainder)
            self.lower, self.upper = self.centre - linear - below, self.centre + linear + above
        self.beyond_linear = torch.maximum(below, above)
        self.bent = (self.lower < 0) & (self.upper > 0)

    def pull_back(self, functionals: Float[Tensor, "f n d"], forms: Forms) -> Float[Tensor, "f n d"]:
        """Pull linear functions of the tokens behind back to those before; a line has no second order."""
        pulled = ((functionals @ self.down) * self.slope) @ self.up
        return functionals + pulled
