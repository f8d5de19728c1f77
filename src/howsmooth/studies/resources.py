"""Models and texts that asks name: loaded once, kept as long as whoever does the work, and released with it."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from msgspec.structs import replace
from torch import Tensor

from howsmooth.errors import AssumptionError, FileError
from howsmooth.maps.attention import Attention
from howsmooth.models.activations import Activations
from howsmooth.models.attention_layer import Measurable
from howsmooth.models.inputs.model_inputs import Inputs, inputs
from howsmooth.models.inputs.sources import Source, read_source
from howsmooth.models.load import load
from howsmooth.models.loading.pretrained import tokenizer_named
from howsmooth.models.shared_sequence import SharedSequence
from howsmooth.models.transformer import Transformer
from howsmooth.spectral.operators import Differentiable
from howsmooth.studies.asks import AboutHead, Ask, AtText
from howsmooth.studies.json_values import fingerprint
from howsmooth.studies.settings import Compute, ModelReading, Window
from howsmooth.token_ring import TokenRing

T = TypeVar("T")
# How many models are kept, each under at most two names: with the numbers that were asked for, and with those it has.
MODELS = 2


class Resources:
    """What asks need beside themselves. Belongs to an executor; nothing of it outlives :meth:`release`."""

    def __init__(self, transformers: Iterable[Transformer] = (), group: Any = None) -> None:
        """Begin with models that are in memory already; some of them no name leads to.

        With a process group, the tokens of every sequence are shared out over its processes.
        """
        self.group = group
        # what each thread has done of the unit that it is at, in the measure of costs, and who wants to know of it
        self.under_way: dict[int, float] = {}
        self.watch: Callable[[float], None] = lambda _cost: None
        self._shared: dict[Any, SharedSequence] = {}
        self._given = {transformer.name: transformer for transformer in transformers}
        self._expected: list[Sequence[Ask]] = []
        self._streamed: dict[Any, Activations] = {}
        self._models: dict[tuple[str, str, str, ModelReading], Transformer] = {}
        # what threads share is made once: who wants it too waits for it
        self._turn = threading.RLock()
        # caches of this object, not of the class: they go when it goes
        self._read = functools.lru_cache(maxsize=4)(read_source)
        self._inputs = functools.lru_cache(maxsize=4)(_inputs)
        self._activations = functools.lru_cache(maxsize=1)(self._run_model)
        self._once = functools.lru_cache(maxsize=8)(_call)
        self._latest = functools.lru_cache(maxsize=1)(_call)

    def release(self) -> None:
        """Forget everything."""
        self._given.clear()
        self._models.clear()
        self._expected.clear()
        self._streamed.clear()
        self._shared.clear()
        for cache in (self._read, self._inputs, self._activations, self._once, self._latest):
            cache.cache_clear()

    def report(self, cost: float) -> None:
        """Say that so much more of the unit at hand is done; a unit that takes seconds need not say so."""
        thread = threading.get_ident()
        self.under_way[thread] = self.under_way.get(thread, 0.0) + cost
        self.watch(sum(tuple(self.under_way.values())))

    def once(self, make: Callable[..., T], *arguments: Any) -> T:
        """Return what a function makes of some arguments; the second time, what it made."""
        with self._turn:
            return self._once(make, *arguments)

    def latest(self, make: Callable[..., T], *arguments: Any) -> T:
        """Like :meth:`once` for what is large: the last one alone is kept."""
        with self._turn:
            return self._latest(make, *arguments)

    def transformer(self, model: str, where: Compute | None = None, reading: ModelReading | None = None) -> Transformer:
        """Return a model."""
        where = Compute() if where is None else where
        reading = ModelReading() if reading is None else reading
        with self._turn:
            given = self._given.get(model)
            if given is None:
                return self._loaded(model, where.dtype, where.device, reading, where.streamed)
            return self._once(_with_tokenizer, given, reading.tokenizer) if reading.tokenizer else given

    def _loaded(self, model: str, dtype: str, device: str, reading: ModelReading, streamed: bool | None) -> Transformer:
        if (model, dtype, device, reading) not in self._models:
            while len(set(map(id, self._models.values()))) >= MODELS:
                self._models.pop(next(iter(self._models)))
            found = load(
                model,
                dtype=getattr(torch, dtype) if dtype else None,
                device=device or None,
                tokenizer=reading.tokenizer or None,
                family=reading.family,
                streamed=streamed,
            )
            # a plan may leave the numbers to the model; its asks name them, and mean this model
            own = str(next(found.module.parameters()).dtype).removeprefix("torch.")
            self._models |= {(model, dtype, device, reading): found, (model, own, device, reading): found}
        return self._models[model, dtype, device, reading]

    def source(self, window: Window) -> Source:
        """Return what a window is a part of, if it still is what it was."""
        source = self._read(window.source, window.text)
        if source.digest != window.digest:
            self._read.cache_clear()  # the file may have changed before the ask was made
            source = self._read(window.source, window.text)
        if source.digest != window.digest:
            raise FileError(
                f"the text {window.text!r} is not what it was when it was planned; run the command again.",
                field=window.source,
            )
        return source

    def inputs(self, transformer: Transformer, source: Source, *, special_tokens: bool) -> Inputs:
        """Return a source as a model reads it, read once."""
        with self._turn:
            return self._inputs(transformer, source, special_tokens)

    def activations(self, batch: Sequence[AtText]) -> tuple[Activations, list[int]]:
        """Run the model on the windows of a batch; return what enters each layer, and the numbers of the windows."""
        key, indices = _run_of(batch)
        with self._turn:
            if not batch[0].where.streamed:
                return self._activations(key, indices), list(indices)
            # all batches go through every block together, so that it is read once
            for other in map(_run_of, (batch, *(other for other in self._expected if isinstance(other[0], AtText)))):
                if other not in self._streamed and other[0].where.streamed:
                    self._streamed[other] = self._run_model(*other)
            self._expected.clear()
            return self._streamed[key, indices], list(indices)

    def expect(self, batches: Iterable[Sequence[Ask]]) -> None:
        """Say which batches will come."""
        self._expected = list({id(batch): batch for batch in batches}.values())

    def expects(self, batch: Sequence[Ask]) -> bool:
        """Tell whether whoever does the work will be asked all of a batch."""
        return any(other is batch for other in self._expected)

    def entering(
        self, batch: Sequence[AtText], cell: Sequence[AtText]
    ) -> tuple[Measurable, Float[Tensor, "windows n d"]]:
        """Return the map that the asks of a cell share, and what enters it at each of their windows."""
        activations, indices = self.activations(batch)
        f, X = activations.at(cell[0].layer, cell[0].map)
        rows = [indices.index(ask.window.index) for ask in cell]
        if rows != list(range(len(indices))) and not isinstance(f, Differentiable):
            raise AssumptionError("a map without a closed form is measured at all windows of its batch.")
        return f, X[rows]

    def shared(self, batch: Sequence[AtText]) -> SharedSequence:
        """Return the sequences of a batch, whose tokens the processes of the group share out."""
        run = ask, indices = _run_of(batch)
        if run not in self._shared:
            if not ask.where.streamed:  # where blocks come one by one, all batches go through each together
                self._shared.clear()
            transformer, tokens = self._tokens(ask, indices)
            causal = any(part.attention is not None and part.attention.positions.causal for part in transformer.layers)
            ring = TokenRing.even(self.group, tokens.shape[-1], causal=causal)
            self._shared[run] = SharedSequence(transformer, tokens, ring)
        return self._shared[run]

    def attention(self, ask: AboutHead) -> Attention:
        """Return the attention map that an ask names: from matrices, or a part of a layer of a model."""
        if ask.A:
            A, V = (torch.tensor(matrix, dtype=torch.float64) for matrix in (ask.A, ask.V))
            return Attention.single_head(A=A, V=V)
        found = self.transformer(ask.model, reading=ModelReading(family=ask.family)).layer(ask.layer).map(ask.map)
        if not isinstance(found, Attention):
            raise AssumptionError(
                f"{ask.kind!r} is about attention alone, got the map {ask.map!r}; use attention, heads or head:3.",
                field="map",
            )
        if ask.biases:
            return found
        return dataclasses.replace(found, query_bias=None, key_bias=None, value_bias=None, output_bias=None)

    # the cells of a batch come one after the other: each finds what the first one computed
    def _run_model(self, ask: AtText, indices: tuple[int, ...]) -> Activations:
        transformer, tokens = self._tokens(ask, indices)
        return transformer.activations(tokens)

    def _tokens(self, ask: AtText, indices: tuple[int, ...]) -> tuple[Transformer, Tensor]:
        """Return the model of an ask, and the windows that it reads."""
        transformer, window = self.transformer(ask.model, ask.where, ask.reading), ask.window
        found = self.inputs(transformer, self.source(window), special_tokens=window.special_tokens)
        return transformer, found.at(indices, length=window.length, stride=window.stride)


def _run_of(batch: Sequence[Any]) -> tuple[AtText, tuple[int, ...]]:
    """Return what a run of the model at a batch depends on, and the numbers of its windows."""
    first = batch[0]
    indices = tuple(sorted({ask.window.index for ask in batch}))
    return replace(first, layer=0, map="", window=replace(first.window, index=0)), indices


def seeded(asks: Iterable[Ask]) -> torch.Generator:
    """Seed randomness by what is asked, so that no order of work changes an answer."""
    return torch.Generator().manual_seed(int(fingerprint([ask.key for ask in asks]), 16) >> 1)


def _with_tokenizer(transformer: Transformer, name: str) -> Transformer:
    return dataclasses.replace(transformer, tokenizer=tokenizer_named(name))


def _inputs(transformer: Transformer, source: Source, special_tokens: bool) -> Inputs:
    return inputs(source, transformer, special_tokens=special_tokens)


def _call(make: Callable[..., T], *arguments: Any) -> T:
    return make(*arguments)
