"""Scores between a token and its distance to another: disentangled attention, as in DeBERTa."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, NonFiniteError, ShapeError
from howsmooth.maps.projections import Layout
from howsmooth.maps.protocols import take
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_agreement


@dataclass(frozen=True, kw_only=True, eq=False)
class Distances(TensorDataclass):
    r"""A key and a query for every distance, as DeBERTa has them.

    .. math:: S_{ij} = s\bigl(\langle q_i, k_j\rangle + \langle q_i, \kappa_{j-i}\rangle
              + \langle \rho_{j-i}, k_j\rangle\bigr)

    What is added is linear in queries and keys together, so derivatives have the same form as values.

    Attributes:
        keys: :math:`\kappa`, ``(heads, 2L - 1, k)``; entry ``L - 1 + j - i`` meets the query of token ``i``.
        queries: :math:`\rho`, likewise; it meets the key of token ``j``.
    """

    keys: Float[Tensor, "... heads span k"]
    queries: Float[Tensor, "... heads span k"]

    def __post_init__(self) -> None:
        """Check the tables once."""
        if self.keys.ndim < 3 or self.keys.shape[-2] % 2 == 0 or self.keys.shape != self.queries.shape:
            raise ShapeError(
                "keys and queries of distances must be (heads, 2L - 1, k), one row per offset, got "
                f"{tuple(self.keys.shape)} and {tuple(self.queries.shape)}.",
                field="distances",
            )
        if not bool(torch.isfinite(self.keys).all() & torch.isfinite(self.queries).all()):
            raise NonFiniteError("keys and queries of distances must be finite.", field="distances")

    def check_heads(self, layout: Layout, query: Tensor) -> None:
        """Refuse heads that share keys, or whose number or width is another one."""
        if layout.shared != 1:
            raise AssumptionError(
                f"distances need heads with keys of their own, got {layout.heads} heads and {layout.groups} groups.",
                field="positions",
            )
        heads, _span, k = self.keys.shape[-3:]
        if (heads, k) != (layout.heads, layout.k):
            raise ShapeError(
                f"distances must have {layout.heads} heads of width {layout.k}, got {heads} of width {k}.",
                field="positions",
            )
        require_agreement(self.keys, query, "distances", "query")

    @property
    def reach(self) -> int:
        """The longest sequence that there are distances for."""
        return (self.keys.shape[-2] + 1) // 2

    def times(self, keys: float, queries: float) -> "Distances":
        """Multiply the tables."""
        return Distances(keys=keys * self.keys, queries=queries * self.queries)

    def scores(
        self,
        q: Float[Tensor, "*batch heads rows k"],
        k: Float[Tensor, "*batch heads columns k"],
        rows: slice,
        columns: slice,
    ) -> Float[Tensor, "*batch heads rows columns"]:
        """Return the two added terms for one tile of scores."""
        offsets, index = self._tile(rows, columns, q.device)
        shape = torch.broadcast_shapes(q.shape[:-2], self.keys.shape[:-2])
        index = index.expand(*shape, *index.shape)
        # Why not one product for each pair: tokens meet every distance of the tile at once, and the diagonals are read
        by_query = (q @ self.keys[..., offsets, :].mT).gather(-1, index)
        return by_query + (k @ self.queries[..., offsets, :].mT).gather(-1, index.mT).mT

    def pull_back(
        self, dS: Float[Tensor, "*batch heads rows columns"], rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "*batch heads rows k"], Float[Tensor, "*batch heads columns k"]]:
        """Return the cotangents of queries and keys that those of one tile of scores give."""
        offsets, index = self._tile(rows, columns, dS.device)
        index, width = index.expand(dS.shape), offsets.stop - offsets.start
        by_row = dS.new_zeros(*dS.shape[:-1], width).scatter(-1, index, dS)
        by_column = dS.new_zeros(*dS.shape[:-2], dS.shape[-1], width).scatter(-1, index.mT, dS.mT)
        return by_row @ self.keys[..., offsets, :], by_column @ self.queries[..., offsets, :]

    def _tile(self, rows: slice, columns: slice, device: torch.device) -> tuple[slice, Tensor]:
        """Return the range of offsets j − i in a tile, and for every pair the place of its offset in that range."""
        least = columns.start - (rows.stop - 1)
        most = columns.stop - 1 - rows.start
        i, j = (torch.arange(part.start, part.stop, device=device) for part in (rows, columns))
        return slice(self.reach - 1 + least, self.reach + most), j - i[:, None] - least

    def head(self, h: int) -> "Distances":
        """Return the tables of head ``h`` alone."""
        return Distances(keys=self.keys.narrow(-3, h, 1), queries=self.queries.narrow(-3, h, 1))

    def per_head(self) -> "Distances":
        """Turn the head axis into the last batch axis."""
        return Distances(keys=self.keys.unsqueeze(-3), queries=self.queries.unsqueeze(-3))

    def take(self, batch: tuple[int, ...], index: Tensor) -> "Distances":
        """Pick the tables of some entries of the batch."""
        keys, queries = (take(x, batch, index, event=3) for x in (self.keys, self.queries))
        return dataclasses.replace(self, keys=keys, queries=queries)
