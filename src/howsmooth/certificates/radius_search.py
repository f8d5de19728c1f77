"""The largest radius that Theorem 11 proves for some tokens: by bisection, and with tables for the radius reached."""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.image_norms import UnitBall
from howsmooth.certificates.remainder_table import RemainderTable, Slack
from howsmooth.certificates.word_perturbation import WordPerturbation, times_square
from howsmooth.errors import AssumptionError
from howsmooth.rounding import CHAIN_FLOOR

# Radii are known up to this share of themselves.
RTOL = 2e-4
STEPS = 200
# No radius is tried beyond this multiple of the length of the embeddings.
LARGEST_RADIUS = 1e6
# Second orders are exact up to this many numbers, d = 128 and 7 tokens: they gain a quarter, and cost the cube of d.
SECOND_ORDER_NUMBERS = 2**23
# Tables are made again at most this often, without exact second orders, which cost more than a table, and with them. A
# round that gains less than GAIN is the last one.
ROUNDS, SECOND_ORDER_ROUNDS, GAIN = 4, 1, 1.02


@dataclass(frozen=True, kw_only=True, eq=False)
class Rivals:
    r"""The margins of the predicted class over the others, as functionals of the output.

    Attributes:
        functionals: :math:`e_y - e_k` for every other class k.
        margins: Their values at the centre, minus an allowance for the rounding of large logits.
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
        given = range(count) if among is None else among
        others = [k for k in given if k != best] if isinstance(given, Iterable) else []
        if not others or any(k not in range(count) for k in others):
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
    # A margin is a difference of logits: its rounding error is that of the largest of them.
    return functionals @ logits - CHAIN_FLOOR * logits.abs().max()


def second_order_affordable(table: RemainderTable, tokens: Tensor) -> bool:
    """Whether second orders of some tokens that move may be exact."""
    r, (n, d) = len(tokens) * table.X.shape[1], table.X.shape
    return r * (r + 1) // 2 * n * d <= SECOND_ORDER_NUMBERS


class Proof:
    """What a table proves about perturbations of some tokens.

    Attributes:
        table: The network.

    Args:
        table: The network.
        rivals: The margins.
        tokens: The tokens that move.
        ball: The ball in which they move.
        second_order: Whether second orders are exact, where they are affordable.
    """

    def __init__(
        self, table: RemainderTable, rivals: Rivals, tokens: Tensor, ball: UnitBall, *, second_order: bool = True
    ) -> None:
        # A table that shifts its centre has other margins there.
        self.table, self._margins = table, rivals.margins_at(table.output[0])
        with torch.no_grad():
            second_order = second_order and second_order_affordable(table, tokens)
            self._word = WordPerturbation(table, tokens, ball, second_order=second_order)
            self._functionals, self._transfer = rivals.functionals, table.transfer_to(rivals.functionals)
            self._first, self._second = self._word.at_output(rivals.functionals)

    def with_second_order(self) -> "Proof":
        """Return what the same table proves with exact second orders; first orders are shared."""
        found = copy.copy(self)
        with torch.no_grad():
            found._word = self._word.with_second_order()
            found._first, found._second = found._word.at_output(self._functionals)
        return found

    @property
    def linear(self) -> float:
        """The radius at which the first order alone uses a margin up."""
        return float((self._margins / self._first).min())

    def margins(self, eps: float) -> Float[Tensor, " rivals"]:
        """Bound the margins from below while tokens move by at most ``eps``."""
        left = self._margins - eps * self._first - times_square(eps, self._second)
        left = left - self._word.remainders(eps) @ self._transfer
        return left.nan_to_num(-math.inf)

    def chain(self, eps: float, room: float) -> tuple[list[Float[Tensor, " groups"]], Float[Tensor, " rivals"]]:
        """Return the remainders of every stage with some room, and what they leave of the margins."""
        with torch.no_grad():
            stages = self._word.chain(eps, room)
            left = self._margins - eps * self._first - times_square(eps, self._second)
            return stages, (left - torch.cat(stages) @ self._transfer).nan_to_num(-math.inf)

    def used(self, eps: float) -> float:
        """Return the largest share of a margin that is used up; what is not a number may be all of it."""
        with torch.no_grad():
            shares = torch.where(self._margins > 0, 1 - self.margins(eps) / self._margins, math.inf)
        return float(shares.nan_to_num(math.inf, math.inf).max())

    def holds(self, eps: float) -> bool:
        """Whether no class can overtake."""
        return self.used(eps) < 1

    def slack(self, eps: float) -> Slack | None:
        """Return the group of remainders that takes most of the margin; none for a linear map."""
        if not len(self._transfer):
            return None
        with torch.no_grad():
            taken = (self._word.remainders(eps)[:, None] * self._transfer).amax(1)
        return self.table.groups[int(taken.argmax())]

    def unit_ranges(self, eps: float) -> dict[int, Tensor]:
        """Return how far ReLU units may move at a radius: a table with lines for these may prove a larger one."""
        with torch.no_grad():
            return self._word.unit_ranges(eps)

    def radius(self, near: float | None = None) -> float:
        """Return the largest radius that is proven, up to a share of itself; zero if none is.

        Args:
            near: Where to look first, such as the radius of another word.
        """
        # A word that no margin depends on may move arbitrarily far, but a proof needs a number.
        high = min(self.linear, LARGEST_RADIUS * float(self.table.X.norm()))
        if not 0 < high < math.inf:
            return 0.0
        # at_low and at_high are logarithms of the share of the margin that is used at both ends of the bracket
        low, at_low, at_high, eps = 0.0, -math.inf, math.inf, min(near or high, high)
        for step in range(STEPS):
            used = self.used(eps)
            proven = used < 1
            if proven:
                low, at_low = eps, math.log(used) if used > 0 else -math.inf
            else:
                high, at_high = eps, math.log(used)
            if high - low <= RTOL * high:
                break
            if low == 0:
                eps = high / 8  # radii differ by orders of magnitude: find the order first
            elif step % 4 == 3 or math.isinf(at_low) or math.isinf(at_high):
                # now and then the middle, on a logarithmic scale: interpolation alone may creep
                eps = min(2 * low, math.sqrt(low) * math.sqrt(high))
            else:
                # What is used is nearly a power of the radius. A little to the other side: both ends close in.
                root = low * (high / low) ** (at_low / (at_low - at_high))
                root *= 1 + RTOL / 3 if proven else 1 - RTOL / 3
                eps = min(max(root, low * (1 + RTOL / 4)), high * (1 - RTOL / 4))
        return low


class Proven(NamedTuple):
    """A proof and the radius that it reaches."""

    proof: Proof
    radius: float


def best_proof(
    table: RemainderTable, rivals: Rivals, tokens: Tensor, ball: UnitBall, near: float | None = None
) -> tuple[Proof, float, float]:
    """Return the proof with the largest radius, this radius, and the radius at which the first order alone ends.

    Radii are looked for near another one first, if one is given.
    :ref:`Lines for ReLU units <kinks>` depend on the radius, so that tables with such units are made again.
    """
    again = table.has_relu and table.cheap
    plain = Proof(table, rivals, tokens, ball, second_order=False)
    found = None
    # Second orders come last: a table is cheaper than they are, and the lines hardly depend on them.
    if again or not second_order_affordable(table, tokens):
        found = _refined(plain, rivals, tokens, ball, near, rounds=ROUNDS if again else 0, second_order=False)
    if second_order_affordable(table, tokens):
        exact = (plain if found is None else found.proof).with_second_order()
        rounds = SECOND_ORDER_ROUNDS if again else 0
        other = _refined(exact, rivals, tokens, ball, near, rounds=rounds, second_order=True)
        # Second orders may prove less: where there are many tokens, their norms are larger than those of products.
        if found is None and plain.holds(other.radius):
            found = Proven(plain, plain.radius(other.radius))
        found = other if found is None or other.radius > found.radius else found
    assert found is not None
    return found.proof, found.radius, plain.linear


def _refined(
    proof: Proof, rivals: Rivals, tokens: Tensor, ball: UnitBall, near: float | None, *, rounds: int, second_order: bool
) -> Proven:
    """Make tables again while that gains; return the best proof and its radius."""
    found = Proven(proof, proof.radius(near))
    for _round in range(rounds if found.radius > 0 else 0):
        table = found.proof.table.with_unit_ranges(found.proof.unit_ranges(found.radius))
        proof = Proof(table, rivals, tokens, ball, second_order=second_order)
        other, before = Proven(proof, proof.radius(found.radius)), found.radius
        found = other if other.radius > found.radius else found
        if found.radius < GAIN * before:
            break
    return found
