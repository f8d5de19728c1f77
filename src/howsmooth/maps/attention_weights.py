"""The attention weights P of all heads, tile by tile: kept where they fit, rebuilt where they do not."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.linear_operators import take
from howsmooth.maps.positions import Distances, Positions
from howsmooth.maps.weighting import Softmax, Tile, Weighting, Weights, Workspace, rows_of, unstack

# One tile of scores, all heads together, should stay in cache; thinner tiles than this starve the matrix product.
TILE_BYTES = 16 * 2**20
LEAST_ROWS = 128


def row_tiles(n: int, stack: int, itemsize: int, positions: Positions, size: int) -> list[Tile]:
    """Cut ``n`` rows into tiles of ``size`` bytes; ``stack`` counts the matrices (batch × heads) in each."""
    fitting = size // (stack * n * itemsize)
    rows = max(LEAST_ROWS, 2 ** (fitting.bit_length() - 1) if fitting else 0)  # matrix kernels like powers of two
    cuts = [slice(start, min(n, start + rows)) for start in range(0, n, rows)]
    return [Tile(cut, positions.columns(cut, n)) for cut in cuts]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    r"""The rule from queries and keys to scores: :math:`\mathrm{cap}(q k^\top)` + biases + log token weights."""

    batch: tuple[int, ...]  # the batch axes that masks and token weights refer to
    positions: Positions  # masks and biases
    softcap: float | None  # c in c·tanh(S/c), or none
    log_weights: Float[Tensor, "... n"] | None  # the logarithm of the token weights, or none
    distances: Distances | None = None  # keys and queries of distances, the latter scaled as the queries are, or none
    lead: tuple[int, ...] = ()  # axes before those of the batch, where every head has several matrices of scores

    def tile(self, q: Tensor, k: Tensor, tile: Tile, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the scores of one tile and the slope of the soft cap there (``None``: one)."""
        S = torch.bmm(rows_of(q, tile), k[:, tile.columns].mT, out=out)
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
        return x.view(*self.lead, *self.batch, -1, tile.height, x.shape[-1])

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
            lead=self.lead,
        )

    def pick(self, x: Tensor, index: Tensor, *, lead: tuple[int, ...] = ()) -> Tensor:
        """Pick entries of the batch from stacked matrices, which may have axes before it."""
        stack = x.unflatten(0, (*lead, math.prod(self.batch), -1))
        return stack[(slice(None),) * len(lead) + (index,)].flatten(0, len(lead) + 1)

    @property
    def may_hide_all(self) -> bool:
        """Whether a mask may hide every token of a row."""
        return self.positions.may_hide_all or self.log_weights is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPattern:
    r"""The weights P made of scores, :math:`\mathrm{softmax}(q k^\top)` by default, and the means :math:`o = P v`.

    Batch axes and key/value groups are one axis, ``stack``. Queries that share a key/value head are stacked along the
    rows, so that one matrix product serves them all and no key is copied.
    """

    scores: Scores  # the rule from queries and keys to scores
    weighting: Weighting  # the rule from scores to weights
    tiles: list[Tile]  # the tiles, from the first row to the last
    q: Tensor  # scaled queries (stack, shared, n, k)
    k: Tensor  # keys (stack, n, k)
    v: Tensor  # values (stack, n, v)
    o: Tensor  # means (stack, shared, n, v)
    kept: list[tuple[Weights, Tensor | None]] | None

    def parts(self) -> Iterator[tuple[Tile, Weights, Tensor | None]]:
        """Yield each tile with its weights and their derivative, and the slope of the soft cap."""
        if self.kept is not None:
            for tile, (weights, slope) in zip(self.tiles, self.kept, strict=True):
                yield tile, weights, slope
        else:
            workspace = Workspace(self.q, self.k)
            for tile in self.tiles:
                S, slope = self.scores.tile(self.q, self.k, tile, workspace(tile))
                yield tile, self.weighting(S, tile), slope

    def weights(self) -> Iterator[tuple[Tile, Tensor, Tensor | None]]:
        """Yield each tile with P and the slope of the soft cap (``None``: one)."""
        for tile, weights, slope in self.parts():
            yield tile, weights.P, slope

    @property
    def whole(self) -> Weights | None:
        """All weights, if they are kept in one tile and the scores have no soft cap; otherwise ``None``."""
        if self.kept is None or len(self.kept) != 1:
            return None
        ((weights, slope),) = self.kept
        return weights if slope is None else None

    def take(self, index: Tensor) -> "AttentionPattern":
        """Pick the weights of some entries of the batch."""

        def pick(x: Tensor) -> Tensor:
            return self.scores.pick(x, index)

        def pick_scores(x: Tensor) -> Tensor:
            return self.scores.pick(x, index, lead=self.scores.lead)

        return AttentionPattern(
            scores=self.scores.take(index),
            weighting=self.weighting.take(pick),
            tiles=self.tiles,
            q=pick_scores(self.q),
            k=pick_scores(self.k),
            v=pick(self.v),
            o=pick(self.o),
            kept=None
            if self.kept is None
            else [(part.take(pick), None if slope is None else pick_scores(slope)) for part, slope in self.kept],
        )


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, memory: int, weighting: Weighting | None = None
) -> AttentionPattern:
    """Compute the attention means and keep what derivatives need."""
    # Why rows and not square blocks, as fused kernels have: a derivative needs complete rows of P, or one more pass
    # over all blocks to normalise them. Why not rebuild always: every product would pay for the exponentials again.
    weighting = Softmax() if weighting is None else weighting
    n, heads = q.shape[-2], q.shape[0] * q.shape[1]
    tiles = row_tiles(n, heads, q.element_size(), scores.positions, TILE_BYTES)
    pairs = sum(tile.height * tile.width for tile in tiles)
    matrices = weighting.matrices + (scores.softcap is not None)
    keep = pairs * heads * q.element_size() * matrices <= memory
    if not keep:  # then every tile is written and read more often, and should stay in a nearer cache
        tiles = row_tiles(n, heads, q.element_size(), scores.positions, TILE_BYTES // 4)
    if weighting.couples_rows:
        keep, tiles = True, [Tile(slice(0, n), slice(0, n))]
    kept, means, workspace = [], [], Workspace(q, k)
    for tile in tiles:
        # weights that are not kept share one buffer: freeing tiles and making small tensors in turn fragments memory
        S, slope = scores.tile(q, k, tile, None if keep else workspace(tile))
        if scores.may_hide_all and not weighting.allows_empty_rows:
            _require_no_empty_row(S, tile)
        weights = weighting(S, tile)
        means.append(unstack(torch.bmm(weights.P, v[:, tile.columns]), tile))
        if keep:
            kept.append((weights, slope))
    return AttentionPattern(
        scores=scores,
        weighting=weighting,
        tiles=tiles,
        q=q,
        k=k,
        v=v,
        o=torch.cat(means, dim=-2),
        kept=kept if keep else None,
    )


def _require_no_empty_row(S: Tensor, tile: Tile) -> None:
    empty = (S.amax(-1) == -torch.inf).unflatten(-1, (-1, tile.height))
    if bool(empty.any()):
        row = tile.rows.start + int(empty.nonzero()[0, -1])
        raise AssumptionError(
            f"token {row} may attend to nothing: its row of the mask hides every token. Let it see at least itself."
        )
