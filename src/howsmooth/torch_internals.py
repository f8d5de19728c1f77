"""The only place that calls what torch does not promise to keep; each function says why it has to."""

import functools
import sys

import torch
from torch import Tensor, nn

_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default  # looked up once: that takes as long as a call


def is_batched(x: Tensor) -> bool:
    """Tell whether ``x`` stands for many tensors inside ``torch.vmap``, where its values cannot steer Python.

    Why not try and catch: torch refuses with a bare ``RuntimeError``, which may just as well be a fault of a device.
    """
    return torch._C._functorch.is_batchedtensor(x)


def inside_transform() -> bool:
    """Tell whether a transform of ``torch.func`` is at work; it does not allow results to be written over operands."""
    return torch._C._functorch.maybe_current_level() is not None


def softmax_backward(D: Tensor, P: Tensor, *, out: Tensor | None = None) -> Tensor:
    r"""Return :math:`P\circ(D - \mathrm{rowsum}(P\circ D))` in one pass over memory; ``out`` may be ``D`` on the CPU.

    Why not three public operations: they read and write a tile three times, which makes this step as slow as the
    matrix products around it.
    """
    if out is None:
        return torch._softmax_backward_data(D, P, -1, D.dtype)
    return torch.ops.aten._softmax_backward_data.out(D, P, -1, D.dtype, grad_input=out)


def project_out(E: Tensor, z: Tensor) -> Tensor:
    r"""Return :math:`\bar E - z\,\mathrm{mean}(z\circ\bar E)`, row by row, with :math:`\bar E` centred and z too.

    It is what the backward pass of a layer norm of variance one does to a gradient, in one pass over memory. Why not
    six public operations: on short sequences it is their number that is waited for.
    """
    d = z.shape[-1]
    mean, inverse_deviation = _zeros_and_ones(z.numel() // d, z.dtype, z.device)
    found, _gain, _bias = _LAYER_NORM_BACKWARD(E, z, (d,), mean, inverse_deviation, None, None, (True, False, False))
    return found


@functools.lru_cache(maxsize=64)
def _zeros_and_ones(count: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, dtype=dtype, device=device), torch.ones(count, dtype=dtype, device=device)


def sigmoid_backward(D: Tensor, P: Tensor, *, out: Tensor | None = None) -> Tensor:
    r"""Return :math:`P\circ(1-P)\circ D` in one pass over memory; ``out`` may be ``D``. Why: as for the softmax."""
    if out is None:
        return torch.ops.aten.sigmoid_backward.default(D, P)
    return torch.ops.aten.sigmoid_backward.grad_input(D, P, grad_input=out)


def compiler_loaded() -> bool:
    """Tell whether torch's compiler was ever imported: if not, nothing is compiled, and importing it takes seconds."""
    return "torch._dynamo" in sys.modules


def compiled(f: object) -> bool:
    """Tell whether a callable, or a part of a module, was compiled. Why marks of the compiler: it has no question."""
    parts = list(f.modules()) if isinstance(f, nn.Module) else [f]
    marks = ("_orig_mod", "_torchdynamo_orig_callable")
    return any(
        any(name in vars(part) or hasattr(type(part), name) for name in marks)
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in parts
        if hasattr(part, "__dict__")
    )
