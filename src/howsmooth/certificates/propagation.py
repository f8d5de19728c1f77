r"""A network as a list of steps at the centre, and columns that are propagated through them.

In Theorem 11, :math:`\delta_k = G_ke+\sum_{l<k}T_{k\leftarrow l}R_l`: G and T are products of the derivatives of all
steps on the way. :func:`propagate` applies them to columns: to those of the word, to those of its
:ref:`second order <second-order>`, and to the directions of every remainder. It is the only walk through a network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.image_norms import UnitBall
from howsmooth.certificates.stages import Stage
from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import Pointwise
from howsmooth.maps.affine import Affine, Pooling
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual, Sum, leaves
from howsmooth.maps.mlp import MLP, Dense, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Jacobian, Map

TOKENWISE = (MLP, GatedMLP, Norm, Dense, Pointwise)
KNOWN = (Attention, Affine, Pooling, *TOKENWISE)
# At most this many numbers of columns are multiplied by a Jacobian at once.
NUMBERS = 2**24


class StackMove(Enum):
    """A step that moves signals on the stack: inputs of residual connections wait below what is computed."""

    DUPLICATE = "duplicate"  # the top signal is put on the stack once more
    SWAP = "swap"  # the two top signals change places
    ADD = "add"  # the two top signals are replaced by their sum


@dataclass(frozen=True, eq=False)
class Apply:
    """A step that replaces the top signal by its image."""

    map: Map


Step = Apply | StackMove


def program(f: Map) -> list[Step]:
    """Return the steps of a network, the first one first.

    Raises:
        AssumptionError: If it holds a map whose remainder is not known.
    """
    if isinstance(f, Chain):
        return [step for part in f.maps for step in program(part)]
    if isinstance(f, Residual):
        return [StackMove.DUPLICATE, *program(f.map), StackMove.ADD]
    if isinstance(f, Sum):
        first, *others = f.maps
        steps: list[Step] = []
        for part in others:
            # The outputs of the parts so far wait under a copy of the input.
            steps += [StackMove.DUPLICATE, *program(part), StackMove.SWAP]
        return [*steps, *program(first), *[StackMove.ADD] * len(others)]
    if isinstance(f, KNOWN):
        return [Apply(f)]
    raise AssumptionError(
        f"a certificate needs a network of attention, MLPs, norms, linear layers and pooling, got {type(f).__name__}.",
        field="classifier",
    )


def picked_token(f: Map) -> int | None:
    """Return the token that a pooling picks; none if it mixes several, or the map is another one."""
    if not isinstance(f, Pooling) or f.weights.ndim > 1 or int(f.weights.count_nonzero()) != 1:
        return None
    return int(f.weights.argmax()) if float(f.weights.max()) == 1 else None


def picked_row(behind: list[Step]) -> int | None:
    """Return the one row of a map that is used by the steps behind it; none if others may be."""
    for step in behind:
        if isinstance(step, Apply):
            return picked_token(step.map)
        if step is not StackMove.ADD:  # a sum with what waits on the stack keeps rows apart
            return None
    return None


def pick_early(f: Map) -> Map:
    """Return the same network with a pooling that picks one token moved before all maps that act on single tokens.

    Behind the last attention only the picked token has a remainder then, and only its derivatives are propagated.
    """
    if not isinstance(f, Chain):
        return f
    maps = list(f.maps)
    for place in reversed(range(1, len(maps))):
        alone = all(isinstance(leaf, TOKENWISE) for leaf in leaves(maps[place - 1]))
        if alone and picked_token(maps[place]) is not None:
            maps[place - 1 : place + 1] = maps[place], maps[place - 1]
    return Chain(*maps)


@dataclass(frozen=True, eq=False)
class Link:
    """One step at the centre: its derivative, and its stage if it has a remainder."""

    step: Step
    jacobian: Jacobian | None = None
    stage: Stage | None = None


# Called at every stage with its place, the columns that enter and the norms of their images; what it returns is added
# to the columns that leave.
Visitor = Callable[[int, Float[Tensor, "groups r n d"], Float[Tensor, "groups norms"]], Tensor | None]


def propagate(
    links: list[Link],
    place: int,
    columns: Float[Tensor, "groups r n d"],
    ball: UnitBall,
    visit: Visitor,
    waiting: list[Tensor] | None = None,
) -> Float[Tensor, "groups r m out"]:
    """Propagate columns from behind a link to the output; those that enter the network are behind place −1."""
    if waiting is None:
        # Signals that wait on the stack at this place do not depend on what is behind it: their columns are zero.
        waiting = [torch.zeros_like(columns)] * (depth(links[: place + 1]) - 1)
    return propagate_stack(links, place, [*waiting, columns], ball, visit)[-1]


def propagate_stack(links: list[Link], place: int, stack: list[Tensor], ball: UnitBall, visit: Visitor) -> list[Tensor]:
    """Propagate the columns of all signals on the stack from behind a link to the end; the stack is overwritten."""
    for later in range(place + 1, len(links)):
        link = links[later]
        if link.stage is None:
            advance(stack, link)
        else:
            # A stage computes norms and the columns that leave from the same products.
            entering = stack[-1]
            norms, stack[-1] = link.stage.propagate(entering, ball)
            added = visit(later, entering, norms)
            if added is not None:
                stack[-1] = stack[-1] + added
    return stack


def advance(stack: list[Tensor], link: Link) -> None:
    """Propagate columns through one step that has no remainder."""
    if isinstance(link.step, StackMove):
        move(stack, link.step)
        return
    assert link.jacobian is not None
    columns = stack[-1].flatten(0, 1)
    at_once = max(1, NUMBERS // columns[0].numel())
    # The Jacobian is that of a batch of one: it is repeated for as many columns as there are.
    pushed = [link.jacobian.take(torch.zeros(len(x), dtype=torch.long)).jvp(x) for x in columns.split(at_once)]
    stack[-1] = torch.cat(pushed).unflatten(0, stack[-1].shape[:2])


def move(stack: list[Tensor], how: StackMove) -> None:
    """Move signals on the stack."""
    if how is StackMove.DUPLICATE:
        stack.append(stack[-1])
    elif how is StackMove.SWAP:
        stack[-1], stack[-2] = stack[-2], stack[-1]
    else:
        top = stack.pop()
        stack[-1] = stack[-1] + top


def depth(links: list[Link]) -> int:
    """Count the signals on the stack behind some links."""
    steps = [link.step for link in links]
    return 1 + steps.count(StackMove.DUPLICATE) - steps.count(StackMove.ADD)
