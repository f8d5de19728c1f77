r"""Sums :math:`\sum_j\langle a_i,b_j\rangle c_j` over the tokens that each token sees, without a matrix of weights."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.maps.positions import Positions
from howsmooth.maps.projections import Layout
from howsmooth.maps.weighting import Pick

# Tokens that are summed as a small matrix of weights; between chunks there are sums only.
CHUNK = 64
Triple = tuple[Tensor, Tensor, Tensor]


@runtime_checkable
class Visibility(Protocol):
    r"""The map :math:`T(a,b,c)_i = \sum_{j\text{ seen by }i}\langle a_i,b_j\rangle c_j`."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return T; ``a`` has queries that share ``b`` and ``c``."""

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        r"""Return :math:`\sum_{i\text{ sees }j}\langle b_j,a_i\rangle g_i`, summed over queries that share ``b``."""

    def derivative(self, at: Triple, moved: Triple) -> Tensor:
        """Return the derivative of T at three arguments, along three others."""

    def take(self, pick: Pick) -> "Visibility":
        """Pick some entries of the batch."""


@dataclass(frozen=True, eq=False)
class Unmasked:
    """Every token sees all: one sum serves all."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Sum once, then meet the queries."""
        return a @ (b.mT @ c)

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Sum over queries once, then meet the keys."""
        return b @ (a.flatten(1, 2).mT @ g.flatten(1, 2)).unsqueeze(1)

    def derivative(self, at: Triple, moved: Triple) -> Tensor:
        """Move queries in a fixed sum, and the sum."""
        (a, b, c), (da, db, dc) = at, moved
        # the change of the sum is one product of twice the length
        change = torch.cat((db, b), dim=-2).mT @ torch.cat((c, dc), dim=-2)
        return da @ (b.mT @ c) + a @ change

    def take(self, pick: Pick) -> "Unmasked":
        """Pick some entries of the batch: all are alike."""
        return self


@dataclass(frozen=True, eq=False)
class Causal:
    """A token sees itself and what came before: sums run along the sequence, chunk by chunk."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Sum over chunks that are past, and over the past within a chunk."""
        n = a.shape[-2]
        a, b, c = (_chunks(x) for x in (a, b, c))
        sums = b.mT @ c
        before = sums.cumsum(-3) - sums
        return (a @ before + (a @ b.mT).tril() @ c).flatten(-3, -2)[..., :n, :]

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Sum over the future: the past of the sequence that is turned around."""
        b, a, g = (x.flip(-2) for x in (b, a, g))
        return self.forward(b, a, g).sum(1, keepdim=True).flip(-2)

    def derivative(self, at: Triple, moved: Triple) -> Tensor:
        """Move one argument after the other; two of them meet the same values."""
        (a, b, c), (da, db, dc) = at, moved
        b2 = torch.cat((b, db), dim=-1)
        return self.forward(torch.cat((da, a), dim=-1), b2, c) + self.forward(a, b, dc)

    def take(self, pick: Pick) -> "Causal":
        """Pick some entries of the batch: all are alike."""
        return self


@dataclass(frozen=True, eq=False)
class Masked:
    """A token sees what a mask shows; the weights are a matrix."""

    mask: Bool[Tensor, "stack shared_or_1 n n"]

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Hide weights, then sum."""
        return (a @ b.mT * self.mask) @ c

    def backward(self, b: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Hide weights, then sum over queries."""
        return ((b @ a.mT * self.mask.mT) @ g).sum(1, keepdim=True)

    def derivative(self, at: Triple, moved: Triple) -> Tensor:
        """Move one argument after the other."""
        (a, b, c), (da, db, dc) = at, moved
        return ((da @ b.mT + a @ db.mT) * self.mask) @ c + self.forward(a, b, dc)

    def take(self, pick: Pick) -> "Masked":
        """Pick some entries of the batch."""
        return Masked(pick(self.mask))


def visibility(
    positions: Positions, batch: tuple[int, ...], layout: Layout, X: Float[Tensor, "*batch n d"]
) -> Visibility:
    """Return the sum over what each token sees; padding is left to masses."""
    n = X.shape[-2]
    if positions.mask is None and positions.window is None:
        return Causal() if positions.causal else Unmasked()
    S = torch.zeros(*batch, layout.heads, n, n, dtype=X.dtype, device=X.device)
    positions.apply(S, slice(0, n), slice(0, n))
    return Masked((-torch.inf < S).reshape(-1, layout.shared, n, n))


def _chunks(x: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch chunks chunk k"]:
    n = x.shape[-2]
    size = min(CHUNK, n)
    return torch.nn.functional.pad(x, (0, 0, 0, -n % size)).unflatten(-2, (-1, size))
