r"""ONNX graphs, evaluated in balls by a reader of the checker's own, which knows nothing of the prover's.

A tensor of floats is a :class:`Form`, an affine function of the numbers at one *place* of the network: row 0 is its
value where all of these are zero, and for each of them there is a row more, which says how the tensor changes with it.
What is linear acts on all rows alike. What is constant has no place and one row, and there every operation is
evaluated. So one pass over the nodes evaluates a graph at an input, and a pass from the identity reads it as steps
(:mod:`howsmooth.check.graph_steps`).

What only moves numbers is applied to the places of entries. Entries that are exactly zero stay exactly zero, so that
nothing small is ever left out. Whole numbers and truth values are arrays, and computed exactly. Attributes have the
defaults of the model's own opset. What is not known here is refused by the name of its node.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flint import arb

from howsmooth.check.attention import softmax
from howsmooth.check.balls import Array, BallArray, ball, between, concatenated
from howsmooth.check.outcomes import CannotCheck

Options = dict[str, Any]
OLDEST = 7  # before, attributes said how shapes are broadcast
MOST_INPUTS = 16384  # the identity of so many takes four gigabytes


@dataclass(frozen=True, eq=False)
class Form:
    """An affine function of the numbers at a place.

    Attributes:
        rows: The value where all numbers are zero, and a row for each of them, ``(1 + numbers, *shape)``; of a constant
            the value alone.
        place: The place; none for a constant.
    """

    rows: BallArray
    place: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.rows.shape[1:]

    def aligned(self, axes: int) -> BallArray:
        """Return the rows with so many axes behind the first one, as shapes are broadcast."""
        return self.rows.reshape(len(self.rows.mid), *(1,) * (axes - len(self.shape)), *self.shape)

    def reshaped(self, *shape: int) -> "Form":
        """Return the tensor in another shape."""
        return Form(self.rows.reshape(len(self.rows.mid), *shape), self.place)

    def value(self) -> BallArray:
        """Return the value of a constant, or raise CannotCheck."""
        if self.place is not None:
            raise CannotCheck(
                "it is not linear, and depends on the inputs; proofs on a box know affine maps, ReLUs and softmax "
                "attention"
            )
        return self.rows[0]


def constant(x: BallArray | Array | float) -> Form:
    """Return an array as a form."""
    x = ball(x)
    return Form(BallArray(x.mid[None], x.rad[None]))


def place_of(forms: Sequence[Form]) -> int | None:
    """Return the place that forms are functions of; none if all are constant."""
    found = {form.place for form in forms} - {None}
    if len(found) > 1:
        raise CannotCheck("it joins tensors that stand before a nonlinear step and behind it")
    return next(iter(found), None)


def nonzero(x: BallArray) -> Array:
    """Tell which entries may be other than zero."""
    return (x.mid != 0) | (x.rad != 0)


def kept(x: BallArray, alive: Array) -> BallArray:
    """Return what was computed, and exactly zero where it is known to be."""
    return BallArray(np.where(alive, x.mid, 0.0), np.where(alive, x.rad, 0.0))


def total(a: BallArray, b: BallArray) -> BallArray:
    """Add entry by entry; a number plus what is infinite, as masks are, is exactly so."""
    found, infinite = a + b, (np.isinf(a.mid) & (a.rad == 0)) ^ (np.isinf(b.mid) & (b.rad == 0))
    return kept(BallArray(found.mid, np.where(infinite, 0.0, found.rad)), nonzero(a) | nonzero(b))


def product(a: BallArray, b: BallArray) -> BallArray:
    """Multiply entry by entry."""
    found = a * b
    return kept(found, nonzero(a) & nonzero(b) | ~np.isfinite(found.mid))


def matrix_product(a: BallArray, b: BallArray) -> BallArray:
    """Multiply matrices; an entry is zero if each product in its sum has a factor that is."""
    shape = (*a.shape[:-1], b.shape[-1])
    a = a.reshape(-1, a.shape[-1]) if b.mid.ndim == 2 else a
    found, alive = a @ b, nonzero(a).astype(float) @ nonzero(b).astype(float) > 0
    found = kept(found, alive | ~np.isfinite(found.mid))
    return found.reshape(*shape) if b.mid.ndim == 2 else found


def inverse(x: BallArray) -> BallArray:
    """Return reciprocals; no number where zero is possible."""
    positive, negative = x.inverse(), -(-x).inverse()
    sign = x.upper < 0
    return BallArray(np.where(sign, negative.mid, positive.mid), np.where(sign, negative.rad, positive.rad))


def rearranged(function: Callable[..., Any], options: Options, *inputs: Any) -> Any:
    """Apply a function that only moves entries of its arguments: to the places of entries, if these are floats."""
    forms = [x for x in inputs if isinstance(x, Form)]
    if not forms:
        return function(options, *inputs)
    place, count = place_of(forms), max(len(form.rows.mid) for form in forms)
    ends = np.cumsum([0, *(int(np.prod(form.shape)) for form in forms)])
    places = iter(np.arange(a, b).reshape(form.shape) for form, a, b in zip(forms, ends, ends[1:], strict=False))
    found = function(options, *(next(places) if isinstance(x, Form) else x for x in inputs))
    flat = [padded(form.rows, count).reshape(count, -1) for form in forms]
    rows = flat[0] if len(flat) == 1 else concatenated(flat, 1)
    if isinstance(found, list):
        return [Form(rows[:, part], place) for part in found]
    return Form(rows[:, found], place)


def padded(rows: BallArray, count: int) -> BallArray:
    """Return so many rows, those that are missing zero."""
    if len(rows.mid) == count:
        return rows
    zeros = np.zeros((count - len(rows.mid), *rows.shape[1:]))
    return concatenated([rows, ball(zeros)], 0)


# ---- what only moves numbers, on arrays of any kind ------------------------------------------------------------------


def _reshape(o: Options, x: Array, shape: Array) -> Array:
    sizes = [int(k) for k in shape]
    if not o.get("allowzero"):
        sizes = [x.shape[i] if k == 0 else k for i, k in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(o: Options, x: Array) -> Array:
    axis = o["axis"] + x.ndim * (o["axis"] < 0)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


def _squeeze(o: Options, x: Array, axes: Array | None = None) -> Array:
    chosen = o.get("axes") if axes is None else axes
    return np.squeeze(x, None if chosen is None else tuple(int(k) for k in chosen))


def _unsqueeze(o: Options, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(int(k) for k in (o["axes"] if axes is None else axes)))


def _slice(o: Options, x: Array, *given: Array | None) -> Array:
    inputs: Any = given or (o["starts"], o["ends"], o.get("axes"))
    starts, ends, axes, steps = [*inputs, None, None][:4]
    cut = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = int(i if axes is None else axes[i]), 1 if steps is None else int(steps[i])
        cut[axis] = slice(int(start), int(end), step)
    return x[tuple(cut)]


def _split(o: Options, x: Array, sizes: Array | None = None) -> list[Array]:
    axis, sizes = o["axis"], o.get("split") if sizes is None else sizes
    if sizes is None:
        count = o.get("num_outputs") or o["outputs"]
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - i * each) for i in range(count)]
    if sum(map(int, sizes)) != x.shape[axis]:
        raise CannotCheck("its parts are not the whole tensor")
    return np.split(x, np.cumsum([int(k) for k in sizes])[:-1], axis)


def _dropout(o: Options, x: Array, _ratio: Array | None = None, training: Array | None = None) -> Array:
    if training is not None and training.any():
        raise CannotCheck("it is in training mode")
    return x


MOVED: dict[str, Callable[..., Any]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Dropout": _dropout,
    "Identity": lambda o, x: x,
    "Transpose": lambda o, x: x.transpose(o.get("perm")),
    "Gather": lambda o, x, index: np.take(x, index, o["axis"]),
    "GatherElements": lambda o, x, index: np.take_along_axis(x, index, o["axis"]),
    "Concat": lambda o, *parts: np.concatenate(parts, o["axis"]),
    "Expand": lambda o, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(map(int, shape)))),
    "Tile": lambda o, x, repeats: np.tile(x, tuple(map(int, repeats))),
    "Where": lambda o, chosen, x, y: np.where(chosen, x, y),
}

# ---- whole numbers and truth values ----------------------------------------------------------------------------------


def _exactly(x: Any) -> Array:
    """Return a constant that is known exactly, as an array."""
    if not isinstance(x, Form):
        return x
    value = x.value()
    if value.rad.any():
        raise CannotCheck("it compares or truncates numbers that are known up to rounding only")
    return value.mid


def _quotient(x: Array, y: Array) -> Array:
    if not np.all(y):
        raise CannotCheck("it divides by zero")
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))  # towards zero


WHOLE: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _quotient,
    "Neg": np.negative,
    "Abs": np.abs,
    "Min": lambda *parts: np.min(np.broadcast_arrays(*parts), 0),
    "Max": lambda *parts: np.max(np.broadcast_arrays(*parts), 0),
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Range": lambda start, end, step: np.arange(start.item(), end.item(), step.item(), dtype=start.dtype),
}
COMPARED: dict[str, Callable[..., Array]] = {
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
}


def _cast(_reader: Any, o: Options, x: Form | Array) -> Form | Array:
    from onnx import helper

    target: Any = helper.tensor_dtype_to_np_dtype(o["to"])
    if target.kind in "iub":
        return _exactly(x).astype(target)
    if target.kind not in "fV":  # ml_dtypes has kinds of its own for bfloat16
        raise CannotCheck(f"it casts to {target}")
    if not isinstance(x, Form):
        return constant(x.astype(target).astype(np.float64))
    if x.place is None and not x.rows.rad.any():
        return constant(x.rows.mid[0].astype(target).astype(np.float64))
    return x  # what is computed is meant in real arithmetic


def _filled(_reader: Any, o: Options, shape: Array) -> Form | Array:
    value = o.get("value")
    return _tensor(value, tuple(map(int, shape))) if value is not None else constant(np.zeros(tuple(map(int, shape))))


def _tensor(proto: Any, shape: tuple[int, ...] | None = None) -> Form | Array:
    """Return a tensor of a file, or a tensor of one number in a shape."""
    from onnx import TensorProto, numpy_helper

    array: Array = numpy_helper.to_array(proto)
    if shape is not None:
        array = np.broadcast_to(array.reshape(()), shape)
    if proto.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return constant(array.astype(np.float64))
    if array.dtype.kind not in "iub":
        raise CannotCheck(f"tensors of {TensorProto.DataType.Name(proto.data_type)} are not known")
    return array


def _constant(_reader: Any, o: Options) -> Form | Array:
    ((name, value),) = ((name, value) for name, value in o.items() if name != "outputs")
    if name == "value":
        return _tensor(value)
    if name in ("value_int", "value_ints"):
        return np.asarray(value, dtype=np.int64)
    if name in ("value_float", "value_floats"):
        return constant(np.asarray(value, dtype=np.float64))
    raise CannotCheck(f"constants given as {name} are not known")


def _shape(_reader: Any, o: Options, x: Form | Array) -> Array:
    return np.array(x.shape[o.get("start", 0) : o.get("end")], dtype=np.int64)


# ---- what is linear --------------------------------------------------------------------------------------------------


def _add(reader: Any, _o: Options, first: Form, *others: Form) -> Form:
    for other in others:
        if None not in (first.place, other.place) and first.place != other.place:
            first = reader.residual(first, other)
            continue
        axes, count = max(len(first.shape), len(other.shape)), max(len(x.rows.mid) for x in (first, other))
        rows = total(*(padded(x.aligned(axes), count) for x in (first, other)))
        first = Form(rows, place_of([first, other]))
    return first


def _negative(_reader: Any, _o: Options, x: Form) -> Form:
    return Form(-x.rows, x.place)


def _multiply(_reader: Any, _o: Options, x: Form, y: Form) -> Form:
    if y.place is not None:
        x, y = y, x
    axes = max(len(x.shape), len(y.shape))
    return Form(product(x.aligned(axes), constant(y.value()).aligned(axes)), x.place)


def _divide(_reader: Any, o: Options, x: Form, y: Form) -> Form:
    return _multiply(None, o, x, constant(inverse(y.value())))


def _multiply_matrices(reader: Any, _o: Options, x: Any, y: Any) -> Any:
    if reader is not None and (reader.holds_scores(x) or None not in (x.place, y.place)):
        return reader.matrices(x, y)
    rows, columns = len(x.shape) > 1, len(y.shape) > 1
    x, y = x if rows else x.reshaped(1, -1), y if columns else y.reshaped(-1, 1)
    place, axes = place_of([x, y]), max(len(x.shape), len(y.shape))
    if y.place is None and len(y.shape) == 2:
        found = matrix_product(x.rows, y.rows[0])
    else:
        found = matrix_product(x.aligned(axes), y.aligned(axes))
    shape = [*found.shape[1:-2], *found.shape[-2:-1] * rows, *found.shape[-1:] * columns]
    return Form(found, place).reshaped(*shape)


def _gemm(reader: Any, o: Options, x: Form, y: Form, z: Form | None = None) -> Form:
    x, y = (rearranged(MOVED["Transpose"], {}, each) if o[f"trans{k}"] else each for each, k in ((x, "A"), (y, "B")))
    found = _multiply(reader, o, _multiply_matrices(reader, o, x, y), constant(o["alpha"]))
    return found if z is None else _add(reader, o, found, _multiply(reader, o, z, constant(o["beta"])))


def _einsum(reader: Any, o: Options, x: Any, y: Any) -> Any:
    """Sum products over letters: axes turned so that they are products of matrices."""
    sides, _arrow, out = o["equation"].decode().replace(" ", "").partition("->")
    left, right = sides.split(",")
    if "." in sides or not _arrow or any(len(set(part)) < len(part) for part in (left, right, out)):
        raise CannotCheck(f"the equation {o['equation']!r} is not known")
    both, summed = ([k for k in left if k in right and (k in out) == there] for there in (True, False))
    rows, columns = [k for k in left if k not in right], [k for k in right if k not in left]
    if set(out) != {*both, *rows, *columns}:
        raise CannotCheck(f"the equation {o['equation']!r} is not known")
    sizes = {**dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}

    def turned(form: Any, given: str, *groups: list[str]) -> Any:
        order = [given.index(k) for group in groups for k in group]
        shape = [*(sizes[k] for k in groups[0]), *(int(np.prod([sizes[k] for k in group])) for group in groups[1:])]
        if order == sorted(order) and list(form.shape) == shape:
            return form
        return rearranged(MOVED["Transpose"], {"perm": order}, form).reshaped(*shape)

    found = _multiply_matrices(reader, o, turned(x, left, both, rows, summed), turned(y, right, both, summed, columns))
    if reader is not None and reader.holds_scores(found):
        if [*out] != [*both, *rows, *columns] or len(rows) != 1 or len(columns) != 1:
            raise CannotCheck("it turns the axes of scores")
        return found
    found = found.reshaped(*(sizes[k] for k in (*both, *rows, *columns)))
    return rearranged(MOVED["Transpose"], {"perm": [[*both, *rows, *columns].index(k) for k in out]}, found)


def _windows(o: Options, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[tuple[int, int]], Any, Any]:
    """Return the padding, strides and dilations of a convolution."""
    axes = len(sizes)
    strides, dilations = o.get("strides") or [1] * axes, o.get("dilations") or [1] * axes
    if list(o.get("kernel_shape") or kernel) != list(kernel):
        raise CannotCheck("its kernel has another shape than its weights")
    way, pads = o["auto_pad"].decode(), o.get("pads") or [0] * 2 * axes
    both = [(pads[i], pads[i + axes]) for i in range(axes)]
    if way in ("SAME_UPPER", "SAME_LOWER"):
        left = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        both = [(x // 2, x - x // 2) if way == "SAME_UPPER" else (x - x // 2, x // 2) for x in left]
    elif way != "NOTSET":
        both = [(0, 0)] * axes
    return both, strides, dilations


def _conv(reader: Any, o: Options, x: Form, weight: Form, bias: Form | None = None) -> Form:
    W, (batch, channels, *sizes) = weight.value(), x.shape
    out, each, *kernel = W.shape
    groups, axes = o["group"], len(sizes)
    if channels != groups * each or out % groups:
        raise CannotCheck("its weights do not fit its input")
    both, strides, dilations = _windows(o, sizes, kernel)
    # the place of every number of every patch, behind a zero for what is padded
    places = np.pad(np.arange(1, 1 + channels * int(np.prod(sizes))).reshape(channels, *sizes), [(0, 0), *both])
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    patches = np.lib.stride_tricks.sliding_window_view(places, reach, tuple(range(1, axes + 1)))
    patches = patches[(slice(None), *(slice(None, None, s) for s in (*strides, *dilations)))]
    left = patches.shape[1 : axes + 1]
    patches = patches.reshape(groups, each, -1, int(np.prod(kernel))).transpose(0, 2, 1, 3)
    flat = x.rows.reshape(len(x.rows.mid), batch, -1)
    flat = concatenated([ball(np.zeros((*flat.shape[:2], 1))), flat], -1)
    entering = flat[:, :, patches.reshape(groups, patches.shape[1], -1)]
    found = matrix_product(entering, W.reshape(groups, out // groups, -1).T)
    form = Form(found.moved(-1, -2), x.place).reshaped(batch, out, *left)
    return form if bias is None else _add(reader, o, form, bias.reshaped(out, *(1,) * axes))


def _batch_norm(reader: Any, o: Options, x: Form, *others: Form) -> Form:
    if o.get("training_mode") or o["outputs"] > 1 or o.get("spatial", 1) != 1:
        raise CannotCheck("it is in training mode, or norms every position")
    scale, shift, mean, variance = (each.reshaped(-1, *(1,) * (len(x.shape) - 2)) for each in others)
    root = total(variance.value(), ball(o["epsilon"])).sqrt()
    factor = constant(product(scale.value(), inverse(root)))
    centred = _add(reader, o, x, _negative(reader, o, mean))
    return _add(reader, o, _multiply(reader, o, centred, factor), shift)


def _reduce(mean: bool) -> Callable[..., Form]:
    def reduced(reader: Any, o: Options, x: Form, axes: Array | None = None) -> Form:
        chosen = o.get("axes") if axes is None else axes
        if (chosen is None or not len(chosen)) and o.get("noop_with_empty_axes"):
            return x
        names = range(len(x.shape)) if chosen is None or not len(chosen) else chosen
        every, rows = sorted({int(k) % len(x.shape) for k in names}), x.rows
        for axis in every:
            rows = kept(rows.sum(axis + 1, keepdims=True), nonzero(rows).any(axis + 1, keepdims=True))
        found = Form(rows, x.place)
        if mean:
            count = float(np.prod([x.shape[k] for k in every]))
            found = _multiply(reader, o, found, constant(inverse(ball(count))))
        return found if o["keepdims"] else found.reshaped(*(n for k, n in enumerate(x.shape) if k not in every))

    return reduced


def _triangle(_reader: Any, o: Options, x: Form | Array, k: Array | None = None) -> Form | Array:
    place = 0 if k is None else int(k)
    ones = np.ones(x.shape[-2:], dtype=bool)
    seen = np.triu(ones, place) if o["upper"] else np.tril(ones, place)
    return Form(kept(x.rows, seen), x.place) if isinstance(x, Form) else np.where(seen, x, 0).astype(x.dtype)


# ---- what is not linear ----------------------------------------------------------------------------------------------


def _pointwise(function: Callable[[arb], arb]) -> Callable[..., Form]:
    return lambda _reader, _o, x: constant(x.value().map(function))


def _relu(reader: Any, _o: Options, x: Form) -> Form:
    if x.place is not None:
        return reader.relu(x)
    y = x.value()
    return constant(between(np.maximum(y.lower, 0), np.maximum(y.upper, 0)))


def _gelu(_reader: Any, o: Options, x: Form) -> Form:
    def exact(y: arb) -> arb:
        return y * (1 + (y / arb(2).sqrt()).erf()) / 2

    def approximate(y: arb) -> arb:
        return y * (1 + ((2 / arb.pi()).sqrt() * (y + arb("0.044715") * y**3)).tanh()) / 2

    return constant(x.value().map(approximate if o["approximate"] == b"tanh" else exact))


def _softmax(reader: Any, o: Options, x: Any) -> Any:
    if reader is not None and reader.holds_scores(x):
        return reader.softmax(x, last_axis_of(o, x.shape))
    y, axis = x.value(), o["axis"] % len(x.shape)
    if o["opset"] >= 13:
        return constant(_weights(y.moved(axis, -1)).moved(-1, axis))
    return constant(_weights(y.reshape(int(np.prod(x.shape[:axis])), -1)).reshape(*x.shape))


def last_axis_of(o: Options, shape: Sequence[int]) -> bool:
    """Tell whether a softmax is over the last axis: before opset 13, over all axes from the one that it names on."""
    axis = o["axis"] % len(shape)
    return axis == len(shape) - 1 or (o["opset"] < 13 and all(n == 1 for n in shape[axis:-1]))


def _weights(scores: BallArray) -> BallArray:
    return softmax(scores, ~((scores.mid == -np.inf) & (scores.rad == 0)))


def _power(_reader: Any, _o: Options, x: Form, y: Form | Array) -> Form:
    power = arb(float(_exactly(y).item()))
    return constant(x.value().map(lambda v: v**power))


def _layer_norm(_reader: Any, o: Options, x: Form, gain: Form, bias: Form | None = None) -> Form:
    y, axis = x.value(), o["axis"] % len(x.shape)
    flat = y.reshape(*x.shape[:axis], -1)
    share = inverse(ball(float(flat.shape[-1])))
    centred = flat - flat.sum(keepdims=True) * share
    root = ((centred * centred).sum(keepdims=True) * share + o["epsilon"]).sqrt()
    found = (centred * inverse(root)).reshape(*x.shape) * gain.value()
    return constant(found if bias is None else found + bias.value())


def _extreme(function: Callable[[Array, Array], Array]) -> Callable[..., Form]:
    def found(_reader: Any, _o: Options, first: Form, *others: Form) -> Form:
        low, high = first.value().lower, first.value().upper
        for other in (form.value() for form in others):
            low, high = function(low, other.lower), function(high, other.upper)
        return constant(between(low, high))

    return found


def _clip(reader: Any, o: Options, x: Form, low: Form | None = None, high: Form | None = None) -> Form:
    ends = (
        (_extreme(np.maximum), low if low is not None or "min" not in o else constant(o["min"])),
        (_extreme(np.minimum), high if high is not None or "max" not in o else constant(o["max"])),
    )
    for function, end in ends:
        x = x if end is None else function(reader, o, x, end)
    return x


OPERATIONS: dict[str, Callable[..., Any]] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Shape": _shape,
    "Size": lambda _reader, o, x: np.array(int(np.prod(x.shape)), dtype=np.int64),
    "Cast": _cast,
    "Mod": lambda _reader, o, x, y: (np.fmod if o["fmod"] else np.mod)(x, y),
    "Trilu": _triangle,
    "Add": _add,
    "Sum": _add,
    "Sub": lambda reader, o, x, y: _add(reader, o, x, _negative(reader, o, y)),
    "Neg": _negative,
    "Mul": _multiply,
    "Div": _divide,
    "Reciprocal": lambda _reader, o, x: constant(inverse(x.value())),
    "MatMul": _multiply_matrices,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "ReduceMean": _reduce(mean=True),
    "ReduceSum": _reduce(mean=False),
    "Relu": _relu,
    "Gelu": _gelu,
    "Erf": _pointwise(lambda v: v.erf()),
    "Tanh": _pointwise(lambda v: v.tanh()),
    "Sigmoid": _pointwise(lambda v: 1 / (1 + (-v).exp())),
    "Exp": _pointwise(lambda v: v.exp()),
    "Log": _pointwise(lambda v: v.log()),
    "Sqrt": _pointwise(lambda v: v.sqrt()),
    "Abs": _pointwise(abs),
    "Pow": _power,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "Max": _extreme(np.maximum),
    "Min": _extreme(np.minimum),
    "Clip": _clip,
}


class Graph:
    """A network in an ONNX file.

    Attributes:
        path: The file.
        nodes: Its nodes, in their order.
        constants: Its weights, by name.
        source: The name of its input.
        shape: Its shape, with one sequence in a batch.
        output: The name of its output.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Raises:
            CannotCheck: If it is no network with one input and one output of floats, in operations of ONNX alone.
        """
        try:
            import onnx
        except ImportError as error:
            raise CannotCheck("reading ONNX files needs the package onnx: pip install 'howsmooth[onnx]'") from error
        try:
            model = onnx.load(str(path))
        except Exception as error:  # protobuf has an exception of its own for every fault
            raise CannotCheck(f"{Path(path).name} is no ONNX file that can be read: {_first_line(error)}") from error
        graph, opsets = model.graph, {x.version for x in model.opset_import if x.domain in ("", "ai.onnx")}
        newest = onnx.defs.onnx_opset_version()
        if len(opsets) != 1 or not OLDEST <= max(opsets) <= newest:
            raise CannotCheck(f"opsets from {OLDEST} to {newest} are known, got {sorted(opsets)}")
        self.path, (self.opset,) = path, opsets
        if model.functions or graph.sparse_initializer:
            raise CannotCheck("the model defines functions of its own, or has sparse weights")
        self.nodes = list(graph.node)
        self.constants = {x.name: _named(f"the weight {x.name}", _tensor, x) for x in graph.initializer}
        inputs, outputs = [x for x in graph.input if x.name not in self.constants], list(graph.output)
        if len(inputs) != 1 or len(outputs) != 1:
            raise CannotCheck(f"one input and one output are known, the model has {len(inputs)} and {len(outputs)}")
        self.source, self.output = inputs[0].name, outputs[0].name
        sizes = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim]
        self.shape = tuple([sizes[0] or 1, *sizes[1:]] if sizes else [])
        if not self.shape or not all(self.shape) or np.prod(self.shape) > MOST_INPUTS:
            raise CannotCheck(f"inputs of a known size up to {MOST_INPUTS} are known, got the shape {self.shape}")

    def evaluate(self, x: BallArray | Array) -> BallArray:
        """Return the outputs at an input, both as vectors."""
        x = ball(x)
        if x.mid.size != np.prod(self.shape):
            raise CannotCheck(f"the network has {np.prod(self.shape)} inputs, got {x.mid.size}")
        found = self.run(constant(x.reshape(*self.shape)))
        if not isinstance(found, Form):
            raise CannotCheck("its outputs are whole numbers")
        return found.value().reshape(-1)

    def run(self, entering: Form, reader: Any = None) -> Any:
        """Run all nodes, and return the output; a reader makes steps of what is not linear."""
        values: dict[str, Any] = {**self.constants, self.source: entering, "": None}
        for node in self.nodes:
            called = f"the node {node.name or ''.join(node.output[:1])} ({node.op_type})"
            values.update(_named(called, self._run, node, values, reader))
            if reader is not None:
                _named(called, reader.met, values, node)
        if self.output not in values:
            raise CannotCheck(f"no node has the output {self.output}")
        return values[self.output]

    def _run(self, node: Any, values: dict[str, Any], reader: Any) -> dict[str, Any]:
        """Run one node, and return what it puts out by name."""
        kind, missing = node.op_type, [name for name in node.input if name not in values]
        if node.domain not in ("", "ai.onnx"):
            raise CannotCheck(f"its domain {node.domain!r} is not that of ONNX")
        if taken := [name for name in node.output if name and name in values]:
            raise CannotCheck(f"another node or weight has the name {taken[0]} of what it puts out")
        if missing:
            raise CannotCheck(f"nothing known here puts out what it reads, {missing[0]}")
        options, inputs = self._options(node), [values[name] for name in node.input]
        floats = [isinstance(x, Form) for x in inputs]
        found: Any
        if reader is not None and any(map(reader.holds_scores, inputs)) and kind not in ("MatMul", "Einsum", "Softmax"):
            found = reader.of_scores(kind, options, *inputs)
        elif kind in MOVED:
            found = rearranged(MOVED[kind], options, *inputs)
        elif kind in COMPARED:
            found = COMPARED[kind](*map(_exactly, inputs))
        elif kind in WHOLE and not any(floats):
            found = WHOLE[kind](*inputs)
        elif kind in OPERATIONS:
            found = OPERATIONS[kind](reader, options, *inputs)
        else:
            raise CannotCheck("the operation is not known here")
        parts = found if isinstance(found, list) else [found]
        return {name: part for name, part in zip(node.output, parts, strict=False) if name}

    def _options(self, node: Any) -> Options:
        """Return the attributes of a node, with the defaults of the opset, how many outputs it has, and the opset."""
        from onnx import defs, helper

        schema = defs.get_schema(node.op_type, self.opset, "")
        found: Options = {
            name: helper.get_attribute_value(attribute.default_value)
            for name, attribute in schema.attributes.items()
            if attribute.default_value.name
        }
        for attribute in node.attribute:
            if attribute.name not in schema.attributes or attribute.ref_attr_name:
                raise CannotCheck(f"its attribute {attribute.name!r} is not one of opset {self.opset}")
            found[attribute.name] = helper.get_attribute_value(attribute)
        if node.op_type == "Constant":
            return found
        return found | {"outputs": sum(map(bool, node.output)), "opset": self.opset}


def runtime(path: str | os.PathLike[str]) -> Callable[[Array], Array] | None:
    """Return a network as onnxruntime runs it, on vectors; none if that is not there, or does not run the file."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # it refuses files in many ways
        return None
    (given,) = session.get_inputs()
    kind = {"tensor(double)": np.float64, "tensor(float16)": np.float16}.get(given.type, np.float32)
    shape = [n if isinstance(n, int) else 1 for n in given.shape]

    def run(x: Array) -> Array:
        return np.asarray(session.run(None, {given.name: x.astype(kind).reshape(shape)})[0], dtype=np.float64).ravel()

    return run


def _named(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; whatever it stumbles over is said with the name of the node or tensor."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception as error:  # numpy and onnx raise whatever they stumble over
        why = str(error) if isinstance(error, CannotCheck) else f"{type(error).__name__}: {_first_line(error)}"
        raise CannotCheck(f"{name} is not read: {why}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(".")
