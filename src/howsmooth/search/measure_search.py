"""Search over measures: explicit measures on a few places, and log-masses as one more coordinate of the ascent."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.domain import Ball, Domain, WithMasses
from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.maps.mean_field_maps import WeightedJacobian
from howsmooth.search.mean_field_context import counting
from howsmooth.search.mechanisms import is_plain_softmax
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.theory.assumptions import require_plain, require_unmasked
from howsmooth.theory.heads import Head
from howsmooth.theory.mean_field import require_mean_field
from howsmooth.theory.results import Witness
from howsmooth.theory.worst_inputs.eigenvector import largest_eigenvalue, steepest_eigenvalue
from howsmooth.theory.worst_inputs.tied_pair import best_pair
from howsmooth.transport.measures import DiscreteMeasure

# A step as long as the domain's scale changes the logarithm of a mass by so much.
LOG_MASS = 8.0
# Where the middle one of three Diracs is, as a share of the radius: near the best place in dimension one.
MIDDLE = 0.54


@dataclass(frozen=True, kw_only=True, eq=False)
class FewAtomMeasure:
    """A measure on a few places; the last one has nearly all mass."""

    points: Float[Tensor, "m d"]  # the places
    masses: Float[Tensor, " m"]  # their masses
    exponent: float  # the difference of the scores of the light places and the heavy one

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


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureMap(TensorDataclass):
    r"""Attention as a map on measures with n atoms: rows are :math:`(x_i, \ell_i)`, masses the softmax of :math:`\ell`.

    Its derivative is that of moving atoms, :math:`D^{1/2}JD^{-1/2}`, with masses fixed; a search may change them.
    """

    attention: MultiHead
    unit: float  # the logarithm of mass per unit of the last coordinate

    def masses(self, X: Float[Tensor, "*batch n d1"]) -> Float[Tensor, "*batch n"]:
        """Return the masses of the atoms."""
        return torch.softmax(self.unit * X[..., -1], dim=-1)

    def __call__(self, X: Float[Tensor, "*batch n d1"]) -> Float[Tensor, "*batch n out"]:
        """Return the images of the atoms."""
        return self._weighted(self.masses(X))(X[..., :-1].contiguous())

    def _weighted(self, masses: Tensor) -> MultiHead:
        return dataclasses.replace(self.attention, weights=masses)

    def jacobian(self, X: Float[Tensor, "*batch n d1"]) -> WeightedJacobian:
        """Differentiate at a measure."""
        masses = self.masses(X)
        return WeightedJacobian.of(self._weighted(masses).jacobian(X[..., :-1].contiguous()), masses)

    def explicit_measures(self, n: int, places: Domain) -> list[Float[Tensor, "n d1"]]:
        """Return the measures that theory builds from the weights, where it can."""
        if not (isinstance(places, Ball) and places.centre is None and isinstance(self.attention, Attention)):
            return []
        try:
            head = require_mean_field(self.attention, "extremal measures", places.radius)
        except AssumptionError:
            return []  # no theorem for this map: the other starts remain
        few = [place for place in few_atom_measures(head, places.radius) if len(place.points) <= n]
        return [as_row(place.points, place.masses, n, self.unit) for place in few]


def over_masses(attention: Any, n: int, domain: Domain, starts: Any) -> tuple[MeasureMap, WithMasses, Any, int]:
    """Turn a search over measures into one over rows: the map, the domain, the starts and the dimension of a row."""
    if not isinstance(attention, MultiHead):
        raise DtypeError(
            f"a search over masses takes an hs.Attention, got {type(attention).__name__}.", field="attention"
        )
    if is_plain_softmax(attention):
        require_unmasked(attention, "a search over masses", "a search over sequences (weights=False)")
    else:
        require_plain(attention, "a search over masses", causal=False)
    attention = counting(attention, n)
    if attention.weights is not None:
        raise AssumptionError(
            "this attention has token weights of its own; a search over masses brings them along.", field="attention"
        )
    unit = LOG_MASS / domain.scale
    if not isinstance(starts, int):
        starts = [_row_of(start, n, unit) for start in starts]
    return MeasureMap(attention=attention, unit=unit), WithMasses(places=domain, unit=unit), starts, attention.d + 1


def _row_of(start: Any, n: int, unit: float) -> Tensor:
    measure = start.measure if isinstance(start, Witness) else start
    measure = DiscreteMeasure(measure) if isinstance(measure, Tensor) else measure
    if not isinstance(measure, DiscreteMeasure):
        raise DtypeError(f"a search over masses starts from measures, got {type(start).__name__}.", field="starts")
    if len(measure) > n:
        raise ShapeError(f"a start must have at most {n} atoms, got {len(measure)}.", field="starts")
    return as_row(measure.points, measure.weights, n, unit)


def as_row(points: Float[Tensor, "m d"], masses: Float[Tensor, " m"], n: int, unit: float) -> Float[Tensor, "n d1"]:
    """Write a measure of few atoms as one of n: the heaviest is split into equal parts."""
    heaviest = int(masses.argmax())
    parts = n - len(masses) + 1
    counts = torch.ones(len(masses), dtype=torch.long, device=points.device)
    counts[heaviest] = parts
    logs = (masses.log() - counts.log()) / unit
    return torch.cat((points, logs[:, None].to(points)), dim=-1).repeat_interleave(counts, dim=0)
