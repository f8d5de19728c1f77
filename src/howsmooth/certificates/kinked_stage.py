"""The remainder of rectified feed-forward parts, whose hidden units are straight on both sides of a kink."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.mlp_stage import MLPStage
from howsmooth.certificates.stages import First, root
from howsmooth.maps.mlp import MLP

# The axes of hidden units without a kink in reach, in squares and shares of the largest.
LEAST = 0.02


class KinkedStage(MLPStage):
    r"""A rectified MLP at tokens x: hidden unit i moves by at most :math:`s_i`, off its line by at most :math:`r_i`.

    The line need not be the tangent: any slope is one to expand along, as long as columns are pushed by the same; nor
    need it pass through the centre, as long as the centre moves with it. For :math:`|y| < s` the chord of slope
    :math:`\alpha = (y+s)/2s` is touched at the kink and left by :math:`(s^2-y^2)/2s` nowhere more than at it: half way
    between, :math:`\max(y,0)+o+\alpha t` with :math:`o = (s-|y|)^2/4s` is off by at most :math:`(s^2-y^2)/4s`, where
    the derivative leaves :math:`s-|y|`. Then :math:`W_2o` is added to what leaves the stage at the centre.

    The remainder is :math:`W_2\operatorname{diag}(a)c` with :math:`|c|\le|r/a|` for any axes a. Equal axes let every
    unit use up all that is left anywhere; axes like :math:`\sqrt{r_i}` leave those out that are straight.
    """

    def __init__(self, f: MLP, X: Float[Tensor, "n d"], reach: Float[Tensor, "n hidden"] | None = None) -> None:
        """Look at the MLP at ``X``.

        Args:
            f: The MLP.
            X: The tokens.
            reach: How far hidden units are expected to move: lines and axes suit that, and hold however far they do.
                By default they are taken along their derivatives, and all alike.
        """
        super().__init__(f, X)
        self._offset, self._axes = torch.zeros_like(self._hidden), torch.ones_like(self._hidden)
        if reach is not None:
            # what is not known to stay anywhere is taken as by default
            s = torch.where(reach.isfinite(), reach, 0.0).to(X.dtype)
            self._slope, self._offset = lines(self._hidden, s)
            self._axes = _axes(off_the_line(self._hidden, self._slope, self._offset, s))
            self.shift = self._offset @ self._down.mT

    def directions(self) -> list[Tensor]:
        """Return the columns of the root at every token; where hidden units have axes, every token has its own."""
        if self.shift is None:
            return super().directions()
        out = len(self._down)
        found = self._down.new_zeros(self._n, out, self._n, out)
        for i, axes in enumerate(self._axes):
            found[i, :, i] = root(self._down * axes)
        return [found]

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the length of c at every token."""
        left = off_the_line(self._hidden, self._slope, self._offset, sizes.view_as(self._hidden))
        return (left / self._axes).norm(dim=-1)

    def reach(self, sizes: Tensor) -> Float[Tensor, "n hidden"]:
        """Return how far hidden units move."""
        return sizes.view_as(self._hidden)


def lines(y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return slopes, and offsets at the centre, of the lines that rectified units are least off while they move."""
    bent, most = y.abs() < s, s.clamp_min(1e-300)
    slope = torch.where(bent, 0.5 * (1 + y / most), (y > 0).to(y.dtype))
    return slope, torch.where(bent, (s - y.abs()) * ((s - y.abs()) / (4 * most)), 0.0)


def off_the_line(y: Tensor, slope: Tensor, offset: Tensor, s: Tensor) -> Tensor:
    r"""Bound :math:`|\max(y+t,0)-\max(y,0)-\alpha t-o|` over :math:`|t|\le s`: it is largest at an end or the kink."""
    kink = torch.minimum(torch.maximum(-y, -s), s)
    off = [((y + t).relu() - y.relu() - slope * t - offset).abs() for t in (-s, s, kink)]
    # a line through both parts of a straight function is exact; what rounding makes of differences is given back
    straight = (y.abs() >= s) & (slope == (y > 0).to(slope.dtype)) & (offset == 0)
    found = torch.stack(off).amax(0) * (1 + 1e-12) + 1e-15 * (y.abs() + s + offset.abs())
    return torch.where(straight, 0.0, found)


def _axes(left: Float[Tensor, "n hidden"]) -> Tensor:
    # what is straight here may bend a little further out
    axes = (left + LEAST * left.amax(-1, keepdim=True)).sqrt()
    size = axes.norm(dim=-1, keepdim=True) / axes.shape[-1] ** 0.5
    return torch.where(size > 0, axes / size.clamp_min(1e-300), 1.0)
