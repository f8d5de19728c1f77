r"""One table for a sentence: how much of every remainder arrives at every later stage, to first order.

With :math:`\delta_k` the change of what enters stage k and :math:`R_l` the remainder of stage l,

.. math:: \delta_k = G_ke + \sum_{l<k}T_{k\leftarrow l}R_l,

G and T the Jacobians at the centre. Sizes of :math:`T_{k\leftarrow l}B_l` do not depend on the radius: they are
computed once, source by source; every radius of every word is then a recursion of products with the table.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.attention_stage import AttentionStage
from howsmooth.certificates.kinked_stage import KinkedStage
from howsmooth.certificates.mlp_stage import GatedStage, mlp_stage
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.program import Apply, program
from howsmooth.certificates.pushing import Link, move, spread
from howsmooth.certificates.rough import WIDE, outward, spread_roughly
from howsmooth.certificates.sizes import ROUND
from howsmooth.certificates.stages import Stage
from howsmooth.maps.activations import Pointwise, known_activation
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import linearised
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map

MEMORY = 2**30
# From so many numbers on columns are pushed in single precision: about half a minute in double precision.
MANY = 2**32


class Table:
    """A network at one input, with all that radii need.

    Attributes:
        X: The input.
        output: What the network says there; where centres are shifted, at the last of them.
        links: Its steps.
        stages: Those that are not linear, by their places.
        arriving: The sizes of all remainders before a stage, as it sees them, by its place.
    """

    def __init__(
        self, f: Map, X: Float[Tensor, "n d"], *, single: bool | None = None, reach: Mapping[int, Tensor] | None = None
    ) -> None:
        """Run the network once, and push every source of remainders to the end.

        Args:
            f: The network.
            X: The input.
            single: Whether columns are pushed in single precision, and their sizes widened by what that may have
                taken. By default where there are many.
            reach: How far rectified hidden units are expected to move, by the places of their stages: they are taken
                as suits that, and the centre is shifted; along their derivatives by default.
        """
        self.X, self._map, self._reach = X, f, reach or {}
        with torch.no_grad():
            self.output, self.links = _run(f, X, self._reach)
            self.stages = {place: link.stage for place, link in enumerate(self.links) if link.stage is not None}
            single = not self.cheap if single is None else single
            rough = self._single() if single else None
            sources = [
                spread(self.links, place) if rough is None else spread_roughly(rough, place, exact=self.links)
                for place in self.stages
            ]
        self.arriving = {
            place: torch.cat([source.at[place] for source in sources[:count]])
            for count, place in enumerate(self.stages)
            if count
        }
        self._ending = [bundle for source in sources for bundle in source.output]
        self._wrong = [bundle for source in sources for bundle in source.wrong]

    def arriving_at(self, functionals: Float[Tensor, "f out"]) -> Float[Tensor, "groups f"]:
        """Return how much of every remainder arrives at functionals of the output."""
        found = [ROUND.numbers(bundle.double().flatten(2) @ functionals.mT) for bundle in self._ending]
        if self._wrong:
            seen = [(wrong.flatten(2) @ functionals.mT).abs() for wrong in self._wrong]
            found = [outward(sizes, wrong) for sizes, wrong in zip(found, seen, strict=True)]
        return torch.cat(found) if found else functionals.new_zeros(0, len(functionals))

    def remade(self, reach: Mapping[int, Tensor]) -> "Table":
        """Return a table that takes rectified hidden units as suits how far they are expected to move."""
        return Table(self._map, self.X, reach=reach)

    @property
    def names(self) -> list[str]:
        """The names of all groups of remainders, each by its stage, counted by kind, and its token."""
        counts: dict[str, int] = {}
        found: list[str] = []
        for stage in self.stages.values():
            count = counts.setdefault(stage.name, 0)
            found.extend(f"{stage.name} {count}, token {token}" for token in stage.tokens.tolist())
            counts[stage.name] += 1
        return found

    @property
    def kinked(self) -> bool:
        """Whether there are rectified hidden units."""
        return any(isinstance(stage, KinkedStage) for stage in self.stages.values())

    @property
    def cheap(self) -> bool:
        """Whether there are so few columns that double precision is no burden, nor a table for every word."""
        n, d = self.X.shape
        return len(self.stages) * len(self.links) * (n * d) ** 2 <= MANY

    def _single(self) -> list[Link] | None:
        """Return the steps in single precision, if that tells the output as it is."""
        output, links = _run(self._map.to(torch.float32, "cpu"), self.X.float(), self._reach)
        far = (output.double() - self.output).abs().max() / self.output.abs().max()
        return links if bool(far < WIDE) else None


def _run(f: Map, X: Float[Tensor, "n d"], reach: Mapping[int, Tensor]) -> tuple[Tensor, list[Link]]:
    """Run a network at ``X`` and look at every step there; shifts of the centre are what later steps are at."""
    stack, links = [X], list[Link]()
    for step in program(f):
        if isinstance(step, Apply):
            stage = _stage(step.map, stack[-1], reach.get(len(links)))
            # a batch of one, which is repeated for as many columns as there are
            value, jacobian = linearised(step.map, stack[-1][None], MEMORY)
            shift = None if stage is None else stage.shift
            stack[-1] = value[0] if shift is None else value[0] + shift
            links.append(Link(step, jacobian, stage))
        else:
            move(stack, step)
            links.append(Link(step))
    return stack[0], links


def _stage(f: Map, X: Tensor, reach: Tensor | None) -> Stage | None:
    """Return the remainder of a map; those that have none are linear, since a program holds no others."""
    if isinstance(f, Norm):
        return NormStage(f, X)
    if isinstance(f, Attention):
        return AttentionStage(f, X)
    if isinstance(f, MLP):
        return _feed_forward(f, X, reach)
    if isinstance(f, GatedMLP):
        return GatedStage(f, X)
    if isinstance(f, Pointwise):
        eye = torch.eye(X.shape[-1], dtype=X.dtype)
        return _feed_forward(MLP(up=eye, down=eye, activation=f.activation), X, reach)
    return None


def _feed_forward(f: MLP, X: Tensor, reach: Tensor | None) -> Stage:
    return KinkedStage(f, X, reach) if known_activation(f.activation).name == "relu" else mlp_stage(f, X)
