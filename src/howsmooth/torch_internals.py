"""The only place that calls what torch does not promise to keep; each function says why it has to."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast, no_type_check

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

MASKS = (torch.bool, torch.uint8)
F = TypeVar("F", bound=Callable[..., Any])
# Looked up once: that takes as long as a call.
_LAYER_NORM_BACKWARD, _MATH = torch.ops.aten.native_layer_norm_backward.default, SDPBackend.MATH.value


def is_batched(x: Tensor) -> bool:
    """Tell whether ``x`` stands for many tensors inside ``torch.vmap``, where its values cannot steer Python.

    Why not try and catch: torch refuses with a bare ``RuntimeError``, which may just as well be a fault of a device.
    """
    return torch._C._functorch.is_batchedtensor(x)


def inside_transform() -> bool:
    """Tell whether a transform of ``torch.func`` is at work; it does not allow results to be written over operands."""
    return torch._C._functorch.maybe_current_level() is not None


# The compiler may take the answer for a constant, since its graphs belong to one stack of transforms. This is what
# torch.compiler.assume_constant_result does, which would import the compiler.
inside_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]


def recorded(*operands: Tensor) -> bool:
    """Tell whether autograd, in either mode, or a transform of torch.func records an operation on ``operands``."""
    if inside_transform() or any(forward_ad.unpack_dual(x).tangent is not None for x in operands):
        return True
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor] | None:
    """Return attention and the log-sum-exp of its scores by torch's fused kernel for CPUs; none where it has none.

    On other devices the log-sum-exp is left out, so that only the value is fused. Why not the public function: it keeps
    the log-sum-exp to itself, and the fused backward pass needs it. The kernel checks next to nothing, so torch is
    asked whether it would call it.
    """
    batch, (q, k, v, mask) = q.shape[:-2], _as_kernels_read(q, k, v, mask)
    # detached: what torch lacks for a mask that is differentiated is its derivative, which is not asked for here
    constant = None if mask is None else mask.detach()
    if not fused_is_right(causal=causal, scale=scale) or not fused_is_chosen(
        q, k, v, constant, causal=causal, scale=scale
    ):
        return None
    if q.device.type != "cpu":
        # by the name that nothing is put in place of
        o = torch._C._nn.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)
        return _shaped(o, (*batch, *o.shape[-2:])), o.new_empty(*batch, 0)
    o, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return _shaped(o, (*batch, *o.shape[-2:])), _shaped(log_sum_exp, (*batch, o.shape[-2]))


def fused_attention_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    log_sum_exp: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, ...]:
    """Return the cotangents of q, k and v, from what :func:`fused_attention` returned."""
    shapes = q.shape, k.shape, v.shape
    q, k, v, mask = _as_kernels_read(q, k, v, mask)
    g, o = (with_rows_apart(_dense(x.reshape(q.shape))) for x in (g, o))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, o, log_sum_exp.reshape(q.shape[:-1]), 0.0, causal, attn_mask=mask, scale=scale
    )
    return tuple(_shaped(x, shape) for x, shape in zip(found, shapes, strict=True))


def fused_is_chosen(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool, scale: float | None, enable_gqa: bool = False
) -> bool:
    """Tell whether torch's function would take a fused kernel: it alone knows its settings and what kernels need."""
    choice = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=enable_gqa)
    return choice != _MATH


def fused_is_right(*, causal: bool, scale: float | None) -> bool:
    """Tell whether torch's fused kernel is right: it hides scores by -∞ *before* it multiplies them by the scale."""
    return not causal or scale is None or scale > 0


def with_rows_apart(x: Tensor) -> Tensor:
    """Return ``x``, copied where rows share memory: sliding windows, one row for all.

    The fused kernel gives its output the strides of the queries, which it takes for those of separate rows, and some
    products of matrices in half precision refuse such rows.
    """
    if x.is_contiguous():
        return x
    *batch, row, last = x.stride()
    d = x.shape[-1]
    return x.contiguous() if last == 1 and (row < d or any(0 < step < d for step in batch)) else x


