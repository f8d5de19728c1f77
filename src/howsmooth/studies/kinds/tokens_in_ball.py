"""Attention on ``length`` tokens in a ball: theorems, inputs that are built from weights, and what searches find."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec.structs import replace

from howsmooth.errors import AssumptionError
from howsmooth.studies.asks import AboutHead, Answer, one_by_one
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP, JsonValue, finite
from howsmooth.studies.kinds import Kind
from howsmooth.studies.kinds.text import TextAnswer, answer_at, norm_of
from howsmooth.studies.records import Record, grouped

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.studies.resources import Resources
    from howsmooth.theory.results import Witness

# How many starts the search for a sequence has.
STARTS = 2


class BoundsAsk(AboutHead, frozen=True, kw_only=True, tag="bounds"):
    """Theorems about n tokens in a ball: the paper's bounds and ours, and what explicit inputs attain."""


class BoundsAnswer(Answer, frozen=True, kw_only=True):
    """Bounds and values that inputs attain; none where a theorem does not apply, or an input does not exist."""

    discrete_upper: Annotated[float | None, ROUND_UP] = None  # the paper's bound
    sharp_upper: Annotated[float | None, ROUND_UP] = None  # the worst-case bound of ours
    discrete_lower: Annotated[float | None, ROUND_DOWN] = None  # the paper's lower bound
    sharp_lower: Annotated[float | None, ROUND_DOWN] = None  # our lower bound
    two_point: Annotated[float | None, ROUND_DOWN] = None  # what the paper's two points attain
    tied_pair: Annotated[float | None, ROUND_DOWN] = None  # what a tied pair attains


def _bounds(ask: BoundsAsk, resources: "Resources") -> BoundsAnswer:
    from howsmooth.theory.ball.softmax import discrete_lower, discrete_upper, sharp_lower, sharp_upper
    from howsmooth.theory.inputs import tied_pair, two_point

    f, n, radius = resources.attention(ask), ask.length, ask.radius
    theorems = (discrete_upper, sharp_upper, discrete_lower, sharp_lower)
    found = {theorem.__name__: _value(theorem, f, n=n, radius=radius) for theorem in theorems}
    inputs = (two_point, tied_pair) if n > 2 else ()
    return BoundsAnswer(**found | {build.__name__: _value(build, f, n, radius) for build in inputs})


def _value(find: Callable[..., Any], *subject: Any, **size: Any) -> float | None:
    """Return a number, or nothing where the hypotheses of its theorem do not hold."""
    try:
        return find(*subject, **size).value
    except AssumptionError:
        return None


class ExtremalAsk(AboutHead, frozen=True, kw_only=True, tag="extremal"):
    """The constant at inputs that are built from the weights: the paper's two points, and tied pairs.

    They are built from one head without its biases, as the paper does.
    """

    points: Literal["two_point", "tied_pair"]  # which input
    head: int = 0  # the head that it is built from


def _at_built_input(ask: ExtremalAsk, resources: "Resources") -> TextAnswer:
    from howsmooth.spectral.solvers import local_lipschitz
    from howsmooth.studies.resources import seeded

    f = resources.attention(ask)
    # the head and the whole layer are measured at the same input
    X = resources.once(_built_input, replace(ask, map=f"head:{ask.head}", biases=False), resources).to(f.dtype)
    estimate = norm_of(local_lipschitz, f, X, solver=ask.solver, seed=seeded([ask]))
    return answer_at(estimate, X)


def _built_input(ask: ExtremalAsk, resources: "Resources") -> "Tensor":
    from howsmooth.theory.inputs import tied_pair, two_point

    build = {"two_point": two_point, "tied_pair": tied_pair}[ask.points]
    return build(resources.attention(ask), ask.length, ask.radius).tokens


class AscentAsk(AboutHead, frozen=True, kw_only=True, tag="ascent"):
    """The worst sequence of tokens in a ball that a search finds."""

    climb: int = 100  # how many steps the search gets

    @property
    def cost(self) -> float:
        """Every step takes a measurement."""
        return super().cost * max(1, self.climb)


class AscentAnswer(Answer, frozen=True, kw_only=True):
    """What the search found."""

    lower: Annotated[float, ROUND_DOWN]  # attained by a sequence in the ball


def _worst_sequence(ask: AscentAsk, resources: "Resources") -> AscentAnswer:
    return AscentAnswer(lower=_maximum(ask, resources, starts=STARTS).value)


def _maximum(ask: "AscentAsk | MeasuresAsk", resources: "Resources", **others: Any) -> "Witness":
    from howsmooth.domains.domain import Ball
    from howsmooth.search.ascent import maximise
    from howsmooth.studies.resources import seeded

    f, ball = resources.attention(ask), Ball(ask.radius)
    return maximise(f, n=ask.length, domain=ball, steps=ask.climb, seed=seeded([ask]), **others)


