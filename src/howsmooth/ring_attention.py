r"""Attention of one sequence over several processes: keys and values go around.

With the weights :math:`P_{ij} = e^{S_{ij} - \ell_i}`, where :math:`\ell_i` is the log-sum-exp of a row over the keys of
all processes, a product with the derivative is a sum over blocks of keys,

.. math::
    \dot o_i = \sum_j P_{ij}\bigl(\dot S_{ij}\,v_j + \dot v_j\bigr) - \Bigl(\sum_j P_{ij}\dot S_{ij}\Bigr)o_i,\qquad
    \bar S_{ij} = P_{ij}\bigl(\langle g_i, v_j\rangle - \langle g_i, o_i\rangle\bigr),

so that every process adds up what its queries do with the keys that visit it; what its queries pull back to keys and
values goes home. Memory is that of the tokens of one process, the visitors', and a tile of scores.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.token_ring import TokenRing
from howsmooth.torch_internals import add_product

# How many scores a tile has.
TILE = 2**19
# Adds biases of positions to the scores of some rows and columns of the sequence, in place.
Bias = Callable[[Tensor, slice, slice], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class RingAttention:
    """Attention of one sequence over a ring at given queries, keys and values, ready for products."""

    ring: TokenRing
    q: Float[Tensor, "stack shared n k"]  # scaled; heads that share keys beside each other
    k: Float[Tensor, "stack n k"]
    v: Float[Tensor, "stack n v"]
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Bias | None = None
    sink: Float[Tensor, "stack shared"] | None = None
    o: Float[Tensor, "stack shared n v"]
    log_sum_exp: Float[Tensor, "stack shared n 1"]

    @classmethod
    def at(cls, **settings: Any) -> "RingAttention":
        """Compute outputs and log-sum-exps, which the softmax carries along from visitor to visitor."""
        q, v, sink = settings["q"], settings["v"], settings.get("sink")
        empty = q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_full((*q.shape[:-1], 1), -math.inf)
        self = cls(**settings, o=empty[0], log_sum_exp=empty[1])
        o, total = self.o, self.log_sum_exp
        if sink is not None:
            total.copy_(sink[..., None, None].expand(total.shape))
        for peer, (k, v), _home in self._visits(self.k, self.v):
            for tile in self._tiles(peer):
                rows, columns = tile.rows, tile.columns
                S, _slope = self._scores(k, tile)
                before, here = total[:, :, rows], S.logsumexp(-1, keepdim=True)
                after = torch.logaddexp(before, here)
                shift = after.masked_fill(torch.isneginf(after), 0.0)  # rows that have seen nothing yet
                moved = torch.bmm(S.sub_(shift).exp_().flatten(1, 2), v[:, columns])
                o[:, :, rows] = o[:, :, rows] * (before - shift).exp() + moved.view(*S.shape[:-1], -1)
                total[:, :, rows] = after
        return self

    def push(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "stack shared n v"]:
        """Push perturbations of scaled queries, keys and values forward."""
        dq = dq.reshape(self.q.shape)
        moved, mean = torch.zeros_like(self.o), torch.zeros_like(self.log_sum_exp)
        for peer, (k, v, k_moved, v_moved), _home in self._visits(self.k, self.v, dk, dv):
            for tile in self._tiles(peer):
                rows, columns = tile.rows, tile.columns
                P, slope = self._weights(k, tile)
                left, mine = dq[:, :, rows].flatten(1, 2), self.q[:, :, rows].flatten(1, 2)
                dS = add_product(torch.bmm(left, k[:, columns].mT), mine, k_moved[:, columns].mT).view(P.shape)
                dS = P * dS if slope is None else P * dS * slope
                mean[:, :, rows] += dS.sum(-1, keepdim=True)
                found = add_product(torch.bmm(dS.flatten(1, 2), v[:, columns]), P.flatten(1, 2), v_moved[:, columns])
                moved[:, :, rows] += found.view(*P.shape[:-1], -1)
        return moved - mean * self.o

    def pull(self, g: Float[Tensor, "stack shared n v"]) -> tuple[Tensor, Tensor, Tensor]:
        """Pull a cotangent of the outputs back to scaled queries, keys and values."""
        g, dq = g.reshape(self.o.shape), torch.zeros_like(self.q)
        mean = (g * self.o).sum(-1, keepdim=True)
        dk_home, dv_home = torch.zeros_like(self.k), torch.zeros_like(self.v)
        for peer, (k, v), home in self._visits(self.k, self.v):
            dk, dv = (dk_home, dv_home) if peer == self.ring.rank else (torch.zeros_like(k), torch.zeros_like(v))
            for tile in self._tiles(peer):
                rows, columns = tile.rows, tile.columns
                P, slope = self._weights(k, tile)
                G, mine = g[:, :, rows].flatten(1, 2), self.q[:, :, rows].flatten(1, 2)
                dS = torch.bmm(G, v[:, columns].mT).view(P.shape).sub_(mean[:, :, rows]).mul_(P)
                dS = (dS if slope is None else dS.mul_(slope)).flatten(1, 2)
                dq[:, :, rows] += torch.bmm(dS, k[:, columns]).view(*P.shape[:-1], -1)
                dk[:, columns] += torch.bmm(dS.mT, mine)
                dv[:, columns] += torch.bmm(P.flatten(1, 2).mT, G)
            for mine, theirs in zip((dk_home, dv_home), home(dk, dv), strict=False):
                mine += theirs
        return dq, dk_home, dv_home

    def take(self, index: Tensor, groups: int) -> "RingAttention":
        """Pick some entries of the batch, which has ``groups`` rows of the stack for each."""
        some = {
            name: x.unflatten(0, (-1, groups))[index].flatten(0, 1)
            for name in ("q", "k", "v", "o", "log_sum_exp", "sink")
            if (x := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, **some)

    @property
    def scores(self) -> int:
        """How many scores of the sequence this process computes in every product, tiles being computed whole."""
        every = range(len(self.ring.pieces))
        return sum(
            (tile.rows.stop - tile.rows.start) * (tile.columns.stop - tile.columns.start)
            for peer in every
            for tile in self._tiles(peer)
        )

    def _sees(self, rank: int, peer: int) -> bool:
        """Tell whether some query of a process sees a key of another."""
        return any(self._seen(rows, columns) for rows in self.ring.pieces[rank] for columns in self.ring.pieces[peer])

    def _seen(self, rows: range, columns: range) -> bool:
        """Tell whether some query at consecutive positions sees a key at others."""
        if self.causal and columns.start >= rows.stop:
            return False
        gap = max(rows.start - columns.stop, columns.start - rows.stop) + 1
        return self.window is None or gap < self.window

    def _visits(self, *own: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...], Callable[..., list[Tensor]]]]:
        """Yield the number of every process that is seen here, its tensors, and what sends results home to it.

        The next visitors are on their way while one is here. All processes must take part to the end.
        """
        ring, size = self.ring, len(self.ring.lengths)
        own = tuple(x.contiguous() for x in own)

        def begin(step: int) -> tuple[tuple[Tensor, ...], list[Any]]:
            reader, peer = (ring.rank + step) % size, (ring.rank - step) % size
            sent = [(reader, x) for x in own] if self._sees(reader, ring.rank) else []
            shapes = [(*x.shape[:-2], ring.lengths[peer], x.shape[-1]) for x in own if self._sees(ring.rank, peer)]
            there = tuple(own[0].new_empty(shape) for shape in shapes)
            return there, ring.trade(2 * step, sent, [(peer, x) for x in there])

        yield ring.rank, own, lambda *_results: []
        ahead = begin(1) if size > 1 else None
        for step in range(1, size):
            there, pending = ahead if ahead is not None else ((), [])
            ahead = begin(step + 1) if step + 1 < size else None
            ring.wait(pending)
            reader, peer = (ring.rank + step) % size, (ring.rank - step) % size

            def home(*results: Tensor, step: int = step, reader: int = reader, peer: int = peer) -> list[Tensor]:
                sent = [(peer, x) for x in results] if self._sees(ring.rank, peer) else []
                expected = [torch.empty_like(x) for x in own] if self._sees(reader, ring.rank) else []
                ring.wait(ring.trade(2 * step + 1, sent, [(reader, x) for x in expected]))
                return expected

            yield peer, there if there else own, home

    def _tiles(self, peer: int) -> Iterator["_Tile"]:
        """Yield rows here and columns there that are not hidden from each other, a tile at a time."""
        side = max(16, math.isqrt(TILE // (self.q.shape[0] * self.q.shape[1])))
        for (rows, i), (columns, j) in itertools.product(
            _cut(self.ring.pieces[self.ring.rank], side), _cut(self.ring.pieces[peer], side)
        ):
            if self._seen(i, j):
                yield _Tile(rows=rows, columns=columns, i=i, j=j)

    def _scores(self, k: Tensor, tile: "_Tile") -> tuple[Tensor, Tensor | None]:
        """Return a tile of scores ``(stack, shared, rows, columns)``, and the slope of their soft cap."""
        q = self.q[:, :, tile.rows]
        S = torch.bmm(q.flatten(1, 2), k[:, tile.columns].mT).view(*q.shape[:-1], -1)
        slope = None
        if self.softcap is not None:
            S = S.div_(self.softcap).tanh_()
            slope = 1 - S.square()
            S = S.mul_(self.softcap)
        rows, columns = tile.i, tile.j
        if self.bias is not None:
            self.bias(S, slice(rows.start, rows.stop), slice(columns.start, columns.stop))
        reach = math.inf if self.window is None else self.window - 1
        least, most = columns.start - (rows.stop - 1), columns.stop - 1 - rows.start
        if (self.causal and most > 0) or max(-least, most) > reach:
            i, j = (torch.arange(at.start, at.stop, device=S.device) for at in (rows, columns))
            offset = j - i[:, None]
            hidden = offset.abs() > reach
            S.masked_fill_(hidden | (offset > 0) if self.causal else hidden, -math.inf)
        return S, slope

    def _weights(self, k: Tensor, tile: "_Tile") -> tuple[Tensor, Tensor | None]:
        S, slope = self._scores(k, tile)
        return S.sub_(self.log_sum_exp[:, :, tile.rows]).exp_(), slope


class _Tile(NamedTuple):
    """Some rows of queries here and columns of keys there, and the positions of both in the sequence."""

    rows: slice
    columns: slice
    i: range
    j: range


def _cut(pieces: tuple[range, ...], side: int) -> Iterator[tuple[slice, range]]:
    """Cut the pieces of a process: yield places among its tokens, and their positions in the sequence."""
    first = 0
    for piece in pieces:
        for start in range(0, len(piece), side):
            part = piece[start : start + side]
            yield slice(first + start, first + start + len(part)), part
        first += len(piece)


class _Ring(torch.autograd.Function):
    """Attention over a ring with derivatives of first order in forward and reverse mode."""

    @staticmethod
    def forward(ring: TokenRing, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found = RingAttention.at(ring=ring, causal=causal, q=q, k=k, v=v)
        return found.o, found.log_sum_exp

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.ring, ctx.causal, *tensors = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)

    @staticmethod
    def _found(ctx: Any) -> RingAttention:
        q, k, v, o, log_sum_exp = ctx.saved_tensors
        return RingAttention(ring=ctx.ring, causal=ctx.causal, q=q, k=k, v=v, o=o, log_sum_exp=log_sum_exp)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _log_sum_exp: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Ring._found(ctx).pull(g)

    @staticmethod
    def jvp(ctx: Any, _ring: None, _causal: None, *tangents: Tensor | None) -> tuple[Tensor, Tensor | None]:
        found = _Ring._found(ctx)
        given = zip((found.q, found.k, found.v), tangents, strict=True)
        return found.push(*(torch.zeros_like(x) if t is None else t for x, t in given)), None


def ring_sdpa(
    query: Float[Tensor, "... n k"],
    key: Float[Tensor, "... n k"],
    value: Float[Tensor, "... n v"],
    group: "dist.ProcessGroup",
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    positions: Int[Tensor, " n"] | None = None,
) -> Float[Tensor, "... n v"]:
    """Return attention of a sequence over the processes of a group: this one's queries see the keys of all."""
    if query.shape[-2] != key.shape[-2] or query.ndim != key.ndim or key.ndim < 2 + enable_gqa:
        raise ShapeError(
            "over a group, queries, keys and values are those of the same tokens, with the same axes; got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}."
        )
    if not enable_gqa and query.shape[:-2] != key.shape[:-2]:
        raise AssumptionError("over a group, batch axes must be equal; expand them, or give enable_gqa=True.")
    ring, n = TokenRing.of(group, query, positions), query.shape[-2]
    q = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    shared = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    k, v = (x.reshape(-1, n, x.shape[-1]) for x in (key, value))
    o, _log_sum_exp = _Ring.apply(ring, is_causal, q.reshape(-1, shared, n, q.shape[-1]), k, v)
    return o.reshape(*query.shape[:-1], value.shape[-1])
