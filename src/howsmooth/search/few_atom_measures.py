"""Explicit measures on a few places, such as the worst long sequences have."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.errors import AssumptionError
from howsmooth.theory.heads import Head
from howsmooth.theory.worst_inputs.eigenvector import largest_eigenvalue, steepest_eigenvalue
from howsmooth.theory.worst_inputs.tied_pair import best_pair

# Where the middle one of three Diracs is, as a share of the radius: near the best place in dimension one.
MIDDLE = 0.54


@dataclass(frozen=True, kw_only=True, eq=False)
class FewAtomMeasure:
    """A measure on a few places; the last one has nearly all mass.

    Attributes:
        points: The places.
        masses: Their masses.
        exponent: The difference of the scores of the light places and the heavy one.
    """

    points: Float[Tensor, "m d"]
    masses: Float[Tensor, " m"]
    exponent: float

    @classmethod
    def of(cls, points: list[Tensor], log_masses: list[float], exponent: float) -> "FewAtomMeasure":
        """Build from masses that need not add up to one, given by their logarithms."""
        stacked = torch.stack(points)
        return cls(points=stacked, masses=stacked.new_tensor(log_masses).softmax(0), exponent=exponent)

    def counts(self, n: int) -> Iterator[tuple[int, ...]]:
        """Yield whole numbers of tokens, n all together and one at least at each place, nearest to the masses."""
        shares = (n * self.masses[:-1]).tolist()
        for rounded in (math.floor, math.ceil):
            light = tuple(max(1, rounded(share)) for share in shares)
            if sum(light) < n:
                yield (*light, n - sum(light))


def few_atom_measures(head: Head, radius: float) -> Iterator[FewAtomMeasure]:
    """Yield measures with a large constant, those on an eigenvector first."""
    with contextlib.suppress(AssumptionError):  # there may be no real eigenvalue
        yield from _on_an_eigenvector(head, radius)
    yield from tied_pair_measures(head, radius, None)


def _on_an_eigenvector(head: Head, radius: float) -> Iterator[FewAtomMeasure]:
    """Yield two Diracs on the steepest eigenvector, and three for a positive eigenvalue.

    Of three, the middle one at rRu has a low score with the heavy one at −Ru, so that only its own mass competes with
    the light one at Ru; its mass is as large as that allows.
    """
    best = steepest_eigenvalue(head, "a tied pair")
    if best.gamma <= 0:
        return
    exponent, u = 2 * best.gamma * radius**2, radius * best.direction
    yield FewAtomMeasure.of([best.first * u, best.others * u], [-exponent - math.log(3), 0.0], exponent)
    top = largest_eigenvalue(head)
    if top is None or top.value <= 0:
        return
    c, v, r = top.value * radius**2, radius * top.direction, MIDDLE
    log_masses = [-2 * r * c - math.log(1.5), -(r + r * r) * c, 0.0]
    yield FewAtomMeasure.of([v, r * v, -v], log_masses, 2 * r * c)


def tied_pair_measures(head: Head, radius: float, n: int | None) -> Iterator[FewAtomMeasure]:
    """Yield the tied pair for n tokens, or for measures."""
    if head.d < 2 or head.norm_A == 0 or head.norm_WV == 0:
        return
    pair = best_pair(head, StretchedSphere.ball(head.d, radius, solid=True), n)
    delta = float(head.form(pair.copies) @ (pair.first - pair.copies))
    light = -delta - math.log(2)
    yield FewAtomMeasure.of([pair.first, pair.second, pair.copies], [light, light, 0.0], delta)
