"""How widely attention looks: the entropy of its weights."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.maps.attention_weights import unstack
from howsmooth.maps.derivative import AttentionJacobian


def attention_entropy(J: AttentionJacobian, real: Bool[Tensor, "*batch n"] | None = None) -> Float[Tensor, "*batch"]:
    r"""Return :math:`-\sum_j P_{ij}\log P_{ij}`, the mean over heads and over (real) tokens i, in nats.

    Zero says that every token looks at one other, :math:`\log n` that it looks at all alike.
    """
    parts = []
    for tile, P, _slope in J.pattern.weights():
        rows = -torch.special.xlogy(P, P).sum(-1, keepdim=True)
        parts.append(unstack(rows, tile))
    found = torch.cat(parts, dim=-2).reshape(*J.batch, -1, J.domain[0])
    if real is None:
        return found.mean((-2, -1))
    shares = real.to(found.dtype)
    return (found.mean(-2) * shares).sum(-1) / shares.sum(-1)
