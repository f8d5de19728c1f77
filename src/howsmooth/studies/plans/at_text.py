"""Questions at windows of a text, checked against the model and the text before any work."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from msgspec.structs import replace

from howsmooth.errors import AssumptionError
from howsmooth.models.inputs.model_inputs import Inputs
from howsmooth.models.inputs.sources import Source, read_source
from howsmooth.models.map_names import MapName
from howsmooth.models.transformer import Transformer
from howsmooth.studies.asks import Ask, AtText
from howsmooth.studies.kinds.text import WholeAsk
from howsmooth.studies.records import plan_of
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.run_metadata import keep_model, keep_words
from howsmooth.studies.runs.store import Store
from howsmooth.studies.settings import LENGTH, LENGTHS, Compute, ModelReading, Solver, Window, Windows


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelAndText:
    """A model, a text, and which windows of it are measured."""

    transformer: Transformer  # the model
    inputs: Inputs  # the text, as the model reads it
    windows: tuple[Window, ...]
    where: Compute  # where the model is, and with which numbers it computes
    reading: ModelReading  # how the model was read
    remarks: tuple[str, ...] = ()  # what the user has to know before: that lengths were left out

    def layers(self, layers: Sequence[int] | None, part: str) -> list[int]:
        """Return the layers that were named, or all of them; a map of many layers is asked at its first one alone."""
        if MapName.parse(part).spans_layers:
            first = self.transformer.check_map(part)
            if layers is not None and set(layers) != {first}:
                raise AssumptionError(
                    f"the map {part!r} is one of many layers, measured once: leave the layers out.", field="layer"
                )
            return [first]
        found = self._named(layers)
        for layer in found:
            self.transformer.check_map(part, layer)
        return found

    def _named(self, layers: Sequence[int] | None) -> list[int]:
        if layers is None:
            return list(range(len(self.transformer.layers)))
        if not layers:
            raise AssumptionError("layers must name at least one layer.", field="layer")
        for layer in layers:
            self.transformer.check_layer(layer)
        return sorted(set(layers))

    def each(self, kind: type[AtText], layers: Sequence[int], part: str, **others: Any) -> Iterator[AtText]:
        """Yield the asks of a kind for every layer and window."""
        for layer in layers:
            for window in self.windows:
                yield kind(
                    model=self.transformer.name,
                    layer=layer,
                    map=part,
                    window=window,
                    where=self.where,
                    reading=self.reading,
                    **others,
                )

    def planned(self, asks: Sequence[Ask], command: str, *, remarks: Iterable[str] = ()) -> "PlannedAsks":
        """Return asks about this model at this text as a plan."""
        return PlannedAsks(
            asks=tuple(asks),
            transformer=self.transformer,
            inputs=self.inputs,
            command=command,
            remarks=tuple(f"{remark}." for remark in remarks),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedAsks:
    """Asks that were checked; what is left is work."""

    asks: tuple[Ask, ...]  # what to answer, all of one kind
    transformer: Transformer | None = None  # the model, for questions about one
    inputs: Inputs | None = None  # what the windows are cut from, for questions at a text
    command: str  # what to type to ask for them again
    remarks: tuple[str, ...] = ()  # what the user has to know before: sentences that are misclassified

    def begin(self, store: Store) -> None:
        """Keep what is known about the model, the windows and the plan before any work."""
        if self.transformer is not None:
            keep_model(store, self.transformer, () if self.inputs is None else self.inputs.notes)
        if self.inputs is not None:
            keep_words(store, [ask for ask in self.asks if isinstance(ask, AtText)], self.inputs)
        store.keep_plan(plan_of(self.asks, command=self.command))


def model_and_text(asked: Any, windows: Windows, resources: Resources, *, parts: Sequence[str] = ()) -> ModelAndText:
    """Load the model that settings or an ask name, and a text; refuse what they do not have, cheap mistakes first."""
    where, reading = asked.where, asked.reading
    for part in parts:
        MapName.parse(part)
    where.check()
    reading.check()
    source = read_source(windows.source, windows.place)
    check_device(where.device)
    transformer = resources.transformer(asked.model, where, reading)
    inputs = resources.inputs(transformer, source, special_tokens=windows.special_tokens)
    windows, remarks = _default_lengths(windows, transformer, inputs) if inputs.lengths is None else (windows, ())
    if transformer.stream is not None:
        remarks += (transformer.stream.note,)
    framed = transformer.tokenizer is not None and any(transformer.tokenizer.frame())
    if framed and "classes" in parts and not windows.special_tokens:
        remarks += (
            f"{transformer.name!r} was trained to classify inputs that begin and end with special tokens, which these "
            "do not: add special_tokens=True",
        )
    dtype = str(next(transformer.module.parameters()).dtype).removeprefix("torch.")
    return ModelAndText(
        transformer=transformer,
        inputs=inputs,
        windows=_windows(windows, source, inputs),
        # the CPU has two names, and one key
        where=replace(
            where,
            dtype=dtype,
            device="" if where.device == "cpu" else where.device,
            streamed=True if transformer.stream is not None else None,
        ),
        reading=reading,
        remarks=remarks,
    )


def _default_lengths(windows: Windows, transformer: Transformer, inputs: Inputs) -> tuple[Windows, tuple[str, ...]]:
    """Leave out default lengths that a model or a text is too short for, and say so; lengths that are given stay."""
    limit = transformer.max_length
    remarks: list[str] = []
    if windows.lengths not in (LENGTHS, (LENGTH,)):
        return windows, ()
    lengths: tuple[int, ...] = windows.lengths
    if limit is not None and max(lengths) > limit:
        lengths = tuple(length for length in lengths if length <= limit) or (limit,)
        remarks.append(f"{transformer.name!r} has positions for {limit} tokens: {_which(lengths, windows)}")
    if inputs.room is not None and inputs.room(max(lengths), windows.stride) < windows.sequences:
        fit = [n for n in LENGTHS if n <= max(lengths) and inputs.room(n, windows.stride) >= windows.sequences]
        if fit:  # or else it is refused, with how many there are
            lengths = tuple(fit) if len(windows.lengths) > 1 else (fit[-1],)
            remarks.append(
                f"the text has no {windows.sequences} windows of {max(windows.lengths)} tokens: "
                f"{_which(lengths, windows)}"
            )
    return replace(windows, lengths=lengths), tuple(remarks[-1:])


def _which(lengths: tuple[int, ...], windows: Windows) -> str:
    taken = ", ".join(map(str, lengths))
    return f"of the default lengths {taken} are measured" if len(windows.lengths) > 1 else f"windows have {taken}"


def _windows(windows: Windows, source: Source, inputs: Inputs) -> tuple[Window, ...]:
    """List the windows of a text, if it is long enough, or the sequences that are measured whole."""
    if inputs.lengths is not None:
        return tuple(windows.whole(source.digest, inputs.lengths))
    for length in windows.lengths:
        inputs.at([windows.sequences - 1], length=length, stride=windows.stride)
    return tuple(windows.each(source.digest))


def check_device(device: str) -> None:
    """Refuse a device that torch cannot compute on here."""
    try:
        torch.zeros(1, device=device or None).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        what = str(error).splitlines()[0].rstrip(".")
        raise AssumptionError(f"the device {device!r} cannot be used: {what}.", field="device") from error


# Blocks that are looked at together are bracketed to one percent: there are as many of them as squares of layers, and
# what they are compared with is larger by orders of magnitude.
LOOSE = 0.01


class BlockSpan(NamedTuple):
    """Some consecutive blocks: the layer at which they are asked about, their map, how many, and how well."""

    layer: int
    map: str
    blocks: int
    solver: Solver


def block_spans(layers: int, solver: Solver) -> Iterator[BlockSpan]:
    """Yield every block of a model, the blocks up to every layer, those from every layer on, and all, once."""
    loose = replace(solver, rtol=max(solver.rtol, LOOSE))
    for layer in range(layers):
        yield BlockSpan(layer, "block", 1, solver)
        if layer < layers - 1:
            yield BlockSpan(0, f"to:{layer}", layer + 1, loose)
        if layer > 0:
            yield BlockSpan(layer, f"from:{layer}", layers - layer, loose)
    yield BlockSpan(0, "model", layers, solver)


def block_asks(base: ModelAndText, solver: Solver, metric: str) -> Iterator[WholeAsk]:
    """Yield the asks about every block of a model, alone and together with those before and behind it."""
    for layer, part, blocks, accuracy in block_spans(len(base.transformer.layers), solver):
        base.transformer.check_map(part, layer)
        others = {"blocks": blocks, "solver": accuracy, "metric": metric}
        yield from cast(Iterator[WholeAsk], base.each(WholeAsk, [layer], part, **others))
