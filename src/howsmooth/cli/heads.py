"""The map that matrices make: one head of scores and values, or heads stacked in 2-D or 3-D matrices."""

import dataclasses
from typing import TYPE_CHECKING

from howsmooth.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.maps.attention import Attention


def single_head(matrices: "dict[str, Tensor]", *, scale: float | None, causal: bool) -> "Attention":
    """Build one head from ``A`` and ``V``; without values they are the identity."""
    import torch

    import howsmooth as hs

    A = matrices["A"]
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f"A must be a square matrix, (d, d), got the shape {tuple(A.shape)}.", field="A")
    V = matrices.get("V", torch.eye(len(A), dtype=A.dtype))
    if V.ndim != 2 or V.shape[1] != len(A):
        raise ShapeError(
            f"V must be a matrix with as many columns as A, (v, {len(A)}), got the shape {tuple(V.shape)}.", field="V"
        )
    head = hs.Attention.single_head(A=A, V=V, causal=causal)
    return head if scale is None else dataclasses.replace(head, scale=scale)


def many_heads(
    matrices: "dict[str, Tensor]", *, heads: int | None, groups: int | None, scale: float | None, causal: bool
) -> "Attention":
    """Build a layer from ``query``, ``key``, ``value`` and ``output``, and their biases.

    Matrices in three axes say how many heads there are.
    """
    import howsmooth as hs

    query = matrices["query"]
    heads = heads or (len(query) if query.ndim == 3 else 1)
    shared = [len(matrices[name]) for name in ("key", "value") if matrices[name].ndim == 3]
    groups = groups or (shared[0] if shared else heads)
    output = matrices.get("output")
    return hs.Attention(
        query=_split_rows(query, heads, "query", "heads"),
        key=_split_rows(matrices["key"], groups, "key", "groups"),
        value=_split_rows(matrices["value"], groups, "value", "groups"),
        output=None if output is None else _split_columns(output, heads),
        query_bias=_split_bias(matrices, "query", heads, "heads"),
        key_bias=_split_bias(matrices, "key", groups, "groups"),
        value_bias=_split_bias(matrices, "value", groups, "groups"),
        output_bias=matrices.get("output_bias"),
        scale=scale,
        positions=hs.Positions(causal=causal),
    )


def _split_bias(matrices: "dict[str, Tensor]", name: str, parts: int, option: str) -> "Tensor | None":
    """Give a bias its head axis: ``(parts · rows,)`` becomes ``(parts, rows)``."""
    bias = matrices.get(f"{name}_bias")
    if bias is None or bias.ndim == 2:
        return bias
    if bias.ndim != 1:
        raise ShapeError(f"{name}_bias must have 1 or 2 axes, got the shape {tuple(bias.shape)}.", field=f"{name}_bias")
    if len(bias) % parts:
        raise ShapeError(
            f"{name}_bias must split into {parts} {option}, but has {len(bias)} entries; see --{option}.",
            field=f"{name}_bias",
        )
    return bias.unflatten(0, (parts, -1))


def _split_rows(x: "Tensor", parts: int, name: str, option: str) -> "Tensor":
    """Give a 2-D matrix its head axis: ``(parts · rows, d)`` becomes ``(parts, rows, d)``."""
    _require_split(x, parts, name, option, axis=0)
    return x if x.ndim == 3 else x.unflatten(0, (parts, -1))


def _split_columns(x: "Tensor", heads: int) -> "Tensor":
    """Give a 2-D output projection its head axis: ``(out, heads · v)`` becomes ``(heads, out, v)``."""
    _require_split(x, heads, "output", "heads", axis=1)
    return x if x.ndim == 3 else x.unflatten(1, (heads, -1)).movedim(1, 0)


def _require_split(x: "Tensor", parts: int, name: str, option: str, *, axis: int) -> None:
    if x.ndim not in (2, 3):
        raise ShapeError(f"{name} must have 2 or 3 axes, got the shape {tuple(x.shape)}.")
    if x.ndim == 3 and len(x) != parts:
        raise ShapeError(f"{name} must have {parts} {option} along its first axis, got the shape {tuple(x.shape)}.")
    if x.ndim == 2 and x.shape[axis] % parts:
        lines = ("rows", "columns")[axis]
        raise ShapeError(f"{name} must split into {parts} {option}, but has {x.shape[axis]} {lines}; see --{option}.")
