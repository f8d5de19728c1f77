"""ONNX files as maps: whatever way attention is written out in, it is recognised by what it computes.

Every tensor between two nonlinear operations is an affine function of the tokens that entered the residual block; its
matrix is found by running the operations on a basis. Heads, hidden units, gains and biases are then read off these
matrices, whatever transposes, reshapes, folded norms and class tokens a file has between them.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.certificates.provable_modules import require_plain_forward, require_same_steps
from howsmooth.errors import AssumptionError, FileError, ShapeError, UnsupportedModelError
from howsmooth.files import require_room
from howsmooth.maps.activations import CUBE, ROOT, Pointwise
from howsmooth.maps.affine import Affine, Pooling
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual
from howsmooth.maps.mlp import MLP, Dense
from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.positions import Positions
from howsmooth.maps.protocols import Map
from howsmooth.verification.guard import AsItRuns, agree
from howsmooth.verification.onnx_operations import (
    OPERATIONS,
    READ,
    Array,
    NotReadError,
    aligned,
    axes_of,
    options_of,
)

# What is equal to rounding: numbers that were computed alike in float64, of the largest that enter them. Nothing that
# is farther apart is taken for the same, and nothing is dropped but zeros.
ROUNDED = 2.0**-47
# Constants of activations that are written out may be rounded to single precision, and no further.
SINGLE = 2.0**-24
# What gets so little instead of its score, or added to it, is hidden: no score comes near. Other numbers are added as
# they are, however small they make a weight.
HIDDEN = -1e30
_ACTIVATIONS = {"Relu": "relu", "Gelu": "gelu", "Tanh": "tanh"}
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
    """Products of queries and keys, with what is added to them, or their softmax."""

    query: _AffineForm
    key: _AffineForm
    scale: float = 1.0
    added: Array | None = None
    softmax: bool = False


@dataclass(frozen=True, eq=False)
class _Unfinished:
    """A part of a norm or of an activation: ``factor`` · kind(form) + ``offset``, entry by entry or for each token."""

    kind: str  # square, mean square, root, reciprocal root; erf, sigmoid; cube, cubic, tanh of a cubic
    form: _AffineForm
    factor: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, eq=False)
class _Attended:
    scores: _Scores
    value: _AffineForm


@dataclass(frozen=True, eq=False)
class _Activated:
    form: _AffineForm
    activation: str


@dataclass(frozen=True, eq=False)
class _Normalised:
    """form over the root of its mean square and eps."""

    form: _AffineForm
    eps: float


@dataclass(eq=False)
class _Reader:
    """The nodes of a graph, run one after another."""

    opset: int
    name: str = "the network"
    tokens: bool = False  # whether the inputs are tokens; all of them are one otherwise
    values: dict[str, Any] = field(default_factory=dict)
    streams: set[str] = field(default_factory=set)
    maps: list[Any] = field(default_factory=list)
    graph: Any = None
    # the forms whose sums tokens between blocks are, by their base
    parts: dict[int, tuple[_AffineForm, ...]] = field(default_factory=dict)
    # what made the numbers of each base, None for tokens; and their shape
    bases: list[tuple[_Attended | _Activated | _Normalised | None, tuple[int, ...]]] = field(default_factory=list)

    def identity(self, shape: Sequence[int], made_by: _Attended | _Activated | _Normalised | None) -> _AffineForm:
        """Start a new base."""
        self.bases.append((made_by, tuple(shape)))
        return self.all_of(len(self.bases) - 1)

    def constant(self, node: Any, inputs: list[Any]) -> Any:
        """Run a node that does not depend on the inputs."""
        try:
            if node.op_type == "GatherElements":  # onnx's own stumbles over more than 64 elements
                return np.take_along_axis(inputs[0], inputs[1], node.attribute[0].i if node.attribute else 0)
            return self._evaluated(node, inputs)
        except Exception as error:  # numpy and onnx raise whatever they stumble over
            reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
            raise NotReadError(f"does not depend on the input, and cannot be computed: {reason}") from error

    def _evaluated(self, node: Any, inputs: list[Any]) -> Any:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        given: dict[str, Any] = {name: x for name, x in zip(node.input, inputs, strict=True) if name}
        # a model of one node: by itself a node is taken for one of the newest opset
        kinds = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in given.items()
        ]
        graph = helper.make_graph([node], "constant", kinds, [helper.make_empty_tensor_value_info(node.output[0])])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        found: Any = ReferenceEvaluator(model).run(None, given)
        return found[0]

    def all_of(self, base: int) -> _AffineForm:
        """Return the numbers of a base."""
        shape = self.bases[base][1]
        size = int(np.prod(shape))
        return _AffineForm(base, np.zeros(shape), np.eye(size).reshape(size, *shape))


def read_onnx(path: str | Path) -> Chain:
    """Read a classifier from an ONNX file as a chain of maps on one token that holds all inputs.

    Args:
        path: The file. Its network consists of affine maps, softmax attention, norms and activations, in residual
            blocks or not; batch norms are folded.
    """
    network, run = read_and_run(path)
    _compare(network, run, (1, math.prod(_input_of(_loaded(str(path), str(path))).shape)))
    return network


def read_and_run(path: str | Path) -> tuple[Chain, AsItRuns]:
    """Read a file as a chain of maps, and return it with the network as onnxruntime runs it."""
    network, reader = _read(str(path), str(path))
    return network, replace(session_of(path), read=reader)


def read_module(module: nn.Module, X: Float[Tensor, "n d"]) -> Chain:
    """Read a classifier of one's own as a chain of maps on tokens, by way of ONNX; it is compared with the module.

    Bounds, constants and certificates take it as any other map: ``hs.certify(read_module(module, X), X)``.

    Args:
        module: A module in ``eval`` mode from tokens (1, n, d) to logits.
        X: Tokens of the shape that it takes, without the batch axis.
    """
    if X.ndim != 2:
        raise ShapeError(f"X must be the tokens (n, d) that the module takes, got {tuple(X.shape)}.", field="X")
    return read_and_run_module(module, X.shape, tokens=True)[0]


def read_and_run_module(module: nn.Module, shape: Sequence[int], *, tokens: bool = False) -> tuple[Chain, AsItRuns]:
    """Read a module on inputs of this shape, by way of ONNX; return it with what the module itself computes.

    The module is run on batches of one, in the dtype and the mode that it has. The chain begins with all inputs as one
    token, or with ``tokens`` as they are.
    """
    example = next(module.parameters(), torch.zeros(())).new_zeros(1, *shape)
    name, file = type(module).__name__, written(module, example).getvalue()
    network, reader = _read(name, io.BytesIO(file), tokens=tokens)

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return module(x.to(example.dtype).reshape(example.shape)).double().flatten()

    itself = AsItRuns(run, _by_nodes(name, file, _input_of(_loaded(name, io.BytesIO(file)))), example.dtype, reader)
    _compare(network, itself, tuple(shape) if tokens else (1, example.numel()))
    return network, itself


def written(module: nn.Module, example: Tensor) -> io.BytesIO:
    """Return a module as ONNX."""
    file, name = io.BytesIO(), type(module).__name__
    _require_onnx()
    if any(part.training for part in module.modules()):
        raise AssumptionError(f"{name} is in training mode; call .eval() first.", field="network")
    require_plain_forward(module)
    register: Any = torch.onnx.register_custom_op_symbolic  # type: ignore[attr-defined]
    register("aten::mT", _transposed, 9)  # the exporter has none
    fused = torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter, on what it will be replaced by
        torch.backends.mha.set_fastpath_enabled(False)  # fused layers are not written as ONNX
        try:
            require_same_steps(module, torch.linspace(-1, 1, example.numel()).reshape(example.shape).to(example), name)
            torch.onnx.export(module, (example,), file, dynamo=False, opset_version=17)  # type: ignore[arg-type]
        except AssumptionError:
            raise
        except Exception as error:  # every layer has its own way not to be exported
            raise UnsupportedModelError(f"{name} cannot be written as ONNX: {error}") from error
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
    file.seek(0)
    return file


def _transposed(graph: Any, x: Any) -> Any:
    *lead, rows, columns = range(x.type().dim())
    return graph.op("Transpose", x, perm_i=[*lead, columns, rows])


def _require_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise AssumptionError(EXTRA) from error
    return onnx


def _loaded(name: str, source: str | io.BytesIO) -> Any:
    """Load a file as the messages that it consists of."""
    onnx = _require_onnx()
    try:
        return onnx.load(source)
    except Exception as error:  # protobuf has an exception of its own for every fault
        raise FileError(f"{name} is not an ONNX file that can be read, or it is packed: {error}") from error


@dataclass(frozen=True)
class _Input:
    """The one input of a graph: its name, its shape for one example, and its kind of numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _input_of(model: Any) -> _Input:
    onnx, graph = _require_onnx(), model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [x for x in graph.input if x.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise UnsupportedModelError(
            f"the network has {len(inputs)} inputs and {len(graph.output)} outputs; one of each is needed."
        )
    kind = inputs[0].type.tensor_type
    sizes = [d.dim_value for d in kind.shape.dim]
    if len(sizes) > 1 and sizes[0] not in (0, 1):
        raise UnsupportedModelError(
            f"the network takes batches of {sizes[0]} inputs at once; export it with a batch of one."
        )
    shape = (1, *sizes[1:]) if len(sizes) > 1 else tuple(sizes)
    if not shape or not all(size > 0 for size in shape):
        raise UnsupportedModelError(f"the network does not say the size of its input {inputs[0].name}: {list(shape)}.")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise UnsupportedModelError(f"the input {inputs[0].name} holds {dtype.name}; float16, 32 or 64 are needed.")
    return _Input(inputs[0].name, shape, dtype)


def _read(name: str, source: str | io.BytesIO, *, tokens: bool = False) -> tuple[Chain, _Reader]:
    """Read a network, and return it with its nodes."""
    onnx, model = _require_onnx(), _loaded(name, source)
    given, graph = _input_of(model), model.graph
    if graph.sparse_initializer:
        raise UnsupportedModelError(f"{name} has sparse weights, which are not read.")
    opset = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 1)
    size = math.prod(given.shape)
    require_room(
        8 * size**2, f"{name} has {size:,} inputs, and what its operations do to each of them", field="network"
    )
    reader = _Reader(opset, tokens=tokens, streams=_streams(graph.node, given.name), graph=graph)
    for tensor in graph.initializer:
        try:
            reader.values[tensor.name] = _wide(onnx.numpy_helper.to_array(tensor))
        except Exception as error:  # of numpy and of protobuf
            raise UnsupportedModelError(f"the weights {tensor.name} cannot be read: {error}.") from error
    reader.values[given.name] = reader.identity(given.shape, None)
    if given.name in reader.streams:
        reader.values[given.name] = _next_tokens(reader, reader.values[given.name])
    for node in graph.node:
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused
                _run(reader, node)
        except NotReadError as error:
            raise UnsupportedModelError(f"the node {_called(node)} ({node.op_type}) {error}.") from error
        except Exception as error:  # whatever a strange node is stumbled over: it is not read
            said = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
            raise UnsupportedModelError(f"the node {_called(node)} ({node.op_type}) is not read: {said}.") from error
    return _finish(reader, graph.output[0].name), reader


