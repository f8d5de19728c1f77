"""The pieces of a whole model, to be measured at the same windows: its blocks alone, and together."""

from collections.abc import Iterator
from typing import NamedTuple, cast

from msgspec.structs import replace

from howsmooth.studies.kinds.whole import Ask
from howsmooth.studies.plans.at_text import Ground
from howsmooth.studies.settings import Solver

# Blocks that are looked at together are bracketed to one percent: there are as many of them as squares of layers, and
# what they are compared with is larger by orders of magnitude.
LOOSE = 0.01


class Piece(NamedTuple):
    """Some consecutive blocks: the layer at which they are asked about, their map, how many, and how well."""

    layer: int
    map: str
    blocks: int
    solver: Solver


def pieces_of(layers: int, solver: Solver) -> Iterator[Piece]:
    """Yield every block of a model, the blocks up to every layer, and those from every layer on."""
    loose = replace(solver, rtol=max(solver.rtol, LOOSE))
    for layer in range(layers):
        yield Piece(layer, "block", 1, solver)
        yield Piece(0, f"to:{layer}", layer + 1, loose)
        yield Piece(layer, f"from:{layer}", layers - layer, loose)


def pieces(base: Ground, solver: Solver) -> Iterator[Ask]:
    """Yield the asks about all pieces of a model.

    Raises:
        AssumptionError: If its blocks cannot be measured.
    """
    for layer, part, blocks, accuracy in pieces_of(len(base.transformer.layers), solver):
        base.transformer.check_map(part, layer)
        yield from cast(Iterator[Ask], base.each(Ask, [layer], part, blocks=blocks, solver=accuracy))
