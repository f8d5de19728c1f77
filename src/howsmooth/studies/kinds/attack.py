"""What an adversary attains at a window of a text, beside what the constant predicts and what the theory allows."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace

from howsmooth.attacks.attack_settings import BUDGET, check_attack
from howsmooth.studies.asks import Answer as AnyAnswer
from howsmooth.studies.asks import AtText
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP, described
from howsmooth.studies.records import Record
from howsmooth.studies.settings import Solver

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attacks.perturbations import PreparedAttack
    from howsmooth.studies.resources import Resources

# A pass of an attack and a step of the solver take about as long; a measurement has about so many steps.
STEPS = 30


class Ask(AtText, frozen=True, kw_only=True, tag="attack"):
    """How far a perturbation of given size moves the output of a map at one window.

    Attributes:
        eps: How far tokens may move.
        norm: All together, ``total``, or each of them, ``token``.
        method: How the perturbation is searched for.
        budget: How many passes the method may spend.
        bounded: Whether to compute what the theory allows too.
        solver: The seed.
    """

    eps: Annotated[float, described(plural="epsilons")] = 1.0
    norm: str = "total"
    method: str = "ascent"
    budget: int = BUDGET
    bounded: bool = True
    solver: Solver = Solver()

    def __post_init__(self) -> None:
        """Refuse what no attack can work with."""
        check_attack(eps=self.eps, norm=self.norm, method=self.method, budget=self.budget)

    @property
    def cost(self) -> float:
        """Every pass takes as long as a step of a measurement."""
        return super().cost * self.budget / STEPS

    @property
    def batch(self) -> Hashable:
        """As for every question at a text; all radii and methods share the run of the model."""
        found = super().batch
        return replace(found, eps=1.0, method="ascent") if isinstance(found, Ask) else found

    @property
    def cell(self) -> Hashable:
        """All methods of one radius are done together: what is predicted and allowed is computed once."""
        return self.layer, self.map, self.eps

    @property
    def rank(self) -> tuple[Any, ...]:
        """By method and window, within a radius."""
        return (*super().rank[:-1], self.eps, self.method, self.window.index)


class Answer(AnyAnswer, frozen=True, kw_only=True):
    r"""What was attained, all for each unit of :math:`\epsilon`.

    Attributes:
        attained: :math:`\|f(X+E)-f(X)\|/\epsilon` of the best perturbation that was found.
        predicted: What the derivative at the window predicts: :math:`\sigma` for the total norm.
        ceiling: What no perturbation can exceed; none where no theorem says so, or it was not asked for.
        products: How many forward passes and products were spent.
        mean_radius: The root mean square norm of the tokens that enter.
        reach: The largest norm of a token.
    """

    attained: Annotated[float, ROUND_DOWN]
    predicted: float
    ceiling: Annotated[float | None, ROUND_UP] = None
    products: int = 0
    mean_radius: float = 0.0
    reach: float = 0.0


AttackRecord = Record[Ask, Answer]


def run(batch: Sequence[Ask], cell: Sequence[Ask], resources: "Resources") -> list[AnyAnswer]:
    """Attack the windows of a cell in lockstep, one method after the other."""
    found: dict[str, Answer] = {}
    scenes: dict[tuple[int, ...], tuple[PreparedAttack, Tensor | None]] = {}
    for method in dict.fromkeys(ask.method for ask in cell):
        here = [ask for ask in cell if ask.method == method]
        windows = tuple(ask.window.index for ask in here)
        if windows not in scenes:
            scenes[windows] = _prepared(batch, here, resources)
        answers = _attacked(here, *scenes[windows])
        found |= {ask.key: answer for ask, answer in zip(here, answers, strict=True)}
    return [found[ask.key] for ask in cell]


def _prepared(
    batch: Sequence[Ask], here: Sequence[Ask], resources: "Resources"
) -> "tuple[PreparedAttack, Tensor | None]":
    from howsmooth.attacks.perturbations import prepare
    from howsmooth.studies.resources import seeded

    f, X = resources.entering(batch, here)
    scene = prepare(f, X, norm=here[0].norm, generator=seeded(here))
    return scene, scene.theoretical_maximum(here[0].eps) if here[0].bounded else None


def _attacked(here: Sequence[Ask], scene: "PreparedAttack", allowed: "Tensor | None") -> list[Answer]:
    from howsmooth.studies.resources import seeded

    first = here[0]
    attack = scene.attack(eps=first.eps, method=first.method, budget=first.budget, generator=seeded(here))
    norms = scene.X.double().norm(dim=-1)
    return [
        Answer(
            attained=float(attack.gain[row]),
            predicted=float(scene.steepest[row]),
            ceiling=None if allowed is None else float(allowed[row]) / first.eps,
            products=attack.products,
            mean_radius=float(norms[row].square().mean().sqrt()),
            reach=float(norms[row].max()),
        )
        for row in range(len(here))
    ]
