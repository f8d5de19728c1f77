r"""What a map adds to its first order: remainders, each along directions that are known and no longer than bounded.

A stage is one map at the centre x. Its remainder :math:`R(\delta) = g(x+\delta)-g(x)-Dg(x)\delta`, less a shift of the
centre behind it where that is known to be better, at token j is
:math:`\sum_cB_{jc}\xi_{jc}` with :math:`|\xi_{jc}|\le b_{jc}`; the bounds follow from sizes of linear images of what
enters, ``Stage.seen``. Stages that know their second derivative give that of what the word itself does exactly, and
bound the rest (``Bent``).
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.certificates.sizes import Ball, Squares


class Stage(ABC):
    """One map at the centre."""

    name: str
    shift: Float[Tensor, "m out"] | None = None  # what the centre is moved by behind it, to the middle of remainders

    @property
    @abstractmethod
    def tokens(self) -> Int[Tensor, " groups"]:
        """The token of every group of directions."""

    @abstractmethod
    def directions(self) -> list[Float[Tensor, "groups r m out"]]:
        """Return the matrices :math:`B` as bundles of columns at the output, one bundle for each width r."""

    @abstractmethod
    def through(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> tuple[Tensor, Tensor]:
        """Return the sizes that the remainder depends on, for every group of columns that enters, and what leaves.

        Both come from the same products, which are nearly all of the work of a table.
        """

    def seen(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> Float[Tensor, "groups sizes"]:
        """Return the sizes that the remainder depends on, for every group of columns that enters."""
        sizes, _pushed = self.through(bundle, ball)
        return sizes

    @abstractmethod
    def bounds(self, sizes: Float[Tensor, " sizes"], first: "First") -> Float[Tensor, " groups"]:
        """Bound the remainder along every group of directions, from sizes of all that enters."""


class Bent(Stage):
    """One map at the centre whose second order is known there."""

    @abstractmethod
    def second(self, bundle: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        r"""Return :math:`\tfrac12D^2g` on columns that enter, packed as in ``Squares``."""

    def inside(self, bundle: Float[Tensor, "1 r n d"], squares: Squares) -> Float[Tensor, "..."] | None:
        """Return sizes of what is of second order inside the map; nothing if what is left does not depend on any."""
        return None

    @abstractmethod
    def beyond(
        self,
        one: Float[Tensor, " sizes"],
        rest: Float[Tensor, " sizes"],
        inside: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, " groups"]:
        r"""Bound :math:`R(\delta_1+\delta') - \tfrac12D^2g(\delta_1,\delta_1)` from the sizes of both parts.

        What is of second order inside may be given too; by default it follows from the sizes of the first part.
        """


class First:
    """What the perturbation of the input itself does at a stage, without remainders.

    Attributes:
        sizes: Its sizes, for a radius of one.
        bundle: Its columns.
        eps: The radius.
        ball: The ball it fills.
    """

    def __init__(self, sizes: Tensor, bundle: Tensor, eps: float, ball: Ball) -> None:
        self.sizes, self.bundle, self.eps, self.ball = sizes, bundle, eps, ball


def root(W: Float[Tensor, "out hidden"]) -> Float[Tensor, "out out"]:
    r"""Return :math:`(WW^\top)^{1/2}`: what W does to a ball, with as many columns as rows."""
    # in double precision always: the roots of small eigenvalues are as wrong as roots of roundings
    scale = W.double().abs().max().clamp_min(1e-300)
    unit = W.double() / scale
    values, vectors = torch.linalg.eigh(unit @ unit.mT)
    # what rounding may have taken from an eigenvalue is given back
    lost = 1e-13 * values.abs().amax()
    return (scale * (vectors * (values.clamp_min(0) + lost).sqrt()) @ vectors.mT).to(W.dtype)


def at_every_token(B: Float[Tensor, "d d"], n: int) -> Float[Tensor, "n d n d"]:
    """Return the columns of a symmetric matrix at every token, one group for each."""
    found = B.new_zeros(n, len(B), n, len(B))
    every = torch.arange(n)
    found[every, :, every] = B
    return found