def _called(node: Any) -> str:
    return str(node.name or next(iter(node.output), "") or "without a name")


def session_of(path: str | Path) -> AsItRuns:
    """Return the network of a file as onnxruntime runs it."""
    return _session(str(path), str(path))


def _session(name: str, source: str | bytes) -> AsItRuns:
    try:
        import onnxruntime
    except ImportError as error:
        raise AssumptionError(EXTRA) from error
    given = _input_of(_loaded(name, io.BytesIO(source) if isinstance(source, bytes) else source))
    try:
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has many
        raise UnsupportedModelError(f"onnxruntime cannot run {name}: {str(error).splitlines()[0]}") from error

    def run(x: Tensor) -> Tensor:
        found = session.run(None, {given.name: x.numpy().astype(given.dtype).reshape(given.shape)})[0]
        return torch.from_numpy(found.astype(np.float64)).flatten()

    return AsItRuns(run, _by_nodes(name, source, given), torch.from_numpy(np.zeros(0, given.dtype)).dtype)


def _by_nodes(name: str, source: str | bytes, given: _Input) -> Callable[[Tensor], Tensor] | None:
    """Return the network with all its nodes in float64, by onnx's own evaluator."""
    onnx = _require_onnx()
    from onnx.reference import ReferenceEvaluator

    model = _loaded(name, io.BytesIO(source) if isinstance(source, bytes) else source)
    tensors = [*model.graph.initializer]
    for node in model.graph.node:
        tensors += [option.t for option in node.attribute if option.HasField("t")]
        for option in list(node.attribute):
            if (node.op_type, option.name) == ("BatchNormalization", "momentum"):
                node.attribute.remove(option)  # of training, in which this evaluator would be
            elif (node.op_type, option.name) == ("Cast", "to") and _wide(
                np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(option.i))
            ).dtype == np.float64:
                option.i = onnx.TensorProto.DOUBLE
    for tensor in tensors:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float64), tensor.name))
    try:
        evaluator = ReferenceEvaluator(model)
    except Exception:  # a node that it does not know
        return None

    def run(x: Tensor) -> Tensor:
        found: Any = evaluator.run(None, {given.name: x.double().numpy().reshape(given.shape)})
        return torch.from_numpy(np.asarray(found[0], dtype=np.float64)).flatten()

    return run


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _streams(nodes: Sequence[Any], source: str) -> set[str]:
    """Return the tensors that are added to something computed from them: the tokens between blocks.

    What is added to a power of itself is no such tensor, but a part of an activation.
    """
    ancestors: dict[str, set[str]] = {source: set()}
    streams, powers = set(), dict[str, str]()
    for node in nodes:
        dynamic = [name for name in node.input if name in ancestors and node.op_type != "Shape"]
        if dynamic:
            before = set(dynamic).union(*(ancestors[name] for name in dynamic))
            ancestors.update(dict.fromkeys(node.output, before))
        bases = {powers.get(name, name) for name in dynamic}
        if node.op_type in ("Mul", "Pow") and len(bases) == 1:
            powers[node.output[0]] = bases.pop()
        if node.op_type == "Add" and len(dynamic) == 2:
            first, second = dynamic
            pairs = ((first, second), (second, first))
            streams |= {x for x, other in pairs if x in ancestors[other] and powers.get(other) != x}
    return streams


