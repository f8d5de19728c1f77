"""The parts of a layer of an unknown family, located in one traced forward pass by the residual sum.

Example: in a pre-norm block, the trace holds ``h`` (the input of the block), ``a`` (the output of the attention module)
and later the input ``s`` of the second norm. Since ``s = h + a`` up to rounding, ``a`` is the output of attention with
its projection, the linear module that computed ``a`` is the output projection, its input is the concatenation of the
heads, and ``s`` is the residual sum. Norms and scalings between ``a`` and the sum are followed; a block that adds
attention and MLP at once (``h + a + m``) is recognised by a later tensor that differs from ``h + a`` by another output.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.models.autograd.hooks import ModuleCall, hooked
from howsmooth.models.map_names import MapName

Side = Literal["input", "output"]
# By how many units in the last place a sum may differ that was added up in another order.
UNITS = 16
NO_SUM = (
    "no module of this model was seen to read, or to put out, the sum of the residual stream and what its attention "
    "puts out, so that its output projection is not known; use map='block', which is measured as a whole."
)
NO_FORM = "{name!r} needs a family that is read in closed form, which this model's is not; use map='block'."
NO_BLOCK = "this model keeps attention and MLP apart, so that no module is a block; use map='attention'."
NO_PROJECTION = (
    "the output projection of this model's attention is no module of its own, so that its heads cannot be told apart; "
    "use map='attention'."
)
NO_PRE_NORM = "this model normalises behind attention, not in front of it; use map='residual', or 'attention'."
NO_RESIDUAL = "the residual sum of a layer that is differentiated by autograd is not measured; use map='block'."
NO_HEADS = (
    "which columns of the output projection belong to which head could not be seen in this model; use map='heads' for "
    "all of them."
)


@dataclass(frozen=True, kw_only=True)
class TensorLocation:
    """Where a tensor occurs in a forward pass: among the inputs or the outputs of a module."""

    path: str  # the path of the module
    side: Side  # whether it is an input or an output
    turn: int = 0  # at which call of the module, from 0
    index: int = 0  # which of the floating-point tensors there


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedCall:
    """One call of a module, with copies of its tensors."""

    path: str  # the module's path
    turn: int  # which of its calls this is
    call: ModuleCall
    begin: int  # when it began, counted in beginnings and ends of calls
    end: int
    inputs: tuple[Tensor, ...]  # the tensors among its arguments
    outputs: tuple[Tensor, ...]  # the tensors among its results

    @property
    def tokens(self) -> tuple[TensorLocation, Tensor]:
        """The hidden states among the inputs, as they were then, and where they occur."""
        given = tensors((self.call.positional, self.call.named))
        index = next(i for i, x in enumerate(given) if x is self.call.given)
        return self.location("input", index), self.inputs[index]

    def location(self, side: Side, index: int = 0) -> TensorLocation:
        """Return where one of the tensors of this call occurs."""
        return TensorLocation(path=self.path, turn=self.turn, side=side, index=index)

    def located(self, side: Side) -> list[tuple[TensorLocation, Tensor]]:
        """Return the inputs or the outputs, and where each occurs."""
        values = self.inputs if side == "input" else self.outputs
        return [(self.location(side, i), x) for i, x in enumerate(values)]


def trace(model: nn.Module, tokens: Tensor) -> list[TracedCall]:
    """Run a model once and return the calls of all of its modules, in the order in which they ended."""
    finished: list[TracedCall] = []
    running: list[tuple[ModuleCall, int, tuple[Tensor, ...]]] = []
    clock = iter(range(10**9))

    def begin(call: ModuleCall, _turn: int) -> None:
        # copied now: the module may work in place
        running.append((call, next(clock), _copies((call.positional, call.named))))

    def end(output: Any, turn: int) -> None:
        call, began, inputs = running.pop()
        ended, outputs = next(clock), _copies(output)
        finished.append(
            TracedCall(path=call.path, turn=turn, call=call, begin=began, end=ended, inputs=inputs, outputs=outputs)
        )

    paths = [path for path, _part in model.named_modules()]
    run = ModuleCall.of(model, tokens)
    with hooked(model, inputs=dict.fromkeys(paths, begin), outputs=dict.fromkeys(paths, end)):
        model(*run.positional, **run.named)
    return finished


def tensors(x: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in arguments or results, however they are nested."""
    if isinstance(x, Tensor):
        if x.is_floating_point():
            yield x
    elif isinstance(x, dict):
        for part in x.values():
            yield from tensors(part)
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors(part)


def _copies(x: Any) -> tuple[Tensor, ...]:
    return tuple(part.detach().clone() for part in tensors(x))


# The locations whose tensors add up to a part, or why it is not known.
Locations = tuple[TensorLocation, ...] | str


