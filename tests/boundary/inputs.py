"""The inputs that people have: tensors as programs leave them, and modules as training leaves them."""

import contextlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

# What a function owes for an input: its answer, an answer or a refusal in a sentence, a refusal unless it is infinite.
Owed = Literal["answer", "answer or refusal", "refusal"]
# How far an answer may be from that in float64, as a share of its largest number.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}


@dataclass(frozen=True)
class Held:
    """One way to hold numbers."""

    name: str
    hold: Callable[[Tensor], Any]
    owed: Owed = "answer"
    every: bool = True  # every tensor of a call, or one after the other
    within: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    def __str__(self) -> str:
        return self.name


def inside(x: Tensor, shape: tuple[int, ...], place: Any) -> Tensor:
    """Return a view with the numbers of ``x`` into memory of another shape, with NaN around it."""
    memory = torch.full(shape, torch.nan if x.is_floating_point() else 1, dtype=x.dtype)
    memory[place] = x
    return memory[place]


def reversed_axes(x: Tensor) -> Tensor:
    return x.permute(*range(x.ndim)[::-1])


def only(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Change numbers, and leave masks and numbers of tokens as they are."""
    return lambda x: change(x) if x.is_floating_point() else x


def with_entry(value: float) -> Callable[[Tensor], Tensor]:
    def changed(x: Tensor) -> Tensor:
        flat = x.clone().flatten()
        flat[-1] = value
        return flat.view(x.shape)

    return only(changed)


def read_only(x: Tensor) -> np.ndarray:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


LAYOUTS = [
    Held("transposed", lambda x: x.mT.contiguous().mT if x.ndim > 1 else inside(x, (len(x), 2), (..., 0))),
    Held("permuted", lambda x: reversed_axes(reversed_axes(x).contiguous())),
    Held("sliced", lambda x: inside(x, tuple(s + 3 for s in x.shape), tuple(slice(2, 2 + s) for s in x.shape))),
    Held("of every other number", lambda x: inside(x, (*x.shape[:-1], 2 * x.shape[-1]), (..., slice(None, None, 2)))),
    Held("cut from fused projections",
         lambda x: inside(x, (*x.shape[:-1], 3 * x.shape[-1]), (..., slice(x.shape[-1], 2 * x.shape[-1])))),
    Held("interleaved with others", lambda x: inside(x, (*x.shape, 3), (..., 1))),
    Held("expanded rows", only(lambda x: (x[..., :1, :] if x.ndim > 1 else x[:1]).expand(x.shape))),
    Held("lazily negated", only(lambda x: torch.complex(x, -x).conj().imag)),
]  # fmt: skip
STATES = [
    Held("parameters", only(lambda x: torch.nn.Parameter(x.clone()))),
    Held("in a graph", only(lambda x: x.clone().requires_grad_() * 1)),
    Held("under no_grad", only(lambda x: x.clone().requires_grad_()), within=torch.no_grad),
    Held("of inference mode", lambda x: x.clone(), within=torch.inference_mode),
    Held("float32", only(lambda x: x.float())),
    Held("float32 under autocast", only(lambda x: x.float()), within=lambda: torch.autocast("cpu", torch.bfloat16)),
    Held("while bfloat16 is the default", lambda x: x.clone(), within=lambda: default_dtype(torch.bfloat16)),
    Held("float16", only(lambda x: x.half()), "answer or refusal"),
    Held("bfloat16", only(lambda x: x.bfloat16()), "answer or refusal"),
]
STRANGE = [
    Held("float32 beside float64", only(lambda x: x.float()), "answer or refusal", every=False),
    Held("bfloat16 beside float64", only(lambda x: x.bfloat16()), "answer or refusal", every=False),
    Held("NumPy", lambda x: x.numpy().copy(), "answer or refusal", every=False),
    Held("NumPy backwards", lambda x: x.flip(0).numpy()[::-1], "answer or refusal", every=False),
    Held("read-only NumPy", read_only, "answer or refusal", every=False),
    Held("big-endian NumPy", lambda x: x.numpy().astype(x.numpy().dtype.newbyteorder(">")), "answer or refusal",
         every=False),
    Held("lists", lambda x: x.tolist(), "answer or refusal", every=False),
    Held("whole numbers", lambda x: (x * 3).round().long(), "answer or refusal", every=False),
    Held("complex", only(lambda x: x.to(torch.complex128)), "answer or refusal", every=False),
    Held("sparse", lambda x: x.to_sparse(), "answer or refusal", every=False),
    Held("on meta", lambda x: x.to("meta"), "refusal", every=False),
    Held("NaN", with_entry(math.nan), "refusal", every=False),
    Held("inf", with_entry(math.inf), "refusal", every=False),
    Held("empty", lambda x: x[:0], "refusal", every=False),
    Held("a number", lambda x: x.flatten()[0], "refusal", every=False),
]  # fmt: skip
