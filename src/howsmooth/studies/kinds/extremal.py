"""The constant at inputs that are built from the weights: the paper's two points, and tied pairs."""

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from howsmooth.studies.asks import AboutHead, one_by_one
from howsmooth.studies.kinds.text import Answer, answer_at, norm_of

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.studies.resources import Resources

__all__ = ["Answer", "Ask", "run"]


class Ask(AboutHead, frozen=True, kw_only=True, tag="extremal"):
    """What the map attains at an input that is built from one of its heads, without biases, as the paper does.

    Attributes:
        points: Which input.
        head: The head that it is built from.
    """

    points: Literal["two_point", "tied_pair"]
    head: int = 0


def _measure(ask: Ask, resources: "Resources") -> Answer:
    from howsmooth.spectral.solvers import local_lipschitz
    from howsmooth.studies.resources import seeded

    f = resources.attention(ask)
    # the head and the whole layer are measured at the same input
    X = resources.once(_tokens, replace(ask, map=f"head:{ask.head}", biases=False), resources).to(f.dtype)
    estimate = norm_of(local_lipschitz, f, X, solver=ask.solver, generator=seeded([ask]))
    return answer_at(estimate, X)


def _tokens(ask: Ask, resources: "Resources") -> "Tensor":
    from howsmooth.theory.inputs import tied_pair, two_point

    build = {"two_point": two_point, "tied_pair": tied_pair}[ask.points]
    return build(resources.attention(ask), ask.length, ask.radius).tokens


run = one_by_one(_measure)