@dataclass(frozen=True, kw_only=True)
class TracedParts:
    """Where the outputs of the parts of a layer occur, or why that is not known."""

    attention: Locations = NO_SUM  # the output of attention, with its output projection
    heads: Locations = NO_SUM  # the input of the output projection
    normed: Locations = NO_SUM  # the same as attention, if the layer is pre-norm
    residual: Locations = NO_SUM  # the residual sum, normed if the layer is post-norm
    block: Locations = ()  # empty, or why there is no block
    projection: str = ""  # the path of the output projection
    head_count: int | str = NO_HEADS  # how many heads are concatenated in the input of the projection

    def locations(self, name: MapName) -> tuple[TensorLocation, ...]:
        """Return where the output of a part occurs."""
        found = getattr(self, "heads" if name.head is not None else name.kind, NO_FORM.format(name=str(name)))
        if name.head is not None and not isinstance(found, str):
            count, h = self.head_count, name.head
            if isinstance(count, str):
                found = count
            elif not 0 <= h < count:
                found = f"this layer has the heads 0 to {count - 1}, got head:{h}."
        if isinstance(found, str):
            raise AssumptionError(found, field="map")
        return found


def traced_parts(
    calls: Sequence[TracedCall], *, attention_path: str, block_path: str, shape: tuple[int, ...]
) -> TracedParts | None:
    """Locate the parts of a layer in a trace; none if its attention did not run.

    Without a block, ``block_path`` is that of attention; ``shape``: the number of sequences, and of tokens if known.
    """
    attention = next((call for call in calls if call.path == attention_path), None)
    if attention is None:
        return None
    scope = _scope(calls, attention, block_path)
    block = next((call for call in scope if call.path == block_path), attention)
    no_block = _refuse_shape(block, shape) if block_path != attention_path else NO_BLOCK
    if reason := _refuse_shape(attention, shape) or _refuse_several_sequences(attention):
        return TracedParts(attention=reason, heads=reason, normed=reason, residual=reason, block=no_block or ())
    streams = [block.tokens, attention.tokens]
    found = _find_sum(scope, attention, streams)
    if found is None:
        return TracedParts(block=no_block or ())
    projection = found.output.projection
    (_block, stream), (_attention, X) = streams
    not_normed = _same(stream, X)
    return TracedParts(
        attention=(found.output.location,),
        heads=NO_PROJECTION if projection is None else (projection.location("input"),),
        normed=NO_BLOCK if no_block else NO_PRE_NORM if not_normed else (found.output.location,),
        residual=NO_BLOCK if no_block else _residual(scope, found, block),
        block=no_block or (),
        projection="" if projection is None else projection.path,
    )


class AttentionOutput(NamedTuple):
    """The output of attention, at some point between the projection and the residual sum."""

    location: TensorLocation  # where the output of attention itself occurs: behind the projection
    value: Tensor  # the tensor at this point; norms and scalings may have come in between
    current: TensorLocation  # where this tensor occurs
    projection: TracedCall | None  # the call of the output projection, if it is a module


class ResidualSum(NamedTuple):
    """The output of attention, the stream that it is added to, and the sum; none if the MLP is added at once."""

    output: AttentionOutput
    stream: TensorLocation
    total: tuple[TensorLocation, Tensor, int] | None


def _scope(calls: Sequence[TracedCall], attention: TracedCall, block_path: str) -> list[TracedCall]:
    """Return the calls within the block; without one, those up to the next call of a module of the same class."""
    block = next((call for call in calls if call.path == block_path), None)
    if block is not None and block_path != attention.path:
        return _recounted(call for call in calls if block.begin <= call.begin and call.end <= block.end)
    kind = type(attention.call.module)
    following = [call.begin for call in calls if type(call.call.module) is kind and call.begin > attention.end]
    return _recounted(call for call in calls if attention.begin <= call.begin < min(following, default=10**9))


def _recounted(calls: Iterable[TracedCall]) -> list[TracedCall]:
    """Count the calls of each module within the scope: layers may share modules."""
    turns: Counter[str] = Counter()
    counted = []
    for call in calls:
        counted.append(dataclasses.replace(call, turn=turns[call.path]))
        turns[call.path] += 1
    return counted


def _refuse_shape(call: TracedCall, shape: tuple[int, ...]) -> str:
    """Return why the input of a module is no batch of sequences, if so."""
    try:
        X = call.call.tokens
    except UnsupportedModelError as error:
        return str(error)
    if X.ndim == 3 and X.shape[: len(shape)] == shape:
        return ""
    axes = ("sequences", "tokens")[: len(shape)]
    return (
        f"a {type(call.call.module).__name__} of this model reads a tensor of the shape {tuple(X.shape)} for "
        f"{' and '.join(f'{n} {name}' for n, name in zip(shape, axes, strict=True))}; we need the axes (sequences, "
        "tokens, features)."
    )


def _refuse_several_sequences(attention: TracedCall) -> str:
    X, arguments = attention.call.given, (*attention.call.positional, *attention.call.named.values())
    others = [x for x in arguments if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3 and x is not X]
    if any(x.shape[0] == X.shape[0] and x.shape[2] == X.shape[2] for x in others):
        return "this model's attention is given several sequences, not one on which all depends; use map='block'."
    return ""


