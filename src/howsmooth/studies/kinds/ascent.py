"""The worst sequence of tokens in a ball that a search finds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from howsmooth.studies.asks import AboutHead
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


def run(_batch: Sequence[Ask], cell: Sequence[Ask], resources: "Resources") -> list[AnyAnswer]:
    """Climb, one ask after the other."""
    from howsmooth.domains.ball import Ball
    from howsmooth.search.ascent import maximise
    from howsmooth.studies.resources import seeded

    found = (
        maximise(
            resources.attention(ask),
            n=ask.length,
            domain=Ball(ask.radius),
            starts=STARTS,
            steps=ask.climb,
            generator=seeded([ask]),
        )
        for ask in cell
    )
    return [Answer(lower=witness.value) for witness in found]
