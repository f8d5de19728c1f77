"""The worst measure with so many atoms in a ball that a search finds."""

from typing import TYPE_CHECKING, Annotated

from howsmooth.studies.asks import AboutHead, one_by_one
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.json_values import ROUND_DOWN, JsonValue

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources
    from howsmooth.theory.results import Witness


class Ask(AboutHead, frozen=True, kw_only=True, tag="measures"):
    """How bad the constant gets on measures with ``length`` atoms in the ball, by ascent.

    Attributes:
        climb: How many steps the search gets.
    """

    climb: int = 100

    @property
    def cost(self) -> float:
        """Every step takes a measurement."""
        return super().cost * max(1, self.climb)


class Atom(JsonValue, frozen=True, kw_only=True):
    """A place and what it weighs.

    Attributes:
        mass: Its share of the mass.
        coordinate: Its first coordinate: all of it, on the line.
        norm: How far it is from the origin.
    """

    mass: float
    coordinate: float
    norm: float


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """What the search found.

    Attributes:
        lower: Attained by the measure.
        atoms: The measure, the heaviest atom first.
    """

    lower: Annotated[float, ROUND_DOWN]
    atoms: tuple[Atom, ...]


def _climb(ask: Ask, resources: "Resources") -> Answer:
    from howsmooth.domains.domain import Ball
    from howsmooth.search.ascent import maximise
    from howsmooth.studies.resources import seeded

    f, domain = resources.attention(ask), Ball(ask.radius)
    found = maximise(f, n=ask.length, domain=domain, steps=ask.climb, generator=seeded([ask]), weights=True)
    return Answer(lower=found.value, atoms=_atoms(found))


def _atoms(found: "Witness") -> tuple[Atom, ...]:
    places, masses = found.measure.points, found.measure.weights
    return tuple(
        Atom(mass=float(masses[i]), coordinate=float(places[i][0]), norm=float(places[i].norm()))
        for i in masses.argsort(descending=True).tolist()
    )


run = one_by_one(_climb)
