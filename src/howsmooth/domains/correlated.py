"""Tokens drawn around a common direction, from close together to independent."""

import torch
from jaxtyping import Float
from torch import Tensor


def correlated(
    count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None
) -> Float[Tensor, "count n d"]:
    r"""Draw Gaussian tokens with a common part, :math:`\sqrt{1-s}\,g_0 + \sqrt s\,g_i`, s from 0 to 1 over the inputs.

    Tokens far apart saturate the softmax, and a saturated softmax has no slope to climb.
    """
    device = like.device if generator is None else generator.device
    gauss = torch.randn(count, n + 1, like.numel(), dtype=like.dtype, device=device, generator=generator)
    uniform = torch.rand(count, 1, 1, dtype=like.dtype, device=device, generator=generator)
    share = (torch.arange(count, device=device)[:, None, None] + uniform) / count
    return ((1 - share).sqrt() * gauss[:, :1] + share.sqrt() * gauss[:, 1:]).to(like.device)
