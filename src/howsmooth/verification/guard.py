"""Whether the map that was read is the network that runs: on the box of the property, output by output."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import HowsmoothError, UnsupportedModelError

# Outputs in the network's own precision are off by rounding, of which the map's own in that precision is an example.
ROUNDINGS = 100.0
# What differs by more than rounding and by such a share of the outputs is another network.
SHARE = 1e-4
# Margins must exceed what was seen at a few inputs so many times.
ROOM = 4.0


@dataclass(frozen=True)
class AsItRuns:
    """A network itself, from a vector of inputs to one of outputs: whoever calls it runs it in its own precision.

    Attributes:
        run: The network as it is deployed: by onnxruntime, or as a module.
        exact: Its nodes one by one in float64; None if a node cannot be run so.
        dtype: The precision of its inputs.
        read: Its nodes, as they were read.
    """

    run: Callable[[Tensor], Tensor]
    exact: Callable[[Tensor], Tensor] | None = None
    dtype: torch.dtype = torch.float32
    read: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        """Run the network."""
        return self.run(x)


def agree(
    network: Callable[[Tensor], Tensor],
    single: Callable[[Tensor], Tensor],
    run: AsItRuns,
    points: Float[Tensor, "points inputs"],
) -> Float[Tensor, " outputs"]:
    """Return how far every output of a map is from the network's at some inputs; margins must exceed that.

    Where outputs differ by no more than the network's own rounding does, its nodes in float64 decide; a verdict is in
    real arithmetic.

    Args:
        network: The map in float64, from many inputs to their outputs.
        single: The same in the precision of the network.
        run: The network, from one input to its outputs.
        points: Inputs of the box.

    Raises:
        UnsupportedModelError: If they differ by so much that something else was read.
    """
    try:
        ours = network(points)
        rounding = (single(points.to(run.dtype)).double() - ours).abs().amax(0)
    except HowsmoothError as error:
        raise UnsupportedModelError(f"the network was read as maps that do not fit together: {error}") from error
    theirs = torch.stack([run(x) for x in points])
    if theirs.shape != ours.shape:
        raise UnsupportedModelError(
            f"the network puts out {tuple(theirs.shape[1:])} numbers, and what was read {tuple(ours.shape[1:])}."
        )
    if not bool(theirs.isfinite().all() & ours.isfinite().all()):
        raise UnsupportedModelError("the network puts out numbers that are not finite on the box.")
    size = theirs.abs().amax(0)
    rounding = ROUNDINGS * (rounding + size * torch.finfo(run.dtype).eps)
    apart = (ours - theirs).abs().amax(0)
    apart_by_share = float((apart / size.max().clamp_min(1e-300)).max())
    if bool((apart > rounding).any()) and not apart_by_share <= SHARE:
        raise UnsupportedModelError(
            f"the network that was read differs from the network's own values by {apart_by_share:.1g}."
        )
    nodes = None if run.exact is None else _exact(run.exact, points)
    if nodes is None or nodes.shape != ours.shape:
        return ROOM * apart
    return ROOM * torch.where(apart <= rounding, torch.minimum(apart, (ours - nodes).abs().amax(0)), apart)


def _exact(run: Callable[[Tensor], Tensor], points: Tensor) -> Tensor | None:
    try:
        found = torch.stack([run(x) for x in points])
    except Exception:  # whatever a strange node is stumbled over
        return None
    return torch.nan_to_num(found, nan=math.inf)


def sampled(
    centre: Float[Tensor, " inputs"], half: Float[Tensor, " inputs"], found: Float[Tensor, "attacks inputs"]
) -> Float[Tensor, "points inputs"]:
    """Return inputs of a box: its centre, corners and others at random, and what attacks found."""
    draws = torch.rand(8, len(centre), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    draws[:4] = draws[:4].sign()
    return torch.cat([centre[None], centre + half * draws, found])
