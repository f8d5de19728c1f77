"""How smooth each attention layer of a model is on a text: what can be asked for, declared once, and ``measure``."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace as replace_field
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, cast

import numpy as np
from msgspec.structs import replace

from howsmooth.errors import AssumptionError, StudyError
from howsmooth.models.inputs.sources import held, read_source
from howsmooth.models.map_names import MapName
from howsmooth.spectral.solver_settings import check_metric
from howsmooth.studies.json_values import described, from_settings
from howsmooth.studies.kinds.text import check_certificate
from howsmooth.studies.settings import (
    SOURCES,
    CommandSettings,
    Compute,
    ModelReading,
    Solver,
    Windows,
)

if TYPE_CHECKING:
    from torch import nn

    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.kinds.text import TextAsk, WholeAsk
    from howsmooth.studies.plans.at_text import ModelAndText
    from howsmooth.studies.records import RunPlan
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.composition import Composition
    from howsmooth.studies.runs.measurement import Measurement
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.sweep import Progress


class Measuring(CommandSettings, frozen=True, kw_only=True):
    """What is to be measured, as the command line and :func:`measure` say it: an option for each field."""

    NAME = "measure"
    layers: Annotated[tuple[int, ...] | None, described("Which attention layers; all by default.", metavar="0,2,5")] = (
        None
    )
    map: Annotated[
        str,
        described(
            "What is measured: attention, heads, head:3, normed, residual, mlp or block of every layer; or "
            "once: model, network, sentence, logits, classes, to:3, from:3, layers:2-4."
        ),
    ] = "attention"
    per_head: Annotated[bool, described("Measure every head by itself too.")] = False
    whole: Annotated[
        bool, described("Measure the model as a whole, each block alone, and the blocks up to and from each layer.")
    ] = False
    metric: Annotated[
        str,
        described(
            "How perturbations and changes are measured: total, token, relative, condition, entries or sum.",
            metavar="NAME",
        ),
    ] = "total"
    windows: Windows = Windows()
    solver: Solver = Solver()
    where: Compute = Compute()
    reading: ModelReading = ModelReading()
    certificate: Annotated[
        bool, described("Prove a bound at every window too: three times the work, far above the bracket.")
    ] = False
    released: Annotated[bool, described("Record the quantity of the paper's released scripts too.")] = False

    def check(self) -> None:
        """Refuse names that lead nowhere, before anything is loaded."""
        self.check_map()
        super().check()

    def check_map(self) -> None:
        """Refuse a map that no model has, and heads beside one that is not of one layer."""
        MapName.parse(self.map)
        check_metric(self.metric)
        check_certificate(self.certificate, self.metric)
        if self.whole and (self.map not in ("attention", "model") or self.layers is not None or self.per_head):
            raise AssumptionError(
                "a whole model is measured in all its layers and blocks: leave map=, layers= and per_head= out.",
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
    def folder_name(self) -> str:
        """The map alone."""
        return self.part

    @property
    def question(self) -> Any:
        """The order of layers and lengths does not matter, nor which of its two names the CPU has."""
        layers = None if self.layers is None else tuple(sorted(set(self.layers)))
        windows = replace(self.windows, lengths=tuple(sorted(set(self.windows.lengths))))
        where = replace(self.where, device="" if self.where.device == "cpu" else self.where.device)
        settings = replace(self, layers=layers, windows=windows, where=where)
        return [settings, read_source(windows.source, windows.place).digest]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedMeasurement:
    """Everything that a measurement needs, checked; what is left is work."""

    subject: "ModelAndText"  # the model and the text
    asks: "tuple[TextAsk, ...]"  # one for each layer, length and window
    heads: "tuple[TextAsk, ...]"  # likewise for single heads
    # likewise for the blocks of the model, alone and together, if it is measured as a whole
    blocks: "tuple[WholeAsk, ...]"
    plans: "tuple[RunPlan, ...]"  # what the run remembers of it: first the plan of the measurement

    @property
    def every(self) -> "tuple[TextAsk, ...]":
        """All asks."""
        return self.asks + self.heads + self.blocks

    @property
    def plan(self) -> "RunPlan":
        """The plan of the measurement."""
        return self.plans[0]

    def begin(self, store: "Store") -> None:
        """Keep what is known about the model, the windows and the plan before any work."""
        from howsmooth.studies.runs.run_metadata import keep_model, keep_words

        keep_model(store, self.subject.transformer, self.subject.inputs.notes + self.subject.remarks)
        keep_words(store, self.asks, self.subject.inputs)
        for plan in self.plans:
            store.keep_plan(plan)

    def result(
        self, store: "Store", *, bounded: bool = True, progress: Callable[[int], None] | None = None
    ) -> "Measurement":
        """Sum up what is done, with every bound that the theory has, which takes about a second for each layer.

        Before the bounds of a layer are computed, ``progress`` is called with its number.
        """
        from howsmooth.studies.runs.run import measurement
        from howsmooth.studies.runs.run_metadata import keep_ladders
        from howsmooth.studies.runs.summary import NO_BOUNDS

        known = store.find((*self.plan.keys, *self.plan.beside))
        if not any(key in known for key in self.plan.keys):
            failures = store.failures(self.asks)
            said = f"all {len(failures)} failed, first: {failures[0].error}" if failures else "nothing is done yet"
            raise StudyError(f"there is nothing to sum up: {said}")
        found = measurement(store, [self.plan], known)
        if not bounded or all(layer.ladder is not NO_BOUNDS for layer in found.layers):
            return found
        keep_ladders(store, found, self.subject.transformer, progress)
        return measurement(store, [self.plan], known)

    def compositions(self, store: "Store") -> "list[Composition]":
        """Return what the blocks do alone and together, for each length; nothing if that was not asked for."""
        from howsmooth.studies.runs.composition import compositions

        return compositions(store.find(ask.key for ask in self.blocks).values())


def planned(measuring: Measuring, resources: "Resources") -> PlannedMeasurement:
    """Check everything that is asked for against the model and the text, and list the asks."""
    from howsmooth.studies.kinds.text import TextAsk
    from howsmooth.studies.plans.at_text import block_asks, model_and_text
    from howsmooth.studies.records import plan_of

    measuring.check_map()
    part = measuring.part
    base = model_and_text(measuring, measuring.windows, resources, parts=[part])
    layers = base.layers(measuring.layers, part)
    others = {name: getattr(measuring, name) for name in ("metric", "solver", "certificate", "released")}
    asks = tuple(cast(Iterator[TextAsk], base.each(TextAsk, layers, part, **others)))
    heads = tuple(
        cast(TextAsk, ask)
        for layer in (layers if measuring.per_head else ())
        for head in range(base.transformer.layers[layer].head_count)
        for ask in base.each(TextAsk, [layer], f"head:{head}", **others)
    )
    blocks = tuple(block_asks(base, measuring.solver, measuring.metric)) if measuring.whole else ()
    plans = [plan_of(asks, beside=tuple(ask.key for ask in heads), command=measuring.command)]
    plans += [plan_of(blocks, command=measuring.command)] if blocks else []
    return PlannedMeasurement(subject=base, asks=asks, heads=heads, blocks=blocks, plans=tuple(plans))


class MeasureSettings(TypedDict, total=False):
    """The keywords of :func:`measure`, for type checkers; the settings themselves are those of :class:`Measuring`."""

    text: str | os.PathLike[str]
    token_ids: Any
    sentence: str
    sentences: str | os.PathLike[str] | Sequence[str]
    images: str | os.PathLike[str]
    family: str
    tokenizer: Any
    layers: Any
    lengths: Any
    sequences: int
    map: str
    metric: str
    per_head: bool
    whole: bool
    special_tokens: bool
    stride: int
    rtol: float
    confidence: float
    certify: bool
    max_steps: int
    seed: int
    device: Any
    dtype: Any
    threads: int | None
    streamed: bool | None
    certificate: bool
    released: bool


def measure(
    model: "str | os.PathLike[str] | nn.Module | Transformer | Any" = "minilm",
    *,
    out: str | os.PathLike[str] | None = None,
    progress: "Progress | bool | None" = None,
    **settings: Unpack[MeasureSettings],
) -> "Measurement":
    """Measure how smooth the attention layers of a model are at windows of a text.

    Args:
        model: What :func:`load` takes, or what it returned.
        out: The folder that keeps the records; what is there already is not measured again.
        progress: True for a bar, on a terminal or in a notebook; or what is called after each step with how far the
            work is.
        **settings: What the command line takes, under the same names: ``text`` (a file in UTF-8, or the words
            themselves; *Alice's Adventures in Wonderland* by default), ``token_ids`` (a file, or rows of ids),
            ``sentence``, ``sentences`` (a file, or a list) or ``images`` in place of a text,
            ``family``, ``tokenizer``, ``layers``, ``lengths``, ``sequences``, ``map`` (of a layer:
            ``attention``, ``heads``, ``head:3``, ``normed``, ``residual``, ``mlp``, ``block``; of many, measured once:
            ``model``, ``network``, ``sentence``, ``logits``, ``classes``,
            ``to:3``, ``from:3``, ``layers:2-4``), ``metric`` (a name), ``per_head``,
            ``special_tokens``, ``stride``, ``rtol``, ``confidence``, ``certify``, ``max_steps``, ``seed``, ``device``,
            ``dtype``, ``threads``, ``streamed``, ``certificate``, ``released``.

    Raises:
        HowsmoothError: If anything asked for cannot be had; before any long work.
        StudyError: If everything failed.
    """
    from torch import nn

    from howsmooth.models.load import as_tokenizer, load
    from howsmooth.models.transformer import Transformer
    from howsmooth.studies.resources import Resources
    from howsmooth.studies.runs.store import Store
    from howsmooth.studies.sweep.progress import shown_by
    from howsmooth.studies.sweep.sweep import sweep
    from howsmooth.studies.sweep.workers import executor
    from howsmooth.training.hooks import mode_restored
    from howsmooth.validation import plain_mode

    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    transformer = model if isinstance(model, Transformer) else None
    given: dict[str, Any] = dict(settings)
    tokenizer = given.get("tokenizer")
    with plain_mode(), ExitStack() as stack:
        if isinstance(model, nn.Module):  # what is in training is in training afterwards
            stack.enter_context(mode_restored(model))
        if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike):  # it is one, and not the name of one
            del given["tokenizer"]
            if transformer is not None:
                transformer = replace_field(transformer, tokenizer=as_tokenizer(tokenizer))
            else:
                transformer = load(model, tokenizer=tokenizer, device=given.get("device"))
        elif not isinstance(model, str | Transformer):
            transformer = load(model, device=given.get("device"))
        name = transformer.name if transformer else model
        for kind in SOURCES:
            if _in_memory(kind, given.get(kind)):
                given[kind] = stack.enter_context(held(kind, given[kind]))
        measuring = from_settings(Measuring, {"model": name} | _plain(given))
        resources = Resources([] if transformer is None else [transformer])
        made = planned(measuring, resources)
        execute = stack.enter_context(executor(threads=measuring.where.threads, resources=resources))
        store = stack.enter_context(Store(out))
        with shown_by(progress) as shown:
            made.begin(store)
            sweep(made.every, store, execute=execute, progress=shown)
        return made.result(store)


def _in_memory(kind: str, given: Any) -> bool:
    """Tell whether inputs are given themselves, and not the name of their file: words between blanks are a text."""
    if kind == "text":
        return isinstance(given, str) and len(given.split()) > 1 and not os.path.exists(given[:250])
    return kind in ("token_ids", "sentences") and given is not None and not isinstance(given, str | os.PathLike)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Accept what Python users write: ranges, arrays, paths, types of torch, and ``None`` for a default."""
    settings = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    plain: dict[str, Callable[[Any], Any]] = {
        "layers": _whole_numbers,
        "lengths": _whole_numbers,
        **dict.fromkeys((*SOURCES, "tokenizer"), _path),
        "device": str,
        "dtype": lambda dtype: str(dtype).removeprefix("torch."),
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return {name: plain[name](value) if name in plain else value for name, value in given.items()}


def _path(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def _whole_numbers(given: Any) -> Any:
    """Return a list of plain integers, if these are some; what is none is refused by its type later."""
    if isinstance(given, Integral) and not isinstance(given, bool):
        return [int(given)]
    if isinstance(given, str) or not isinstance(given, Iterable):
        return given
    return [int(n) if isinstance(n, Integral) and not isinstance(n, bool) else n for n in given]
