"""The inputs that people have: tensors as programs leave them, and modules as training leaves them."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

# What is owed for an input: an answer, an answer or a refusal in a sentence, a refusal unless the answer is infinite.
Owed = Literal["answer", "either", "refusal"]
# How far an answer may be from that in float64, as a share of its largest number.
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Held:
    """One way to hold numbers, or a module, and where that is done."""

    name: str
    hold: Callable[[Any], Any]
    owed: Owed = "answer"
    within: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    rounding: float = 0.0  # more than that of the numbers
    twin: Callable[[Any], Any] = lambda x: x  # the module that does the same


def inside(x: Tensor, shape: tuple[int, ...], place: Any) -> Tensor:
    """Return a view of numbers into memory of another shape, which holds NaN elsewhere."""
    memory = torch.full(shape, torch.nan if x.is_floating_point() else 1, dtype=x.dtype)
    memory[place] = x
    return memory[place]


def turned(x: Tensor) -> Tensor:
    return x.permute(*range(x.ndim)[::-1])


def numbers(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Change numbers, and leave masks and token ids as they are."""
    return lambda x: change(x) if x.is_floating_point() else x


def with_entry(value: float) -> Callable[[Tensor], Tensor]:
    return numbers(lambda x: torch.cat((x.flatten()[:-1], x.new_tensor([value]))).view(x.shape))


def read_only(x: Tensor) -> np.ndarray:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


# fmt: off
VIEWS = {
    "transposed": lambda x: x.mT.contiguous().mT if x.ndim > 1 else inside(x, (len(x), 2), (..., 0)),
    "permuted": lambda x: turned(turned(x).contiguous()),
    "sliced": lambda x: inside(x, tuple(s + 3 for s in x.shape), tuple(slice(2, 2 + s) for s in x.shape)),
    "of every other number": lambda x: inside(x, (*x.shape[:-1], 2 * x.shape[-1]), (..., slice(None, None, 2))),
    "cut from fused projections":
        lambda x: inside(x, (*x.shape[:-1], 3 * x.shape[-1]), (..., slice(x.shape[-1], 2 * x.shape[-1]))),
    "interleaved with others": lambda x: inside(x, (*x.shape, 3), (..., 1)),
    "flipped and copied": lambda x: x.flip(0).contiguous().flip(0),
    "with rows that are one": numbers(lambda x: (x[..., :1, :] if x.ndim > 1 else x[:1]).expand(x.shape)),
    "lazily negated": numbers(lambda x: torch.complex(x, -x).conj().imag),
}
LAYOUTS = [
    *(Held(name, view) for name, view in VIEWS.items()),
    *(Held(f"{name}, in a graph", numbers(lambda x, view=VIEWS[name]: view(x).detach().requires_grad_()))
      for name in ("transposed", "of every other number", "cut from fused projections", "with rows that are one")),
]
# For functions that take long.
FEW = [held for held in LAYOUTS if held.name == "interleaved with others" or "in a graph" in held.name]
STATES = [
    Held("parameters", numbers(lambda x: nn.Parameter(x.clone()))),
    Held("in a graph", numbers(lambda x: x.clone().requires_grad_() * 1)),
    Held("with a gradient, under no_grad", numbers(lambda x: x.clone().requires_grad_()), within=torch.no_grad),
    Held("made in inference mode", torch.clone, within=torch.inference_mode),
    Held("in float32", numbers(Tensor.float)),
    Held("in float32, under autocast", numbers(Tensor.float), within=autocast, rounding=ROUNDING[torch.bfloat16]),
    Held("while the default is bfloat16", torch.clone, within=lambda: default_dtype(torch.bfloat16)),
    Held("in float16", numbers(Tensor.half), "either"),
    Held("in bfloat16", numbers(Tensor.bfloat16), "either"),
]
# Held so one after the other, the others being plain.
STRANGE = [
    Held("in float32, beside float64", numbers(Tensor.float), "either"),
    Held("in bfloat16, beside float64", numbers(Tensor.bfloat16), "either"),
    Held("an array", lambda x: x.numpy().copy(), "either"),
    Held("a list", Tensor.tolist, "either"),
    Held("whole numbers", lambda x: (x * 3).long() if x.is_floating_point() else x.long(), "either"),
    Held("complex", numbers(lambda x: x.to(torch.complex128)), "either"),
    Held("sparse", Tensor.to_sparse, "either"),
    Held("on the meta device", lambda x: x.to("meta"), "refusal"),
    Held("with NaN", with_entry(math.nan), "refusal"),
    Held("with inf", with_entry(math.inf), "refusal"),
    Held("empty", lambda x: x[:0], "refusal"),
    Held("a number", lambda x: x.flatten()[0], "refusal"),
]
# Where arrays are taken, in place of tokens.
ARRAYS = [
    Held("an array", lambda x: x.numpy().copy()),
    Held("an array that runs backwards", lambda x: x.flip(0).numpy()[::-1]),
    Held("an array that is not to be written", read_only),
    Held("an array with bytes in the other order", lambda x: x.numpy().astype(x.numpy().dtype.newbyteorder(">"))),
    Held("an array in the order of Fortran", lambda x: np.asfortranarray(x.numpy())),
    Held("a list", Tensor.tolist),
]
BATCHES = [
    Held("in a batch of one", lambda x: x[None]),
    Held("in a batch of two", lambda x: torch.stack((x, x.flip(0)))),
    Held("in an expanded batch", lambda x: x.expand(2, *x.shape)),
]