def _run(reader: _Reader, node: Any) -> None:
    if node.domain not in ("", "ai.onnx"):
        raise NotReadError(f"is of the domain {node.domain!r}, and only the operations of ONNX itself are read")
    unknown = [name for name in node.input if name and name not in reader.values]
    if unknown:
        raise NotReadError(f"takes {unknown[0]!r}, which no node read before puts out")
    inputs = [reader.values[name] if name else None for name in node.input]
    found: Any
    if node.op_type == "Shape":
        x: Any = inputs[0]
        part = {option.name: option.i for option in node.attribute}
        found = np.array((x.offset if isinstance(x, _AffineForm) else x).shape, dtype=np.int64)
        found = found[part.get("start") : part.get("end")]
    elif not any(isinstance(x, _AffineForm | _Scores | _Unfinished) for x in inputs):
        found = _wide(np.asarray(reader.constant(node, inputs)))
    else:
        if node.op_type not in READ:
            raise NotReadError(_READS)
        found = _symbolic(reader, node.op_type, options_of(node, reader.opset), inputs)
    if isinstance(found, _AffineForm):
        if not np.isfinite(found.offset.sum() + found.columns.sum()):
            raise NotReadError("makes numbers that are not finite")
        if node.output[0] in reader.streams:
            found = _next_tokens(reader, found)
    reader.values[node.output[0]] = found