def _dense(x: Tensor) -> Tensor:
    """Return ``x`` with its last axis in one piece, by a copy if need be: the kernel reads rows as if they were."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _as_kernels_read(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return queries, keys and values with four axes and rows in one piece each, and a mask that is added."""
    batch = q.shape[:-2]
    if len(batch) != 2:
        q, k, v = (x.reshape(-1, batch[-1], *x.shape[-2:]) for x in (q, k, v))
    q, k, v = (with_rows_apart(_dense(x)) for x in (q, k, v))
    if mask is None:
        return q, k, v, None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    if len(batch) != 2:
        shared = mask.shape[:-2].numel() == 1
        mask = (
            mask.reshape(1, 1, *mask.shape[-2:])
            if shared
            else mask.expand(*batch[:-1], *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
        )
    return q, k, v, mask.expand(*mask.shape[:2], q.shape[-2], -1)


def _shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return ``x`` in another shape; a copy, since autograd treats views that a function returns differently."""
    return x if x.shape == shape else x.reshape(shape).contiguous()


def in_place(*operands: Tensor) -> bool:
    """Tell whether a result may be written over its operands: nothing is recorded, and the kernels allow it."""
    return operands[0].device.type == "cpu" and not recorded(*operands)


def add_product(C: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """Return C + AB for batches of matrices, in place of ``C`` where autograd does not record."""
    return C.baddbmm_(A, B) if in_place(C, A, B) else C.baddbmm(A, B)


def softmax(S: Tensor) -> Tensor:
    """Return the row-wise softmax of ``S``, in place of ``S`` where autograd does not record."""
    if not in_place(S):  # elsewhere the kernel may not allow its output to be its input
        return torch.softmax(S, dim=-1)
    return torch.softmax(S, dim=-1, out=S)


def softmax_backward(D: Tensor, P: Tensor, *, out: Tensor | None = None) -> Tensor:
    r"""Return :math:`P\circ(D - \mathrm{rowsum}(P\circ D))` in one pass over memory; ``out`` may be ``D`` on the CPU.

    Why not three public operations: they read and write a tile three times, which makes this step as slow as the
    matrix products around it.
    """
    if out is None:
        return torch._softmax_backward_data(D, P, -1, D.dtype)
    if not out.is_contiguous():  # the operator would write its rows as if they were in one piece, one after the other
        return out.copy_(torch._softmax_backward_data(D, P, -1, D.dtype))
    return torch.ops.aten._softmax_backward_data.out(D, P, -1, D.dtype, grad_input=out)


def softmax_derivative(D: Tensor, P: Tensor) -> Tensor:
    r"""Return :math:`P\circ(D - \mathrm{rowsum}(P\circ D))`, in place of ``D`` where autograd does not record.

    The derivative of a softmax with weights P is symmetric, so it serves both products. Subtracting the row's mean
    *before* multiplying is what keeps digits where the softmax is saturated and both are large.
    """
    return softmax_backward(D, P, out=D if in_place(D, P) else None)


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


def outside_of_compiled_code(f: F) -> F:
    """Let a function run as written when compiled code calls it.

    Why not ``torch.compiler.disable`` at once: it imports the compiler, which takes seconds.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(f)
    def as_written(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None and compiler_loaded():
            disabled = torch.compiler.disable(f)
        return (disabled or f)(*args, **kwargs)

    as_written._torchdynamo_disable = True  # type: ignore[attr-defined]
    as_written._torchdynamo_disable_msg = "it runs as written; leave fullgraph=True out"  # type: ignore[attr-defined]
    return cast(F, as_written)


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


def global_hooks() -> list[Any]:
    """Return the hooks that run before and after every module. Why: torch registers them, and lists them nowhere."""
    return [*module_hooks._global_forward_pre_hooks.values(), *module_hooks._global_forward_hooks.values()]


class InputReadError(BaseException):
    """Python looked at numbers that depend on an input; no ``except Exception`` of a module's own hides it."""


@no_type_check  # so that no frame of a type checker stands between the line of a user and an operation
class FollowedTensor(Tensor):
    """An input that is followed through a computation: what depends on it is followed too.

    Operations run as always, but for those that would let Python see a number, or a shape that depends on one: they
    raise. A computation that runs through takes the same steps for every input of this shape.

    Why not a FakeTensor: it forgets what is written into other tensors, and custom operations have no shapes for it.
    """

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "FollowedTensor":
        """Have the shape of some numbers, and no memory that anybody could look into."""
        layout: Any = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        kind: Any = {"dtype": numbers.dtype, "device": numbers.device}
        found = Tensor._make_wrapper_subclass(cls, numbers.shape, **layout, **kind)
        torch._C._set_throw_on_mutable_data_ptr(found)
        return found

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, operation, _types, args=(), kwargs=None) -> Any:  # type: ignore[no-untyped-def, override]
        """Run an operation on the numbers, and follow what it returns."""
        kwargs, parameters = kwargs or {}, operation._schema.arguments
        given = {parameter.name: x for parameter, x in zip(parameters, args, strict=False)} | kwargs
        written = [given.get(parameter.name) for parameter in parameters if parameter.is_write]
        if not all(isinstance(x, cls | None) for x in tree_leaves(written)):
            raise InputReadError("writes numbers that depend on the input into a tensor that does not")
        # rows are always as many if the mask that chooses them does not depend on the input
        chosen = operation is torch.ops.aten.index.Tensor
        chosen = chosen and not any(isinstance(x, cls) and x.dtype in MASKS for x in args[1])
        if not chosen and {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*operation.tags}:
            raise InputReadError("looks at numbers that depend on the input")
        args_inside, kwargs_inside = tree_map_only(cls, lambda x: x.numbers, (args, kwargs))
        found = operation(*args_inside, **kwargs_inside)
        return return_and_correct_aliasing(operation, args, kwargs, tree_map_only(Tensor, cls, found))
