"""How smooth each attention layer of a model is on a text: plan, measure, summarise."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from howsmooth.errors import AssumptionError, FileError
from howsmooth.models.base import Transformer, load
from howsmooth.models.sites import check_map
from howsmooth.models.text import Text, read_text
from howsmooth.studies.context import keep_ladder, keep_notes, kept_ladder
from howsmooth.studies.measurement import Measurement
from howsmooth.studies.resources import adopt
from howsmooth.studies.store import Store
from howsmooth.studies.summary import summarise
from howsmooth.studies.sweep import Executor, Progress, Tally, sweep
from howsmooth.studies.tasks import Task, fingerprint
from howsmooth.theory.results import Ladder

LENGTHS = (8, 16, 32, 64, 128, 256)
# How many tokens say which window is meant.
OPENING = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Everything that a measurement needs, checked; what is left is work.

    Attributes:
        transformer: The model.
        text: The text.
        map: Which part of each layer.
        tasks: One for each layer, length and window.
        heads: Likewise for single heads.
    """

    transformer: Transformer
    text: Text
    map: str
    tasks: tuple[Task, ...]
    heads: tuple[Task, ...]

    def run(
        self,
        store: Store,
        *,
        execute: Executor | None = None,
        retry_failed: bool = False,
        progress: Progress | None = None,
    ) -> Tally:
        """Do what is not done yet, and keep every record as it comes."""
        self.begin(store)
        return sweep(self.tasks + self.heads, store, execute=execute, retry_failed=retry_failed, progress=progress)

    def begin(self, store: Store) -> None:
        """Keep what is known about the model before any work.

        Raises:
            FileError: If the run was begun with other weights.
        """
        if not store.agree(f"weights of {self.transformer.name}", self.transformer.digest):
            raise FileError(
                f"the run in {str(store.folder)!r} was begun with other weights of {self.transformer.name!r}; give "
                "another folder with --out."
            )
        keep_notes(store, self.transformer)
        store.keep(plan_fact(self.tasks[0]), json.dumps([task.key for task in self.tasks + self.heads]))
        self._note_windows(store)
        adopt(self.transformer, self.tasks[0])

    def result(self, store: Store, *, bounded: bool = True) -> Measurement:
        """Summarise what is done, with every bound that the theory has, which takes about a second for each layer."""
        found = store.find(self.tasks + self.heads)
        records = tuple(found[task.key] for task in self.tasks if task.key in found)
        heads = tuple(found[task.key] for task in self.heads if task.key in found)

        def bounds(layer: int, length: int, radius: float) -> Ladder:
            if bounded:
                return keep_ladder(store, self.transformer, self.map, layer, length, radius)
            return kept_ladder(store, self.transformer.name, self.map, layer, length, radius)

        return Measurement(
            model=self.transformer.name,
            text=self.text.name,
            map=self.map,
            records=records,
            heads=heads,
            layers=summarise(records, bounds),
            notes=self.transformer.notes,
            tokens=store.window(window_key(self._longest)),
            openings={(task.length, task.window): store.window(opening_key(task)) for task in self.tasks},
            run=None if store.folder is None else str(store.folder),
            complete=len(found) == len(self.tasks) + len(self.heads),
        )

    @property
    def default_folder(self) -> Path:
        """Where the command line keeps the records unless told otherwise: the same settings, the same folder."""
        task = self.tasks[0]
        settings = {
            name: value for name, value in vars(task).items() if name not in ("layer", "length", "window", "map")
        }
        label = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(self.transformer.name).name)
        return Path("runs") / f"{label}-{self.map.replace(':', '-')}-{fingerprint(settings)[:6]}"

    @property
    def _longest(self) -> Task:
        return max(self.tasks, key=lambda task: (task.length, -task.window, -task.layer))

    def _note_windows(self, store: Store) -> None:
        """Keep how every window begins, and the whole of the first one of the longest length."""
        tokenizer, longest = self.transformer.tokenizer, self._longest
        if tokenizer is None:
            return
        noted: dict[str, list[str]] = {}
        for length in sorted({task.length for task in self.tasks}):
            tasks = {task.window: task for task in self.tasks if task.length == length}
            found = self.transformer.windows(
                self.text, length=length, count=len(tasks), special_tokens=longest.special_tokens
            )
            for task, tokens in zip(tasks.values(), found.tolist(), strict=True):
                noted[opening_key(task)] = tokenizer.pieces(tokens[:OPENING])
                if (length, task.window) == (longest.length, longest.window):
                    noted[window_key(task)] = tokenizer.pieces(tokens)
        store.note_windows(noted)