_READS = (
    "is not read: networks consist of affine maps, softmax attention, LayerNorm and RMSNorm, folded batch norms, "
    "and ReLU, GELU, SiLU or tanh"
)


def _symbolic(reader: _Reader, kind: str, options: dict[str, Any], inputs: list[Any]) -> Any:
    first, *rest = inputs
    second: Any = rest[0] if rest else None
    if kind == "Einsum":
        return _einsum(reader, options["equation"].replace(" ", ""), *inputs)
    if kind == "MatMul" and isinstance(second, _AffineForm) and not isinstance(first, np.ndarray):
        if isinstance(first, _Scores):
            return _attended(reader, first, second)
        if not isinstance(first, _AffineForm) or not 2 <= first.offset.ndim == second.offset.ndim:
            raise NotReadError("multiplies tensors that are not queries and keys of one shape")
        return _Scores(first, second)
    if any(isinstance(x, _Scores) for x in inputs):
        return _of_scores(kind, options, *inputs)
    if any(isinstance(x, _Unfinished) for x in inputs):
        return _continued(reader, kind, options, *inputs)
    if kind in _ACTIVATIONS:
        name = _ACTIVATIONS[kind] + ("_tanh" if options.get("approximate") == "tanh" else "")
        return reader.identity(first.offset.shape, _Activated(first, name))
    if kind in ("Erf", "Sigmoid"):
        return _Unfinished(kind.lower(), first)
    if kind == "Mul" and first is second:
        return _Unfinished("square", first)
    if kind == "Pow" and np.size(second) == 1 and np.asarray(second).item() in (2, 3):
        return _Unfinished("square" if np.asarray(second).item() == 2 else "cube", first)
    if kind == "LayerNormalization":
        return _layer_norm(reader, options, first, *rest)
    if kind == "Add" and isinstance(first, _AffineForm) and isinstance(second, _AffineForm):
        return _added(reader, first, second)
    if kind == "Sub" and isinstance(first, _AffineForm) and isinstance(second, _AffineForm):
        return _added(reader, first, second.mapped(np.negative))
    if kind in ("Add", "Sub"):
        form, other = (first, second) if isinstance(first, _AffineForm) else (second, first)
        if kind == "Sub" and form is second:
            form, other = form.mapped(np.negative), other
        elif kind == "Sub":
            other = -other
        shape = np.broadcast_shapes(form.offset.shape, np.shape(other))
        columns = np.broadcast_to(aligned(form.columns, len(shape)), (len(form.columns), *shape))
        return _AffineForm(form.base, form.offset + other, columns)
    if kind in ("Mul", "Div"):
        form, other = (first, second) if isinstance(first, _AffineForm) else (second, first)
        if isinstance(other, _AffineForm) or (kind == "Div" and form is second):
            raise NotReadError("multiplies or divides two tensors that depend on the input")
        rank = max(form.offset.ndim, np.ndim(other))
        return form.mapped(lambda x: aligned(x, rank) * other if kind == "Mul" else aligned(x, rank) / other)
    if kind == "BatchNormalization":
        scale, shift, mean, variance = (x.reshape(-1, *(1,) * (first.offset.ndim - 2)) for x in rest[:4])
        factor = scale / np.sqrt(variance + options["epsilon"])
        return _AffineForm(first.base, first.offset * factor + (shift - mean * factor), first.columns * factor)
    if kind in ("Conv", "Gemm"):
        found = first.mapped(lambda x: OPERATIONS[kind](options, x, rest[0]))
        if len(rest) == 1 or rest[1] is None:
            return found
        bias = rest[1].reshape(-1, *(1,) * (found.offset.ndim - 2)) if kind == "Conv" else rest[1]
        return _symbolic(reader, "Add", {}, [found, options.get("beta", 1.0) * bias])
    if kind == "Concat":
        return _joined(options, inputs)
    if kind == "MatMul" and isinstance(first, np.ndarray):
        if second.offset.ndim == 1:
            return second.mapped(lambda x: np.einsum("...k,zk->z...", first, x))
        return second.mapped(lambda x: first @ aligned(x, max(first.ndim, second.offset.ndim)))
    if not isinstance(first, _AffineForm) or any(isinstance(x, _AffineForm) for x in rest) or kind not in OPERATIONS:
        raise NotReadError("does something with tokens that no map here does")
    return first.mapped(lambda x: OPERATIONS[kind](options, x, *rest))


