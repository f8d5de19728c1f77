"""Operations of ONNX that are linear in their first argument, on arrays with one axis more in front."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]
_CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: torch.nn.functional.conv1d,
    2: torch.nn.functional.conv2d,
}


class NotReadError(Exception):
    """A node does something that no map here does."""


# The operations that are read, with the options that are looked at; any other option must have its default.
READ: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("MatMul", "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Where"), ()),
    **dict.fromkeys(("Relu", "Tanh", "Erf", "Sigmoid", "Identity", "Expand"), ()),
    "Reshape": ("allowzero",),
    "Transpose": ("perm",),
    **dict.fromkeys(("Unsqueeze", "Squeeze"), ("axes",)),
    "Gather": ("axis",),
    "Slice": ("starts", "ends", "axes"),
    "ReduceMean": ("axes", "keepdims", "noop_with_empty_axes"),
    "Conv": ("strides", "pads", "dilations", "group", "kernel_shape", "auto_pad"),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "Flatten": ("axis",),
    "Concat": ("axis",),
    "Cast": ("to", "saturate"),
    "Dropout": ("ratio", "seed"),
    "Einsum": ("equation",),
    "Gelu": ("approximate",),
    "Softmax": ("axis",),
    "LayerNormalization": ("axis", "epsilon", "stash_type"),
    "BatchNormalization": ("epsilon", "momentum"),
}


def options_of(node: Any, opset: int) -> dict[str, Any]:
    """Return the options of a node, with the defaults of its opset.

    Raises:
        NotReadError: If it has one that is not looked at, with another value than its default.
    """
    from onnx import defs, helper

    try:
        known = defs.get_schema(node.op_type, opset).attributes
    except defs.SchemaError as error:
        raise NotReadError(f"is unknown to ONNX of opset {opset}") from error
    found = {
        name: helper.get_attribute_value(schema.default_value)
        for name, schema in known.items()
        if schema.default_value.type
    }
    defaults = dict(found)
    found |= {option.name: helper.get_attribute_value(option) for option in node.attribute}
    for name, value in found.items():
        if name not in known or (name not in READ[node.op_type] and value != defaults.get(name)):
            raise NotReadError(f"has the option {name} = {value}, which is not read")
    if node.op_type == "Cast" and helper.tensor_dtype_to_np_dtype(found["to"]).kind != "f":
        raise NotReadError("turns numbers into whole numbers or truth values")
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


# Products of matrices may be so many times smaller than the sums of the absolute values that they consist of; those of
# one vector the square of that, since a constant may cancel.
CANCELLED = 2.0**20


def aligned(x: Array, rank: int) -> Array:
    """Return columns of tensors as those of tensors with more axes in front, as broadcasting adds them."""
    return x.reshape(len(x), *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _reshape(options: dict[str, Any], x: Array, shape: Array) -> Array:
    if options.get("allowzero") and 0 in shape:
        raise NotReadError("makes a tensor without numbers")
    wanted = [x.shape[k + 1] if size == 0 else int(size) for k, size in enumerate(shape)]
    return x.reshape(len(x), *wanted)


def _transpose(options: dict[str, Any], x: Array) -> Array:
    order = options.get("perm") or range(x.ndim - 1)[::-1]
    return x.transpose(0, *(axis + 1 for axis in order))


def axes_of(options: dict[str, Any], given: Array | None, dimensions: int) -> tuple[int, ...]:
    """Return the axes that a node names, as an option or as an input, behind the one in front."""
    axes = options.get("axes") if given is None else given
    return tuple(sorted(int(axis) % dimensions + 1 for axis in (range(dimensions) if axes is None else axes)))


def _unsqueeze(options: dict[str, Any], x: Array, axes: Array | None = None) -> Array:
    given = options.get("axes") if axes is None else axes
    assert given is not None
    return np.expand_dims(x, axes_of(options, axes, x.ndim - 1 + len(given)))


def _squeeze(options: dict[str, Any], x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x, axes_of(options, axes, x.ndim - 1))


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
    given = options.get("axes") if axes is None else axes
    if not np.size(given if given is not None else ()):  # none: all of them, or the node does nothing
        if options.get("noop_with_empty_axes"):
            return x
        given = range(x.ndim - 1)
    return x.mean(axes_of({"axes": given}, None, x.ndim - 1), keepdims=bool(options["keepdims"]))


def _conv(options: dict[str, Any], x: Array, weight: Array) -> Array:
    dimensions = weight.ndim - 2
    if dimensions not in _CONVOLUTIONS:
        raise NotReadError(f"is a convolution in {dimensions} dimensions")
    if (
        any(options.get("pads") or ())
        or options["auto_pad"] not in ("NOTSET", "VALID")
        or any(step != 1 for step in options.get("dilations") or [1])
        or options["group"] != 1
        or tuple(options.get("kernel_shape") or weight.shape[2:]) != weight.shape[2:]
    ):
        raise NotReadError("is a convolution with padding, dilation or groups")
    flat = torch.from_numpy(x.reshape(-1, *x.shape[2:]))
    strides = tuple(options.get("strides") or (1,) * dimensions)
    found = _CONVOLUTIONS[dimensions](flat, torch.from_numpy(weight), stride=strides)
    return found.numpy().reshape(len(x), -1, *found.shape[1:])


def _matmul(options: dict[str, Any], x: Array, y: Array) -> Array:
    if x.ndim == 2 and y.ndim > 2:
        raise NotReadError("multiplies one vector by many matrices")
    x = aligned(x, max(x.ndim - 1, y.ndim)) if y.ndim > 2 else x
    if len(x) == 1 and y.ndim == 2 and x.size * y.shape[1] <= 2**24:
        # one product after the other: tokens with the same numbers have the same sums, unlike those of blocks
        found, most = (x[..., None] * y).sum(-2), CANCELLED**2
    else:
        found, most = x @ y, CANCELLED
    if (np.abs(x) @ np.abs(y)).max() > most * np.abs(found).max():
        raise NotReadError("multiplies matrices whose product cancels, so that float64 loses its digits")
    return found


def _gemm(options: dict[str, Any], x: Array, weight: Array) -> Array:
    if options["transA"]:
        raise NotReadError("transposes its input")
    return options["alpha"] * _matmul({}, x, weight.T if options["transB"] else weight)


def _flatten(options: dict[str, Any], x: Array) -> Array:
    axis = options["axis"] % x.ndim if options["axis"] >= 0 else options["axis"] % (x.ndim - 1)
    return x.reshape(len(x), int(np.prod(x.shape[1 : axis + 1])), -1)


def _cast(options: dict[str, Any], x: Array) -> Array:
    return x


def _dropout(options: dict[str, Any], x: Array, ratio: Array | None = None, training: Array | None = None) -> Array:
    if training is not None and bool(np.any(training)):
        raise NotReadError("drops numbers by chance")
    return x


def _expand(options: dict[str, Any], x: Array, shape: Array) -> Array:
    wanted = np.broadcast_shapes(x.shape[1:], tuple(int(size) for size in shape))
    return np.broadcast_to(aligned(x, len(wanted)), (len(x), *wanted))


OPERATIONS: dict[str, Callable[..., Array]] = {
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
    "Dropout": _dropout,
    "MatMul": _matmul,
    "Expand": _expand,
}
