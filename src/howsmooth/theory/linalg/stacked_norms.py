"""Norms of stacked matrices under scales, and scales that make a product of two such norms small (Theorem 1)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.linalg.lbfgs import lowest_point
from howsmooth.theory.linalg.matrix_norms import UNIT

# So often the scales are improved; after each time the norms are known in so many more directions.
ROUNDS, DIRECTIONS = 5, 3


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedMatrices:
    r"""Blocks :math:`X_h` with r rows each, one under the other, and the norm of :math:`(t_hX_h)_h` for any scales t.

    Attributes:
        blocks: The blocks, divided by ``size``.
        size: The largest entry of all.
        lost: What rounding may have taken from each block, in the norm.
    """

    blocks: Float[Tensor, "heads r d"]
    size: float
    lost: Float[Tensor, " heads"]
    seen: list[Float[Tensor, "heads r c"]] = field(default_factory=list)

    @classmethod
    def of(cls, blocks: list[Tensor], lost: list[float] | None = None) -> "StackedMatrices":
        """Stack matrices of one width; shorter ones are filled up with zeros."""
        rows = max(len(block) for block in blocks)
        padded = torch.stack([torch.nn.functional.pad(block, (0, 0, 0, rows - len(block))) for block in blocks])
        size = float(padded.abs().max())
        gone = (
            torch.zeros(len(blocks), dtype=torch.float64) if lost is None else torch.tensor(lost, dtype=torch.float64)
        )
        return cls(blocks=padded / (size if size > 0 else 1.0), size=size, lost=gone)

    def without_directions(self) -> "StackedMatrices":
        """Return the same blocks, with no directions met."""
        return StackedMatrices(blocks=self.blocks, size=self.size, lost=self.lost)

    def norm(self, t: Float[Tensor, " heads"]) -> float:
        r"""Return :math:`\|(t_hX_h)_h\|_2 = \lambda_{\max}(\sum_ht_h^2X_h^\top X_h)^{1/2}`, and keep where it is."""
        scaled = t[:, None, None] * self.blocks
        largest = float(scaled.abs().max())
        if not math.isfinite(largest):
            return math.inf
        flat = (scaled / (largest if largest > 0 else 1.0)).flatten(0, 1)  # squares stay in the range of the numbers
        values, vectors = torch.linalg.eigh(flat.mT @ flat)
        self.seen.append(self.blocks @ vectors[:, -DIRECTIONS:])
        # sums of so many products, each part at most as large as the largest eigenvalue
        lost = (len(flat) + 8 * len(values)) * min(flat.shape) * UNIT
        exact = math.sqrt(float(values[-1])) * (1 + lost)  # at least one, as an entry is; or all are zero
        return exact * largest * self.size + float((t * self.lost).norm()) * (1 + lost)

    def norm_in_directions(self, t: Float[Tensor, " heads"]) -> Tensor:
        """Return the norm among the directions met so far: from below, cheap, and differentiable."""
        seen = torch.cat(self.seen, dim=-1) * t[:, None, None]
        gram = seen.flatten(0, 1)
        # Why not normalised in the combination: each direction alone is a unit vector, and that is enough to steer by.
        return self.size * gram.square().sum(0).pow(8).sum().clamp_min(1e-300).pow(1 / 16)


@dataclass(frozen=True, kw_only=True, eq=False)
class LargestStack:
    """Several stacks under the same scales, of which the largest counts."""

    stacks: tuple[StackedMatrices, ...]

    def without_directions(self) -> "LargestStack":
        """Return the same stacks, with no directions met."""
        return LargestStack(stacks=tuple(stack.without_directions() for stack in self.stacks))

    def norm(self, t: Float[Tensor, " heads"]) -> float:
        """Return the largest norm."""
        return max(stack.norm(t) for stack in self.stacks)

    def norm_in_directions(self, t: Float[Tensor, " heads"]) -> Tensor:
        """Return the largest norm among the directions met so far."""
        return torch.stack([stack.norm_in_directions(t) for stack in self.stacks]).amax()


def balance_scales(
    values: StackedMatrices, stack: StackedMatrices | LargestStack, s: Float[Tensor, " heads"]
) -> tuple[float, Float[Tensor, " heads"]]:
    r"""Search for scales s that make :math:`\|(X_h/s_h)_h\|\,\|(s_hY_h)_h\|` small, X the values; return both."""
    log_s, best, scales = s.log(), math.inf, s
    known, other = (
        values.without_directions(),
        stack.without_directions(),
    )  # directions met in other searches are of no use here
    for _round in range(ROUNDS):
        s = log_s.exp()
        found = known.norm(1 / s) * other.norm(s)
        if not math.isfinite(found):
            break
        done = found > best * (1 - 1e-3)
        best, scales = (found, s) if found < best else (best, scales)
        if done and _round > 1:
            break
        log_s = _improved(lambda s: known.norm_in_directions(1 / s) * other.norm_in_directions(s), log_s)
    return best, scales


def _improved(model: Callable[[Tensor], Tensor], log_s: Tensor) -> Tensor:
    """Return better scales, by the norms among the directions met so far."""

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(x, requires_grad=True)
        value = model(point.exp()).log()
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    start = log_s.numpy()
    near = [(x - 1.0, x + 1.0) for x in start]  # further away the norms lie in other directions
    return torch.from_numpy(lowest_point(loss, start, iterations=60, bounds=near))