def _einsum(reader: _Reader, equation: str, *operands: Any) -> Any:
    """Sum products over axes that are named by letters: as a linear map, as scores, or as weights times values."""
    parts = re.fullmatch(r"([a-y.]+),([a-y.]+)->([a-y.]*)", equation)
    if parts is None:
        raise NotReadError(f"sums products as {equation}, where two operands, small letters and an arrow are read")
    (left, right, out), (first, second) = parts.groups(), operands

    def turned(form: _AffineForm, given: str, wanted: str) -> _AffineForm:
        return form.mapped(lambda x: np.einsum(f"z{given}->z{wanted}", x))

    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        if isinstance(first, np.ndarray):
            left, right, first, second = right, left, second, first
        if isinstance(first, _AffineForm):
            return first.mapped(lambda x: np.einsum(f"z{left},{right}->z{out}", x, second))
    rows, columns = (list(set(x) - set(y)) for x, y in ((left, right), (right, left)))
    summed = list((set(left) & set(right)) - set(out))
    if "." not in equation and len(rows) == len(columns) == len(summed) == 1 and isinstance(second, _AffineForm):
        i, k, j, lead = rows[0], columns[0], summed[0], "".join(x for x in left if x in right and x in out)
        if isinstance(first, _AffineForm) and out == lead + i + k:
            return _Scores(turned(first, left, lead + i + j), turned(second, right, lead + j + k))
        if isinstance(first, _Scores) and left == lead + i + j:
            return turned(_attended(reader, first, turned(second, right, lead + j + k)), lead + i + k, out)
    raise NotReadError(f"sums products as {equation}, which is neither linear nor a part of attention")


def _of_scores(kind: str, options: dict[str, Any], first: Any, *rest: Any) -> _Scores:
    second = rest[0] if rest else None
    scores: _Scores = next(x for x in (first, *rest) if isinstance(x, _Scores))
    constant: Any = second if scores is first else first
    if kind in ("Cast", "Identity", "Dropout"):
        return scores
    if scores.softmax:
        raise NotReadError("does more with the weights of attention than to multiply values")
    if kind == "Softmax":
        # up to opset 12, all axes from this one on are flattened
        if options["axis"] not in (-1, scores.query.offset.ndim - 1):
            raise NotReadError("takes the softmax of scores over more than the keys")
        return replace(scores, softmax=True)
    if (
        kind in ("Mul", "Div")
        and np.size(constant) == 1
        and (kind == "Mul" or scores is first)
        and scores.added is None
    ):
        number = float(np.asarray(constant).item())
        return replace(scores, scale=scores.scale * number if kind == "Mul" else scores.scale / number)
    if kind == "Add" and isinstance(constant, np.ndarray):
        return replace(scores, added=constant + (0.0 if scores.added is None else scores.added))
    if kind == "Where" and isinstance(first, np.ndarray) and scores.added is None:
        # a mask, whichever way round: what is not seen gets a constant instead of its score
        hidden, low = (~first, rest[1]) if scores is second else (first, rest[0])
        if isinstance(low, np.ndarray) and low.size == 1 and low.item() <= HIDDEN:
            return replace(scores, added=np.where(hidden, -np.inf, 0.0))
    raise NotReadError("does more with scores than to scale and mask them and to take their softmax")


