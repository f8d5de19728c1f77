"""A network as a list of steps on a stack of signals: what residuals keep waits under what is computed."""

from dataclasses import dataclass
from enum import Enum

from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import Pointwise
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual, Sum
from howsmooth.maps.mlp import MLP, Dense, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.pooling import Pooling
from howsmooth.maps.protocols import Map

KNOWN = (Attention, MLP, GatedMLP, Norm, Dense, Pooling, Pointwise)


class Move(Enum):
    """What happens to the stack between maps."""

    KEEP = "keep"  # the signal on top is there twice now
    SWAP = "swap"  # the two on top change places
    ADD = "add"  # the two on top become their sum


@dataclass(frozen=True, eq=False)
class Apply:
    """Replace the signal on top by its image."""

    map: Map


Step = Apply | Move


def program(f: Map) -> list[Step]:
    """Return the steps of a network, the first one first.

    Raises:
        AssumptionError: If it holds a map whose remainder is not known.
    """
    if isinstance(f, Chain):
        return [step for part in f.maps for step in program(part)]
    if isinstance(f, Residual):
        return [Move.KEEP, *program(f.map), Move.ADD]
    if isinstance(f, Sum):
        first, *others = f.maps
        steps: list[Step] = []
        for part in others:
            # the sum of what is behind waits under a copy of what enters
            steps += [Move.KEEP, *program(part), Move.SWAP]
        return [*steps, *program(first), *[Move.ADD] * len(others)]
    if isinstance(f, KNOWN):
        return [Apply(f)]
    raise AssumptionError(
        f"a certificate needs a network of attention, MLPs, norms, linear layers and pooling, got {type(f).__name__}.",
        field="classifier",
    )