def _find_sum(
    scope: Sequence[TracedCall], attention: TracedCall, streams: list[tuple[TensorLocation, Tensor]]
) -> ResidualSum | None:
    later = _tensors_after(scope, attention.end)
    candidates = list(_attention_outputs(scope, attention))
    for output in candidates:
        for location, stream in streams:
            for total in later:
                if _is_step(total[1], stream, output.value):
                    return ResidualSum(output, location, total)
    # some blocks add attention and MLP to the stream at once
    outputs = [x for call in scope for x in call.outputs]
    for output in candidates:
        for location, stream in streams:
            if stream.numel() != output.value.numel():
                continue
            if _is_added_to(stream + output.value.reshape(stream.shape), later, outputs):
                return ResidualSum(output, location, None)
    return None


def _tensors_after(scope: Iterable[TracedCall], time: int) -> list[tuple[TensorLocation, Tensor, int]]:
    """Return all inputs and outputs of modules from some time on, and when each occurred."""
    inputs = [(place, x, call.begin) for call in scope if call.begin >= time for place, x in call.located("input")]
    outputs = [(place, x, call.end) for call in scope if call.end >= time for place, x in call.located("output")]
    return sorted(inputs + outputs, key=lambda item: item[2])


def _attention_outputs(scope: Sequence[TracedCall], attention: TracedCall) -> Iterable[AttentionOutput]:
    """Yield candidates: the output of the attention module, also behind simple modules, then linear parts inside."""
    if not attention.outputs:
        return
    inside = [
        call
        for call in scope
        if attention.begin < call.begin and call.end < attention.end and _is_linear(call.call.module) and call.outputs
    ]
    last = next((call for call in reversed(inside) if _same(call.outputs[0], attention.outputs[0])), None)
    location = TensorLocation(path=attention.path, side="output")
    candidates = [AttentionOutput(location, attention.outputs[0], location, last)]
    for call in sorted(scope, key=lambda call: call.begin):
        if call.begin < attention.end or any(call.call.module.children()) or not (call.inputs and call.outputs):
            continue
        source = next((output for output in reversed(candidates) if _same(output.value, call.inputs[0])), None)
        linear = _is_linear(call.call.module)
        if source is None or (linear and source.projection is not None):
            continue
        if linear:
            candidates.append(_projected(call))
        else:
            candidates.append(source._replace(value=call.outputs[0], current=call.location("output")))
    yield from candidates
    yield from map(_projected, reversed(inside))  # some attention modules add the residual themselves


def _projected(call: TracedCall) -> AttentionOutput:
    """Return the output of a linear module as that of attention."""
    location = call.location("output")
    return AttentionOutput(location, call.outputs[0], location, call)


def _residual(scope: Sequence[TracedCall], found: ResidualSum, block: TracedCall) -> Locations:
    if found.total is None:
        return (found.stream, found.output.current)
    location, total, time = found.total
    later = _tensors_after(scope, time)
    outputs = [x for call in scope if call.begin >= time for x in call.outputs]

    def goes_on(x: Tensor) -> bool:
        leaves_block = bool(block.outputs) and _same(x, block.outputs[0])
        return leaves_block or _is_added_to(x, later, outputs)

    if goes_on(total):
        return (location,)
    norms = [call for call in scope if call.begin >= time and call.inputs and call.outputs]
    for call in norms:
        if _same(call.inputs[0], total) and not any(call.call.module.children()) and goes_on(call.outputs[0]):
            return (call.location("output"),)
    return "what this model makes of the residual sum behind attention could not be seen; use map='block'."


def _is_added_to(
    stream: Tensor, later: Iterable[tuple[TensorLocation, Tensor, int]], outputs: Sequence[Tensor]
) -> bool:
    """Return whether a later tensor is the stream plus an output of a module."""
    steps = [x for x in outputs if x.numel() == stream.numel()]
    return any(_is_step(total, stream, step) for _location, total, _time in later for step in steps)


def _is_step(total: Tensor, stream: Tensor, step: Tensor) -> bool:
    """Return whether a sum is the stream plus a positive multiple of the step, up to rounding."""
    if not total.numel() == stream.numel() == step.numel():
        return False
    total, stream, step = (x.reshape(-1) for x in (total, stream, step))
    difference = total - stream
    size = step @ step
    factor = (difference @ step) / size if size > 0 else size
    if not factor > 0:
        return False
    slack = UNITS * torch.finfo(total.dtype).eps * (total.abs() + stream.abs() + (factor * step).abs())
    visible = (factor * step).abs() > 100 * slack  # a step that rounding hides proves nothing
    return bool(((difference - factor * step).abs() <= slack).all()) and bool(visible.double().mean() > 0.5)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and torch.equal(a.reshape(-1), b.reshape(-1))


def _is_linear(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)