def _continued(reader: _Reader, kind: str, options: dict[str, Any], first: Any, second: Any = None) -> Any:
    """Go on with a norm or an activation that is written out."""
    part, other = (first, second) if isinstance(first, _Unfinished) else (second, first)
    form = part.form
    if kind == "ReduceMean" and part.kind == "square":
        if axes_of(options, second, form.offset.ndim) != (form.offset.ndim,) or not options["keepdims"]:
            raise NotReadError("takes the mean of squares over something else than the last axis")
        return replace(part, kind="mean square")
    if kind in ("Sqrt", "Reciprocal", "Pow"):
        power = {"Sqrt": 0.5, "Reciprocal": -1.0}.get(kind) or float(np.asarray(other).item())
        step = {
            ("mean square", 0.5): "root",
            ("mean square", -0.5): "reciprocal root",
            ("root", -1.0): "reciprocal root",
        }
        if (part.kind, power) in step:
            return replace(part, kind=step[part.kind, power])
    if kind in ("Add", "Mul", "Div") and np.size(other) == 1 and not isinstance(other, _AffineForm):
        number = float(np.asarray(other).item())
        if kind == "Div" and part.kind == "root" and part is second and number == 1:
            return replace(part, kind="reciprocal root")
        if kind == "Add" and part.kind in ("mean square", "erf", "tanh"):
            return replace(part, offset=part.offset + number)
        if part.kind in ("erf", "sigmoid", "cube", "cubic", "tanh") and (kind == "Mul" or part is first):
            number = 1 / number if kind == "Div" else number
            return replace(part, factor=part.factor * number, offset=part.offset * number)
    if kind == "Tanh" and part.kind == "cubic" and abs(part.factor / ROOT - 1) <= SINGLE:
        return replace(part, kind="tanh", factor=1.0)
    if isinstance(other, _AffineForm) and other.base == form.base:
        if (kind, part.kind) == ("Mul", "square") and _close(other, form):
            return replace(part, kind="cube")
        if (kind, part.kind) == ("Add", "cube") and _close(other, form) and abs(part.factor / CUBE - 1) <= SINGLE:
            return replace(part, kind="cubic", factor=1.0)
        if kind == "Mul" and part.kind == "tanh" and part.offset == part.factor:  # twice the approximate gelu
            return _multiple(reader, form, "gelu_tanh", other, 2 * part.factor)
        if (kind, part.kind) == ("Mul", "reciprocal root") or (kind, part.kind, part is second) == (
            "Div",
            "root",
            True,
        ):
            return _normalised(reader, other, form, part.offset)
        if kind == "Mul" and part.kind == "erf" and part.offset == part.factor:  # x (1 + erf(x/√2)) = 2 gelu(x)
            return _multiple(reader, form.mapped(lambda x: 2**0.5 * x), "gelu", other, 2 * part.factor)
        if kind == "Mul" and part.kind == "sigmoid" and part.offset == 0:
            return _multiple(reader, form, "silu", other, part.factor)
    raise NotReadError("is a part of no norm and no activation that is read")


def _multiple(
    reader: _Reader, form: _AffineForm, activation: str, multiplied: _AffineForm, factor: float
) -> _AffineForm:
    """Return an activation of a form of which a multiple was multiplied."""
    ratio = float((multiplied.columns * form.columns).sum() / max((form.columns**2).sum(), 1e-300))
    if not _close(multiplied, form.mapped(lambda x: ratio * x)):
        raise NotReadError("is a part of no norm and no activation that is read")
    found = reader.identity(form.offset.shape, _Activated(form, activation))
    return found.mapped(lambda x: ratio * factor * x)


def _layer_norm(
    reader: _Reader, options: dict[str, Any], form: _AffineForm, gain: Array, bias: Array | None = None
) -> _AffineForm:
    if options["axis"] not in (-1, form.offset.ndim - 1):
        raise NotReadError("normalises over more than the last axis")
    centred = form.mapped(lambda x: x - x.mean(-1, keepdims=True))
    found = _normalised(reader, centred, centred, options["epsilon"]).mapped(lambda x: x * gain)
    return found if bias is None else replace(found, offset=found.offset + bias)


def _normalised(reader: _Reader, form: _AffineForm, squared: _AffineForm, eps: float) -> _AffineForm:
    if not _close(form, squared):
        raise NotReadError("divides by the root of the mean square of something else")
    return reader.identity(form.offset.shape, _Normalised(form, eps))


def _close(one: _AffineForm, two: _AffineForm) -> bool:
    """Tell whether two forms are equal to rounding."""
    if one.base != two.base or one.offset.shape != two.offset.shape:
        return False
    scale = np.abs(one.columns).max(0)
    return bool(
        (np.abs(one.columns - two.columns) <= ROUNDED * scale).all()
        and (np.abs(one.offset - two.offset) <= ROUNDED * (np.abs(one.offset) + scale)).all()
    )


def _attended(reader: _Reader, scores: _Scores, value: _AffineForm) -> _AffineForm:
    if not scores.softmax:
        raise NotReadError("multiplies scores by values without a softmax")
    if not scores.query.base == scores.key.base == value.base or value.offset.ndim != scores.query.offset.ndim:
        raise NotReadError("attends from some tokens to others")
    shape = (*scores.query.offset.shape[:-1], value.offset.shape[-1])
    return reader.identity(shape, _Attended(scores, value))


def _added(reader: _Reader, first: _AffineForm, second: _AffineForm) -> _AffineForm:
    if first.base == second.base:
        return _AffineForm(first.base, first.offset + second.offset, first.columns + second.columns)
    stream, inner = (first, second) if first.base < second.base else (second, first)
    source, maps = _maps(reader, inner)
    if source != stream.base or not _is_identity(stream):
        raise NotReadError("adds tensors that are not the tokens before a block and what the block makes of them")
    reader.maps.append(Residual(maps[0] if len(maps) == 1 else Chain(*maps)))
    reader.parts[len(reader.bases)] = (stream, inner)
    # tokens may be written with their axes in another order: they keep it
    return reader.identity(stream.offset.shape, None)


