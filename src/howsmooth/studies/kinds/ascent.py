"""The worst sequence of tokens in a ball that a search finds."""

from typing import TYPE_CHECKING, Annotated

from howsmooth.studies.asks import AboutHead, one_by_one
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.json_values import ROUND_DOWN

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources

STARTS = 2


class Ask(AboutHead, frozen=True, kw_only=True, tag="ascent"):
    """How bad the constant gets on ``length`` tokens in the ball, by ascent.

    Attributes:
        climb: How many steps the search gets.
    """

    climb: int = 100

    @property
    def cost(self) -> float:
        """Every step takes a measurement."""
        return super().cost * max(1, self.climb)


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """What the search found.

    Attributes:
        lower: Attained by a sequence in the ball.
    """

    lower: Annotated[float, ROUND_DOWN]


def _climb(ask: Ask, resources: "Resources") -> Answer:
    from howsmooth.domains.domain import Ball
    from howsmooth.search.ascent import maximise
    from howsmooth.studies.resources import seeded

    f, ball, generator = resources.attention(ask), Ball(ask.radius), seeded([ask])
    found = maximise(f, n=ask.length, domain=ball, starts=STARTS, steps=ask.climb, generator=generator)
    return Answer(lower=found.value)


run = one_by_one(_climb)
