"""One length on the way from few tokens to measures: the worst constant found, between bounds and plateau."""

from typing import TYPE_CHECKING, Annotated

from howsmooth.studies.asks import AboutHead, one_by_one
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources


class Ask(AboutHead, frozen=True, kw_only=True, tag="regimes"):
    """How bad the constant gets at one length, and where the mean-field regime begins."""

    @property
    def cost(self) -> float:
        """Places with masses stand for any number of tokens."""
        return 1e4


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """What is known at one length.

    Attributes:
        lower: The worst constant found.
        upper: The bound for so many tokens; none if it overflows.
        crossing: The length at which the two regimes meet; none if it overflows.
        plateau: What measures attain; none if it overflows.
        measures_upper: What no measure exceeds; none if it overflows.
    """

    lower: Annotated[float, ROUND_DOWN]
    upper: Annotated[float | None, ROUND_UP]
    crossing: float | None
    plateau: Annotated[float | None, ROUND_DOWN]
    measures_upper: Annotated[float | None, ROUND_UP]


def _look(ask: Ask, resources: "Resources") -> Answer:
    from howsmooth.search.length_regimes import regimes

    found = regimes(resources.attention(ask), ask.radius, [ask.length])
    (row,) = found.rows
    return Answer(
        lower=row.found,
        upper=row.upper.value,
        crossing=found.crossing,
        plateau=None if found.lower is None else found.lower.value,
        measures_upper=None if found.upper is None else found.upper.value,
    )


run = one_by_one(_look)