def measure(
    model: str | nn.Module | Transformer = "minilm",
    *,
    text: str | os.PathLike[str] | None = None,
    layers: Sequence[int] | None = None,
    lengths: Sequence[int] = LENGTHS,
    sequences: int = 10,
    map: str = "attention",  # noqa: A002
    per_head: bool = False,
    special_tokens: bool = False,
    rtol: float = 1e-3,
    confidence: float = 0.999,
    certify: bool = True,
    released_estimator: bool = False,
    seed: int = 0,
    device: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measure how smooth the attention layers of a model are at windows of a text.

    Args:
        model: What :func:`load` takes, or what it returned.
        text: A file in UTF-8; *Alice's Adventures in Wonderland* by default.
        layers: Which layers; all by default.
        lengths: How many tokens a window has.
        sequences: How many windows of each length: consecutive, non-overlapping, from the beginning.
        map: Which part of a layer: ``attention`` (heads and output projection), ``heads``, ``head:3``, ``normed``,
            ``residual`` or ``block``.
        per_head: Whether to measure every head by itself too.
        special_tokens: Whether windows begin and end as the model's own inputs do.
        rtol: The bracket to reach for each constant.
        confidence: The probability with which its upper end holds.
        certify: Whether to go on until the bracket closes.
        released_estimator: Whether to record the quantity of the paper's released scripts too.
        seed: The seed of the solver's random starts.
        device: Where to compute.
        out: The folder that keeps the records; what is there already is not measured again.
        progress: Called after each step with how far the work is.

    Raises:
        HowsmoothError: If anything asked for cannot be had; before any long work.
    """
    made = plan(
        model,
        text=text,
        layers=layers,
        lengths=lengths,
        sequences=sequences,
        map=map,
        per_head=per_head,
        special_tokens=special_tokens,
        rtol=rtol,
        confidence=confidence,
        certify=certify,
        released_estimator=released_estimator,
        seed=seed,
        device=device,
    )
    with Store(out) as store:
        made.run(store, progress=progress)
        return made.result(store)


def plan(
    model: str | nn.Module | Transformer,
    *,
    text: str | os.PathLike[str] | None,
    layers: Sequence[int] | None,
    lengths: Sequence[int],
    sequences: int,
    map: str,  # noqa: A002
    per_head: bool,
    special_tokens: bool,
    rtol: float,
    confidence: float,
    certify: bool,
    released_estimator: bool,
    seed: int,
    device: str | None,
) -> Plan:
    """Check everything that :func:`measure` was asked for, and list the tasks."""
    check_map(map)
    _check_counts(lengths, sequences)
    _check_solver(rtol, confidence)
    _check_device(device)
    source = read_text(text)
    transformer = model if isinstance(model, Transformer) else load(model, device=device)
    chosen = _chosen_layers(transformer, layers)
    for layer in chosen:
        transformer.sites[layer].check(map)
    for length in lengths:
        transformer.windows(source, length=length, count=sequences, special_tokens=special_tokens)
    parts = {layer: _heads(transformer, layer) if per_head else () for layer in chosen}

    def task(layer: int, part: str, length: int, window: int) -> Task:
        return Task(
            model=transformer.name,
            text=source.name,
            digest=source.digest,
            layer=layer,
            map=part,
            length=length,
            window=window,
            special_tokens=special_tokens,
            seed=seed,
            rtol=rtol,
            confidence=confidence,
            certify=certify,
            released=released_estimator,
            dtype=str(next(transformer.module.parameters()).dtype).removeprefix("torch."),
            device=device or "",
        )

    places = [(i, n, window) for i in chosen for n in sorted(set(lengths)) for window in range(sequences)]
    return Plan(
        transformer=transformer,
        text=source,
        map=map,
        tasks=tuple(task(i, map, n, window) for i, n, window in places),
        heads=tuple(task(i, part, n, window) for i, n, window in places for part in parts[i]),
    )


def _chosen_layers(transformer: Transformer, layers: Sequence[int] | None) -> list[int]:
    if layers is None:
        return list(range(len(transformer.sites)))
    if not layers:
        raise AssumptionError("layers must name at least one layer.")
    return [transformer.site(layer).layer for layer in sorted(set(layers))]


def _heads(transformer: Transformer, layer: int) -> tuple[str, ...]:
    return tuple(f"head:{i}" for i in range(transformer.sites[layer].exact.layout.heads))


def _check_counts(lengths: Sequence[int], sequences: int) -> None:
    if not lengths or min(lengths) < 1:
        raise AssumptionError(f"lengths must be whole numbers, at least 1, got {list(lengths)}.")
    if sequences < 1:
        raise AssumptionError(f"sequences must be at least 1, got {sequences}.")


def _check_solver(rtol: float, confidence: float) -> None:
    if not 0 < rtol < 1:
        raise AssumptionError(f"rtol must lie between 0 and 1, got {rtol}.")
    if not 0 < confidence < 1:
        raise AssumptionError(f"confidence must lie strictly between 0 and 1, got {confidence}.")


def _check_device(device: str | None) -> None:
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        what = str(error).splitlines()[0].rstrip(".")
        raise AssumptionError(f"the device {device!r} cannot be used: {what}.") from error


def plan_fact(task: Task) -> str:
    """Name the fact that a run keeps about what was asked for with the settings of a task."""
    return f"tasks like {replace(task, layer=0, length=1, window=0).key}"


def window_key(task: Task) -> str:
    """Name a window of a text as a model sees it."""
    return fingerprint([task.model, task.digest, task.length, task.window, task.special_tokens])


def opening_key(task: Task) -> str:
    """Name the first few tokens of a window."""
    return f"opening of {window_key(task)}"
