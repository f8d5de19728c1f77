"""Pruning by magnitude: a share of all numbers, or N of every M."""

import re

import torch
from torch import Tensor

from howsmooth.budgets.schemes.scheme import UNROUNDED_BITS, Scheme, SchemeWords, grouped

NAMES = ["prune:0.5", "prune:2:4"]


def read(words: SchemeWords) -> Scheme | None:
    """Read ``prune:0.5`` (half of the numbers become zero) and ``prune:2:4`` (two of every four are kept)."""
    if words.first != "prune":
        return None
    expected = "prune:0.5 removes that share of the numbers, prune:2:4 keeps 2 of every 4"
    whole = [int(option) for option in words.options if option.isdecimal()]
    if len(whole) == len(words.options) == 2:
        kept, of = whole
        if not 0 < kept < of:
            raise words.unknown(expected)
        # which numbers are kept takes log₂ binomial(M, N) bits at least; hardware spends two for each kept one of four
        bits = (kept / of) * (UNROUNDED_BITS + (of - 1).bit_length())
        return Scheme(
            name=words.name,
            rounded=lambda W, _name: grouped(W, of, lambda groups: largest(groups, kept)),
            number_bits=bits,
        )
    share = words.options[0] if len(words.options) == 1 else ""
    if not re.fullmatch(r"0?\.\d+", share) or not 0 < float(share) < 1:
        raise words.unknown(expected)
    # one bit for each number tells whether it is kept
    return Scheme(
        name=words.name,
        rounded=lambda W, _name: above_share(W, float(share)),
        number_bits=1 + (1 - float(share)) * UNROUNDED_BITS,
    )


def largest(groups: Tensor, kept: int) -> Tensor:
    """Keep the largest numbers of each group."""
    where = groups.abs().topk(kept, dim=-1).indices
    return torch.zeros_like(groups).scatter(-1, where, groups.gather(-1, where))


def above_share(W: Tensor, share: float) -> Tensor:
    """Set a share of all numbers to zero, the smallest ones."""
    size = W.abs().flatten()
    count = round(share * size.numel())
    pruned = W.flatten().clone()
    pruned[size.argsort(stable=True)[:count]] = 0
    return pruned.view_as(W)
