"""Theorems about n tokens in a ball: the paper's bounds and ours, and what explicit inputs attain."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import AboutHead, one_by_one
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP

if TYPE_CHECKING:
    from howsmooth.studies.resources import Resources


class Ask(AboutHead, frozen=True, kw_only=True, tag="bounds"):
    """What is proven about attention on ``length`` tokens in the ball."""


class Answer(AnyAnswer, frozen=True, kw_only=True):
    """Bounds and values that inputs attain; none where a theorem does not apply, or an input does not exist.

    Attributes:
        discrete_upper: The paper's bound.
        sharp_upper: The worst-case bound of ours.
        discrete_lower: The paper's lower bound.
        sharp_lower: Our lower bound.
        two_point: What the paper's two points attain.
        tied_pair: What a tied pair attains.
    """

    discrete_upper: Annotated[float | None, ROUND_UP] = None
    sharp_upper: Annotated[float | None, ROUND_UP] = None
    discrete_lower: Annotated[float | None, ROUND_DOWN] = None
    sharp_lower: Annotated[float | None, ROUND_DOWN] = None
    two_point: Annotated[float | None, ROUND_DOWN] = None
    tied_pair: Annotated[float | None, ROUND_DOWN] = None


def _bounds(ask: Ask, resources: "Resources") -> Answer:
    from howsmooth.theory.ball.softmax import discrete_lower, discrete_upper, sharp_lower, sharp_upper
    from howsmooth.theory.inputs import tied_pair, two_point

    f, n, radius = resources.attention(ask), ask.length, ask.radius
    theorems = (discrete_upper, sharp_upper, discrete_lower, sharp_lower)
    found = {theorem.__name__: _value(theorem, f, n=n, radius=radius) for theorem in theorems}
    inputs = (two_point, tied_pair) if n > 2 else ()
    return Answer(**found | {build.__name__: _value(build, f, n, radius) for build in inputs})


def _value(find: Callable[..., Any], *subject: Any, **size: Any) -> float | None:
    """Return a number, or nothing where the hypotheses of its theorem do not hold."""
    try:
        return find(*subject, **size).value
    except AssumptionError:
        return None


run = one_by_one(_bounds)
