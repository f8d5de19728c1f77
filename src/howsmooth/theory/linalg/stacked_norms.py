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

# So often the scales are improved; each time adds so many directions in which the norms are known.
ROUNDS, DIRECTIONS = 5, 3


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedMatrices:
    r"""Blocks :math:`X_h` with r rows each, one under the other, and the norm of :math:`(t_hX_h)_h` for any scales t.

    Attributes:
        blocks: The blocks, divided by ``size``.
        size: The largest entry of all.
        error: Bounds on the rounding errors of the blocks, in the norm.
        directions: The blocks times the leading singular vectors for all scales so far.
    """

    blocks: Float[Tensor, "heads r d"]
    size: float
    error: Float[Tensor, " heads"]
    directions: list[Float[Tensor, "heads r c"]] = field(default_factory=list)

    @classmethod
    def of(cls, blocks: list[Tensor], errors: list[float] | None = None) -> "StackedMatrices":
        """Stack matrices of one width; shorter ones are filled up with zeros."""
        rows = max(len(block) for block in blocks)
        padded = torch.stack([torch.nn.functional.pad(block, (0, 0, 0, rows - len(block))) for block in blocks])
        size = float(padded.abs().max())
        error = torch.tensor([0.0] * len(blocks) if errors is None else errors, dtype=torch.float64)
        return cls(blocks=padded / (size if size > 0 else 1.0), size=size, error=error)

    def without_directions(self) -> "StackedMatrices":
        """Return the same blocks, with no directions kept."""
        return StackedMatrices(blocks=self.blocks, size=self.size, error=self.error)

    def norm(self, t: Float[Tensor, " heads"]) -> float:
        r"""Return :math:`\|(t_hX_h)_h\|_2 = \lambda_{\max}(\sum_ht_h^2X_h^\top X_h)^{1/2}`, and keep where it is."""
        scaled = t[:, None, None] * self.blocks
        largest = float(scaled.abs().max())
        if not math.isfinite(largest):
            return math.inf
        flat = (scaled / (largest if largest > 0 else 1.0)).flatten(0, 1)  # squares stay in the range of the numbers
        values, vectors = torch.linalg.eigh(flat.mT @ flat)
        self.directions.append(self.blocks @ vectors[:, -DIRECTIONS:])
        # sums of so many products, each part at most as large as the largest eigenvalue
        rounding = (len(flat) + 8 * len(values)) * min(flat.shape) * UNIT
        exact = math.sqrt(float(values[-1])) * (1 + rounding)  # at least one, as an entry is; or all are zero
        return exact * largest * self.size + float((t * self.error).norm()) * (1 + rounding)

    def norm_in_directions(self, t: Float[Tensor, " heads"]) -> Tensor:
        """Return the norm in the directions kept so far: from below, cheap, and differentiable."""
        images = torch.cat(self.directions, dim=-1) * t[:, None, None]
        images = images.flatten(0, 1)
        # Why not normalised in the combination: each direction alone is a unit vector, and that is enough to steer by.
        return self.size * images.square().sum(0).pow(8).sum().clamp_min(1e-300).pow(1 / 16)


@dataclass(frozen=True, kw_only=True, eq=False)
class LargestStack:
    """Several stacks under the same scales, of which the largest counts."""

    stacks: tuple[StackedMatrices, ...]

    def without_directions(self) -> "LargestStack":
        """Return the same stacks, with no directions kept."""
        return LargestStack(stacks=tuple(stack.without_directions() for stack in self.stacks))

    def norm(self, t: Float[Tensor, " heads"]) -> float:
        """Return the largest norm."""
        return max(stack.norm(t) for stack in self.stacks)

    def norm_in_directions(self, t: Float[Tensor, " heads"]) -> Tensor:
        """Return the largest norm in the directions kept so far."""
        return torch.stack([stack.norm_in_directions(t) for stack in self.stacks]).amax()


def balance_scales(
    values: StackedMatrices, stack: StackedMatrices | LargestStack, s: Float[Tensor, " heads"]
) -> tuple[float, Float[Tensor, " heads"]]:
    r"""Search for scales s that make :math:`\|(X_h/s_h)_h\|\,\|(s_hY_h)_h\|` small, X the values; return both."""
    log_s, best, scales = s.log(), math.inf, s
    # directions of other searches are of no use here
    values, stack = values.without_directions(), stack.without_directions()
    for _round in range(ROUNDS):
        s = log_s.exp()
        found = values.norm(1 / s) * stack.norm(s)
        if not math.isfinite(found):
            break
        done = found > best * (1 - 1e-3)
        best, scales = (found, s) if found < best else (best, scales)
        if done and _round > 1:
            break
        log_s = _improved(lambda s: values.norm_in_directions(1 / s) * stack.norm_in_directions(s), log_s)
    return best, scales


def _improved(model: Callable[[Tensor], Tensor], log_s: Tensor) -> Tensor:
    """Return better scales, by the norms in the directions kept so far."""

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(x, requires_grad=True)
        value = model(point.exp()).log()
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    start = log_s.numpy()
    near = [(x - 1.0, x + 1.0) for x in start]  # further away the norms lie in other directions
    return torch.from_numpy(lowest_point(loss, start, iterations=60, bounds=near))
