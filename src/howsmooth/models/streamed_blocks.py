"""Many blocks that come from their files as one map: a product with its derivative reads all of them once."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import Operator
from howsmooth.maps.composition import Chain
from howsmooth.maps.protocols import Jacobian


class StreamedBlocks:
    """Consecutive blocks and the maps behind them, as one map whose products stream through the blocks.

    What enters every block is kept; a product linearises one block after the other there.
    """

    def __init__(self, parts: Sequence[Callable[[], Chain]], dtype: torch.dtype) -> None:
        self.parts, self.dtype = parts, dtype  # each part is read when it is called for

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply one block after the other."""
        for read in self.parts:
            X = read()(X)
        return X

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "StreamedJacobian":
        """Run the blocks once and keep what enters them."""
        entering = []
        for read in self.parts:
            entering.append(X)
            X = read()(X)
        first = entering[0]
        return StreamedJacobian(
            reads=self.parts,
            entering=entering,
            batch=tuple(first.shape[:-2]),
            domain=tuple(first.shape[-2:]),
            codomain=tuple(X.shape[-2:]),
            dtype=X.dtype,
            device=X.device,
        )

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "StreamedBlocks":
        """Return the same map, each part converted when it is read."""
        parts = [lambda read=read: read().to(dtype, device) for read in self.parts]
        return StreamedBlocks(parts, self.dtype if dtype is None else dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedJacobian(Operator):
    """The derivative of blocks that come from their files: every product reads all of them once."""

    reads: Sequence[Callable[[], Chain]]
    entering: Sequence[Tensor]  # what enters each part
    rows: Tensor | None = None  # which operators of the batch; none for all

    @property
    def parts(self) -> Iterator[Jacobian]:
        """The derivatives of the parts, one after the other: together they may not fit into memory."""
        return (self._at(read(), X) for read, X in zip(self.reads, self.entering, strict=True))

    def _push(self, E: Tensor) -> Tensor:
        for read, X in zip(self.reads, self.entering, strict=True):
            E = self._at(read(), X).jvp(E)
        return E

    def _pull(self, G: Tensor) -> Tensor:
        for read, X in zip(reversed(self.reads), reversed(self.entering), strict=True):
            G = self._at(read(), X).vjp(G)
        return G

    def _at(self, part: Chain, X: Tensor) -> Jacobian:
        # masks of padding are those of the whole batch
        found = part.jacobian(X)
        return found if self.rows is None else found.take(self.rows)

    def take(self, index: Tensor) -> "StreamedJacobian":
        """Return some operators of the batch."""
        rows = index if self.rows is None else self.rows[index]
        return dataclasses.replace(self, rows=rows, batch=(len(index),))
