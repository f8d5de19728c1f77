"""How smooth each attention layer of a model is on a text: plan, measure, sum up."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch import nn

from howsmooth.errors import StudyError
from howsmooth.models.load import load
from howsmooth.models.transformer import Transformer
from howsmooth.studies.kinds import whole
from howsmooth.studies.kinds.text import Ask
from howsmooth.studies.plans.at_text import Ground, ground
from howsmooth.studies.plans.measuring import Measuring
from howsmooth.studies.plans.pieces import pieces
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.composition import Composition, compositions
from howsmooth.studies.runs.facts import keep_ladders, keep_model, keep_words
from howsmooth.studies.runs.measurement import Measurement
from howsmooth.studies.runs.plans import Plan, plan_of
from howsmooth.studies.runs.reading import measurement
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import SOURCES
from howsmooth.studies.sweep.sweep import Executor, Progress, Tally, sweep
from howsmooth.studies.sweep.watching import shown_by
from howsmooth.studies.sweep.workers import executor
from howsmooth.studies.values import from_leaves


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """Everything that a measurement needs, checked; what is left is work.

    Attributes:
        ground: The model and the text.
        asks: One for each layer, length and window.
        heads: Likewise for single heads.
        pieces: The blocks of the model, alone and together, if it is measured as a whole.
        plans: What the run remembers of it: first the plan of the measurement.
    """

    ground: Ground
    asks: tuple[Ask, ...]
    heads: tuple[Ask, ...]
    pieces: tuple[whole.Ask, ...]
    plans: tuple[Plan, ...]

    @property
    def every(self) -> tuple[Ask, ...]:
        """All asks."""
        return self.asks + self.heads + self.pieces

    @property
    def plan(self) -> Plan:
        """The plan of the measurement."""
        return self.plans[0]

    def begin(self, store: Store) -> None:
        """Keep what is known about the model, the windows and the plan before any work."""
        keep_model(store, self.ground.transformer, self.ground.inputs.notes)
        keep_words(store, self.asks, self.ground.inputs)
        for plan in self.plans:
            store.keep_plan(plan)

    def run(
        self,
        store: Store,
        *,
        execute: Executor,
        retry_failed: bool = False,
        progress: Progress | None = None,
    ) -> Tally:
        """Do what is not done yet, and keep every record as it comes."""
        self.begin(store)
        return sweep(self.every, store, execute=execute, retry_failed=retry_failed, progress=progress)

    def result(self, store: Store, *, bounded: bool = True) -> Measurement:
        """Sum up what is done, with every bound that the theory has, which takes about a second for each layer.

        Raises:
            StudyError: If everything failed.
        """
        found = self._measurement(store)
        if bounded:
            keep_ladders(store, found, self.ground.transformer)
            found = self._measurement(store)
        return found

    def compositions(self, store: Store) -> list[Composition]:
        """Return what the blocks do alone and together, for each length; nothing if that was not asked for."""
        return compositions(store.find(ask.key for ask in self.pieces).values())

    def _measurement(self, store: Store) -> Measurement:
        known = store.find((*self.plan.keys, *self.plan.beside))
        if not any(key in known for key in self.plan.keys):
            failures = [failure for failure in store.failures() if failure.ask.key in set(self.plan.keys)]
            said = f"all {len(failures)} failed, first: {failures[0].error}" if failures else "nothing is done yet"
            raise StudyError(f"there is nothing to sum up: {said}")
        return measurement(store, [self.plan], known)


def planned(measuring: Measuring, resources: Resources) -> Planned:
    """Check everything that is asked for against the model and the text, and list the asks.

    Raises:
        HowsmoothError: If anything cannot be had; before any long work.
    """
    measuring.check_map()
    part = measuring.part
    base = ground(measuring.model, measuring.windows, measuring.where, measuring.reading, resources, parts=[part])
    layers = base.layers(measuring.layers, part)
    others: dict[str, Any] = {
        "solver": measuring.solver,
        "certificate": measuring.certificate,
        "released": measuring.released,
    }
    asks = tuple(base.each(Ask, layers, part, **others))
    heads = tuple(
        ask
        for layer in (layers if measuring.per_head else ())
        for head in range(base.transformer.layers[layer].head_count)
        for ask in base.each(Ask, [layer], f"head:{head}", **others)
    )
    parts = tuple(pieces(base, measuring.solver)) if measuring.whole else ()
    plans = [plan_of(asks, beside=tuple(ask.key for ask in heads), command=measuring.command)]
    plans += [plan_of(parts, command=measuring.command)] if parts else []
    return Planned(ground=base, asks=asks, heads=heads, pieces=parts, plans=tuple(plans))  # type: ignore[arg-type]


def measure(
    model: str | nn.Module | Transformer = "minilm",
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> Measurement:
    """Measure how smooth the attention layers of a model are at windows of a text.

    Args:
        model: What :func:`load` takes, or what it returned.
        out: The folder that keeps the records; what is there already is not measured again.
        progress: True for a bar, on a terminal or in a notebook; or what is called after each step with how far the
            work is.
        **settings: What the command line takes, under the same names: ``text`` (a file in UTF-8; *Alice's Adventures
            in Wonderland* by default), ``token_ids``, ``sentences`` or ``images`` in place of a text, ``family``,
            ``tokenizer``, ``layers``, ``lengths``, ``sequences``, ``map`` (of a layer:
            ``attention``, ``heads``, ``head:3``, ``normed``, ``residual``, ``mlp``, ``block``; of many, measured once:
            ``model``, ``network``, ``sentence``, ``logits``, ``to:3``, ``from:3``, ``layers:2-4``), ``per_head``,
            ``special_tokens``, ``stride``, ``rtol``, ``confidence``, ``certify``, ``max_steps``, ``seed``, ``device``,
            ``dtype``, ``threads``, ``certificate``, ``released``.

    Raises:
        HowsmoothError: If anything asked for cannot be had; before any long work.
        StudyError: If everything failed.
    """
    transformer = model if isinstance(model, Transformer) else None
    if isinstance(model, nn.Module):
        transformer = load(model, device=settings.get("device"))
    name = model if isinstance(model, str) else transformer.name if transformer else model
    measuring = from_leaves(Measuring, {"model": name} | _plain(settings))
    resources = Resources([] if transformer is None else [transformer])
    made = planned(measuring, resources)
    with executor(threads=measuring.where.threads, resources=resources) as execute, Store(out) as store:
        with shown_by(progress) as shown:
            made.run(store, execute=execute, progress=shown)
        return made.result(store)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Accept what Python users write: ranges, arrays, paths, types of torch, and ``None`` for a default."""
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
    if isinstance(given, str) or not isinstance(given, Iterable):
        return given
    return [int(n) if isinstance(n, Integral) and not isinstance(n, bool) else n for n in given]
