"""Domain: the protocol of sets of inputs, onto which tokens are projected and from which they are drawn."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Domain(Protocol):
    """A set of inputs ``(n, d)``. :class:`~howsmooth.domains.Ball` is one; so is anything with these methods."""

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """How many tokens an input has, and of which dimension; ``None`` where any will do."""

    @property
    def scale(self) -> float:
        """The unit of length for the steps of a token."""

    def nearest(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project inputs onto the domain."""

    def direction(self, X: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Turn the gradient ``G`` at ``X`` into a direction of ascent that does not leave the domain to first order."""

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw ``count`` inputs of ``n`` tokens with the dimension, dtype and device of ``like``."""

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""


def draw_correlated(
    count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None
) -> Float[Tensor, "count n d"]:
    r"""Draw Gaussian tokens with a common part, :math:`\sqrt{1-s}\,g_0 + \sqrt s\,g_i`, s from 0 to 1 over the inputs.

    Tokens far apart saturate the softmax, and a saturated softmax has no gradient to climb.
    """
    device = like.device if generator is None else generator.device
    gauss = torch.randn(count, n + 1, like.numel(), dtype=like.dtype, device=device, generator=generator)
    uniform = torch.rand(count, 1, 1, dtype=like.dtype, device=device, generator=generator)
    share = (torch.arange(count, device=device)[:, None, None] + uniform) / count
    return ((1 - share).sqrt() * gauss[:, :1] + share.sqrt() * gauss[:, 1:]).to(like.device)


def tokens(n: int) -> str:
    """Write a number of tokens."""
    return f"{n} token{'s' if n > 1 else ''}"
