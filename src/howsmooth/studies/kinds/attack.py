"""What an adversary attains at windows of a text: what is asked, how it is found, and what it sums up to."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from msgspec.structs import replace
from rich.console import Console, ConsoleOptions, RenderableType

from howsmooth.attacks.attack_settings import BUDGET, METHODS, check_attack
from howsmooth.errors import AssumptionError
from howsmooth.models.map_names import MapName
from howsmooth.studies.asks import Answer, AtText
from howsmooth.studies.json_values import ROUND_DOWN, ROUND_UP, described, to_json
from howsmooth.studies.kinds import Kind, RunCommand
from howsmooth.studies.records import Record, grouped
from howsmooth.studies.runs.result_table import fitted
from howsmooth.studies.settings import CommandSettings, Compute, ModelReading, Solver, Windows
from howsmooth.wording import at_least, at_most, count, number

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attacks.perturbations import PreparedAttack
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources

EPS = (0.01, 0.1, 1.0, 10.0)
# A pass of an attack and a step of the solver take about as long; a measurement has about so many steps.
STEPS = 30
# What the theory allows takes about so long at a window and radius, in the measure of passes over tokens.
CEILING = 60_000.0
# Linearity ends where what is attained is so far from what is predicted.
LEAVES = 0.1
# Columns that leave a narrow terminal, the first ones first.
EXPENDABLE = ("passes", "windows", "attained / predicted")
# What columns mean.
LEGEND = {
    "attained / ε": "Attained: how far the output moves, over ε, at the worst perturbation of size ε that was found.",
    "predicted": "Predicted: the local constant, which very small perturbations attain.",
    "ceiling": "Ceiling: no perturbation of this size moves it further, proven.",
    "flips": "Flips: windows whose predicted class the method changes.",
}


class Attacking(CommandSettings, frozen=True, kw_only=True):
    """What is to be attacked, as the command line says it: an option for each field."""

    NAME = "attack"
    layers: Annotated[tuple[int, ...] | None, described("Which attention layers; all by default.", metavar="0,2,5")] = (
        None
    )
    map: Annotated[
        str,
        described(
            "What is attacked: attention, heads, head:3, normed, residual, mlp or block of a layer; or "
            "model, network, sentence, logits, classes, to:3, from:3, layers:2-4."
        ),
    ] = "attention"
    eps: Annotated[tuple[float, ...], described("How far tokens may move.", metavar="0.01,0.1,…")] = EPS
    metric: Annotated[str, described("How perturbations and displacements are measured.", metavar="NAME")] = "total"
    method: Annotated[
        tuple[str, ...], described("How perturbations are searched for: any of the five.", metavar="METHOD,…")
    ] = METHODS
    budget: Annotated[int, described("Forward passes and products that each attack may spend.")] = BUDGET
    bounded: Annotated[bool, described("Compute what the theory allows too: seconds for each window and radius.")] = (
        True
    )
    windows: Windows = Windows()
    seed: Annotated[int, described("The seed of everything random.")] = 0
    where: Compute = Compute()
    reading: ModelReading = ModelReading()

    def check(self) -> None:
        """Refuse names and numbers that lead nowhere, before anything is loaded."""
        for name in ("eps", "method"):
            if not getattr(self, name):
                raise AssumptionError(f"{name} must name at least one.", field=name)
        for eps in self.eps:
            for method in self.method:
                check_attack(eps=eps, metric=self.metric, method=method, budget=self.budget)
        self.solver  # noqa: B018 - refuses a seed that there is not
        MapName.parse(self.map)
        super().check()

    @property
    def solver(self) -> Solver:
        """What asks remember of the seed."""
        return Solver(seed=self.seed)

    @property
    def folder_name(self) -> str:
        """The map too."""
        return f"attack-{self.map}"


class AttackAsk(AtText, frozen=True, kw_only=True, tag="attack"):
    """What an adversary attains at a window of a text, beside what the constant predicts and what the theory allows."""

    eps: Annotated[float, described(plural="epsilons")] = 1.0  # how far tokens may move
    metric: str = "total"  # the name of the metric of perturbations and displacements
    method: str = "ascent"  # how the perturbation is searched for
    budget: int = BUDGET  # how many passes the method may spend
    bounded: bool = True  # whether to compute what the theory allows too
    solver: Solver = Solver()  # the seed

    def __post_init__(self) -> None:
        """Refuse what no attack can work with."""
        check_attack(eps=self.eps, metric=self.metric, method=self.method, budget=self.budget)

    @property
    def cost(self) -> float:
        """Every pass takes as long as a step of a measurement."""
        return super().cost * self.budget / STEPS

    @property
    def prepared(self) -> tuple[Hashable, Hashable, float]:
        """What the theory allows, at every window for all radii and methods: nothing but for attention."""
        provable = self.bounded and self.map_name.kind in ("attention", "heads", "head")
        cost = (CEILING + 2.0 * self.window.length**2) * BUDGET / STEPS if provable else 0.0
        return (self.layer, self.map), (self.window.index, self.eps), cost

    @property
    def batch(self) -> Hashable:
        """As for every question at a text; all radii and methods share the run of the model."""
        found = super().batch
        return replace(found, eps=1.0, method="ascent") if isinstance(found, AttackAsk) else found

    @property
    def cell(self) -> Hashable:
        """All methods of one radius are done together: what is predicted and allowed is computed once."""
        return self.layer, self.map, self.eps

    @property
    def rank(self) -> tuple[Any, ...]:
        """By method and window, within a radius."""
        return (*super().rank[:-1], self.eps, self.method, self.window.index)


class AttackAnswer(Answer, frozen=True, kw_only=True):
    """What was attained, all for each unit of ε."""

    attained: Annotated[float, ROUND_DOWN]  # ‖f(X+E) − f(X)‖/ε of the best perturbation that was found
    predicted: float  # what the derivative at the window predicts: σ for the total norm
    # what no perturbation can exceed; none where no theorem says so, or it was not asked for
    ceiling: Annotated[float | None, ROUND_UP] = None
    products: int = 0  # how many forward passes and products were spent
    mean_radius: float = 0.0  # the root mean square norm of the tokens that enter
    reach: float = 0.0  # the largest norm of a token
    flipped: bool | None = None  # whether the predicted class changes; none for maps that are no scores of classes


AttackRecord = Record[AttackAsk, AttackAnswer]


def run(batch: Sequence[AttackAsk], cell: Sequence[AttackAsk], resources: "Resources") -> list[Answer]:
    """Attack the windows of a cell in lockstep, one method after the other."""
    from howsmooth.attacks.perturbations import prepare
    from howsmooth.studies.resources import seeded

    found: dict[str, AttackAnswer] = {}
    scenes: dict[tuple[int, ...], tuple[PreparedAttack, Tensor | None]] = {}
    for here in grouped(cell, lambda ask: ask.method).values():
        windows, first = tuple(ask.window.index for ask in here), here[0]
        if windows not in scenes:
            f, X = resources.entering(batch, here)
            scene = prepare(f, X, metric=first.metric, generator=seeded(here))
            scenes[windows] = scene, _allowed(batch, here, resources) if first.bounded else None
        answers = _attacked(here, *scenes[windows])
        resources.report(sum(ask.cost for ask in here))
        found |= {ask.key: answer for ask, answer in zip(here, answers, strict=True)}
    return [found[ask.key] for ask in cell]


def _allowed(batch: Sequence[AttackAsk], here: Sequence[AttackAsk], resources: "Resources") -> "Tensor | None":
    """Bound the displacement at windows; together with all radii that this process will be asked for there."""
    radii = {ask.eps for ask in (batch if resources.expects(batch) else here)}
    places = tuple(replace(ask, eps=1.0, method=METHODS[0]) for ask in here)
    found = resources.once(_ceilings, tuple(batch), places, tuple(sorted(radii)), resources)
    return None if found is None else found[sorted(radii).index(here[0].eps)]


def _ceilings(
    batch: Sequence[AttackAsk], places: Sequence[AttackAsk], radii: Sequence[float], resources: "Resources"
) -> "Tensor | None":
    from howsmooth.attacks.perturbations import prepare
    from howsmooth.studies.resources import seeded

    (f, X), (*_what, cost) = resources.entering(batch, places), places[0].prepared
    scene = prepare(f, X, metric=places[0].metric, generator=seeded(places))
    return scene.theoretical_maxima(radii, progress=lambda: resources.report(cost))


def _attacked(here: Sequence[AttackAsk], scene: "PreparedAttack", allowed: "Tensor | None") -> list[AttackAnswer]:
    import torch

    from howsmooth.studies.resources import seeded

    first = here[0]
    attack = scene.attack(eps=first.eps, method=first.method, budget=first.budget, generator=seeded(here))
    norms, flipped = scene.X.double().norm(dim=-1), None
    if first.map == "classes":
        with torch.no_grad():
            moved = scene.f(scene.X + attack.perturbation)
        flipped = (moved.argmax(-1) != scene.there.argmax(-1)).flatten(1).any(1)
    return [
        AttackAnswer(
            attained=float(attack.gain[row]),
            predicted=float(scene.steepest[row]),
            ceiling=None if allowed is None else float(allowed[row]) / first.eps,
            products=attack.products,
            mean_radius=float(norms[row].square().mean().sqrt()),
            reach=float(norms[row].max()),
            flipped=None if flipped is None else bool(flipped[row]),
        )
        for row in range(len(here))
    ]


def planned_attacks(attacking: Attacking, resources: "Resources") -> "PlannedAsks":
    """Check everything asked for against the model and the text; list one ask a layer, window, radius and method."""
    from howsmooth.studies.plans.at_text import model_and_text

    part = attacking.map
    base = model_and_text(attacking, attacking.windows, resources, parts=[part])
    layers = base.layers(attacking.layers, part)
    shared = {name: getattr(attacking, name) for name in ("metric", "budget", "bounded", "solver")}
    asks = [
        ask
        for eps in sorted(set(attacking.eps))
        for method in dict.fromkeys(attacking.method)
        for ask in base.each(AttackAsk, layers, part, eps=eps, method=method, **shared)
    ]
    return base.planned(asks, attacking.command, remarks=base.remarks)


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """What one method attained with one radius: means over the windows, for each unit of eps."""

    eps: float  # the radius
    method: str
    attained: float  # how far the output moved
    predicted: float  # what the derivative predicts
    ceiling: float | None  # what the theory allows; none if it says nothing
    products: int  # the most passes that were spent
    windows: int
    flips: int | None = None  # in how many windows the predicted class changed; none for maps that are no classifier

    @property
    def ratio(self) -> float | None:
        """What is attained over what is predicted; none if nothing is."""
        return self.attained / self.predicted if self.predicted > 0 else None

    @property
    def cells(self) -> dict[str, str]:
        """What a table says of it."""
        return {
            "ε": number(self.eps),
            "method": self.method,
            "attained / ε": at_least(self.attained, 4),
            "predicted": number(self.predicted, 4),
            "attained / predicted": "—" if self.ratio is None else number(self.ratio, 3),
            "ceiling": "—" if self.ceiling is None else at_most(self.ceiling, 3),
            "flips": "—" if self.flips is None else f"{self.flips} of {self.windows}",
            "passes": number(self.products),
            "windows": number(self.windows),
        }


@dataclass(frozen=True, kw_only=True)
class AttackSummary:
    """All attacks on one map at windows of one length, in one metric."""

    model: str
    map: str
    layer: int
    length: int  # how many tokens a window has
    metric: str  # the metric of perturbations and displacements
    lines: tuple[AttackRow, ...]  # what was attained, by radius and method
    # in how many windows some method changed the predicted class, by radius; none for maps that are no classifier
    flips: tuple[tuple[float, int], ...] = ()
    tried: tuple[int, ...] = ()  # at how many windows that is known, in the same order

    @property
    def name(self) -> str:
        """The model, the map and the length."""
        return f"{self.model}, {self.where}, {count(self.length, 'token')}, metric {self.metric}"

    @property
    def where(self) -> str:
        """The map, and its layer unless it is a map of many."""
        return self.map if MapName.parse(self.map).spans_layers else f"{self.map} of layer {self.layer}"

    @property
    def best(self) -> tuple[AttackRow, ...]:
        """The method that attained most, for every radius."""
        radii = sorted({line.eps for line in self.lines})
        return tuple(max((x for x in self.lines if x.eps == eps), key=lambda x: x.attained) for eps in radii)

    @property
    def linear_until(self) -> float | None:
        """The radius at which the best attack leaves what is predicted by a tenth; none if it does not.

        Between two radii it is interpolated, in the logarithm of the radius; zero if it has left at the first.
        """
        eps = near = 0.0
        for line in self.best:
            gap = 0.0 if line.attained == line.predicted else math.inf if line.ratio is None else abs(line.ratio - 1)
            if gap > LEAVES:
                share = 1.0 if math.isinf(gap) else (LEAVES - near) / (gap - near)
                return eps * (line.eps / eps) ** share if eps else 0.0
            eps, near = line.eps, gap
        return None

    @property
    def sentence(self) -> str:
        """From which radius on the predicted class changes, and where linearity ends, in words."""
        return f"{self.class_changes}{self._linearity}"

    @property
    def class_changes(self) -> str:
        """From which radius on the predicted class changes, in words; nothing for maps that are no classifier."""
        if not self.flips:
            return ""
        found = [
            f"in {many} of {windows} windows at ε = {number(eps)}"
            for (eps, many), windows in zip(self.flips, self.tried, strict=True)
            if many
        ]
        if not found:
            return f"No attack changes the predicted class up to ε = {number(self.flips[-1][0])}. "
        said = found[0] if len(found) == 1 else f"{found[0]}, {found[-1]}"
        return f"Attacks change the predicted class {said}. "

    @property
    def _linearity(self) -> str:
        ends, radii = self.linear_until, [line.eps for line in self.best]
        if not any(line.attained for line in self.lines):
            return f"{self.name}: nothing that was tried moves the output."
        if ends is None:
            return (
                f"{self.name}: what is attained stays within 10 % of what is predicted up to ε = {number(radii[-1])}."
            )
        if ends == 0:
            return f"{self.name}: what is attained is more than 10 % from what is predicted at ε = {number(radii[0])}."
        return f"{self.name}: linearity ends at ε ≈ {number(ends, 2)}, where what is attained leaves σ by 10 %."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        """Render one line for each radius and method, and where linearity ends."""
        rows = [line.cells for line in self.lines]
        yield self.sentence
        names = [name for name in rows[0] if name != "flips" or self.flips]
        yield fitted(rows, names, list(EXPENDABLE), console, options)
        yield " ".join(said for name, said in LEGEND.items() if name in names)

    def to_json(self) -> str:
        """Return one JSON object."""
        return to_json(asdict(self) | {"linear_until": self.linear_until, "sentence": self.sentence})


def summarise_attacks(records: Iterable[AttackRecord]) -> list[AttackSummary]:
    """Sum up records, one result for each map, length and metric."""
    groups = grouped(records, lambda r: (r.ask.model, r.ask.map, r.ask.layer, r.ask.length, r.ask.metric))
    return [
        AttackSummary(
            model=model,
            map=part,
            layer=layer,
            length=length,
            metric=metric,
            lines=_lines(found),
            flips=tuple((eps, len({r.ask.window for r in some if r.answer.flipped})) for eps, some in _known(found)),
            tried=tuple(len({r.ask.window for r in some}) for _eps, some in _known(found)),
        )
        for (model, part, layer, length, metric), found in sorted(groups.items())
    ]


def _known(records: Sequence[AttackRecord]) -> list[tuple[float, list[AttackRecord]]]:
    """Return the records for every radius that say whether the predicted class changes."""
    known = (r for r in records if r.answer.flipped is not None)
    return sorted(grouped(known, lambda r: r.ask.eps).items())


def _lines(records: Sequence[AttackRecord]) -> tuple[AttackRow, ...]:
    lines = []
    for (eps, method), found in grouped(records, lambda r: (r.ask.eps, r.ask.method)).items():
        ceilings = [r.answer.ceiling for r in found]
        line = AttackRow(
            eps=eps,
            method=method,
            attained=fmean(r.answer.attained for r in found),
            predicted=fmean(r.answer.predicted for r in found),
            ceiling=None if None in ceilings else fmean(x for x in ceilings if x is not None),
            products=max(r.answer.products for r in found),
            windows=len(found),
            flips=None if found[0].answer.flipped is None else sum(bool(r.answer.flipped) for r in found),
        )
        lines.append(line)
    return tuple(sorted(lines, key=lambda line: (line.eps, line.attained)))


KINDS = (
    Kind(
        ask=AttackAsk,
        answer=AttackAnswer,
        run=run,
        summarise=summarise_attacks,
        command=RunCommand(
            settings=Attacking,
            plan=planned_attacks,
            help="""Attack a map of a model at real text: what is attained, predicted and allowed, for each unit of eps.

            Stopped with Ctrl-C, it keeps what is done, and the same command goes on from there.

            Example: howsmooth attack minilm --layer 4 --eps 0.1,1,10 --metric token --lengths 16 --sequences 5
            """,
            results="attacks",
            done="attacked",
        ),
    ),
)