class MeasuresAsk(AscentAsk, frozen=True, kw_only=True, tag="measures"):
    """The worst measure with so many atoms in a ball that a search finds.

    The length is the number of atoms.
    """


class Atom(JsonValue, frozen=True, kw_only=True):
    """A place and what it weighs."""

    mass: float  # its share of the mass
    coordinate: float  # its first coordinate: all of it, on the line
    norm: float  # how far it is from the origin


class MeasuresAnswer(Answer, frozen=True, kw_only=True):
    """What the search found."""

    lower: Annotated[float, ROUND_DOWN]  # attained by the measure
    atoms: tuple[Atom, ...]  # the measure, the heaviest atom first


def _worst_measure(ask: MeasuresAsk, resources: "Resources") -> MeasuresAnswer:
    found = _maximum(ask, resources, weights=True)
    places, masses = found.measure.points, found.measure.weights
    atoms = tuple(
        Atom(mass=float(masses[i]), coordinate=float(places[i][0]), norm=float(places[i].norm()))
        for i in masses.argsort(descending=True).tolist()
    )
    return MeasuresAnswer(lower=found.value, atoms=atoms)


class RegimesAsk(AboutHead, frozen=True, kw_only=True, tag="regimes"):
    """One length on the way from few tokens to measures: the worst constant found, between bounds and plateau."""

    @property
    def cost(self) -> float:
        """Places with masses stand for any number of tokens."""
        return 1e4


class RegimesAnswer(Answer, frozen=True, kw_only=True):
    """What is known at one length."""

    lower: Annotated[float, ROUND_DOWN]  # the worst constant found
    upper: Annotated[float | None, ROUND_UP]  # the bound for so many tokens; none if it overflows
    # the length at which one token is the lightest atom of the measure that attains most; none if it overflows
    crossing: float | None
    plateau: Annotated[float | None, ROUND_DOWN]  # what measures are known to attain; none if it overflows
    measures_upper: Annotated[float | None, ROUND_UP]  # what no measure exceeds; none if it overflows


def _regimes(ask: RegimesAsk, resources: "Resources") -> RegimesAnswer:
    from howsmooth.search.length_regimes import regimes

    found = regimes(resources.attention(ask), ask.radius, [ask.length])
    (row,) = found.rows
    return RegimesAnswer(
        lower=row.found,
        upper=finite(row.upper.value),
        crossing=None if found.crossing is None else finite(found.crossing),
        plateau=None if found.lower is None else finite(found.lower.value),
        measures_upper=None if found.upper is None else finite(found.upper.value),
    )


def by_head(records: "Iterable[Record[Any, Any]]") -> "list[list[Record[Any, Any]]]":
    """Sort records of one kind by head and radius, shorter sequences first.

    What a head attains at one length measures attain too: regimes tell it at all of its lengths.
    """
    ordered = sorted(records, key=lambda r: r.ask.length)
    names = ("model", "layer", "map", "biases", "A", "V", "radius")
    heads = grouped(ordered, lambda r: (len(r.ask.A), *(getattr(r.ask, name) for name in names)))
    found = [some for _head, some in sorted(heads.items())]
    return [list(_of_measures(some)) if some[0].ask.kind == "regimes" else some for some in found]


def _of_measures(records: "list[Record[Any, Any]]") -> "Iterator[Record[Any, Any]]":
    """Yield records with what all of them know of measures; as they are where one knows nothing."""
    known = [
        # a record of an earlier version may attain more than its plateau: at its length it is a measure
        max((r.answer.plateau, r.answer.crossing), (r.answer.lower, float(r.ask.length)), key=lambda pair: pair[0])
        for r in records
        if r.answer.plateau is not None
    ]
    plateau, crossing = max(known, key=lambda pair: pair[0], default=(None, None))
    for r in records:
        yield (
            r if r.answer.plateau is None else replace(r, answer=replace(r.answer, plateau=plateau, crossing=crossing))
        )


KINDS = (
    Kind(ask=BoundsAsk, answer=BoundsAnswer, run=one_by_one(_bounds)),
    Kind(ask=ExtremalAsk, answer=TextAnswer, run=one_by_one(_at_built_input)),
    Kind(ask=AscentAsk, answer=AscentAnswer, run=one_by_one(_worst_sequence)),
    Kind(ask=MeasuresAsk, answer=MeasuresAnswer, run=one_by_one(_worst_measure)),
    Kind(ask=RegimesAsk, answer=RegimesAnswer, run=one_by_one(_regimes)),
)
