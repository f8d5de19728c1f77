"""Tensors as people hold them: the same numbers, or some of them again and again, at other places in memory."""

import math

import torch
from torch.nn import functional


def windows(x):
    """Entries that overlap along every axis: each begins one number after the one before, as in a moving window."""
    size = sum(n - 1 for n in x.shape) + 1
    if size > x.numel():
        return x
    found = x.reshape(-1)[:size]
    for n in reversed(x.shape):
        found = found.unfold(0, n, 1)
    return found.permute(*range(found.ndim)[::-1]).squeeze(-1)


# Every number has a place of its own; between them may be what is no number.
SEPARATE = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.stack((x, torch.full_like(x, math.nan)), -1).flatten(-2)[..., ::2],
    "heads behind tokens": lambda x: x.movedim(0, -2).contiguous().movedim(-2, 0),
    "axes reversed": lambda x: x.permute(*range(x.ndim)[::-1]).contiguous().permute(*range(x.ndim)[::-1]),
    "sliced": lambda x: functional.pad(x, (2, 1, 1, 1), value=math.nan)[..., 1:-1, 2:-1],
}
LAYOUTS = {
    **SEPARATE,
    "one token": lambda x: x[..., :1, :].expand(x.shape),
    "one feature": lambda x: x[..., :1].expand(x.shape),
    "one number": lambda x: x.reshape(-1)[0].expand(x.shape),
    "one batch": lambda x: x[:1].expand(x.shape) if x.ndim > 2 else x,
    "windows": windows,
}
