"""ONNX files as maps: whatever way attention is written out in, it is recognised by what it computes.

Every tensor between two nonlinear operations is an affine function of the tokens that entered the residual block; its
matrix is found by running the operations on a basis. Heads, hidden units and biases are then read off these matrices,
whatever transposes, reshapes, folded norms and class tokens a file has between them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import AssumptionError, FileError, UnsupportedModelError
from howsmooth.maps.affine import Affine
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.mlp import MLP

Array = np.ndarray[Any, np.dtype[Any]]
# How far a map may be from the file's own values, and parts of a matrix from each other.
TOLERANCE = 1e-5
EXTRA = "Reading ONNX files needs the packages onnx and onnxruntime: pip install 'howsmooth[onnx]'."


@dataclass(frozen=True, eq=False)
class _AffineForm:
    """An affine function of the numbers of a base: its value at zero, and a column for each number."""

    base: int
    offset: Array
    columns: Array

    def mapped(self, linear: Callable[[Array], Array]) -> "_AffineForm":
        """Apply a linear operation that acts on all but the first axis."""
        return _AffineForm(self.base, linear(self.offset[None])[0], linear(self.columns))


@dataclass(frozen=True, eq=False)
class _Scores:
    """Products of queries and keys, or their softmax."""

    query: _AffineForm
    key: _AffineForm
    scale: float = 1.0
    softmax: bool = False


@dataclass(eq=False)
class _Reader:
    """The nodes of a graph, run one after another."""

    values: dict[str, Any] = field(default_factory=dict)
    streams: set[str] = field(default_factory=set)
    maps: list[Any] = field(default_factory=list)
    # what made the numbers of each base: None for tokens, a score product with values, or hidden units
    bases: list[Any] = field(default_factory=list)

    def identity(self, shape: Sequence[int], made_by: Any) -> _AffineForm:
        """Start a new base."""
        self.bases.append(made_by)
        size = int(np.prod(shape))
        return _AffineForm(len(self.bases) - 1, np.zeros(shape), np.eye(size).reshape(size, *shape))


def read_onnx(path: str | Path) -> Chain:
    """Read a classifier from an ONNX file as a chain of maps on one token that holds all inputs.

    Args:
        path: The file. Its network is an affine embedding, residual blocks of softmax attention and of ReLU layers, and
            an affine readout; batch norms are folded.
    """
    return read_and_run(path)[0]


def read_and_run(path: str | Path) -> tuple[Chain, Callable[[Tensor], Tensor]]:
    """Read a file as a chain of maps, and return it with the network as onnxruntime runs it; they are compared."""
    try:
        import onnx
    except ImportError as error:
        raise AssumptionError(EXTRA) from error
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf has an exception of its own for every fault
        raise FileError(f"{path} is not an ONNX file that can be read: {error}") from error
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    inputs = [x for x in model.graph.input if x.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise UnsupportedModelError(f"{path} has {len(inputs)} inputs and {len(model.graph.output)} outputs: one each.")
    shape = [1, *(d.dim_value for d in inputs[0].type.tensor_type.shape.dim[1:])]
    if not all(shape):
        raise UnsupportedModelError(f"{path} does not say the size of its input {inputs[0].name}: {shape}.")
    reader = _Reader(streams=_streams(model.graph.node, inputs[0].name))
    reader.values = {name: _wide(array) for name, array in constants.items()}
    reader.values[inputs[0].name] = reader.identity(shape, None)
    for node in model.graph.node:
        _run(reader, node, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
    network, run = _finish(reader, model.graph.output[0].name), session_of(path)
    _compare(network, run, int(np.prod(shape)))
    return network, run


def session_of(path: str | Path) -> Callable[[Tensor], Tensor]:
    """Return the network of a file as onnxruntime runs it, from a vector of inputs to one of outputs."""
    try:
        import onnxruntime
    except ImportError as error:
        raise AssumptionError(EXTRA) from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    shape = [1, *given.shape[1:]]

    def run(x: Tensor) -> Tensor:
        fed = {given.name: x.numpy().astype(np.float32).reshape(shape)}
        return torch.from_numpy(session.run(None, fed)[0]).double().flatten()

    return run


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _streams(nodes: Sequence[Any], source: str) -> set[str]:
    """Return the tensors that are added to something computed from them: the tokens between blocks."""
    ancestors: dict[str, set[str]] = {source: set()}
    streams = set()
    for node in nodes:
        dynamic = [name for name in node.input if name in ancestors and node.op_type != "Shape"]
        if dynamic:
            before = set(dynamic).union(*(ancestors[name] for name in dynamic))
            ancestors.update(dict.fromkeys(node.output, before))
        if node.op_type == "Add" and len(dynamic) == 2:
            first, second = dynamic
            streams |= {name for name, other in ((first, second), (second, first)) if name in ancestors[other]}
    return streams


def _run(reader: _Reader, node: Any, options: dict[str, Any]) -> None:
    inputs = [reader.values[name] if name else None for name in node.input]
    try:
        if node.op_type == "Constant":
            import onnx

            value = onnx.numpy_helper.to_array(options["value"]) if "value" in options else next(iter(options.values()))
            found: Any = _wide(np.asarray(value))
        elif node.op_type == "Shape":
            x: Any = inputs[0]
            found = np.array((x.offset if isinstance(x, _AffineForm) else x).shape, dtype=np.int64)
        elif not any(isinstance(x, _AffineForm | _Scores) for x in inputs):
            found = _OPERATIONS[node.op_type](
                options, *(None if x is None else x[None] for x in inputs[:1]), *inputs[1:]
            )
            found = found[0] if node.op_type not in _WHOLE else found
        else:
            found = _symbolic(reader, node.op_type, options, inputs)
    except KeyError as error:
        raise UnsupportedModelError(f"the node {node.name or node.output[0]} is {node.op_type}, {_READS}") from error
    except _NotReadError as error:
        raise UnsupportedModelError(f"the node {node.name or node.output[0]} ({node.op_type}) {error}.") from error
    if node.output[0] in reader.streams and isinstance(found, _AffineForm):
        found = _next_tokens(reader, found)
    reader.values[node.output[0]] = found


class _NotReadError(Exception):
    """A node does something that no map here does."""


_READS = (
    "which is not read: networks are an embedding, residual blocks of softmax attention and of ReLU layers, batch "
    "norms and an affine readout."
)


def _symbolic(reader: _Reader, kind: str, options: dict[str, Any], inputs: list[Any]) -> Any:
    first, *rest = inputs
    second: Any = rest[0] if rest else None
    if kind == "MatMul" and isinstance(second, _AffineForm) and not isinstance(first, np.ndarray):
        if isinstance(first, _Scores):
            return _attended(reader, first, second)
        return _Scores(first, second)
    if isinstance(first, _Scores) or isinstance(second, _Scores):
        return _of_scores(kind, options, *inputs)
    if kind == "Relu":
        return reader.identity(first.offset.shape, first)
    if kind == "Add" and isinstance(first, _AffineForm) and isinstance(second, _AffineForm):
        return _added(reader, first, second)
    if kind in ("Add", "Sub"):
        form, other = (first, second) if isinstance(first, _AffineForm) else (second, first)
        if kind == "Sub" and form is second:
            form, other = form.mapped(np.negative), other
        elif kind == "Sub":
            other = -other
        shape = np.broadcast_shapes(form.offset.shape, np.shape(other))
        columns = np.broadcast_to(form.columns, (len(form.columns), *shape))
        return _AffineForm(form.base, form.offset + other, columns)
    if kind in ("Mul", "Div"):
        form, other = (first, second) if isinstance(first, _AffineForm) else (second, first)
        if isinstance(other, _AffineForm) or (kind == "Div" and form is second):
            raise _NotReadError("multiplies or divides two tensors that depend on the input")
        return form.mapped(lambda x: x * other if kind == "Mul" else x / other)
    if kind == "BatchNormalization":
        scale, shift, mean, variance = (x.reshape(-1, *(1,) * (first.offset.ndim - 2)) for x in rest[:4])
        factor = scale / np.sqrt(variance + options.get("epsilon", 1e-5))
        return _AffineForm(first.base, first.offset * factor + (shift - mean * factor), first.columns * factor)
    if kind in ("Conv", "Gemm"):
        found = first.mapped(lambda x: _OPERATIONS[kind](options, x, rest[0]))
        if len(rest) == 1 or rest[1] is None:
            return found
        bias = rest[1].reshape(-1, *(1,) * (found.offset.ndim - 2)) if kind == "Conv" else rest[1]
        return _AffineForm(found.base, found.offset + options.get("beta", 1.0) * bias, found.columns)
    if kind == "Concat":
        return _joined(options, inputs)
    if kind == "MatMul" and isinstance(first, np.ndarray):
        return second.mapped(lambda x: first @ x)
    return first.mapped(lambda x: _OPERATIONS[kind](options, x, *rest))


def _of_scores(kind: str, options: dict[str, Any], first: Any, second: Any = None) -> _Scores:
    if kind == "Softmax" and options.get("axis", -1) in (-1, first.query.offset.ndim - 1) and not first.softmax:
        return _Scores(first.query, first.key, first.scale, softmax=True)
    scores, factor = (first, second) if isinstance(first, _Scores) else (second, first)
    if kind in ("Mul", "Div") and not scores.softmax and np.size(factor) == 1 and isinstance(first, _Scores):
        number = float(np.asarray(factor).item())
        scale = scores.scale * number if kind == "Mul" else scores.scale / number
        return _Scores(scores.query, scores.key, scale)
    raise _NotReadError("does more with scores than to scale them and to take their softmax")


def _attended(reader: _Reader, scores: _Scores, value: _AffineForm) -> _AffineForm:
    if not scores.softmax:
        raise _NotReadError("multiplies scores by values without a softmax")
    if not scores.query.base == scores.key.base == value.base:
        raise _NotReadError("attends from some tokens to others")
    shape = (*scores.query.offset.shape[:-1], value.offset.shape[-1])
    return reader.identity(shape, (scores, value))


def _added(reader: _Reader, first: _AffineForm, second: _AffineForm) -> _AffineForm:
    if first.base == second.base:
        return _AffineForm(first.base, first.offset + second.offset, first.columns + second.columns)
    stream, inner = (first, second) if first.base < second.base else (second, first)
    made_by = reader.bases[inner.base]
    entered = made_by[1].base if isinstance(made_by, tuple) else getattr(made_by, "base", None)
    size = stream.offset.size
    if entered != stream.base or not np.array_equal(stream.columns.reshape(len(stream.columns), -1), np.eye(size)):
        raise _NotReadError("adds tensors that are not the tokens before a block and what the block makes of them")
    reader.maps.append(Residual(_attention(made_by, inner) if isinstance(made_by, tuple) else _mlp(made_by, inner)))
    return reader.identity(stream.offset.shape, None)


def _next_tokens(reader: _Reader, found: _AffineForm) -> _AffineForm:
    """Let the tokens between blocks be a base of their own."""
    size = found.offset.size
    if reader.bases[found.base] is None and np.array_equal(found.columns.reshape(len(found.columns), -1), np.eye(size)):
        return found
    if found.base or reader.maps or found.offset.ndim != 3:
        raise _NotReadError("makes tokens of something that is no residual block")
    n, d = found.offset.shape[1:]
    weight = np.moveaxis(found.columns.reshape(-1, n, d), 0, -1)[:, :, None]
    reader.maps.append(Affine(weight=_tensor(weight), bias=_tensor(found.offset[0])))
    return reader.identity(found.offset.shape, None)


def _finish(reader: _Reader, output: str) -> Chain:
    found = reader.values[output]
    if not isinstance(found, _AffineForm) or reader.bases[found.base] is not None or not reader.maps:
        raise UnsupportedModelError(f"the output {output} is no affine function of the tokens behind the last block.")
    n, d = np.shape(reader.maps[0].bias)
    weight = np.moveaxis(found.columns.reshape(n, d, -1), -1, 0)[None]
    return Chain(*reader.maps, Affine(weight=_tensor(weight), bias=_tensor(found.offset.reshape(1, -1))))


def _attention(made_by: tuple[_Scores, _AffineForm], inner: _AffineForm) -> Attention:
    scores, value = made_by
    shape = inner.offset.shape
    heads = [_per_token(form, axis) for form, axis in ((scores.query, -2), (scores.key, -1), (value, -2))]
    (query, query_bias), (key, key_bias), (values, value_bias) = heads
    h, v = query.shape[0], values.shape[1]
    n, out = shape[-2:]
    columns = inner.columns.reshape(h, n, v, n, out)
    return Attention(
        query=query,
        key=key,
        value=values,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output=_tensor(np.moveaxis(_diagonal(columns, 1, 3), -1, 1)),
        output_bias=_tensor(_common(inner.offset.reshape(n, out), 0)),
        scale=scores.scale,
    )


def _mlp(hidden: _AffineForm, inner: _AffineForm) -> MLP:
    n, width = hidden.offset.shape[-2:]
    out = inner.offset.shape[-1]
    up = _diagonal(hidden.columns.reshape(n, -1, n, width), 0, 2).T
    down = _diagonal(inner.columns.reshape(n, width, n, out), 0, 2).T
    return MLP(
        up=_tensor(up),
        down=_tensor(down),
        up_bias=_tensor(_common(hidden.offset.reshape(n, width), 0)),
        down_bias=_tensor(_common(inner.offset.reshape(n, out), 0)),
        activation="relu",
    )


def _per_token(form: _AffineForm, axis: int) -> tuple[Tensor, Tensor]:
    """Return the weights and the biases of queries, keys or values, whose tokens stand on this axis."""
    offset = form.offset if axis == -2 else np.swapaxes(form.offset, -1, -2)
    columns = form.columns if axis == -2 else np.swapaxes(form.columns, -1, -2)
    n, width = offset.shape[-2:]
    offset, columns = offset.reshape(-1, n, width), columns.reshape(n, -1, offset.size // (n * width), n, width)
    return _tensor(np.moveaxis(_diagonal(columns, 0, 3), 0, -1)), _tensor(_common(offset, 1))


def _diagonal(columns: Array, first: int, second: int) -> Array:
    """Return what every token does with itself, if all do the same and nothing with each other."""
    n = columns.shape[first]
    same = np.moveaxis(np.diagonal(columns, axis1=first, axis2=second), -1, 0)
    apart = np.linalg.norm(columns) ** 2 - np.linalg.norm(same) ** 2
    if apart > TOLERANCE**2 * np.linalg.norm(columns) ** 2 and n > 1:
        raise _NotReadError("belongs to a block whose projections mix tokens")
    return _common(same, 0)


def _common(x: Array, axis: int) -> Array:
    """Return what is the same along an axis."""
    first = np.take(x, [0], axis)
    if np.abs(x - first).max() > TOLERANCE * max(np.abs(x).max(), 1e-30):
        raise _NotReadError("belongs to a block that treats tokens differently by their position")
    return np.squeeze(first, axis)


def _joined(options: dict[str, Any], parts: list[Any]) -> _AffineForm:
    form = next(part for part in parts if isinstance(part, _AffineForm))
    axis = options["axis"] % form.offset.ndim
    if any(isinstance(part, _AffineForm) and part.base != form.base for part in parts):
        raise _NotReadError("joins tensors of different blocks")
    offsets = [part.offset if isinstance(part, _AffineForm) else part for part in parts]
    size = len(form.columns)
    columns = [p.columns if isinstance(p, _AffineForm) else np.zeros((size, *p.shape)) for p in parts]
    return _AffineForm(form.base, np.concatenate(offsets, axis), np.concatenate(columns, axis + 1))


def _compare(network: Chain, run: Callable[[Tensor], Tensor], size: int) -> None:
    """Compare the map with the file's own values at random inputs."""
    for x in torch.randn(4, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        theirs, ours = run(x), network(x[None]).flatten()
        apart = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
        if not apart <= 10 * TOLERANCE:
            raise UnsupportedModelError(f"the network that was read differs from the file's own values by {apart:.1g}.")


def _tensor(x: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).double()


# ---- operations that are linear in their first argument, on arrays with one axis more in front


def _reshape(options: dict[str, Any], x: Array, shape: Array) -> Array:
    wanted = [x.shape[k + 1] if size == 0 else int(size) for k, size in enumerate(shape)]
    return x.reshape(len(x), *wanted)


def _transpose(options: dict[str, Any], x: Array) -> Array:
    order = options.get("perm") or range(x.ndim - 1)[::-1]
    return x.transpose(0, *(axis + 1 for axis in order))


def _axes(options: dict[str, Any], given: Array | None, dimensions: int) -> tuple[int, ...]:
    axes = options.get("axes") if given is None else given
    return tuple(sorted(int(axis) % dimensions + 1 for axis in (range(dimensions) if axes is None else axes)))


def _unsqueeze(options: dict[str, Any], x: Array, axes: Array | None = None) -> Array:
    given = options.get("axes") if axes is None else axes
    assert given is not None
    return np.expand_dims(x, _axes(options, axes, x.ndim - 1 + len(given)))


def _squeeze(options: dict[str, Any], x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, _axes(options, axes, x.ndim - 1))


def _gather(options: dict[str, Any], x: Array, index: Array) -> Array:
    return np.take(x, index.astype(np.int64), options.get("axis", 0) % (x.ndim - 1) + 1)


def _slice(options: dict[str, Any], x: Array, *given: Array) -> Array:
    starts, ends = (options["starts"], options["ends"]) if not given else given[:2]
    axes = given[2] if len(given) > 2 else options.get("axes", range(len(starts)))
    steps = given[3] if len(given) > 3 else [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cut[int(axis) % (x.ndim - 1) + 1] = slice(int(start), int(end), int(step))
    return x[tuple(cut)]


def _mean(options: dict[str, Any], x: Array, axes: Array | None = None) -> Array:
    return x.mean(_axes(options, axes, x.ndim - 1), keepdims=bool(options.get("keepdims", 1)))


def _conv(options: dict[str, Any], x: Array, weight: Array) -> Array:
    pads = options.get("pads") or [0] * (2 * (weight.ndim - 2))
    if any(pads) or any(step != 1 for step in options.get("dilations") or [1]) or options.get("group", 1) != 1:
        raise _NotReadError("is a convolution with padding, dilation or groups")
    flat = torch.from_numpy(x.reshape(-1, *x.shape[2:]))
    found = torch.nn.functional.conv2d(flat, torch.from_numpy(weight), stride=tuple(options.get("strides") or (1, 1)))
    return found.numpy().reshape(len(x), -1, *found.shape[1:])


def _gemm(options: dict[str, Any], x: Array, weight: Array) -> Array:
    if options.get("transA"):
        raise _NotReadError("transposes its input")
    return options.get("alpha", 1.0) * x @ (weight.T if options.get("transB") else weight)


def _flatten(options: dict[str, Any], x: Array) -> Array:
    axis = options.get("axis", 1)
    return x.reshape(len(x), int(np.prod(x.shape[1 : axis + 1])), -1)


def _filled(options: dict[str, Any], shape: Array) -> Array:
    import onnx

    value = onnx.numpy_helper.to_array(options["value"]) if "value" in options else np.zeros(1)
    return np.full(tuple(int(size) for size in shape[0]), value.item(), dtype=np.float64)


def _cast(options: dict[str, Any], x: Array) -> Array:
    return x


_WHOLE = ("ConstantOfShape", "Concat", "Expand")
_OPERATIONS: dict[str, Callable[..., Array]] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "Slice": _slice,
    "ReduceMean": _mean,
    "Conv": _conv,
    "Gemm": _gemm,
    "Flatten": _flatten,
    "Identity": _cast,
    "Cast": _cast,
    "Dropout": _cast,
    "MatMul": lambda options, x, y: x @ y,
    "Add": lambda options, x, y: x + y,
    "Sub": lambda options, x, y: x - y,
    "Mul": lambda options, x, y: x * y,
    "Div": lambda options, x, y: x / y if x.dtype.kind == "f" else x // y,
    "Concat": lambda options, x, *rest: np.concatenate([x[0], *rest], options["axis"]),
    "ConstantOfShape": _filled,
    "Expand": lambda options, x, shape: np.broadcast_to(x[0], np.broadcast_shapes(x[0].shape, tuple(shape))),
}
