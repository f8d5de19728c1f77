"""One sequence over several processes: which of its tokens each holds, and how they talk."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, ClusterError, ShapeError

# How many rows are drawn at a time, so that random vectors do not depend on how tokens are shared out.
DRAWN_ROWS = 1024


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Say in one way that another process is lost; backends say it in many."""
    try:
        yield
    except RuntimeError as error:
        (said, *_others) = (str(error).strip() or type(error).__name__).splitlines()
        raise ClusterError(
            "a process of the group was lost, or did not answer within the time-out of the group; start all of them "
            f"again ({said.partition('. ')[0]})."  # what follows is advice of the backend
        ) from error


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRing:
    """A group of processes that share out the tokens of one sequence: each holds some pieces of it."""

    group: Any  # of torch.distributed; none where one process holds the whole sequence
    rank: int
    pieces: tuple[tuple[range, ...], ...]  # which tokens of the sequence each process holds, in its own order

    @classmethod
    def of(
        cls, group: "dist.ProcessGroup", X: Float[Tensor, "*batch n d"], positions: Int[Tensor, " n"] | None = None
    ) -> "TokenRing":
        """Tell all processes which tokens this one has; what does not fit together is refused everywhere.

        Without positions, tokens lie in the order of ranks.
        """
        said: list[Any] = [None] * dist.get_world_size(group)
        own = None if positions is None else _runs(positions)
        with answering():
            dist.all_gather_object(said, (tuple(X.shape), str(X.dtype), own), group=group)
        others = {(shape[:-2], shape[-1:], dtype) for shape, dtype, _own in said}
        if len(others) > 1 or any(len(shape) < 2 or not math.prod(shape) for shape, _dtype, _own in said):
            found = ", ".join(f"{shape} {dtype.removeprefix('torch.')}" for shape, dtype, _own in said)
            raise ShapeError(
                "every process must hold at least one token (*batch, n, d), with the same batch, d and dtype; they "
                f"hold {found}.",
                field="X",
            )
        lengths, pieces = [shape[-2] for shape, _dtype, _own in said], [own for *_about, own in said]
        if all(own is None for own in pieces):
            ends = list(itertools.accumulate(lengths))
            pieces = [(range(end - n, end),) for n, end in zip(lengths, ends, strict=True)]
        _check_pieces(pieces, lengths)
        return cls(group=group, rank=dist.get_rank(group), pieces=tuple(pieces))

    @classmethod
    def even(cls, group: "dist.ProcessGroup | None", n: int, *, causal: bool) -> "TokenRing":
        """Share out the tokens of a sequence that all processes know, so that each does as much as the others."""
        rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        return cls(group=group, rank=rank, pieces=even_pieces(n, size, causal=causal))

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each process holds."""
        return tuple(sum(map(len, own)) for own in self.pieces)

    @property
    def positions(self) -> Int[Tensor, " n"]:
        """Where the tokens of this process lie in the sequence."""
        return torch.cat([torch.arange(piece.start, piece.stop) for piece in self.pieces[self.rank]])

    def whole(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """Return the numbers of all tokens of the sequence, given those of this process's."""
        found = x.new_zeros(*x.shape[:-1], sum(self.lengths))
        found[..., self.positions.to(x.device)] = x
        return self.sum(found)

    def sum(self, x: Tensor) -> Tensor:
        """Add up over all processes; all have the same result, bit by bit."""
        if self.group is None:
            return x
        total = x.clone()
        with answering():
            dist.all_reduce(total, group=self.group)
        return total

    def agreed(self, number: int) -> int:
        """Return what the first process says."""
        said = [number]
        with answering():
            dist.broadcast_object_list(said, src=dist.get_global_rank(self.group, 0), group=self.group)
        return said[0]

    def draw(self, like: Float[Tensor, "*batch n d"], generator: torch.Generator | None) -> Tensor:
        """Draw the part of a Gaussian vector; the whole does not depend on how tokens are shared out.

        That of one sequence is what one process would draw.
        """
        found, own, count = like.new_empty(like.shape, device="cpu"), self.positions, sum(self.lengths)
        for start in range(0, count, DRAWN_ROWS):
            shape = (*like.shape[:-2], min(DRAWN_ROWS, count - start), like.shape[-1])
            block = torch.randn(shape, dtype=like.dtype, generator=generator)
            (here,) = torch.where((own >= start) & (own < start + DRAWN_ROWS))
            found[..., here, :] = block[..., own[here] - start, :]
        return found.to(like.device)

    def trade(self, step: int, sent: list[tuple[int, Tensor]], received: list[tuple[int, Tensor]]) -> list[Any]:
        """Begin to send tensors to processes and to receive others; return what to wait for."""
        operations = [
            dist.P2POp(what, x, dist.get_global_rank(self.group, peer), self.group, tag=step)
            for what, some in ((dist.isend, sent), (dist.irecv, received))
            for peer, x in some
        ]
        with answering():
            return dist.batch_isend_irecv(operations) if operations else []

    def wait(self, pending: list[Any]) -> None:
        """Wait for tensors on their way."""
        with answering():
            for work in pending:
                work.wait()


def even_pieces(n: int, size: int, *, causal: bool) -> tuple[tuple[range, ...], ...]:
    """Return which tokens each process holds, so that all have as much to do.

    Under a causal mask later tokens see more: each process then has two pieces, as far from either end.
    """
    if n < size:
        raise ShapeError(
            f"a sequence of {n} tokens cannot be shared out over {size} processes; give longer ones.", field="lengths"
        )
    count = 2 * size if causal and n >= 2 * size else size
    cuts = [i * n // count for i in range(count + 1)]
    every = [range(start, stop) for start, stop in itertools.pairwise(cuts)]
    return tuple((every[i], *every[count - 1 - i : count - i]) if count > size else (every[i],) for i in range(size))


def _runs(positions: Int[Tensor, " n"]) -> tuple[range, ...]:
    """Return positions as runs of consecutive ones; none if they are no row of whole numbers."""
    if positions.ndim != 1 or positions.is_floating_point() or not len(positions):
        return ()
    (breaks,) = torch.where(positions.diff() != 1)
    starts = [0, *(breaks + 1).tolist()]
    found = positions.tolist()
    return tuple(range(found[i], found[i] + j - i) for i, j in itertools.pairwise([*starts, len(found)]))


def _check_pieces(pieces: Sequence[Any], lengths: Sequence[int]) -> None:
    """Refuse positions that are not those of one sequence: the same on all processes."""
    counts = [own and sum(map(len, own)) for own in pieces]
    flat = sorted((piece for own in pieces if own is not None for piece in own), key=lambda piece: piece.start)
    stops = [0, *(piece.stop for piece in flat)]
    if counts != list(lengths) or [piece.start for piece in flat] != stops[:-1]:
        raise AssumptionError(
            f"the positions of all processes together must be 0 to {sum(lengths) - 1}, each once, one for each token; "
            f"they hold {', '.join(map(str, lengths))} tokens, and {', '.join(map(str, counts))} positions from "
            f"{flat[0].start if flat else 'nowhere'} to {stops[-1] - 1}.",
            field="positions",
        )
