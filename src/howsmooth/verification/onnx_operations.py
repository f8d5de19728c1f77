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


def _reshape(options: dict[str, Any], x: Array, shape: Array) -> Array:
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
    return x.mean(axes_of(options, axes, x.ndim - 1), keepdims=bool(options.get("keepdims", 1)))


def _conv(options: dict[str, Any], x: Array, weight: Array) -> Array:
    dimensions = weight.ndim - 2
    if dimensions not in _CONVOLUTIONS:
        raise NotReadError(f"is a convolution in {dimensions} dimensions")
    if (
        any(options.get("pads") or ())
        or any(step != 1 for step in options.get("dilations") or [1])
        or options.get("group", 1) != 1
    ):
        raise NotReadError("is a convolution with padding, dilation or groups")
    flat = torch.from_numpy(x.reshape(-1, *x.shape[2:]))
    strides = tuple(options.get("strides") or (1,) * dimensions)
    found = _CONVOLUTIONS[dimensions](flat, torch.from_numpy(weight), stride=strides)
    return found.numpy().reshape(len(x), -1, *found.shape[1:])


def _gemm(options: dict[str, Any], x: Array, weight: Array) -> Array:
    if options.get("transA"):
        raise NotReadError("transposes its input")
    return options.get("alpha", 1.0) * x @ (weight.T if options.get("transB") else weight)


def _flatten(options: dict[str, Any], x: Array) -> Array:
    axis = options.get("axis", 1)
    return x.reshape(len(x), int(np.prod(x.shape[1 : axis + 1])), -1)


def _cast(options: dict[str, Any], x: Array) -> Array:
    return x


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
    "Dropout": _cast,
    "MatMul": lambda options, x, y: x @ y,
    "Expand": lambda options, x, shape: np.broadcast_to(x, (len(x), *np.broadcast_shapes(x.shape[1:], tuple(shape)))),
}
