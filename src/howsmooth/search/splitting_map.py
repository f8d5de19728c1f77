"""Which pairs of equal masses on the line split: the picture of mass splitting."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.markup import paragraph
from howsmooth.search.mean_field_context import counting
from howsmooth.search.mechanisms import of_kind
from howsmooth.strict import strict_json


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SplittingMap:
    r"""The constants of :math:`\tfrac12\delta_{x}+\tfrac12\delta_{y}` for all (x, y) of a grid.

    Attributes:
        A: The form of the scores, a number.
        V: The value, a number.
        kind: How scores become weights.
        grid: The places of an atom.
        move: The constant when atoms move as blocks; rows are x, columns y.
        split: The constant when the parts of one atom move apart.
    """

    A: float
    V: float
    grid: Float[Tensor, " m"]
    move: Float[Tensor, "m m"]
    split: Float[Tensor, "m m"]
    kind: str = "softmax"

    @property
    def splits(self) -> Bool[Tensor, "m m"]:
        """Where splitting beats moving."""
        return self.split > self.move

    @property
    def share(self) -> float:
        """The share of pairs that split."""
        return float(self.splits.double().mean())

    def __repr__(self) -> str:
        """Say how many pairs split."""
        square = f"[{self.grid[0]:g}, {self.grid[-1]:g}]²"
        kind = "" if self.kind == "softmax" else f", {self.kind}"
        form = f"A = {self.A:g}, V = {self.V:g}{kind}"
        return f"SplittingMap: {100 * self.share:.1f} % of the pairs in {square} split ({form})"

    def _repr_html_(self) -> str:
        return paragraph(repr(self))

    def to_json(self) -> str:
        """Return one JSON object."""
        found = {"A": self.A, "V": self.V, "kind": self.kind, "share": self.share, "grid": self.grid.tolist()}
        return strict_json(found)


def splitting_map(
    *, A: float, V: float = 1.0, span: float = 6.0, step: float = 0.3, kind: str = "softmax"
) -> SplittingMap:
    r"""Compute the constants of all pairs of equal masses in :math:`[-\text{span},\text{span}]^2`, in closed form.

    In dimension one, :math:`J_{ij} = P_{ij}V(1 + (x_j-m_i)Ax_i) + 1_{i=j}VC_iA`, and the split constant is
    :math:`\max_i|VC_iA|`.

    Args:
        A: The form of the scores.
        V: The value.
        span: Half the side of the square.
        step: The distance between two points of the grid.
        kind: How scores become weights (``howsmooth.search.mechanisms``): queries are Ax, keys x, values Vx. Of other
            kinds than the softmax the map is differentiated by its own closed form, with copies that have no mass.

    Example:
        >>> splitting_map(A=-1.0)
        SplittingMap: 8.3 % of the pairs in [-6, 6]² split (A = -1, V = 1)
    """
    if not (math.isfinite(A) and math.isfinite(V)):
        raise AssumptionError(f"A and V must be finite numbers, got {A} and {V}.")
    if not 0 < step <= span < math.inf:
        raise AssumptionError(f"step and span must be positive, step the smaller, got {step} and {span}.")
    half = round(span / step)
    grid = torch.arange(-half, half + 1, dtype=torch.float64) * step
    x = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), dim=-1)
    if kind != "softmax":
        move, split = _of_kind(kind, A, V, x)
        return SplittingMap(A=A, V=V, grid=grid, move=move, split=split, kind=kind)
    P = torch.softmax(A * x[..., :, None] * x[..., None, :], dim=-1)
    m = (P * x[..., None, :]).sum(-1)
    apart = x[..., None, :] - m[..., :, None]
    C = (P * apart.square()).sum(-1)
    J = P * V * (1 + A * x[..., :, None] * apart) + torch.diag_embed(V * C * A)
    split = (V * C * A).abs().amax(-1)
    return SplittingMap(A=A, V=V, grid=grid, move=torch.linalg.matrix_norm(J, ord=2), split=split)


def _of_kind(kind: str, A: float, V: float, x: Float[Tensor, "m m 2"]) -> tuple[Tensor, Tensor]:
    """Return both constants of every pair, from products with the derivatives of a mechanism."""
    form, value = (torch.full((1, 1), number, dtype=torch.float64) for number in (A, V))
    f = counting(of_kind(Attention.single_head(A=form, V=value), kind), 2)
    pairs = x.reshape(-1, 2, 1)
    masses = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    with torch.no_grad():
        J = dataclasses.replace(f, weights=masses[:2]).jacobian(pairs)
        columns = [J.jvp(_axis(i, pairs))[..., 0] for i in range(2)]
        # copies without mass see the pair, and move nobody
        doubled = torch.cat((pairs, pairs), dim=1)
        copies = dataclasses.replace(f, weights=masses).jacobian(doubled)
        moved = [copies.jvp(_axis(2 + i, doubled))[:, 2 + i, 0].abs() for i in range(2)]
    move = torch.linalg.matrix_norm(torch.stack(columns, dim=-1), ord=2)
    return move.reshape(x.shape[:2]), torch.stack(moved).amax(0).reshape(x.shape[:2])


def _axis(i: int, like: Tensor) -> Tensor:
    e = torch.zeros_like(like)
    e[:, i] = 1
    return e
