"""The remainder of rectified feed-forward parts, whose hidden units are straight on both sides of a kink."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.mlp_stage import MLPStage
from howsmooth.certificates.stages import First, root
from howsmooth.maps.mlp import MLP

# The axes of hidden units without a kink in reach, in squares and shares of the largest.
LEAST = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinks:
    r"""How rectified hidden units are taken: along which line, and in which proportion they may be off it.

    Attributes:
        slopes: Those of the lines. The chord's is :math:`\alpha = (y+s)/2s` for :math:`|y| < s`. Then
            :math:`|\max(y+t,0)-\max(y,0)-\alpha t|\le(s-|y|)/2` for :math:`|t|\le s`: half of what the derivative
            leaves.
        axes: What is left at unit i is :math:`a_ic_i`, and c in a ball. Equal axes let every unit use up all that is
            left anywhere; axes like :math:`\sqrt{r_i}` leave those out that are straight.
    """

    slopes: Float[Tensor, "n hidden"]
    axes: Float[Tensor, "n hidden"]


class KinkedStage(MLPStage):
    r"""A rectified MLP at tokens x: hidden unit i moves by at most :math:`s_i`, off its line by at most :math:`r_i`.

    The line need not be the tangent: any slope is one to expand along, as long as columns are pushed by the same.
    The remainder is :math:`W_2\operatorname{diag}(a)c` with :math:`|c|\le|r/a|` for any axes a.
    """

    def __init__(self, f: MLP, X: Float[Tensor, "n d"], kinks: Kinks | None = None) -> None:
        """Look at the MLP at ``X``; by default along its derivative, and all hidden units alike."""
        super().__init__(f, X)
        self._axes = None
        if kinks is not None:
            self._slope, self._axes = kinks.slopes.to(X.dtype), kinks.axes.to(X.dtype)

    def directions(self) -> list[Tensor]:
        """Return the columns of the root at every token; where hidden units have axes, every token has its own."""
        if self._axes is None:
            return super().directions()
        out = len(self._down)
        found = self._down.new_zeros(self._n, out, self._n, out)
        for i, axes in enumerate(self._axes):
            found[i, :, i] = root(self._down * axes)
        return [found]

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the length of c at every token."""
        left = off_the_line(self._hidden, self._slope, sizes.view_as(self._hidden))
        return (left if self._axes is None else left / self._axes).norm(dim=-1)

    def suited(self, sizes: Tensor) -> Kinks:
        """Return how hidden units are best taken while they move by so much."""
        s = sizes.view_as(self._hidden)
        chord = 0.5 * (1 + self._hidden / s.clamp_min(1e-300))
        slopes = torch.where(self._hidden.abs() < s, chord, self._activation.slope(self._hidden))
        left = off_the_line(self._hidden, slopes, s)
        # what is straight here may bend a little further out
        axes = (left + LEAST * left.amax(-1, keepdim=True)).sqrt()
        size = axes.norm(dim=-1, keepdim=True) / axes.shape[-1] ** 0.5
        return Kinks(slopes=slopes, axes=torch.where(size > 0, axes / size.clamp_min(1e-300), 1.0))


def off_the_line(y: Tensor, slope: Tensor, s: Tensor) -> Tensor:
    r"""Bound :math:`|\max(y+t,0)-\max(y,0)-\alpha t|` over :math:`|t|\le s`: it is largest at an end.

    Convex in t, it is least at the kink, if not at an end: :math:`-(1-\alpha)y` or :math:`-\alpha|y|` there, and at
    an end :math:`(1-\alpha)s` or :math:`\alpha s`.
    """
    ends = [((y + t).relu() - y.relu() - slope * t).abs() for t in (-s, s)]
    # a line through both parts of a straight function is exact; what rounding makes of differences is given back
    straight = (y.abs() >= s) & (slope == (y > 0).to(slope.dtype))
    found = torch.stack(ends).amax(0) * (1 + 1e-12) + 1e-15 * (y.abs() + s)
    return torch.where(straight, 0.0, found)
