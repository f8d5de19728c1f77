"""Integers of two to eight bits, rounded to nearest: by tensor, row or group, symmetric or with a zero point."""

import re

from torch import Tensor

from howsmooth.budgets.schemes.scheme import Scheme, SchemeWords, group_option, grouped

NAMES = [f"int{bits}" for bits in range(2, 9)]
SCALE_BITS = 16


def read(words: SchemeWords) -> Scheme | None:
    """Read ``int4:g64:asym``; one scale for each row unless told otherwise."""
    if not re.fullmatch("int[2-8]", words.first):
        return None
    bits, asymmetric = int(words.first[3:]), "asym" in words.options
    group = group_option(words, [option for option in words.options if option != "asym"], None)
    rounding = with_zero_point if asymmetric else symmetric
    return Scheme(
        name=words.name,
        rounded=lambda W, _name: grouped(W, group, lambda groups: rounding(groups, bits)),
        number_bits=bits,
        scale_bits=SCALE_BITS + bits * asymmetric,
        group=group,
    )


def symmetric(groups: Tensor, bits: int) -> Tensor:
    r"""Round to :math:`s\{-2^{b-1},\dots,2^{b-1}-1\}` with :math:`s = 2\max|w|/(2^b-1)`, as compressed-tensors does."""
    top = 2 ** (bits - 1)
    scale = groups.abs().amax(-1, keepdim=True) * (2 / (2**bits - 1))
    scale = scale.where(scale > 0, 1.0)
    return (groups / scale).round_().clamp_(-top, top - 1).mul_(scale)


def with_zero_point(groups: Tensor, bits: int) -> Tensor:
    r"""Round to :math:`s\{-z,\dots,2^b-1-z\}`, which covers zero and every number; z is whole, so that zero stays."""
    low, high = groups.amin(-1, keepdim=True).clamp_(max=0), groups.amax(-1, keepdim=True).clamp_(min=0)
    scale = (high - low) / (2**bits - 1)
    scale = scale.where(scale > 0, 1.0)
    zero = (-low / scale).round_()
    return (groups / scale).round_().add_(zero).clamp_(0, 2**bits - 1).sub_(zero).mul_(scale)
