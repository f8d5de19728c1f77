"""Multi-head attention as one would write it by hand: the function that the peers differentiate."""

from collections.abc import Callable

import torch
from torch import Tensor

import howsmooth as hs


def plain_attention(f: hs.Attention) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of ``f`` in plain torch operations."""
    heads, k, d = f.query.shape
    W = torch.cat((f.query, f.key, f.value)).reshape(3 * heads * k, d)
    assert f.output is not None
    out = f.output.movedim(0, 1).reshape(d, heads * k)
    biases = (f.query_bias, f.key_bias, f.value_bias)
    b = torch.cat([W.new_zeros(heads, k) if x is None else x for x in biases]).flatten()

    def attention(X: Tensor) -> Tensor:
        q, key, v = (part.reshape(-1, heads, k).transpose(0, 1) for part in (X @ W.mT + b).chunk(3, dim=-1))
        P = torch.softmax(q @ key.mT * k**-0.5, dim=-1)
        return (P @ v).transpose(0, 1).reshape(-1, heads * k) @ out.mT

    return attention