# fmt: on


def linears(module: nn.Module) -> list[nn.Linear]:
    return [part for part in module.modules() if type(part) is nn.Linear]


def each_linear(change: Callable[[nn.Linear], Any]) -> Callable[[nn.Module], nn.Module]:
    def changed(module: nn.Module) -> nn.Module:
        for part in linears(module):
            change(part)
        return module

    return changed


def transpose(part: nn.Linear) -> None:
    part.weight = nn.Parameter(part.weight.detach().T.contiguous().T)


def tie(module: nn.Module) -> nn.Module:
    """Let all linear maps of one shape share their weights."""
    known: dict[torch.Size, nn.Parameter] = {}
    for part in linears(module):
        part.weight = known.setdefault(part.weight.shape, part.weight)
    return module


def hooked(factor: float) -> Callable[[nn.Module], nn.Module]:
    """Multiply what the last linear map puts out."""

    def changed(module: nn.Module) -> nn.Module:
        linears(module)[-1].register_forward_hook(lambda _module, _given, output: factor * output)
        return module

    return changed


def times(factor: float) -> Callable[[nn.Module], nn.Module]:
    """Do the same by its weights."""

    def changed(module: nn.Module) -> nn.Module:
        for parameter in linears(module)[-1].parameters():
            parameter.data *= factor
        return module

    return changed


class Doubled(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return 2 * X


def overwriting(module: nn.Module) -> nn.Module:
    """Let a module write over what it is given."""
    module.register_forward_pre_hook(lambda _module, given: (given[0].mul_(2.0),))
    return module


def by_jit(how: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    def made(module: nn.Module) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return how(module.eval())

    return made


# fmt: off
MODULES = [
    Held("in train mode", nn.Module.train),
    Held("frozen", lambda m: m.requires_grad_(False)),
    Held("in DataParallel", nn.DataParallel),
    Held("with transposed weights", each_linear(transpose)),
    Held("with tied weights", tie),
    Held("with weights that are normed", each_linear(weight_norm), "either"),
    Held("with weights of spectral norm one, in train mode", lambda m: each_linear(spectral_norm)(m).train(), "either"),
    Held("with a hook that reads", hooked(1.0), "either"),
    Held("with a hook that doubles", hooked(2.0), "either", twin=times(2.0)),
    Held("in float32", nn.Module.float),
    Held("in float32, under autocast", nn.Module.float, within=autocast),
    Held("in float16", nn.Module.half, "either"),
    Held("in bfloat16", nn.Module.bfloat16, "either"),
    Held("under no_grad", nn.Module.train, within=torch.no_grad),
    Held("in inference mode", nn.Module.train, within=torch.inference_mode),
    Held("on the meta device", lambda m: m.to("meta"), "refusal"),
]
BLOCKS = [
    *MODULES,
    Held("compiled", lambda m: torch.compile(m, backend="eager")),
    Held("scripted", by_jit(torch.jit.script), "either"),
    Held("traced", by_jit(lambda m: torch.jit.trace(m, torch.ones(1, 4, 6, dtype=torch.float64))), "either"),
    Held("that writes over its input", overwriting, "either", twin=lambda m: nn.Sequential(Doubled(), m)),
]
# Token ids, and what says which of them are padding.
IDS = [
    Held("lists", Tensor.tolist),
    Held("an array", Tensor.numpy),
    Held("an array that runs backwards", lambda x: x.flip(0).numpy()[::-1]),
    Held("of 32 bits", Tensor.int),
    *(Held(name, VIEWS[name]) for name in ("transposed", "sliced", "interleaved with others")),
    Held("made in inference mode", torch.clone, within=torch.inference_mode),
    Held("one sequence", lambda x: x[0], "either"),
    Held("floating", Tensor.double, "refusal"),
    Held("true or false", Tensor.bool, "refusal"),
    Held("sparse", Tensor.to_sparse, "refusal"),
    Held("on the meta device", lambda x: x.to("meta"), "refusal"),
    Held("negative", lambda x: -x, "refusal"),
    Held("beyond the vocabulary", lambda x: x + 100, "refusal"),
    Held("empty", lambda x: x[:, :0], "refusal"),
    Held("a number", lambda x: x[0, 0], "refusal"),
]
# fmt: on
