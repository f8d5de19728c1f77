"""How smooth each attention layer of a model is on a text: plan, measure, summarise."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import torch
from torch import nn

from howsmooth.errors import AssumptionError, FileError
from howsmooth.maps.attention import Attention
from howsmooth.models.base import Transformer, load
from howsmooth.models.sites import check_map
from howsmooth.models.text import Text, read_text
from howsmooth.studies.growth import Growth, growth
from howsmooth.studies.measurement import LayerSummary, Measurement, mean_constant
from howsmooth.studies.store import Store
from howsmooth.studies.tasks import Record, Task, fingerprint
from howsmooth.studies.windows import Batch, batches, run_batch
from howsmooth.theory.discrete import sharp_upper

LENGTHS = (8, 16, 32, 64, 128, 256)
# Called with the share of the work that is done, from 0 to 1, and what is being done.
Progress = Callable[[float, str], None]


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

    def run(self, store: Store, progress: Progress | None = None) -> None:
        """Do what is not done yet, and keep every record as it comes."""
        if not store.agree(f"weights of {self.transformer.name}", self.transformer.digest):
            raise FileError(
                f"the run in {str(store.folder)!r} was begun with other weights of {self.transformer.name!r}; give "
                "another folder with --out."
            )
        work = batches(self.tasks + self.heads)
        done = frozenset(store.find(self.tasks + self.heads))
        total = sum(_cost(batch, frozenset()) for batch in work)
        spent = total - sum(_cost(batch, done) for batch in work)
        self._note_first_window(store)
        for batch in work:
            for records in run_batch(self.transformer, self.text, batch, done):
                store.add(records)
                spent += _cell_cost(records[0].task, len(records))
                if progress is not None:
                    progress(min(spent / total, 1.0), f"layer {records[0].task.layer}, {batch.length} tokens")

    def result(self, store: Store) -> Measurement:
        """Summarise what is done."""
        found = store.find(self.tasks + self.heads)
        records = tuple(found[task.key] for task in self.tasks if task.key in found)
        heads = tuple(found[task.key] for task in self.heads if task.key in found)
        layers = sorted({record.task.layer for record in records})
        return Measurement(
            model=self.transformer.name,
            text=self.text.name,
            map=self.map,
            records=records,
            heads=heads,
            layers=tuple(self._summary(i, [r for r in records if r.task.layer == i]) for i in layers),
            notes=self.transformer.notes,
            tokens=store.window(_window_key(self._longest)),
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

    def _note_first_window(self, store: Store) -> None:
        task, tokenizer = self._longest, self.transformer.tokenizer
        if tokenizer is not None:
            (first,) = self.transformer.windows(
                self.text, length=task.length, count=1, special_tokens=task.special_tokens
            )
            store.note_window(_window_key(task), tokenizer.pieces(first.tolist()))

    def _summary(self, layer: int, records: Sequence[Record]) -> LayerSummary:
        length = max(record.task.length for record in records)
        last = [record for record in records if record.task.length == length]
        radius = sum(record.radius for record in last) / len(last)
        certificates = [record.local_upper for record in last if record.local_upper is not None]
        return LayerSummary(
            layer=layer,
            length=length,
            constant=mean_constant(last),
            least=min(record.lower for record in last),
            most=max(record.upper for record in last),
            growth=_growth({r: r.lower for r in records}),
            radius=radius,
            sharp_upper=self._sharp_upper(layer, length, radius),
            local_upper=geometric_mean(certificates) if certificates and min(certificates) > 0 else None,
            released_growth=_growth({r: r.released for r in records if r.released is not None}),
        )

    def _sharp_upper(self, layer: int, length: int, radius: float) -> float | None:
        site = self.transformer.sites[layer]
        if site.attention is None or self.map == "block":
            return None
        f = site.map(self.map)
        if not isinstance(f, Attention):
            return None
        try:
            return sharp_upper(f, n=length, radius=radius).value
        except AssumptionError:
            return None  # the theorem does not cover this map


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
        progress: Called after each step with the share of the work that is done, and what was done.

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
        made.run(store, progress)
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
    count = len(transformer.sites)
    if layers is None:
        return list(range(count))
    if not layers:
        raise AssumptionError("layers must name at least one layer.")
    for layer in layers:
        if not 0 <= layer < count:
            raise AssumptionError(f"{transformer.name!r} has the layers 0 to {count - 1}, got {layer}.")
    return sorted(set(layers))


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


def _growth(values: dict[Record, float]) -> Growth | None:
    """Fit the growth, where there are two lengths and no zeros."""
    by_length: dict[int, list[float]] = {}
    for record, value in values.items():
        by_length.setdefault(record.task.length, []).append(value)
    if len(by_length) < 2 or not all(value > 0 for found in by_length.values() for value in found):
        return None
    return growth(by_length)


def _cost(batch: Batch, done: frozenset[str]) -> float:
    return sum(_cell_cost(cell[0], len(cell)) for cell in batch.cells if not all(task.key in done for task in cell))


def _cell_cost(task: Task, windows: int) -> float:
    """Estimate the work of a cell, up to a factor: projections grow with the length, weights with its square."""
    return windows * task.length * (500 + task.length) * (0.3 if task.map.startswith("head:") else 1.0)


def _window_key(task: Task) -> str:
    return fingerprint([task.model, task.digest, task.length, task.window, task.special_tokens])
