"""How position enters the scores: masks, biases, rotary embeddings, keys and queries of distances."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, NonFiniteError, ShapeError
from howsmooth.linear_operators import take
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import (
    is_finite,
    require_agreement,
    require_boolean,
    require_dense,
    require_finite,
    require_floating,
)


def broadcast_shapes(*shapes: tuple[int, ...]) -> torch.Size:
    """Do what torch's function does, which imports sympy when it is first called: where shapes differ, it is asked.

    Example:
        >>> broadcast_shapes((), (2, 3), (2, 3)), broadcast_shapes((1, 3), (2, 1))
        (torch.Size([2, 3]), torch.Size([2, 3]))
    """
    longest = max(shapes, key=len)
    alike = all(not shape or shape == longest for shape in shapes)
    return torch.Size(longest) if alike else torch.broadcast_shapes(*shapes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotary(TensorDataclass):
    r"""Turn coordinate pair ``m`` of the token at position ``s`` by the angle :math:`s\,\omega_m`.

    :math:`\omega_m = \text{base}^{-2m/\text{dim}}` unless ``frequencies`` are given. The rotation is orthogonal, so it
    changes no norm, and its transpose is the rotation by the opposite angles.

    Attributes:
        base: The base of the geometric frequencies.
        dim: How many leading coordinates are rotated (``None``: all). Even.
        interleaved: Pairs are ``(0, 1), (2, 3), …`` instead of the half-split ``(m, m + dim/2)``.
        positions: The position of each token (``None``: 0, 1, 2, …).
        frequencies: Explicit frequencies, ``dim/2`` of them.
        reach: The longest sequence that the frequencies are meant for (``None``: any).
    """

    base: float = 10_000.0
    dim: int | None = None
    interleaved: bool = False
    positions: Shaped[Tensor, "*batch n"] | None = None
    frequencies: Float[Tensor, " half"] | None = None
    reach: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.base < math.inf:
            raise AssumptionError(f"the rotary base must be positive and finite, got {self.base}.", field="base")
        for name, x in (("positions", self.positions), ("frequencies", self.frequencies)):
            if x is not None:
                require_dense(x, f"rotary {name}")
                if x.is_complex() or x.dtype == torch.bool:
                    raise DtypeError(f"rotary {name} must be real numbers, got {x.dtype}.", field=name)
                if not x.ndim:
                    raise ShapeError(f"rotary {name} must have one entry for each of them, got a number.", field=name)
                require_finite(x, f"rotary {name}")
        if self.dim is not None and (self.dim < 2 or self.dim % 2):
            raise ShapeError(f"the rotary dimension must be even and positive, got {self.dim}.", field="dim")

    def check_width(self, k: int) -> None:
        """Refuse heads whose dimension ``k`` cannot be rotated."""
        dim = k if self.dim is None else self.dim
        if dim % 2:
            raise ShapeError(
                f"the rotary dimension must be even, got heads of dimension {k}; set Rotary(dim=…).", field="dim"
            )
        if dim > k:
            raise ShapeError(f"the rotary dimension {dim} exceeds the head dimension {k}.", field="dim")
        if self.frequencies is not None and self.frequencies.shape != (dim // 2,):
            raise ShapeError(
                f"frequencies must have {dim // 2} entries, got {tuple(self.frequencies.shape)}.", field="frequencies"
            )

    def check(self, n: int) -> None:
        """Refuse ``n`` tokens that explicit positions do not fit, or that frequencies are not meant for."""
        if self.reach is not None and n > self.reach:
            raise AssumptionError(
                f"the rotary frequencies are meant for {self.reach} tokens at most, got {n}; give shorter sequences "
                "or other frequencies.",
                field="X",
            )
        if self.positions is not None and self.positions.shape[-1] != n:
            raise ShapeError(
                f"rotary positions must be given for each of {n} tokens, got {self.positions.shape[-1]}.",
                field="positions",
            )

    def rotation(self, n: int, k: int, like: Tensor) -> "Rotation":
        """Return the rotation of ``n`` tokens with heads of dimension ``k``."""
        dim = k if self.dim is None else self.dim
        frequencies = self.frequencies
        if frequencies is None:
            exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=like.device) / dim
            frequencies = self.base**-exponents
        positions = torch.arange(n, device=like.device) if self.positions is None else self.positions
        # in float64: at position 10⁵ a float32 angle is off by 10⁻²
        angles = positions.double()[..., None] * frequencies.double()
        cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
        return Rotation(cos=cos.unsqueeze(-3), sin=sin.unsqueeze(-3), interleaved=self.interleaved)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotation:
    """The rotation of given tokens, applied to ``(*batch, heads, n, k)``."""

    cos: Float[Tensor, "*batch 1 n half"]
    sin: Float[Tensor, "*batch 1 n half"]
    interleaved: bool

    @property
    def T(self) -> "Rotation":
        """The transpose, which is the inverse."""
        return Rotation(cos=self.cos, sin=-self.sin, interleaved=self.interleaved)

    def take(self, batch: tuple[int, ...], index: Tensor) -> "Rotation":
        """Pick the rotations of some entries of the batch."""
        cos, sin = (take(x, batch, index, event=3) for x in (self.cos, self.sin))
        return Rotation(cos=cos, sin=sin, interleaved=self.interleaved)

    def __call__(self, x: Float[Tensor, "*batch heads n k"]) -> Float[Tensor, "*batch heads n k"]:
        """Rotate the leading coordinates of every token; the rest stays."""
        dim = 2 * self.cos.shape[-1]
        head, tail = x[..., :dim], x[..., dim:]
        a, b = (head[..., ::2], head[..., 1::2]) if self.interleaved else head.chunk(2, dim=-1)
        pairs = (a * self.cos - b * self.sin, a * self.sin + b * self.cos)
        rotated = torch.stack(pairs, dim=-1).flatten(-2) if self.interleaved else torch.cat(pairs, dim=-1)
        return torch.cat((rotated, tail), dim=-1) if tail.shape[-1] else rotated


@dataclass(frozen=True, kw_only=True, eq=False)
class Distances(TensorDataclass):
    r"""A key and a query for every distance, as DeBERTa has them.

    .. math:: S_{ij} = s\bigl(\langle q_i, k_j\rangle + \langle q_i, \kappa_{j-i}\rangle
              + \langle \rho_{j-i}, k_j\rangle\bigr)

    What is added is linear in queries and keys together, so derivatives have the same form as values.
    """

    keys: Float[Tensor, "... heads span k"]  # κ, (heads, 2L − 1, k): entry L − 1 + j − i meets the query of token i
    queries: Float[Tensor, "... heads span k"]  # ρ, likewise; it meets the key of token j

    def __post_init__(self) -> None:
        if self.keys.ndim < 3 or self.keys.shape[-2] % 2 == 0 or self.keys.shape != self.queries.shape:
            raise ShapeError(
                "keys and queries of distances must be (heads, 2L - 1, k), one row per offset, got "
                f"{tuple(self.keys.shape)} and {tuple(self.queries.shape)}.",
                field="distances",
            )
        if not self.keys.is_meta and not (is_finite(self.keys) and is_finite(self.queries)):
            raise NonFiniteError("keys and queries of distances must be finite.", field="distances")

    def check_heads(self, query: Float[Tensor, "*w heads k d"], groups: int) -> None:
        """Refuse heads that share keys, or whose number or width is another one."""
        (heads, k), found = query.shape[-3:-1], (self.keys.shape[-3], self.keys.shape[-1])
        if heads != groups:
            raise AssumptionError(
                f"distances need heads with keys of their own, got {heads} heads and {groups} groups.",
                field="positions",
            )
        if found != (heads, k):
            raise ShapeError(
                f"distances must have {heads} heads of width {k}, got {found[0]} of width {found[1]}.",
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
        shape = broadcast_shapes(q.shape[:-2], self.keys.shape[:-2])
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
        # sums over diagonals: scores of one offset are gathered in one column, then meet its key at once
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions(TensorDataclass):
    r"""Masks, biases and embeddings by position.

    Token ``i`` may see token ``j`` when all of the conditions given hold:
    ``causal`` (:math:`j \le i`), ``window`` (:math:`|i-j| <` window), ``padding[j]`` and a boolean ``mask[i, j]``.
    A floating-point ``mask``, ``relative_bias[j - i + L - 1]`` and ``position_bias[j]`` are added to the scores.

    Attributes:
        causal: Whether a token sees only itself and the past.
        window: How many tokens it sees on either side, itself included.
        padding: True for real tokens, which alone are seen. Padded tokens still have a (meaningless) output row.
        mask: ``(n, n)``, or ``(*batch, heads or 1, n, n)``; boolean (True: may see) or additive.
        relative_bias: ``(heads or 1, 2L - 1)``; entry ``L - 1 + j - i`` is added to the score of ``(i, j)``.
        position_bias: ``(heads or 1, L)``; entry ``j`` is added to the score of every pair ``(i, j)``. Linear in ``j``
            it is ALiBi, as a softmax does not see what all scores of a row have in common.
        rotary: Rotary embedding of queries and keys.
        distances: Keys and queries of distances, as in DeBERTa.
    """

    causal: bool = False
    window: int | None = None
    padding: Bool[Tensor, "... n"] | None = None
    mask: Shaped[Tensor, "... n n"] | None = None
    relative_bias: Float[Tensor, "... heads span"] | None = None
    position_bias: Float[Tensor, "... heads reach"] | None = None
    rotary: Rotary | None = None
    distances: Distances | None = None

    def __post_init__(self) -> None:
        """Check each part on its own; what depends on ``n`` is checked when tokens arrive."""
        if self.window is not None and not (isinstance(self.window, int) and self.window >= 1):
            raise AssumptionError(
                f"window must be a whole number, at least 1 (the token itself), got {self.window}.", field="window"
            )
        _check_mask(self.padding, self.mask)
        _check_bias(self.relative_bias, "relative_bias", "(heads or 1, 2L - 1)", "offset")
        _check_bias(self.position_bias, "position_bias", "(heads or 1, L)", "position")

    def columns(self, rows: slice, n: int) -> slice:
        """Return the smallest range of tokens that contains all that ``rows`` may see."""
        reach = n if self.window is None else self.window - 1
        last = rows.stop if self.causal else min(n, rows.stop + reach)
        return slice(max(0, rows.start - reach), last)

    def apply(self, S: Float[Tensor, "*batch heads rows columns"], rows: slice, columns: slice) -> None:
        """Add the biases to one tile of scores and write ``-inf`` where a token may not be seen, in place."""
        if self.causal:
            # left of the diagonal block everything is visible
            block = S[..., rows.start - columns.start :]
            block.masked_fill_(_offsets(rows, slice(rows.start, columns.stop), S) > 0, -torch.inf)
        if self.window is not None:
            S.masked_fill_(_offsets(rows, columns, S).abs() >= self.window, -torch.inf)
        if self.relative_bias is not None:
            reach = (self.relative_bias.shape[-1] + 1) // 2
            S.add_(self.relative_bias[..., _offsets(rows, columns, S) + reach - 1])
        if self.position_bias is not None:
            S.add_(self.position_bias[..., None, columns])
        if self.padding is not None:
            S.masked_fill_(~self.padding[..., None, None, columns], -torch.inf)
        if self.mask is not None:
            part = _with_heads(self.mask)[..., rows, columns]
            S.masked_fill_(~part, -torch.inf) if part.dtype == torch.bool else S.add_(part)

    def check(self, n: int) -> None:
        """Refuse a sequence of ``n`` tokens that a mask, a table or a list of positions does not fit."""
        if self.padding is not None and self.padding.shape[-1] != n:
            raise ShapeError(
                f"padding must have one entry for each of {n} tokens, got {self.padding.shape[-1]}.", field="padding"
            )
        if self.mask is not None and self.mask.shape[-2:] != (n, n):
            raise ShapeError(f"mask must end in ({n}, {n}) for {n} tokens, got {tuple(self.mask.shape)}.", field="mask")
        if self.relative_bias is not None and self.relative_bias.shape[-1] < 2 * n - 1:
            span = self.relative_bias.shape[-1]
            raise ShapeError(
                f"relative_bias must reach {n} tokens: {2 * n - 1} entries or more, got {span}.", field="relative_bias"
            )
        if self.position_bias is not None and self.position_bias.shape[-1] < n:
            reach = self.position_bias.shape[-1]
            raise ShapeError(f"position_bias must reach {n} tokens, got {reach} entries.", field="position_bias")
        if self.distances is not None and self.distances.reach < n:
            raise ShapeError(f"distances must reach {n} tokens, got {self.distances.reach}.", field="distances")
        if self.rotary is not None:
            self.rotary.check(n)

    @property
    def may_hide_all(self) -> bool:
        """Whether some row could be left with nothing to see; causal and window masks always show the token itself."""
        return self.padding is not None or self.mask is not None

    @property
    def batch(self) -> torch.Size:
        """The batch axes that masks and explicit positions bring along."""
        shapes = [x.shape[:-axes] for x, axes in self._tensors().values()]
        if self.rotary is not None and self.rotary.positions is not None:
            shapes.append(self.rotary.positions.shape[:-1])
        if self.distances is not None:
            shapes.append(self.distances.keys.shape[:-3])
        return broadcast_shapes((), *shapes)

    @property
    def heads(self) -> int:
        """How many heads the mask and the bias distinguish (1 if all are alike)."""
        mask = 1 if self.mask is None or self.mask.ndim == 2 else self.mask.shape[-3]
        biases = (1 if bias is None else bias.shape[-2] for bias in (self.relative_bias, self.position_bias))
        return max(mask, *biases, 1 if self.distances is None else self.distances.keys.shape[-3])

    @property
    def everywhere(self) -> dict[str, Tensor]:
        """All tensors by their names, those of rotary embeddings and distances among them."""
        parts = [vars(part) for part in (self, self.rotary, self.distances) if part is not None]
        return {name: x for part in parts for name, x in part.items() if isinstance(x, Tensor)}

    def head(self, h: int) -> "Positions":
        """Restrict to head ``h``; an axis of size one serves every head."""

        def pick(x: Tensor, axes: int) -> Tensor:
            x = _with_heads(x, axes)
            return x if axes == 1 or x.shape[-axes] == 1 else x.narrow(-axes, h, 1)

        return self._changed(pick, distances=None if self.distances is None else self.distances.head(h))

    def per_head(self) -> "Positions":
        """Turn the head axis into the last batch axis."""
        rotary = self.rotary
        if rotary is not None and rotary.positions is not None:
            rotary = dataclasses.replace(rotary, positions=rotary.positions.unsqueeze(-2))
        distances = None if self.distances is None else self.distances.per_head()
        return self._changed(
            lambda x, axes: _with_heads(x, axes).unsqueeze(-max(axes, 2)), distances=distances, rotary=rotary
        )

    def take(self, batch: tuple[int, ...], index: Tensor) -> "Positions":
        """Pick the masks of some entries of the batch; the rotary embedding is applied elsewhere."""
        distances = None if self.distances is None else self.distances.take(batch, index)
        return self._changed(lambda x, axes: take(x, batch, index, event=axes), distances=distances, rotary=None)

    def _tensors(self) -> dict[str, tuple[Tensor, int]]:
        """Return the tensors that are given, and how many axes each has behind those of the batch."""
        axes = {"padding": 1, "mask": 3, "relative_bias": 2, "position_bias": 2}
        return {name: (x, count) for name, count in axes.items() if (x := getattr(self, name)) is not None}

    def _changed(self, change: Callable[[Tensor, int], Tensor], **others: Any) -> "Positions":
        changed: dict[str, Any] = {name: change(*x) for name, x in self._tensors().items()}
        return dataclasses.replace(self, **changed, **others)


def _offsets(rows: slice, columns: slice, like: Tensor) -> Tensor:
    """Return j − i for every pair of a tile."""
    i = torch.arange(rows.start, rows.stop, device=like.device)
    j = torch.arange(columns.start, columns.stop, device=like.device)
    return j - i[:, None]


def _with_heads(x: Tensor, axes: int = 3) -> Tensor:
    return x.unsqueeze(0) if x.ndim < axes else x


def _check_mask(padding: Tensor | None, mask: Tensor | None) -> None:
    if padding is not None:
        require_boolean(padding, "padding")
        if not padding.ndim:
            raise ShapeError("padding must have one entry for each token, got a number.", field="padding")
    if mask is None:
        return
    require_dense(mask, "mask")
    if mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        raise ShapeError(f"mask must be (n, n) or (*batch, heads or 1, n, n), got {tuple(mask.shape)}.", field="mask")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise DtypeError(
            f"mask must be boolean (True: may see) or floating point (added to scores), got {mask.dtype}.", field="mask"
        )
    if mask.is_floating_point() and not mask.is_meta and bool((mask.isnan() | (mask == torch.inf)).any()):
        raise NonFiniteError("an additive mask may hold -inf but neither NaN nor +inf.", field="mask")


def _check_bias(bias: Tensor | None, name: str, shape: str, each: str) -> None:
    if bias is None:
        return
    require_floating(bias, name)
    if bias.ndim < 2 or not bias.numel() or (name == "relative_bias" and bias.shape[-1] % 2 == 0):
        raise ShapeError(f"{name} must be {shape}, one entry per {each}, got {tuple(bias.shape)}.", field=name)
    if not bias.is_meta and not is_finite(bias):
        raise NonFiniteError(f"{name} must be finite; hide tokens with a mask instead.", field=name)
