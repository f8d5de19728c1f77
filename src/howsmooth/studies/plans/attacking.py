"""What ``howsmooth attack`` can be asked for: declared once, for the command line and for the record."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from howsmooth.attacks.settings import BUDGET, METHODS, check_attack
from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.sources import read_source
from howsmooth.models.loading.hub import check_model
from howsmooth.models.map_names import MapName
from howsmooth.studies.settings import Reading, Solver, Where, Windows, command, options_of
from howsmooth.studies.values import Value, fingerprint

EPS = (0.01, 0.1, 1.0, 10.0)


class Attacking(Value, frozen=True, kw_only=True):
    """What is to be attacked, as the command line says it.

    Attributes:
        model: What :func:`howsmooth.load` takes.
        layer: Which layer; none for all of them.
        map: Which part of a layer, or a map of many.
        eps: How far tokens may move: one attack for each.
        norm: All together, or each of them.
        method: How perturbations are searched for: one attack for each.
        budget: How many passes each attack may spend.
        bounded: Whether to compute what the theory allows too.
        windows: At which tokens.
        seed: The seed of everything random.
        where: Where, and with which numbers.
        reading: How the model is read, where its folder does not say.
    """

    model: str = "minilm"
    layer: Annotated[int | None, Meta(description="Which attention layer; all by default.")] = None
    map: Annotated[
        str,
        Meta(
            description="What is attacked: attention, heads, head:3, normed, residual, mlp or block of a layer; or "
            "model, network, sentence, logits, to:3, from:3, layers:2-4."
        ),
    ] = "attention"
    eps: Annotated[tuple[float, ...], Meta(description="How far tokens may move.", extra={"metavar": "0.01,0.1,…"})] = (
        EPS
    )
    norm: Annotated[
        str, Meta(description="total: all tokens together within eps; token: each of them.", extra={"metavar": "NORM"})
    ] = "total"
    method: Annotated[
        tuple[str, ...],
        Meta(description="How perturbations are searched for: any of the five.", extra={"metavar": "METHOD,…"}),
    ] = METHODS
    budget: Annotated[int, Meta(description="Forward passes and products that each attack may spend.")] = BUDGET
    bounded: Annotated[
        bool, Meta(description="Compute what the theory allows too: seconds for each window and radius.")
    ] = True
    windows: Windows = Windows()
    seed: Annotated[int, Meta(description="The seed of everything random.")] = 0
    where: Where = Where()
    reading: Reading = Reading()

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
        label = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(self.model).name)
        return Path("runs") / f"{label}-attack-{self.map.replace(':', '-')}-{fingerprint([self, digest])[:6]}"