def _next_tokens(reader: _Reader, found: _AffineForm) -> _AffineForm:
    """Let the tokens between blocks be a base of their own."""
    if reader.bases[found.base][0] is None and _is_identity(found) and (found.base or reader.tokens):
        return found
    reader.maps += _maps(reader, found)[1]
    reader.parts[len(reader.bases)] = (found,)
    return reader.identity(found.offset.shape, None)


def _finish(reader: _Reader, output: str) -> Chain:
    if output not in reader.values:
        raise UnsupportedModelError(f"no node that is read puts out {output}, which the network returns.")
    found = reader.values[output]
    if not isinstance(found, _AffineForm):
        raise UnsupportedModelError(f"the output {output} ends within attention, a norm or an activation.")
    try:
        maps = [*reader.maps, *_maps(reader, found, readout=True)[1]]
    except NotReadError as error:
        raise UnsupportedModelError(f"what leads to the output {output} {error}.") from error
    return Chain(*maps)


def _is_identity(form: _AffineForm) -> bool:
    size = form.offset.size
    return (
        len(form.columns) == size
        and not form.offset.any()
        and np.array_equal(form.columns.reshape(size, size), np.eye(size))
    )


def _maps(reader: _Reader, form: _AffineForm, *, readout: bool = False) -> tuple[int, list[Map]]:
    """Return the maps that lead from tokens to a form, and the base of those tokens."""
    made_by, shape = reader.bases[form.base]
    if made_by is None:
        last = len(reader.bases) - 1 - [made is None for made, _shape in reversed(reader.bases)].index(True)
        if form.base != last:
            raise NotReadError("goes back to tokens before the last block")
        if not form.base and not reader.tokens:  # the inputs are one token
            return 0, _affine(form, (1, len(form.columns)), whole=True)
        return form.base, _affine(form, shape, whole=readout, pooled=reader.tokens)
    if isinstance(made_by, _Attended):
        source, maps = _maps(reader, reader.all_of(made_by.value.base))
        return source, [*maps, _attention(made_by, form)]
    source, maps = _maps(reader, made_by.form)
    behind = _affine(form, shape, whole=readout, pooled=reader.tokens)
    if isinstance(made_by, _Normalised):
        return source, [*_with_norm(maps, made_by, shape[-1]), *behind]
    if maps and behind and isinstance(maps[-1], Dense) and isinstance(behind[0], Dense):
        (up, down), activation = (maps[-1], behind[0]), made_by.activation
        mlp = MLP(up=up.weight, up_bias=up.bias, down=down.weight, down_bias=down.bias, activation=activation)
        return source, [*maps[:-1], mlp]
    return source, [*maps, Pointwise(activation=made_by.activation, dtype=torch.float64), *behind]


def _with_norm(maps: list[Map], made_by: _Normalised, d: int) -> list[Map]:
    """Append a norm; where what enters it is the tokens minus their means, it is a LayerNorm."""
    ones, last = torch.ones(d, dtype=torch.float64), maps[-1] if maps else None
    if isinstance(last, Dense) and last.weight.shape == (d, d) and (last.bias is None or not bool(last.bias.any())):
        centring = torch.eye(d, dtype=torch.float64) - 1 / d
        if bool((last.weight - centring).abs().max() <= ROUNDED):
            return [*maps[:-1], LayerNorm(gain=ones, eps=made_by.eps)]
    return [*maps, RMSNorm(gain=ones, eps=made_by.eps)]


def _affine(form: _AffineForm, shape: tuple[int, ...], *, whole: bool, pooled: bool = False) -> list[Map]:
    """Return an affine function of tokens as one matrix for all of them, or for their pooling, where it is one.

    Args:
        form: The function.
        shape: The shape of the tokens.
        whole: Whether it is the readout.
        pooled: Whether a readout may become a pooling and one matrix.
    """
    if _is_identity(form) and form.offset.shape == shape and not whole:
        return []
    n, d = _tokens(shape)
    m, out = _tokens(form.offset.shape)
    columns = form.columns.reshape(n, d, m, out)
    if m == n and not whole:
        try:
            weight = _diagonal(columns, 0, 2).T
            bias = _common(form.offset.reshape(n, out), 0, np.abs(weight).max(1))
            return [Dense(_tensor(weight), _tensor(bias))]
        except NotReadError:
            pass
    if pooled and m == 1:
        # of every token a multiple of the largest matrix
        largest = columns[(columns**2).sum((1, 2, 3)).argmax()]
        weights = np.einsum("ndmo,dmo->n", columns, largest) / max(float((largest**2).sum()), 1e-300)
        apart, total = np.abs(columns - np.multiply.outer(weights, largest)), weights.sum()
        # weights that cancel would be huge, as shares of their sum
        if (apart <= ROUNDED * np.abs(largest).max(0)).all() and abs(total) > 0.1 * np.abs(weights).sum():
            matrix = Dense(_tensor(total * largest[:, 0].T), _tensor(form.offset.reshape(out)))
            return [matrix] if n == 1 else [Pooling(weights=_tensor(weights / total)), matrix]
    weight = np.moveaxis(columns, (0, 1), (2, 3))
    return [Affine(weight=_tensor(weight), bias=_tensor(form.offset.reshape(m, out)))]


