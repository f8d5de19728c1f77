r"""The remainder of MLPs with ReLU units: :ref:`lines other than the derivative <kinks>`."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.mlp_stage import MLPStage
from howsmooth.certificates.stages import FirstOrder, matrix_root
from howsmooth.maps.mlp import MLP
from howsmooth.rounding import LINE_SHARE, LINE_TERMS

# The axes of units whose kink is out of reach, in squares and relative to the largest.
SMALLEST_AXIS = 0.02


class ReLUStage(MLPStage):
    r"""An MLP with ReLU units at tokens x: unit i moves by at most :math:`s_i`, off its line by at most :math:`r_i`.

    Theorem 11 holds for expansions along any line, if columns are propagated with the same slope; and the line need not
    pass through the centre, if the centre moves with it. Units are relaxed by the line midway between the chord of
    slope :math:`\alpha = (y+s)/2s` and the parallel line through the kink: :math:`\max(y,0)+o+\alpha t` with
    :math:`o = (s-|y|)^2/4s` is off by at most :math:`(s^2-y^2)/4s`, where the derivative leaves :math:`s-|y|`. Then
    :math:`W_2o` is added to the output of the stage at the centre.

    The remainder is :math:`W_2\operatorname{diag}(a)c` with :math:`|c|\le|r/a|` for any axes a. Equal axes let every
    unit use up all that is left anywhere; axes like :math:`\sqrt{r_i}` leave straight units out.
    """

    def __init__(self, f: MLP, X: Float[Tensor, "n d"], unit_ranges: Float[Tensor, "n hidden"] | None = None) -> None:
        """Evaluate the MLP at ``X``.

        Args:
            f: The MLP.
            X: The tokens.
            unit_ranges: How far hidden units are expected to move. Lines and axes are chosen for that, and hold however
                far units move. By default lines are derivatives, and axes equal.
        """
        super().__init__(f, X)
        self._offset, self._axes = torch.zeros_like(self._hidden), torch.ones_like(self._hidden)
        if unit_ranges is not None:
            # Where no range is known, the line is the derivative.
            s = torch.where(unit_ranges.isfinite(), unit_ranges, 0.0).to(X.dtype)
            self._slope, self._offset = relaxation_lines(self._hidden, s)
            self._axes = _axes(line_error(self._hidden, self._slope, self._offset, s))
            self.shift = self._offset @ self._down.mT

    def directions(self) -> list[Tensor]:
        """Return the columns of the root at every token; where units have axes, every token has a root of its own."""
        if self.shift is None:
            return super().directions()
        out = len(self._down)
        found = self._down.new_zeros(self._n, out, self._n, out)
        # Axes differ from token to token, so every token has a root of its own.
        for i, axes in enumerate(self._axes):
            found[i, :, i] = matrix_root(self._down * axes)
        return [found]

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound the length of c at every token."""
        left = line_error(self._hidden, self._slope, self._offset, norms.view_as(self._hidden))
        return (left / self._axes).norm(dim=-1)

    def unit_ranges(self, norms: Tensor) -> Float[Tensor, "n hidden"]:
        """Return how far hidden units move."""
        return norms.view_as(self._hidden)


def relaxation_lines(y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return slopes, and offsets at the centre, of the lines with the least error for units that move by at most s."""
    crosses, divisor = y.abs() < s, s.clamp_min(1e-300)
    slope = torch.where(crosses, 0.5 * (1 + y / divisor), (y > 0).to(y.dtype))
    return slope, torch.where(crosses, (s - y.abs()) * ((s - y.abs()) / (4 * divisor)), 0.0)


def line_error(y: Tensor, slope: Tensor, offset: Tensor, s: Tensor) -> Tensor:
    r"""Bound :math:`|\max(y+t,0)-\max(y,0)-\alpha t-o|` over :math:`|t|\le s`: it is largest at an end or the kink."""
    kink = torch.minimum(torch.maximum(-y, -s), s)
    errors = [((y + t).relu() - y.relu() - slope * t - offset).abs() for t in (-s, s, kink)]
    # A straight unit along its own line has no error; elsewhere the rounding error of the differences is added.
    straight = (y.abs() >= s) & (slope == (y > 0).to(slope.dtype)) & (offset == 0)
    found = torch.stack(errors).amax(0) * (1 + LINE_SHARE) + LINE_TERMS * (y.abs() + s + offset.abs())
    return torch.where(straight, 0.0, found)


def _axes(left: Float[Tensor, "n hidden"]) -> Tensor:
    """Return axes like the roots of what is left, one in their mean square."""
    # A unit that is straight here may cross its kink a little further out.
    axes = (left + SMALLEST_AXIS * left.amax(-1, keepdim=True)).sqrt()
    size = axes.norm(dim=-1, keepdim=True) / axes.shape[-1] ** 0.5
    return torch.where(size > 0, axes / size.clamp_min(1e-300), 1.0)
