"""What ``howsmooth attack`` can be asked for, declared once for the command line and the record, and its asks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from howsmooth.attacks.attack_settings import BUDGET, METHODS, check_attack
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.sources import read_source
from howsmooth.models.loading.hub import check_model
from howsmooth.models.map_names import MapName
from howsmooth.studies.json_values import JsonValue, described
from howsmooth.studies.settings import Compute, ModelReading, Solver, Windows, command, default_folder, options_of

if TYPE_CHECKING:
    from howsmooth.studies.plans.at_text import PlannedAsks
    from howsmooth.studies.resources import Resources

EPS = (0.01, 0.1, 1.0, 10.0)


class Attacking(JsonValue, frozen=True, kw_only=True):
    """What is to be attacked, as the command line says it: an option for each field."""

    model: str = "minilm"
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
    norm: Annotated[str, described("total: all tokens together within eps; token: each of them.", metavar="NORM")] = (
        "total"
    )
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
        """Refuse names and numbers that lead nowhere, before anything is loaded.

        Raises:
            HowsmoothError: If there is no such model, map, norm, method or text, or a number is out of range.
        """
        for name in ("eps", "method"):
            if not getattr(self, name):
                raise AssumptionError(f"{name} must name at least one.", field=name)
        for eps in self.eps:
            for method in self.method:
                check_attack(eps=eps, norm=self.norm, method=method, budget=self.budget)
        self.solver  # noqa: B018 - refuses a seed that there is not
        check_model(self.model)
        MapName.parse(self.map)
        self.where.check()
        self.reading.check()
        read_source(self.windows.source, self.windows.place)

    @property
    def solver(self) -> Solver:
        """What asks remember of the seed."""
        return Solver(seed=self.seed)

    @property
    def command(self) -> str:
        """What to type to attack the same."""
        return command("attack", self.model, *options_of(replace(self, model="minilm")))

    @property
    def folder(self) -> Path:
        """Where records go unless told otherwise: the same question, the same folder."""
        digest = read_source(self.windows.source, self.windows.place).digest
        return default_folder(self.model, f"attack-{self.map}", [self, digest])


def planned_attacks(attacking: Attacking, resources: "Resources") -> "PlannedAsks":
    """Check everything that is asked for against the model and the text; list one ask a layer, window, radius, method.

    Raises:
        HowsmoothError: If anything cannot be had; before any long work.
    """
    from howsmooth.studies.kinds.attack import Ask
    from howsmooth.studies.plans.at_text import PlannedAsks, model_and_text

    part = attacking.map
    base = model_and_text(
        attacking.model, attacking.windows, attacking.where, attacking.reading, resources, parts=[part]
    )
    layers = base.layers(attacking.layers, part)
    shared = {name: getattr(attacking, name) for name in ("norm", "budget", "bounded", "solver")}
    asks = [
        ask
        for eps in sorted(set(attacking.eps))
        for method in dict.fromkeys(attacking.method)
        for ask in base.each(Ask, layers, part, eps=eps, method=method, **shared)
    ]
    return PlannedAsks(
        asks=tuple(asks),
        transformer=base.transformer,
        inputs=base.inputs,
        command=attacking.command,
        remarks=tuple(f"{remark}." for remark in base.remarks),
    )
