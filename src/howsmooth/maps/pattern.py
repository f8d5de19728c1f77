"""The attention weights P of all heads, tile by tile: kept where they fit, rebuilt where they do not."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from howsmooth.errors import AssumptionError
from howsmooth.maps.distances import Distances
from howsmooth.maps.positions import Positions
from howsmooth.maps.values import take
from howsmooth.torch_internals import inside_transform, softmax_backward

# One tile of scores, all heads together, should stay in cache; thinner tiles than this starve the matrix product.
TILE_BYTES = 16 * 2**20
LEAST_ROWS = 128


@dataclass(frozen=True)
class Tile:
    """Some rows of the attention matrix and the columns that they may see."""

    rows: slice
    columns: slice

    @property
    def height(self) -> int:
        """How many rows there are."""
        return self.rows.stop - self.rows.start

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.columns.stop - self.columns.start


def row_tiles(n: int, stack: int, itemsize: int, positions: Positions, size: int) -> list[Tile]:
    """Cut ``n`` rows into tiles of ``size`` bytes; ``stack`` counts the matrices (batch × heads) in each."""
    fitting = size // (stack * n * itemsize)
    rows = max(LEAST_ROWS, 2 ** (fitting.bit_length() - 1) if fitting else 0)  # matrix kernels like powers of two
    cuts = [slice(start, min(n, start + rows)) for start in range(0, n, rows)]
    return [Tile(cut, positions.columns(cut, n)) for cut in cuts]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    r"""The rule from queries and keys to scores: :math:`\mathrm{cap}(q k^\top)` + biases + log token weights.

    Attributes:
        batch: The batch axes that masks and token weights refer to.
        positions: Masks and biases.
        softcap: ``c`` in :math:`c\tanh(S/c)`, or ``None``.
        log_weights: The logarithm of the token weights, or ``None``.
        distances: Keys and queries of distances, the latter scaled as the queries are, or ``None``.
    """

    batch: tuple[int, ...]
    positions: Positions
    softcap: float | None
    log_weights: Float[Tensor, "... n"] | None
    distances: Distances | None = None

    def tile(self, q: Tensor, k: Tensor, tile: Tile, room: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the scores of one tile and the slope of the soft cap there (``None``: one)."""
        S = torch.bmm(rows_of(q, tile), k[:, tile.columns].mT, out=room)
        if self.distances is not None:
            self.by_head(S, tile).add_(self.distances.scores(*self.parts(q, k, tile), tile.rows, tile.columns))
        slope = None
        if self.softcap is not None:
            T = torch.tanh(S / self.softcap)
            S, slope = self.softcap * T, 1 - T.square()
        by_head = self.by_head(S, tile)
        self.positions.apply(by_head, tile.rows, tile.columns)
        if self.log_weights is not None:
            by_head.add_(self.log_weights[..., None, None, tile.columns])
        return S, slope

    def by_head(self, x: Tensor, tile: Tile) -> Tensor:
        """Return a tile, or what belongs to one, with axes for batch and heads."""
        return x.view(*self.batch, -1, tile.height, x.shape[-1])

    def parts(self, q: Tensor, k: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of a tile with axes for batch and heads, each head having its own keys."""
        rows, columns = q[:, :, tile.rows], k[:, tile.columns]
        return rows.reshape(*self.batch, -1, *rows.shape[-2:]), columns.reshape(*self.batch, -1, *columns.shape[-2:])

    def take(self, index: Tensor) -> "Scores":
        """Pick the rules of some entries of the batch."""
        return Scores(
            batch=(len(index),),
            positions=self.positions.take(self.batch, index),
            softcap=self.softcap,
            log_weights=take(self.log_weights, self.batch, index, event=1),
            distances=None if self.distances is None else self.distances.take(self.batch, index),
        )

    @property
    def may_hide_all(self) -> bool:
        """Whether some row could be left with nothing to see."""
        return self.positions.may_hide_all or self.log_weights is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class Pattern:
    r"""The weights :math:`P = \mathrm{softmax}(q k^\top)` and the attention means :math:`o = P v`.

    Batch axes and key/value groups are one axis, ``stack``. Queries that share a key/value head are stacked along the
    rows, so that one matrix product serves them all and no key is copied.

    Attributes:
        scores: The rule from queries and keys to scores.
        tiles: The tiles, from the first row to the last.
        q: Scaled queries ``(stack, shared, n, k)``.
        k: Keys ``(stack, n, k)``.
        v: Values ``(stack, n, v)``.
        o: Means ``(stack, shared, n, v)``.
        kept: For each tile P and the slope of the soft cap, or ``None`` when they are rebuilt for every product. A tile
            has whole rows, so rebuilding needs no log-sum-exp; ``exp(S - lse)`` would also lose the digits that S has
            before the point.
    """

    scores: Scores
    tiles: list[Tile]
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    kept: list[tuple[Tensor, Tensor | None]] | None

    def weights(self) -> Iterator[tuple[Tile, Tensor, Tensor | None]]:
        """Yield each tile with P and the slope of the soft cap (``None``: one)."""
        if self.kept is not None:
            for tile, (P, slope) in zip(self.tiles, self.kept, strict=True):
                yield tile, P, slope
        else:
            room = Room(self.q, self.k)
            for tile in self.tiles:
                S, slope = self.scores.tile(self.q, self.k, tile, room(tile))
                yield tile, softmax(S), slope

    @property
    def whole(self) -> Tensor | None:
        """All weights, where they are kept in one tile and nothing caps the scores; ``None`` elsewhere."""
        if self.kept is None or len(self.kept) != 1:
            return None
        ((P, slope),) = self.kept
        return P if slope is None else None

    def take(self, index: Tensor) -> "Pattern":
        """Pick the weights of some entries of the batch."""
        count = math.prod(self.scores.batch)

        def pick(x: Tensor) -> Tensor:
            return x.unflatten(0, (count, -1))[index].flatten(0, 1)

        return Pattern(
            scores=self.scores.take(index),
            tiles=self.tiles,
            q=pick(self.q),
            k=pick(self.k),
            v=pick(self.v),
            o=pick(self.o),
            kept=None
            if self.kept is None
            else [(pick(P), None if slope is None else pick(slope)) for P, slope in self.kept],
        )


class Room:
    """One tile's worth of memory, used again and again; autograd gets fresh memory every time."""

    def __init__(self, *operands: Tensor) -> None:
        """Prepare for products of ``operands`` (the first one: the queries)."""
        self._recorded = recorded(*operands)
        self._like = operands[0]
        self._memory: Tensor | None = None

    def __call__(self, tile: Tile) -> Tensor | None:
        """Return memory for the scores of ``tile``, or ``None`` when autograd needs its own."""
        if self._recorded:
            return None
        shape = (self._like.shape[0], self._like.shape[1] * tile.height, tile.width)
        size = shape[0] * shape[1] * shape[2]
        if self._memory is None or self._memory.numel() < size:
            self._memory = self._like.new_empty(size)
        return self._memory[:size].view(shape)


def recorded(*operands: Tensor) -> bool:
    """Tell whether autograd, in either mode, or a transform of torch.func watches an operation on ``operands``."""
    if inside_transform() or any(forward_ad.unpack_dual(x).tangent is not None for x in operands):
        return True
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def softmax(S: Tensor) -> Tensor:
    """Return the row-wise softmax of ``S``, in place of ``S`` where nothing watches."""
    if recorded(S) or S.device.type != "cpu":  # elsewhere the kernel may not allow its output to be its input
        return torch.softmax(S, dim=-1)
    return torch.softmax(S, dim=-1, out=S)


def softmax_derivative(D: Tensor, P: Tensor) -> Tensor:
    r"""Return :math:`P\circ(D - \mathrm{rowsum}(P\circ D))`, in place of ``D`` where nothing watches.

    The derivative of a softmax with weights P is symmetric, so it serves both products. Subtracting the row's mean
    *before* multiplying is what keeps digits where the softmax is saturated and both are large.
    """
    if recorded(D, P) or D.device.type != "cpu":
        return softmax_backward(D, P)
    return softmax_backward(D, P, out=D)


def attend(q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, memory: int) -> Pattern:
    """Compute the attention means and keep what derivatives need.

    Args:
        q: Scaled queries ``(stack, shared, n, k)``.
        k: Keys ``(stack, n, k)``.
        v: Values ``(stack, n, v)``.
        scores: The rule from queries and keys to scores.
        memory: How many bytes of weights may be kept.
    """
    # Why rows and not square blocks, as fused kernels have: a derivative needs whole rows of P, or one more pass over
    # all blocks to normalise them. Why not rebuild always: every product would pay for the exponentials again.
    n, heads = q.shape[-2], q.shape[0] * q.shape[1]
    tiles = row_tiles(n, heads, q.element_size(), scores.positions, TILE_BYTES)
    keep = _bytes(tiles, heads, q.element_size(), scores) <= memory
    if not keep:  # then every tile is written and read more often, and has to be nearer
        tiles = row_tiles(n, heads, q.element_size(), scores.positions, TILE_BYTES // 4)
    kept, means, room = [], [], Room(q, k)
    for tile in tiles:
        # weights that are not kept share one place: freeing a tile and making small tensors in turn tears memory apart
        S, slope = scores.tile(q, k, tile, None if keep else room(tile))
        if scores.may_hide_all:
            _require_something_visible(S, tile)
        P = softmax(S)
        means.append(unstack(torch.bmm(P, v[:, tile.columns]), tile))
        if keep:
            kept.append((P, slope))
    return Pattern(
        scores=scores,
        tiles=tiles,
        q=q,
        k=k,
        v=v,
        o=torch.cat(means, dim=-2),
        kept=kept if keep else None,
    )


def rows_of(x: Float[Tensor, "stack shared n k"], tile: Tile) -> Float[Tensor, "stack rows k"]:
    """Return the rows of a tile, the heads of a group stacked."""
    return x[:, :, tile.rows].flatten(1, 2)


def unstack(x: Float[Tensor, "stack rows k"], tile: Tile) -> Float[Tensor, "stack shared n k"]:
    """Undo the stacking of :func:`rows_of`."""
    return x.unflatten(1, (-1, tile.height))


def _bytes(tiles: list[Tile], heads: int, itemsize: int, scores: Scores) -> int:
    pairs = sum(tile.height * tile.width for tile in tiles)
    return pairs * heads * itemsize * (1 if scores.softcap is None else 2)


def _require_something_visible(S: Tensor, tile: Tile) -> None:
    blind = (S.amax(-1) == -torch.inf).unflatten(-1, (-1, tile.height))
    if bool(blind.any()):
        row = tile.rows.start + int(blind.nonzero()[0, -1])
        raise AssumptionError(
            f"token {row} may attend to nothing: its row of the mask hides every token. Let it see at least itself."
        )