def _tokens(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many tokens there are, and their size; all axes but the last count tokens."""
    return int(np.prod(shape[:-1])), shape[-1]


def _attention(made_by: _Attended, inner: _AffineForm) -> Attention:
    scores, value = made_by.scores, made_by.value
    heads = [_per_token(form, axis) for form, axis in ((scores.query, -2), (scores.key, -1), (value, -2))]
    (query, query_bias), (key, key_bias), (values, value_bias) = heads
    h, v = query.shape[0], values.shape[1]
    n, out = _tokens(inner.offset.shape)
    columns = inner.columns.reshape(h, -1, v, n, out)
    return Attention(
        query=query,
        key=key,
        value=values,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output=_tensor(np.moveaxis(_diagonal(columns, 1, 3), -1, 1)),
        output_bias=_tensor(_common(inner.offset.reshape(n, out), 0, np.abs(columns).max((0, 1, 2, 3)))),
        scale=scores.scale,
        positions=Positions() if scores.added is None else _positions(scores.added, n),
    )


def _positions(added: Array, n: int) -> Positions:
    """Return what is added to scores as a mask."""
    full = np.broadcast_to(added, (*added.shape[:-2], n, n)).reshape(-1, n, n)
    full = full[0] if len(full) == 1 else full
    hidden = full <= HIDDEN
    if not np.where(hidden, 0.0, full).any() and full.ndim == 2 and np.array_equal(hidden, ~np.tri(n, dtype=bool)):
        return Positions(causal=True)
    return Positions(mask=_tensor(np.where(hidden, -np.inf, full)))


def _per_token(form: _AffineForm, axis: int) -> tuple[Tensor, Tensor]:
    """Return the weights and the biases of queries, keys or values, whose tokens stand on this axis."""
    offset = form.offset if axis == -2 else np.swapaxes(form.offset, -1, -2)
    columns = form.columns if axis == -2 else np.swapaxes(form.columns, -1, -2)
    n, width = offset.shape[-2:]
    offset, columns = offset.reshape(-1, n, width), columns.reshape(n, -1, offset.size // (n * width), n, width)
    weight = _diagonal(columns, 0, 3)
    return _tensor(np.moveaxis(weight, 0, -1)), _tensor(_common(offset, 1, np.abs(weight).max((0, 1))))


def _diagonal(columns: Array, first: int, second: int) -> Array:
    """Return what every token does with itself, if all do the same and nothing with each other."""
    n = columns.shape[first]
    if columns.shape[second] != n:
        raise NotReadError("belongs to a block that changes the number of tokens")
    tokens = np.moveaxis(columns, (first, second), (0, 1))
    if tokens[~np.eye(n, dtype=bool)].any():
        raise NotReadError("belongs to a block whose projections mix tokens")
    return _common(tokens[np.arange(n), np.arange(n)], 0)


def _common(x: Array, axis: int, beside: Array | float = 0.0) -> Array:
    """Return what is the same along an axis, to rounding of what enters every feature, the last axis."""
    first = np.take(x, [0], axis)
    scale = np.abs(x).max(tuple(range(x.ndim - 1))) + beside
    if (np.abs(x - first) > ROUNDED * scale).any():
        raise NotReadError("belongs to a block that treats tokens differently by their position")
    return np.squeeze(first, axis)


def _joined(options: dict[str, Any], parts: list[Any]) -> _AffineForm:
    form = next(part for part in parts if isinstance(part, _AffineForm))
    axis = options["axis"] % form.offset.ndim
    if any(isinstance(part, _AffineForm) and part.base != form.base for part in parts):
        raise NotReadError("joins tensors of different blocks")
    offsets = [part.offset if isinstance(part, _AffineForm) else part for part in parts]
    size = len(form.columns)
    columns = [p.columns if isinstance(p, _AffineForm) else np.zeros((size, *p.shape)) for p in parts]
    return _AffineForm(form.base, np.concatenate(offsets, axis), np.concatenate(columns, axis + 1))


def _compare(network: Chain, run: AsItRuns, shape: tuple[int, ...]) -> None:
    """Compare the map with the file's own values at random inputs."""
    points = torch.randn(4, math.prod(shape), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, single = (lambda x, f=f: f(x.unflatten(1, shape)).flatten(1) for f in (network, network.to(run.dtype)))
    agree(exact, single, run, points)


def _tensor(x: Array) -> Tensor:
    return torch.from_numpy(np.array(x, dtype=np.float64))
