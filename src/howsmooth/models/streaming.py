"""Models larger than memory: blocks come from their files one at a time, and all windows go through each together.

The module is built without memory (on the meta device). What is not in a block stays in memory, except the table of
tokens, of which the rows that are read come and go. A block is filled when something of its layer is asked for, and
emptied when another is: maps that were read of it keep their weights as long as somebody holds them.

The whole module can be run and differentiated, too: each part is filled before it is called, and again when a backward
pass comes to it. What autograd would keep of its weights is their names.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from howsmooth.errors import UnsupportedModelError
from howsmooth.files import gigabytes
from howsmooth.maps.composition import Chain
from howsmooth.maps.protocols import Map
from howsmooth.models.activations import Activations, OnDemand
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.autograd.hooks import (
    ModuleCall,
    StopForward,
    hooked,
    recorded_calls,
    recorded_outputs,
    without_cache,
)
from howsmooth.models.families.parameters import token_table
from howsmooth.models.loading.weight_files import WeightFiles
from howsmooth.models.module_comparison import layer_difference
from howsmooth.models.parts.block import block
from howsmooth.models.parts.ends import Ends, LanguageHead, language_head
from howsmooth.models.streamed_blocks import StreamedBlocks

# What becomes of a weight.
Change = Callable[[Tensor], Tensor]


class BlockStream:
    """The blocks of a module without memory, of which one is filled at a time.

    Args:
        module: The model without its head.
        files: The weights of ``whole``.
        read: What reads the layers of the module as it is.
        whole: The model with its head; the module itself, if that has none.
    """

    def __init__(
        self,
        module: nn.Module,
        files: WeightFiles,
        read: Callable[[nn.Module], Sequence[AttentionLayer]],
        whole: nn.Module,
    ):
        self.module, self.files, self._read, self.whole = module, files, read, whole
        self.layers = tuple(read(module))  # their weights are not in memory
        self.reads = 0  # how often a part was read so far
        self._filled: str | None = None  # the path in the whole model
        self._changes: Mapping[str, Change] = {}
        self._walks: weakref.WeakSet[Walk] = weakref.WeakSet()
        self._compared: set[int] = set()
        trunk = next(path for path, part in whole.named_modules() if part is module)
        self._prefix = f"{trunk}." if trunk else ""  # of names in the module, for those in the whole model
        table = token_table(module)
        self._table = next((path for path, part in whole.named_modules() if part is table), None)
        # what comes and goes: blocks, the table of tokens, and what belongs to the head alone
        parts = {self._prefix + layer.block_path for layer in self.layers}
        parts |= {self._table} if self._table is not None else set()
        parts |= {name.rpartition(".")[0] for name in files.places if not name.startswith(self._prefix)}
        self._parts = sorted(parts)
        with torch.no_grad():
            values = {name: files.read(name) for name in files.places if not self.comes(name)}
        whole.load_state_dict(values, strict=False, assign=True)

    def comes(self, name: str) -> bool:
        """Return whether a parameter of the whole model comes into memory when its part is run."""
        return name.startswith(tuple(f"{path}." for path in self._parts))

    def stored(self, name: str) -> Tensor | None:
        """Read a parameter of the module without its head; none if the files do not have it."""
        name = self._prefix + name
        return self.files.read(name) if name in self.files.places else None

    @property
    def note(self) -> str:
        """What a user has to know."""
        size = gigabytes(self.files.size)
        return f"the weights of {self.files.model!r} ({size}) stay in their files, and come in block by block"

    def fill(self, index: int) -> nn.Module:
        """Return the block of a layer, filled; the one before is emptied."""
        return self._bring(self._prefix + self.layers[index].block_path)

    def _bring(self, path: str) -> nn.Module:
        part = self.whole.get_submodule(path)
        if path != self._filled:
            self._empty()
            self.files.fill(self.whole, path)
            for name, change in self._changes.items():
                if name.startswith(f"{path}."):
                    W = self.whole.get_parameter(name)
                    W.data = change(W.detach())
            self._filled = path
            self.reads += 1
        return part

    def _empty(self) -> None:
        if self._filled is None:
            return
        part, self._filled = self.whole.get_submodule(self._filled), None
        part.load_state_dict({name: p.to("meta") for name, p in part.named_parameters()}, strict=False, assign=True)

    @contextmanager
    def running(self, changes: Mapping[str, "Change"] | None = None) -> Iterator[None]:
        """Let the whole model be called: every part is filled first, and again when a backward pass comes to it.

        A gradient that is taken behind the ``with`` block finds the weights as they are in the files.

        Args:
            changes: What becomes of weights that come and go, by their names; of a run without gradients.
        """
        if changes:
            self._empty()
        self._changes = changes or {}

        def fill(call: ModuleCall, _turn: int) -> None:
            self._bring(call.path)

        try:
            with (
                hooked(self.whole, inputs=dict.fromkeys(self._parts, fill), prepend=True),
                torch.autograd.graph.saved_tensors_hooks(self._named, self._again),
            ):
                yield
        finally:
            if self._changes:
                self._empty()
            self._changes = {}

    def tied_head(self) -> LanguageHead:
        """Return the maps from the last hidden states to the scores of words, with the weights of the table."""
        assert self._table is not None  # or there would be no such head
        self._bring(self._table)
        found = language_head(self.module, self.module)
        assert not isinstance(found, str)
        return found

    def _named(self, X: Tensor) -> "Tensor | _Weight":
        """Return the name of a weight in place of it, and other tensors as they are."""
        if self._filled is not None:
            start = X.data_ptr()
            for name, W in self.whole.get_submodule(self._filled).named_parameters():
                if W.data_ptr() <= start < W.data_ptr() + W.nbytes:
                    offset = (start - W.data_ptr()) // W.itemsize
                    return _Weight(part=self._filled, name=name, size=X.shape, stride=X.stride(), offset=offset)
        return X

    def _again(self, kept: "Tensor | _Weight") -> Tensor:
        """Return a weight by its name, whose part is filled for it."""
        if isinstance(kept, Tensor):
            return kept
        W = self._bring(kept.part).get_parameter(kept.name)
        return W.detach().as_strided(kept.size, kept.stride, W.storage_offset() + kept.offset)

    def layer(self, index: int) -> AttentionLayer:
        """Return a layer with its weights."""
        self.fill(index)
        found = self._read(self.module)[index]
        if any(x.is_meta for x in _tensors(found)):
            raise UnsupportedModelError(
                f"{self.files.model!r} cannot be streamed: its layer {index} reads weights of other blocks; load it "
                "with streamed=False.",
                field="streamed",
            )
        return found

    @contextmanager
    def words(self, tokens: Tensor) -> Iterator[None]:
        """Fill the rows of the table of tokens that some tokens need."""
        if self._table is None or tokens.is_floating_point():
            yield
            return
        table: Any = self.whole.get_submodule(self._table)
        kept, rows = table.weight, tokens.unique()
        # the system gives memory to rows that are written, and to no others
        weight = torch.empty(kept.shape, dtype=kept.dtype, device=self.files.device)
        weight[rows] = self.files.read(f"{self._table}.weight", rows.cpu())
        table.weight = nn.Parameter(weight, requires_grad=False)
        try:
            yield
        finally:
            table.weight = kept

    def activations(self, run: ModuleCall, padding: Bool[Tensor, "batch n"] | None, ends: Ends) -> Activations:
        """Return the inputs of all layers, each computed when it is asked for: fastest in the order of layers."""
        walk, count = Walk(self, run, padding), len(self.layers)
        self._walks.add(walk)
        return Activations(
            layers=OnDemand(count, walk.layer),
            padding=padding,
            ends=ends,
            run=run,
            embedded=None if ends.stem is None or ends.stem.path is None else walk.call((ends.stem.path,)),
            attention_calls=OnDemand(count, lambda index: walk.at(index).attention_call),
            block_calls=OnDemand(count, lambda index: walk.at(index).block_call),
            streamed=walk.blocks,
        )

    def advance(self, walk: "Walk", index: int) -> None:
        """Move a walk to a layer; others that stand at the same block go with it, so that each block is read once."""
        if walk.index > index:
            walk.restart()
        while walk.index < index:
            here = walk.index
            self.fill(here + 1)
            for other in [other for other in self._walks if other.index == here]:
                other.enter()

    def compare(self, walk: "Walk", layer: AttentionLayer) -> None:
        """Compare the maps of a layer with its module once: at the first sequence that is run."""
        if layer.index in self._compared:
            return
        attention, whole = (walk.attention_call, walk.attention_output), (walk.block_call, walk.block_output)
        if why := layer_difference(layer, walk.padding, attention, whole):
            raise UnsupportedModelError(f"{why}; load the model with streamed=False.", field="streamed")
        self._compared.add(layer.index)


@dataclass(frozen=True, kw_only=True)
class _Weight:
    """A weight, or a view of one, that autograd keeps for a backward pass."""

    part: str  # the path of the part that it is in
    name: str  # its name there
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # in numbers, from the first of the weight


class Walk:
    """One batch on its way through the blocks of a stream.

    It stands in one block, of which it knows the call, that of its attention, and what they put out. To find the call
    of the next block, the module runs anew; every block that is behind puts out what the last one did.
    """

    def __init__(self, stream: BlockStream, run: ModuleCall, padding: Tensor | None) -> None:
        self.stream, self.run, self.padding = stream, run, padding
        self.restart()

    def restart(self) -> None:
        """Go back to where no block has run."""
        self.index = -1
        self._output: Any = None
        self.attention_call = self.block_call = self.run

    def at(self, index: int) -> "Walk":
        """Go to a layer."""
        self.stream.advance(self, index)
        return self

    def layer(self, index: int) -> AttentionLayer:
        """Go to a layer and return it with its weights, compared with its module."""
        self.at(index)
        found = self.stream.layer(index)
        self.stream.compare(self, found)
        return found

    @torch.no_grad()
    def enter(self) -> None:
        """Run the next block, which is filled."""
        index = self.index + 1
        layer = self.stream.layers[index]
        call = self.call([layer.block_path for layer in self.stream.layers], index)
        part = self.stream.module.get_submodule(layer.block_path)
        attention, output = (
            path.removeprefix(layer.block_path).removeprefix(".") for path in (layer.attention_path, layer.output_path)
        )
        positional, named = call.at(call.tokens)
        with recorded_calls(part, {attention: 1}) as calls, recorded_outputs(part, {output, ""}) as outputs:
            self._output = part(*positional, **named)
        self.block_call, self.attention_call = call, calls[attention, 0]
        self.block_output, self.attention_output = outputs["", 0], outputs[output, 0]
        self.index = index

    def blocks(self, first: int, last: int, before: Sequence[Map], behind: Sequence[Map]) -> "StreamedBlocks":
        """Return consecutive blocks, and maps before and behind them, as one map."""

        def read(index: int) -> Chain:
            layer = self.stream.layer(index)
            return block(layer, layer.padded(self.padding))

        parts: list[Callable[[], Chain]] = [functools.partial(read, index) for index in range(first, last + 1)]
        parts = [functools.partial(Chain, *before)] * bool(before) + parts
        return StreamedBlocks(parts + [functools.partial(Chain, *behind)] * bool(behind), self.stream.files.dtype)

    def call(self, paths: Sequence[str], before: int = 0) -> ModuleCall:
        """Run the module, whose blocks put out what the last one did, and return a call of one of the parts at paths.

        So many calls come ``before``.
        """
        module, found, calls = self.stream.module, list[ModuleCall](), iter(range(before))
        blocks = {layer.block_path for layer in self.stream.layers}

        def arrive(call: ModuleCall, _turn: int) -> None:
            if next(calls, None) is None:
                found.append(call)
                raise StopForward

        with (
            _answering([module.get_submodule(path) for path in blocks], self._output),
            self.stream.words(self.run.tokens),
            without_cache(module),
            hooked(module, inputs=dict.fromkeys(paths, arrive), prepend=True),
        ):
            module(*self.run.positional, **self.run.named)
        return found[0]


@contextmanager
def _answering(parts: Sequence[Any], output: Any) -> Iterator[None]:
    """Let some modules put out what is given, whatever they read."""
    for part in parts:
        part.forward = lambda *_positional, **_named: output
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in the fields of dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
