r"""What a map adds to its first order: remainders, each along directions that are known and no longer than bounded.

A stage is one map at the centre x. Its remainder :math:`R(\delta) = g(x+\delta)-g(x)-Dg(x)\delta` at token j is
:math:`\sum_cB_{jc}\xi_{jc}` with :math:`|\xi_{jc}|\le b_{jc}`; the bounds follow from sizes of linear images of what
enters, ``Stage.seen``.
"""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.certificates.sizes import Ball


class Stage(ABC):
    """One map at the centre."""

    name: str

    @property
    @abstractmethod
    def tokens(self) -> Int[Tensor, " groups"]:
        """The token of every group of directions."""

    @abstractmethod
    def directions(self) -> list[Float[Tensor, "groups r m out"]]:
        """Return the matrices :math:`B` as bundles of columns at the output, one bundle for each width r."""

    @abstractmethod
    def seen(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> Float[Tensor, "groups sizes"]:
        """Return the sizes that the remainder depends on, for every group of columns that enters."""

    @abstractmethod
    def bounds(self, sizes: Float[Tensor, " sizes"], first: "First") -> Float[Tensor, " groups"]:
        """Bound the remainder along every group of directions, from sizes of all that enters."""


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
