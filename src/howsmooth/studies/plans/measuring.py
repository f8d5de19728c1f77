"""What ``howsmooth measure`` can be asked for: declared once, for the command line, for Python and for the record."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.sources import read_source
from howsmooth.models.loading.hub import check_model
from howsmooth.models.map_names import MapName
from howsmooth.studies.settings import Reading, Solver, Where, Windows, command, options_of
from howsmooth.studies.values import Value, fingerprint


class Measuring(Value, frozen=True, kw_only=True):
    """What is to be measured, as the command line and :func:`measure` say it.

    Attributes:
        model: What :func:`howsmooth.load` takes.
        layers: Which layers; none for all of them.
        map: Which part of a layer.
        per_head: Whether to measure every head by itself too.
        whole: Whether to measure the model as a whole, and its blocks alone and together.
        windows: At which tokens.
        solver: How well.
        where: Where, and with which numbers.
        reading: How the model is read, where its folder does not say.
        certificate: Whether to prove a bound at every window too.
        released: Whether to record the quantity of the paper's released scripts too.
    """

    model: str = "minilm"
    layers: Annotated[
        tuple[int, ...] | None,
        Meta(description="Which attention layers; all by default.", extra={"metavar": "0,2,5"}),
    ] = None
    map: Annotated[
        str,
        Meta(
            description="What is measured: attention, heads, head:3, normed, residual, mlp or block of every layer; or "
            "once: model, network, sentence, logits, to:3, from:3, layers:2-4."
        ),
    ] = "attention"
    per_head: Annotated[bool, Meta(description="Measure every head by itself too.")] = False
    whole: Annotated[
        bool,
        Meta(description="Measure the model as a whole, each block alone, and the blocks up to and from each layer."),
    ] = False
    windows: Windows = Windows()
    solver: Solver = Solver()
    where: Where = Where()
    reading: Reading = Reading()
    certificate: Annotated[
        bool, Meta(description="Prove a bound at every window too: three times the work, far above the bracket.")
    ] = False
    released: Annotated[bool, Meta(description="Record the quantity of the paper's released scripts too.")] = False

    def check(self) -> None:
        """Refuse names that lead nowhere, before anything is loaded.

        Raises:
            HowsmoothError: If there is no such model, part of a layer, family or text, or nothing to compute with.
        """
        check_model(self.model)
        self.check_map()
        self.where.check()
        self.reading.check()
        read_source(self.windows.source, self.windows.place)

    def check_map(self) -> None:
        """Refuse a map that no model has, and heads beside one that is not of one layer.

        Raises:
            AssumptionError: If it is refused.
        """
        MapName.parse(self.map)
        if self.whole and (self.map not in ("attention", "model") or self.layers is not None or self.per_head):
            raise AssumptionError(
                "a whole model is measured in all its layers and blocks: leave map, layers and per_head out.",
                field="whole",
            )
        if self.per_head and MapName.parse(self.map).spans_layers:
            raise AssumptionError(
                f"the map {self.map!r} is one of many layers, and heads are of one: measure them by themselves.",
                field="per_head",
            )

    @property
    def part(self) -> str:
        """The map that is measured: that of the whole model if it is asked for."""
        return "model" if self.whole else self.map

    @property
    def command(self) -> str:
        """What to type to measure the same."""
        return command("measure", self.model, *options_of(replace(self, model="minilm")))

    @property
    def folder(self) -> Path:
        """Where records go unless told otherwise: the same question, the same folder; another one, another folder.

        Raises:
            FileError: If the text cannot be read: what it holds is a part of the question.
        """
        layers = None if self.layers is None else tuple(sorted(set(self.layers)))
        windows = replace(self.windows, lengths=tuple(sorted(set(self.windows.lengths))))
        where = replace(self.where, device="" if self.where.device == "cpu" else self.where.device)
        settings = replace(self, layers=layers, windows=windows, where=where)
        digest = read_source(windows.source, windows.place).digest
        label = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(self.model).name)
        return Path("runs") / f"{label}-{self.part.replace(':', '-')}-{fingerprint([settings, digest])[:6]}"
