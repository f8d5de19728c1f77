"""Words that move to one of several places, or anywhere between them: sizes of what that does."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.entrance import Entrance
from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.table import Table


@dataclass(frozen=True)
class Choices(Ball):
    r"""All :math:`\sum_i\delta_i` where :math:`\delta_i` is in the hull of zero and the columns of word i.

    A convex function is largest at a corner of each hull: a number :math:`|f\cdot e|` is at most
    :math:`\sum_i\max_s|f\cdot d_{is}|`, and a vector :math:`|Me|_2` at most :math:`\sum_i\max_s|Md_{is}|_2`. Every
    ball or box that holds all :math:`d_{is}` holds the hull, which is smaller.

    Attributes:
        counts: How many columns each word has, in their order.
    """

    counts: tuple[int, ...] = ()

    def numbers(self, columns: Float[Tensor, "groups r *more"]) -> Float[Tensor, "groups *more"]:
        """Bound numbers: the largest of each word, added up."""
        return self._added(columns.abs())

    def vectors(self, columns: Float[Tensor, "groups r *more m"]) -> Float[Tensor, "groups *more"]:
        """Bound lengths of vectors likewise."""
        return self._added(columns.norm(dim=-1))

    def _added(self, sizes: Float[Tensor, "groups r *more"]) -> Float[Tensor, "groups *more"]:
        words = sizes.split(list(self.counts), dim=1)
        return sum((word.amax(1) for word in words[1:]), words[0].amax(1))


class Hull(Entrance):
    """Moves of some words, pushed to the end by first order; what bends is a remainder as everywhere."""

    def __init__(self, table: Table, columns: Float[Tensor, "r n d"], counts: tuple[int, ...]) -> None:
        self._columns = columns
        super().__init__(table, torch.zeros(0, dtype=torch.long), Choices(counts=counts), curved=False)

    def losses(self, functionals: Float[Tensor, "f out"]) -> Float[Tensor, " f"]:
        """Bound how much functionals of the output lose by first order; a move that they gain by costs nothing."""
        slopes = -(self._output.flatten(2) @ functionals.mT)
        return self._ball.numbers(slopes.clamp_min(0))[0]

    def _begin(self, curved: bool) -> tuple[Tensor, Tensor | None, int]:
        return self._columns[None], None, 0
