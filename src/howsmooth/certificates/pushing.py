"""Columns that are pushed through a network, step by step: what every stage on the way sees of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.program import Move, Step
from howsmooth.certificates.sizes import ROUND, Ball
from howsmooth.certificates.stages import Stage
from howsmooth.maps.protocols import Jacobian

# So many numbers of a bundle of columns are pushed at once.
NUMBERS = 2**24


@dataclass(frozen=True, eq=False)
class Link:
    """One step at the centre: the derivative that pushes columns on, and its remainder, if it has one."""

    step: Step
    jacobian: Jacobian | None = None
    stage: Stage | None = None


@dataclass(frozen=True, eq=False)
class Seen:
    """What a source does later on.

    Attributes:
        at: Its sizes at every stage behind it, by the place of the stage.
        output: Its columns at the output.
        wrong: By how much random sums of these are wrong.
    """

    at: dict[int, Float[Tensor, "groups sizes"]] = field(default_factory=dict)
    output: list[Tensor] = field(default_factory=list)
    wrong: list[Tensor] = field(default_factory=list)

    def add(self, place: int, sizes: Float[Tensor, "groups sizes"]) -> None:
        """Keep the sizes of more groups at a stage."""
        self.at[place] = torch.cat((self.at[place], sizes)) if place in self.at else sizes


def spread(links: list[Link], place: int) -> Seen:
    """Push the directions of the remainder of one stage through all that follows."""
    found = Seen()
    for bundle in directions(links, place):
        for later, _entering, sizes in walk(links, place, bundle, found.output):
            found.add(later, sizes)
    return found


def directions(links: list[Link], place: int) -> list[Float[Tensor, "groups r n d"]]:
    """Return the directions of the remainder of a stage."""
    stage = links[place].stage
    assert stage is not None
    return stage.directions()


def walk(
    links: list[Link], place: int, bundle: Float[Tensor, "groups r n d"], output: list[Tensor], ball: Ball = ROUND
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Push columns from behind a place to the output; on the way yield stages, what enters them and its sizes."""
    stack = [torch.zeros_like(bundle) for _ in range(_depth(links[: place + 1]) - 1)] + [bundle]
    for later in range(place + 1, len(links)):
        link, entering = links[later], stack[-1]
        if link.stage is None:
            advance(stack, link)
        else:
            sizes, stack[-1] = link.stage.through(entering, ball)
            yield later, entering, sizes
    output.append(stack[-1])


def advance(stack: list[Tensor], link: Link) -> None:
    """Push bundles of columns through one step."""
    if isinstance(link.step, Move):
        move(stack, link.step)
        return
    assert link.jacobian is not None
    bundle = stack[-1]
    columns = bundle.flatten(0, 1)
    at_once = max(1, NUMBERS // columns[0].numel())
    pushed = [pushed_by(link.jacobian, part) for part in columns.split(at_once)]
    stack[-1] = torch.cat(pushed).unflatten(0, bundle.shape[:2])


def pushed_by(jacobian: Jacobian, columns: Float[Tensor, "c n d"]) -> Float[Tensor, "c m out"]:
    """Apply one derivative to many columns."""
    return jacobian.take(torch.zeros(len(columns), dtype=torch.long)).jvp(columns)


def move(stack: list[Tensor], how: Move) -> None:
    """Move signals on the stack."""
    if how is Move.KEEP:
        stack.append(stack[-1])
    elif how is Move.SWAP:
        stack[-1], stack[-2] = stack[-2], stack[-1]
    else:
        top = stack.pop()
        stack[-1] = stack[-1] + top


def _depth(links: list[Link]) -> int:
    """Count the signals on the stack behind some steps."""
    moves = [link.step for link in links]
    return 1 + moves.count(Move.KEEP) - moves.count(Move.ADD)
