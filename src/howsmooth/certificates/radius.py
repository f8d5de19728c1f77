"""The largest radius that a table proves, by bisection."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.entrance import ROUNDING, Entrance
from howsmooth.certificates.sizes import Ball
from howsmooth.certificates.table import Table
from howsmooth.errors import AssumptionError

# Radii are known to this share of themselves.
RTOL = 1e-3
STEPS = 200
# No radius is looked for beyond so many times the length of the embeddings.
FAR = 1e6
# Second orders are exact up to so many numbers, d = 128 and 7 tokens: they gain a quarter, and cost the cube of d.
CURVED = 2**23


@dataclass(frozen=True, kw_only=True, eq=False)
class Rivals:
    r"""The margins of the predicted class over the others, as functionals of the output.

    Attributes:
        functionals: :math:`e_y - e_k` for every other class k.
        margins: What they are at the centre, less what large logits may have lost in rounding.
    """

    functionals: Float[Tensor, "rivals classes"]
    margins: Float[Tensor, " rivals"]

    @classmethod
    def of(cls, logits: Float[Tensor, " classes"], among: Sequence[int] | None = None) -> "Rivals":
        """Compare the largest logit with the others, or with some of them.

        Raises:
            AssumptionError: If there is no such class, or no other.
        """
        best, count = int(logits.argmax()), len(logits)
        others = [k for k in (range(count) if among is None else among) if k != best]
        if not others or any(not 0 <= k < count for k in others):
            raise AssumptionError(
                f"give classes from 0 to {count - 1}, one of them not the predicted one, {best}; got {among}.",
                field="classes",
            )
        eye = torch.eye(count, dtype=logits.dtype)
        functionals = eye[best] - eye[others]
        return cls(functionals=functionals, margins=_lowered(functionals, logits))

    def margins_at(self, logits: Float[Tensor, " classes"]) -> Float[Tensor, " rivals"]:
        """Return the margins at other logits, lowered likewise."""
        return _lowered(self.functionals, logits)


def _lowered(functionals: Float[Tensor, "rivals classes"], logits: Float[Tensor, " classes"]) -> Tensor:
    return functionals @ logits - ROUNDING * logits.abs().max()


def affordable(table: Table, tokens: Tensor) -> bool:
    """Whether second orders of some tokens that move may be exact."""
    r, (n, d) = len(tokens) * table.X.shape[1], table.X.shape
    return r * (r + 1) // 2 * n * d <= CURVED


class Proof:
    """What a table proves about perturbations of some tokens.

    Attributes:
        table: The network.

    Args:
        table: The network.
        rivals: The margins.
        tokens: Which tokens move.
        ball: How far.
        curved: Whether second orders are exact, where they are affordable.
    """

    def __init__(self, table: Table, rivals: Rivals, tokens: Tensor, ball: Ball, *, curved: bool = True) -> None:
        # a table that shifts its centre has margins of its own there
        self.table, self._margins = table, rivals.margins_at(table.output[0])
        with torch.no_grad():
            self._way = Entrance(table, tokens, ball, curved=curved and affordable(table, tokens))
            self._first, self._second = self._way.at_output(rivals.functionals)
            self._arriving = table.arriving_at(rivals.functionals)

    @property
    def linear(self) -> float:
        """The radius at which the first order alone uses a margin up."""
        return float((self._margins / self._first).min())

    def margins(self, eps: float) -> Float[Tensor, " rivals"]:
        """Bound the margins from below while tokens move by at most ``eps``."""
        left = self._margins - eps * self._first - eps**2 * self._second - self._way.remainders(eps) @ self._arriving
        return left.nan_to_num(-math.inf)

    def holds(self, eps: float) -> bool:
        """Whether no class can overtake; what is not a number proves nothing."""
        with torch.no_grad():
            return bool((self.margins(eps) > 0).all())

    def slack(self, eps: float) -> str:
        """Name the stage and the token whose remainder takes most of the margin; nothing bends in a linear map."""
        if not len(self._arriving):
            return ""
        with torch.no_grad():
            taken = (self._way.remainders(eps)[:, None] * self._arriving).amax(1)
        return self.table.names[int(taken.argmax())]

    def reach(self, eps: float) -> dict[int, Tensor]:
        """Return how far rectified hidden units may move at a radius: a table that suits it may prove a larger one."""
        with torch.no_grad():
            return self._way.reach(eps)

    def radius(self) -> float:
        """Return the largest radius that is proven, to a share of itself; zero if none is."""
        # a word that no margin depends on may go far, but a proof needs a number
        high = min(self.linear, FAR * float(self.table.X.norm()))
        if not 0 < high < math.inf:
            return 0.0
        low = high
        for _ in range(STEPS):
            if self.holds(low):
                break
            high, low = low, low / 2
        else:
            return 0.0
        while high - low > RTOL * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low
