"""Discrete probability measures: atoms with masses, and with positions for masked attention."""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from howsmooth.errors import AssumptionError, HowsmoothError, ShapeError
from howsmooth.files import whole
from howsmooth.markup import strict_json
from howsmooth.validation import (
    Seed,
    generator_from,
    plain_mode,
    require_finite,
    require_floating,
    require_numbers,
    require_parameter,
)

# How far from one the given masses may add up; they are normalised after that.
TOTAL_TOLERANCE = 1e-5
# Coordinates below two to this power have distances whose squares are floats, in up to 2^40 dimensions.
LARGEST_EXPONENT = 490


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DiscreteMeasure:
    r"""The probability measure :math:`\mu = \sum_i a_i\,\delta_{x_i}`, or :math:`\sum_ia_i\,\delta_{(s_i,x_i)}`.

    Attributes:
        points: The atoms :math:`x_i`.
        weights: Their masses :math:`a_i`: positive, adding up to one; ``None`` means equal masses.
        positions: Their positions :math:`s_i\in[0,1]`, which masked attention needs.

    Example:
        >>> DiscreteMeasure(torch.tensor([[0.0], [1.0]]))
        DiscreteMeasure: 2 atoms in dimension 1
    """

    points: Float[Tensor, "n d"]
    weights: Float[Tensor, " n"]
    positions: Float[Tensor, " n"] | None

    def __init__(
        self,
        points: Float[Tensor, "n d"],
        weights: Float[Tensor, " n"] | None = None,
        positions: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Check everything once, and make the masses add up to one."""
        _check_points(points)
        if weights is None:
            weights = points.new_full((points.shape[0],), 1 / points.shape[0])
        else:
            weights = _checked_weights(weights, points)
        if positions is not None:
            _check_positions(positions, points)
        for name, value in (("points", points), ("weights", weights), ("positions", positions)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_sequence(cls, X: Float[Tensor, "n d"], *, causal: bool = False) -> "DiscreteMeasure":
        """Turn a sequence into the measure of its tokens: equal masses and, for masked maps, the positions i/n."""
        _check_points(X)
        n = X.shape[0]
        positions = torch.arange(1, n + 1, dtype=X.dtype, device=X.device) / n if causal else None
        return cls(X, None, positions)

    def __len__(self) -> int:
        """Return the number of atoms."""
        return self.points.shape[0]

    @property
    def d(self) -> int:
        """The dimension of the atoms."""
        return self.points.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it is made of."""
        return self.points.dtype

    def __repr__(self) -> str:
        """Say how many atoms there are."""
        where = " with positions" if self.positions is not None else ""
        return f"DiscreteMeasure: {len(self)} atom{'s' if len(self) > 1 else ''} in dimension {self.d}{where}"

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "DiscreteMeasure":
        """Return the same measure in another dtype or on another device."""
        positions = None if self.positions is None else self.positions.to(dtype=dtype, device=device)
        points, weights = (x.to(dtype=dtype, device=device) for x in (self.points, self.weights))
        return DiscreteMeasure(points, weights, positions)

    @plain_mode()
    def push_forward(self, f: Callable[[Tensor], Tensor]) -> "DiscreteMeasure":
        r"""Move every atom by ``f``, which takes all of them at once: :math:`\sum_ia_i\delta_{f(x_i)}`."""
        return dataclasses.replace(self, points=f(self.points))

    def split(
        self,
        k: int | None = None,
        into: int | None = None,
        moves: Float[Tensor, "into d"] | None = None,
        *,
        atom: int | None = None,
    ) -> "DiscreteMeasure":
        """Split atoms into equal parts: the same measure with more atoms.

        ``split(k)`` splits every atom into ``k`` parts. ``split(atom, into, moves)`` splits one atom into ``into``
        parts, and moves each part by its row of ``moves``. Parts stay together, where the atom was.

        Args:
            k: How many parts; or, with ``into``, which atom.
            into: How many parts the one atom is split into.
            moves: Where its parts go, relative to it.
            atom: Which atom, by name.
        """
        if into is None:
            if atom is not None or moves is not None:
                raise AssumptionError("to split one atom, say into how many parts: split(atom, into, moves).")
            return self._repeated(torch.full((len(self),), _parts(k), device=self.points.device))
        chosen = k if atom is None else atom
        if not isinstance(chosen, int) or not 0 <= chosen < len(self):
            raise AssumptionError(f"atom must be one of 0 to {len(self) - 1}, got {chosen}.", field="atom")
        counts = torch.ones(len(self), dtype=torch.long, device=self.points.device)
        counts[chosen] = _parts(into)
        whole = self._repeated(counts)
        if moves is None:
            return whole
        require_parameter(moves, (into, self.d), self.points, "moves", "points")
        shift = torch.zeros_like(whole.points).index_copy(0, torch.arange(chosen, chosen + into), moves)
        return dataclasses.replace(whole, points=whole.points + shift)

    def _repeated(self, counts: Tensor) -> "DiscreteMeasure":
        positions = None if self.positions is None else self.positions.repeat_interleave(counts)
        shares = (self.weights / counts).repeat_interleave(counts)
        return DiscreteMeasure(self.points.repeat_interleave(counts, dim=0), shares, positions)

    @plain_mode()
    def merge(self, tol: float = 0.0) -> "DiscreteMeasure":
        """Merge atoms that share a position and a place, up to ``tol``; each group moves to its centre of mass."""
        if not 0 <= tol < math.inf:
            raise AssumptionError(f"tol must not be negative and must be finite, got {tol}.", field="tol")
        distances, unit = distances_in_unit(self.points, self.points)
        near = torch.as_tensor(distances <= np.ldexp(tol, -unit), device=self.points.device)
        if self.positions is not None:
            near &= self.positions[:, None] == self.positions
        edges = near.nonzero().cpu().numpy()
        graph = coo_array((near.new_ones(len(edges)).cpu().numpy(), edges.T), shape=near.shape)
        count, labels = connected_components(graph, directed=False)
        member = torch.nn.functional.one_hot(torch.as_tensor(labels).long(), count).to(self.points)
        weights = self.weights @ member
        points = (member * self.weights[:, None]).mT @ self.points / weights[:, None]
        first = [int((torch.as_tensor(labels) == group).nonzero()[0]) for group in range(count)]
        if tol == 0:
            points = self.points[first]  # no rounding: merging what is equal changes nothing
        return DiscreteMeasure(points, weights, None if self.positions is None else self.positions[first])

    def resample(self, n: int, *, seed: Seed | None = None) -> "DiscreteMeasure":
        """Draw ``n`` atoms with replacement: an empirical measure with equal masses."""
        if not (isinstance(n, int) and n >= 1):
            raise AssumptionError(f"n must be a whole number, at least 1, got {n}.", field="n")
        index = torch.multinomial(self.weights, n, replacement=True, generator=generator_from(seed))
        positions = None if self.positions is None else self.positions[index]
        return DiscreteMeasure(self.points[index], None, positions)

    def to_json(self) -> str:
        """Return one JSON object with points, weights and positions."""
        positions = None if self.positions is None else self.positions.tolist()
        parts: dict[str, Any] = {
            "points": self.points.tolist(),
            "weights": self.weights.tolist(),
            "positions": positions,
        }
        return strict_json(parts)

    @classmethod
    def from_json(cls, text: str, *, dtype: torch.dtype = torch.float64) -> "DiscreteMeasure":
        """Read what :meth:`to_json` wrote; ``weights`` and ``positions`` may be missing."""
        try:
            parts = json.loads(text)
            if not isinstance(parts, dict) or parts.get("points") is None:
                given = ", ".join(map(repr, parts)) if isinstance(parts, dict) and parts else "no points"
                raise ValueError(f"got {given}")
            points = torch.tensor(parts["points"], dtype=dtype)
            weights, positions = (
                None if parts.get(name) is None else torch.tensor(parts[name], dtype=dtype)
                for name in ("weights", "positions")
            )
        except (ValueError, TypeError) as error:
            raise ShapeError(f'a measure in JSON is {{"points": [[…], …], "weights": […]}}; {error}.') from error
        return cls(points, weights, positions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write points, weights and positions to a ``.safetensors`` file."""
        from safetensors.torch import save_file

        target = Path(path)
        if target.suffix != ".safetensors":
            raise AssumptionError(
                f"a measure is saved as .safetensors, got {target.name!r}; change the ending.", field="path"
            )
        parts = {"points": self.points, "weights": self.weights, "positions": self.positions}
        with whole(target) as partial:
            save_file({k: v.detach().cpu().contiguous() for k, v in parts.items() if v is not None}, partial)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "DiscreteMeasure":
        """Read what :meth:`save` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            parts = load_file(path)
        except (OSError, SafetensorError) as error:
            raise HowsmoothError(f"cannot read a measure from {os.fspath(path)!r}: {error}.") from error
        if "points" not in parts:
            raise ShapeError(f"a measure needs a tensor 'points', found {sorted(parts)}.")
        return cls(parts["points"], parts.get("weights"), parts.get("positions"))


def distances_in_unit(x: Float[Tensor, "n d"], y: Float[Tensor, "k d"]) -> tuple[np.ndarray, int]:
    """Return the distances between points as multiples of a power of two, and its exponent.

    The unit is so small that the largest squares are near the largest float: none overflows, and a distance has to be
    shorter than the longest coordinate by 300 digits for its square to vanish.
    """
    both = [z.double().numpy(force=True) for z in (x, y)]
    unit = int(np.frexp(max(np.abs(z).max() for z in both))[1]) - LARGEST_EXPONENT
    first, second = (torch.from_numpy(np.ldexp(z, -unit)) for z in both)
    # Why not by matrix products, torch's choice above 25 atoms: far from the origin they lose the digits that count.
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").numpy(), unit


def _parts(k: int | None) -> int:
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise AssumptionError(f"the number of parts must be a whole number, at least 1, got {k}.", field="k")
    return k


def _check_points(points: Tensor) -> None:
    require_floating(points, "points")
    if points.ndim != 2 or points.numel() == 0:
        raise ShapeError(f"points must be (n, d) with at least one atom, got {tuple(points.shape)}.", field="points")
    require_numbers(points, "points")
    require_finite(points, "points")


def _checked_weights(weights: Tensor, points: Tensor) -> Tensor:
    require_parameter(weights, (points.shape[0],), points, "weights", "points")
    if bool((weights <= 0).any()):
        bad = int((weights <= 0).sum())
        raise AssumptionError(
            f"weights are masses and must be positive, but {bad} are not; drop atoms without mass.", field="weights"
        )
    total = float(weights.detach().double().sum())
    if abs(total - 1) > TOTAL_TOLERANCE:
        raise AssumptionError(f"weights must add up to 1, got {total:.6g}; divide them by their sum.", field="weights")
    return weights / weights.sum()


def _check_positions(positions: Tensor, points: Tensor) -> None:
    require_parameter(positions, (points.shape[0],), points, "positions", "points")
    if bool(((positions < 0) | (positions > 1)).any()):
        raise AssumptionError(
            "positions must lie between 0 and 1; divide them by the length of the sequence.", field="positions"
        )
