"""Floating-point numbers of four to sixteen bits: NF4, FP8 with a scale, bfloat16, float16."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from howsmooth.budgets.schemes.scheme import Scheme, SchemeWords, group_option, grouped

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
NAMES = ["nf4", *EIGHT_BITS, *HALF]
NF4_GROUP = 64


def read(words: SchemeWords) -> Scheme | None:
    """Read ``nf4:g64``, ``fp8:channel``, ``e5m2``, ``bf16``, ``fp16``."""
    if words.first in HALF:
        if words.options:
            raise words.unknown("numbers of sixteen bits have no scale, and no option")
        dtype = HALF[words.first]
        return Scheme(name=words.name, rounded=lambda W, _name: W.to(dtype).to(W.dtype), number_bits=16)
    if words.first in EIGHT_BITS:
        return _scaled(words, functools.partial(eight_bits, dtype=EIGHT_BITS[words.first]), 8, group=0)
    return _scaled(words, nf4, 4, group=NF4_GROUP) if words.first == "nf4" else None


def _scaled(words: SchemeWords, rounding: Callable[[Tensor], Tensor], bits: float, group: int | None) -> Scheme:
    group = group_option(words, words.options, group)
    return Scheme(
        name=words.name,
        rounded=lambda W, _name: grouped(W, group, rounding),
        number_bits=bits,
        scale_bits=16,
        group=group,
    )


def eight_bits(groups: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale the largest number of a group to the largest one of the dtype, and round."""
    scale = groups.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max
    scale = scale.where(scale > 0, 1.0)
    return (groups / scale).to(dtype).to(groups.dtype).mul_(scale)


@functools.cache
def nf4_levels() -> Tensor:
    r"""Return the sixteen levels of NF4 (Dettmers et al. 2023): quantiles of a normal distribution, scaled to [−1, 1].

    Eight quantiles from ½ to the offset :math:`1-\tfrac12(\tfrac1{32}+\tfrac1{30})` make the positive levels, seven the
    negative ones, and zero is a level.
    """
    offset = 1 - (1 / 32 + 1 / 30) / 2
    positive = torch.special.ndtri(torch.linspace(offset, 0.5, 9, dtype=torch.float64))[:-1]
    negative = -torch.special.ndtri(torch.linspace(offset, 0.5, 8, dtype=torch.float64))[:-1]
    levels = torch.cat([positive, torch.zeros(1, dtype=torch.float64), negative]).sort().values
    return levels / levels.max()


def nf4(groups: Tensor) -> Tensor:
    """Scale the largest number of a group to one, and take the nearest level."""
    levels = nf4_levels().to(groups)
    scale = groups.abs().amax(-1, keepdim=True)
    scale = scale.where(scale > 0, 1.0)
    nearest = torch.bucketize(groups / scale, (levels[1:] + levels[:-1]) / 2)
    return levels[nearest].mul_(scale)
