r"""Stages of Theorem 11: maps at the centre, whose remainders lie along known directions and have bounded lengths.

The remainder :math:`R(\delta) = g(x+\delta)-g(x)-Dg(x)\delta` of a map g at x, minus a known shift of the expansion
point behind it where there is one, is :math:`\sum_cB_{jc}\xi_{jc}` at token j with :math:`|\xi_{jc}|\le b_{jc}`. Groups
c of directions are bounded separately; the bounds follow from norms of linear images of what enters. A stage with a
known second derivative gives the :ref:`second order <second-order>` of what the word itself does exactly, and bounds
what is left (``SmoothStage``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.certificates.image_norms import SquaredBall, UnitBall
from howsmooth.rounding import ROOT_SHARE


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """The first-order change of the input of a stage that the word itself makes, without remainders."""

    norms: Float[Tensor, " norms"]  # the norms of its images, for a radius of one
    columns: Float[Tensor, "1 r n d"]  # its columns
    eps: float  # the radius
    ball: UnitBall  # the ball in which the word moves


class Stage(ABC):
    """One map at the centre."""

    name: str
    shift: Float[Tensor, "m out"] | None = None  # of the expansion point behind it, to the middle of its remainders

    @property
    @abstractmethod
    def tokens(self) -> Int[Tensor, " groups"]:
        """The token of every group of directions."""

    @abstractmethod
    def directions(self) -> list[Float[Tensor, "groups r m out"]]:
        """Return the matrices :math:`B` as columns at the output, in one tensor for each width r."""

    @abstractmethod
    def propagate(self, columns: Float[Tensor, "groups r n d"], ball: UnitBall) -> tuple[Tensor, Tensor]:
        """Return the norms that the remainder depends on, for every group of columns that enters, and what leaves.

        Both come from the same products, which are nearly all of the work of a table.
        """

    def image_norms(self, columns: Float[Tensor, "groups r n d"], ball: UnitBall) -> Float[Tensor, "groups norms"]:
        """Return the norms that the remainder depends on, for every group of columns that enters."""
        norms, _leaving = self.propagate(columns, ball)
        return norms

    @abstractmethod
    def remainder(self, norms: Float[Tensor, " norms"], first: FirstOrder) -> Float[Tensor, " groups"]:
        """Bound the remainder along every group of directions, from norms of all that enters."""


class SmoothStage(Stage):
    """One map at the centre whose second derivative is known there."""

    @abstractmethod
    def second_order(self, columns: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        r"""Return :math:`\tfrac12D^2g` on columns that enter, packed as in ``packed_pairs``."""

    def score_forms(self, columns: Float[Tensor, "1 r n d"], squares: SquaredBall) -> Float[Tensor, "..."] | None:
        """Return norms of quadratic forms of the word inside the map; none if the remainder depends on none."""
        return None

    @abstractmethod
    def third_order_remainder(
        self,
        first: Float[Tensor, " norms"],
        later: Float[Tensor, " norms"],
        forms: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, " groups"]:
        r"""Bound :math:`R' = R(\delta_1+\delta') - \tfrac12D^2g(\delta_1,\delta_1)` from norms of both parts.

        Args:
            first: Norms of the first-order change of the word, :math:`\delta_1`.
            later: Norms of all other changes, :math:`\delta'`.
            forms: As :meth:`score_forms` returns them; by default they follow from the norms of the first part.
        """


def matrix_root(W: Float[Tensor, "out hidden"]) -> Float[Tensor, "out out"]:
    r"""Return :math:`(WW^\top)^{1/2}`: the image of the unit ball under W, with as many columns as rows."""
    # In double precision always: the square root turns a rounding error η of a small eigenvalue into √η.
    scale = W.double().abs().max().clamp_min(1e-300)
    unit = W.double() / scale
    values, vectors = torch.linalg.eigh(unit @ unit.mT)
    # An allowance for the rounding error of eigenvalues.
    lost = ROOT_SHARE * values.abs().amax()
    return (scale * (vectors * (values.clamp_min(0) + lost).sqrt()) @ vectors.mT).to(W.dtype)


def at_every_token(B: Float[Tensor, "d d"], n: int) -> Float[Tensor, "n d n d"]:
    """Return the columns of a symmetric matrix at every token, one group for each."""
    found = B.new_zeros(n, len(B), n, len(B))
    every = torch.arange(n)
    found[every, :, every] = B
    return found
