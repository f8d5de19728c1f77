"""The Jacobian of any callable by autograd, for what has no closed form."""

import functools
import itertools
import math
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth.attention_calls import in_place_of_torch
from howsmooth.errors import AssumptionError, DtypeError, HowsmoothError, ShapeError
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.operators import (
    HALF,
    Differentiable,
    DifferentiableOnMeasures,
    broadcast,
    measurable,
    require_map,
    summed,
)
from howsmooth.validation import (
    plain_mode,
    require_agreement,
    require_finite,
    require_floating,
    require_like,
    require_numbers,
)

# Forward mode has one level for the whole process, kernels are chosen for all threads and modules belong to all of
# them: who differentiates a callable does it alone.
_ALONE = threading.RLock()

TORCH_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
# Steps for differences, as shares of the tokens: for a cube root of the rounding unit they are as exact as can be.
STEP_FACTORS, LARGEST_STEP = (1.0, 0.1, 10.0, 100.0, 1000.0), 0.2
# Outputs may move by this much more than the derivative says; what bends more than this share of it is not straight.
EXCESS, BENT = 1.25, 0.25


def linearise(f: Callable[[Tensor], Any], X: Tensor | Any, *, compare: bool = True) -> LinearOperator:
    """Return the derivative of ``f`` at ``X`` as a linear operator; half precision becomes float32.

    A derivative by autograd is compared with a difference of outputs unless ``compare`` is off: two evaluations more.
    """
    if isinstance(f, DifferentiableOnMeasures) and hasattr(X, "points"):
        with torch.no_grad():
            return f.jacobian_on(X)  # a measure
    if hasattr(X, "covariance") and hasattr(f, "on_gaussian"):
        with torch.no_grad():
            return f.on_gaussian(X).jacobian()
    require_floating(X, "tokens")
    if isinstance(f, Differentiable):
        with torch.no_grad():
            return measurable(f).jacobian(_measurable(X))
    require_map(f)
    return JacobianOperator.or_operator(f, X, compare=compare)


class JacobianOperator:
    """The Jacobian of a callable on tensors, without its matrix.

    The pullback is recorded once. The push-forward uses forward-mode differentiation where the callable supports it,
    otherwise the derivative of the pullback with respect to its cotangent, recorded once too. Fused attention, which
    supports neither on CPU, is replaced by its mathematical form. Modules are measured in eval mode and left as they
    were; half-precision parameters of a module are measured in float32.

    All axes of ``X`` but the last two are batch axes, which the callable must treat independently. One difference of
    outputs is compared with the derivative: where gradients do not reach X it would be zero, and is refused.
    """

    def __init__(self, f: Callable[[Tensor], Any], X: Tensor, *, batch_axes: int | None = None) -> None:
        """Record ``f`` at ``X``.

        Args:
            f: A callable or module that maps one tensor to one tensor.
            X: Where to differentiate.
            batch_axes: How many leading axes of ``X`` are batch axes; all but the last two by default.
        """
        X = _checked(X)
        if batch_axes is not None and not 0 <= batch_axes <= X.ndim:
            raise ShapeError(
                f"batch_axes must lie between 0 and {X.ndim}, the axes of X, got {batch_axes}.", field="batch_axes"
            )
        self._record(f, X, evaluate(f, X), batch_axes, compare=True)

    @classmethod
    def or_operator(cls, f: Callable[[Tensor], Any], X: Tensor, *, compare: bool = True) -> LinearOperator:
        """Differentiate ``f`` at ``X``, unless ``f(X)`` is an operator already."""
        X = _checked(X)
        inputs, value = evaluate(f, X)
        if isinstance(value, LinearOperator):
            with torch.no_grad():
                return f(X)  # once more, without the graph
        made = cls.__new__(cls)
        made._record(f, X, (inputs, value), None, compare=compare)
        return made

    def _record(
        self,
        f: Callable[[Tensor], Any],
        X: Tensor,
        recorded: tuple[Tensor, Any],
        batch_axes: int | None,
        *,
        compare: bool,
    ) -> None:
        inputs, value = recorded
        axes = max(X.ndim - 2, 0) if batch_axes is None else batch_axes
        check_value(value, X, axes)
        if compare and batch_axes is None:
            require_one_reading(f, X)
        self.batch = tuple(X.shape[:axes])
        self.domain, self.codomain = tuple(X.shape[axes:]), tuple(value.shape[axes:])
        self.dtype, self.device = X.dtype, X.device
        self._f, self._X = f, X
        self._inputs, self._value = inputs, value
        # Why not always the double backward, which does not evaluate f again: it keeps the graph of a graph in memory,
        # and some kernels have a forward derivative but no second one.
        self._push_forward = self._forward_mode if self._supports_forward_mode() else self._double_backward()
        self._require_one_matrix(compare)
        self._require_independent_batch()

    def jvp(self, E: Tensor) -> Tensor:
        """Push the perturbation ``E`` forward: J E."""
        require_like(E, self._X, (*self.batch, *self.domain), "the perturbation")
        return self._push_forward(E)

    def vjp(self, G: Tensor) -> Tensor:
        """Pull the cotangent ``G`` back: Jᵀ G."""
        require_like(G, self._X, (*self.batch, *self.codomain), "the cotangent")
        # Why keep the graph: recording f once costs one evaluation, recording it for every product one more each.
        if not self._value.requires_grad:
            return torch.zeros_like(self._X)  # a constant map
        (pulled,) = torch.autograd.grad(self._value, self._inputs, G, retain_graph=True, materialize_grads=True)
        return pulled

    def _forward_mode(self, E: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.no_grad(), measuring(self._f) as f, forward_ad.dual_level():
            # a copy: the callable may work in place
            dual = f(forward_ad.make_dual(self._X.clone(), E.clone()))
            _value, tangent = forward_ad.unpack_dual(dual)
            return torch.zeros_like(self._value) if tangent is None else tangent.clone()

    def _supports_forward_mode(self) -> bool:
        with warnings.catch_warnings():
            # the first use of forward mode loads parts of torch that warn about themselves
            for kind in (DeprecationWarning, FutureWarning):  # in torch 2.13, in torch 2.15
                warnings.filterwarnings("ignore", ".*torch.jit.script", kind)
            try:
                self._forward_mode(torch.zeros_like(self._X))
            except (RuntimeError, NotImplementedError):
                return False
        return True

    def _double_backward(self) -> Callable[[Tensor], Tensor]:
        with torch.inference_mode(False), torch.enable_grad():
            cotangent = torch.zeros_like(self._value, requires_grad=True)
            (pulled,) = torch.autograd.grad(
                self._value, self._inputs, cotangent, create_graph=True, materialize_grads=True
            )

        def push_forward(E: Tensor) -> Tensor:
            (tangent,) = torch.autograd.grad(pulled, cotangent, E, retain_graph=True, materialize_grads=True)
            return tangent

        return push_forward

    def _require_one_matrix(self, compare: bool) -> None:
        r"""Check :math:`\langle u, Jv\rangle = \langle J^\top u, v\rangle` once, on random vectors.

        It fails where the callable is random, or where its derivative cannot be differentiated again.

        Args:
            compare: Whether Jv is compared with a difference of outputs as well.
        """
        generator = torch.Generator().manual_seed(0)
        v, u = (_gauss(x, generator) for x in (self._X, self._value))
        moved, pulled = self.jvp(v), self.vjp(u)
        gap = summed((u * moved).sum() - (pulled * v).sum()).abs()
        # random vectors of N entries meet at an angle whose cosine is about 1/√N
        size = torch.maximum(u.norm() * moved.norm(), pulled.norm() * v.norm()) / max(u.numel(), v.numel()) ** 0.5
        apart, reached = bool(gap > 0.01 * size), bool(pulled.any())
        if compare and not (apart and reached):
            # under torch.no_grad perturbations are pushed forward, but nothing is pulled back
            predicted = moved if reached else torch.zeros_like(moved)
            value = self._value.detach()
            require_gradients(lambda Z: evaluate(self._f, Z)[1].detach(), self._X, value, v, predicted)
        if apart:
            raise AssumptionError(
                "products with the Jacobian and with its transpose do not belong to one matrix. Is the callable "
                "random (a module inside a lambda keeps its dropout: pass the module, or call .eval()), is a part of "
                "it not twice differentiable, or is its derivative mostly rounding here (float32 inside, where weights "
                "saturate)?",
                field="f",
            )

    def _require_independent_batch(self) -> None:
        if treats_batch_independently(self, self._value):
            return
        if self._mixes():
            raise AssumptionError(
                "the callable mixes the batch axes of X, so it is one operator and not a batch of them; "
                "use hs.spectral.JacobianOperator(f, X, batch_axes=0).",
                field="f",
            )
        raise AssumptionError(
            "the derivative of the callable is mostly rounding here: twice a cotangent is not pulled back to twice "
            "as much. Does it compute in float32 or less inside, where weights saturate? Let it compute in the "
            "numbers it is given, or take smaller tokens.",
            field="f",
        )

    def _mixes(self) -> bool:
        """Tell whether some output of the batch has a gradient with respect to another input."""
        G = _gauss(self._value, torch.Generator().manual_seed(1))
        for i in range(math.prod(self.batch)):
            alone = torch.zeros_like(G)
            alone.view(-1, *self.codomain)[i] = G.reshape(-1, *self.codomain)[i]
            pulled = self.vjp(alone).reshape(-1, *self.domain)
            if bool(pulled[:i].any() or pulled[i + 1 :].any()):
                return True
        return False


def treats_batch_independently(op: LinearOperator, value: Tensor) -> bool:
    r"""Check once that :math:`J^\top(sG) = s\,J^\top G` when every batch element has a factor of its own."""
    count = math.prod(op.batch)
    if count < 2:
        return True
    G = _gauss(value, torch.Generator().manual_seed(1))
    factors = torch.linspace(1, 2, count, dtype=op.dtype, device=op.device).reshape(*op.batch)
    pulled = op.vjp(G)
    expected = broadcast(factors, pulled) * pulled
    return not bool((op.vjp(broadcast(factors, G) * G) - expected).norm() > 1e-4 * expected.norm() / count)


def _measurable(X: Tensor) -> Tensor:
    """Detach the tokens; half precision becomes float32."""
    with torch.inference_mode(False):
        # a copy of what was made in inference mode, which autograd cannot record
        X = X.clone() if X.is_inference() else X.detach()
        return X.float() if X.dtype in HALF else X


def _checked(X: Tensor) -> Tensor:
    """Return tokens that can be measured, or refuse them."""
    require_floating(X, "tokens")
    require_numbers(X, "tokens")
    X = _measurable(X)
    require_finite(X, "tokens")
    return X


def _gauss(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device)


def evaluate(f: Callable[[Tensor], Any], X: Tensor) -> tuple[Tensor, Any]:
    """Apply ``f`` to a copy of ``X`` that autograd watches."""
    with torch.inference_mode(False), torch.enable_grad(), measuring(f) as g:
        inputs = X.clone().requires_grad_()
        return inputs, run(f, g, inputs.clone())  # a copy once more: the callable may work in place


def run(f: Callable[[Tensor], Any], g: Callable[[Tensor], Any], X: Tensor) -> Any:
    """Apply ``g``, which stands for ``f``, to tokens, or say in a sentence why it does not work on them."""
    try:
        return g(X)
    except HowsmoothError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        _refuse_tokens(f, X, error)
        raise


def _refuse_tokens(f: Callable[[Tensor], Any], X: Tensor, error: Exception) -> None:
    """Say what a callable needs that does not work on such tokens; what is too large for memory is said elsewhere."""
    module, name = _module_of(f), getattr(f, "__qualname__", type(f).__name__)
    said = " ".join(str(error).split())
    if "indices" in said and module is not None and any(isinstance(part, nn.Embedding) for part in module.modules()):
        raise DtypeError(
            f"{name} reads token ids, and a derivative is about vectors: "
            "hs.load(module).activations(ids).at(layer=0) gives one of its layers as a map, and the vectors that enter "
            "it; hs.certify(module, ids) and hs.measure(module, token_ids=…) take the ids.",
            field="f",
        ) from error
    if "nference tensors" in said:
        raise AssumptionError(
            f"{name} uses tensors made in inference mode, which autograd cannot record; make them outside of "
            "torch.inference_mode, or clone them there.",
            field="f",
        ) from error
    weights = () if module is None else module.parameters()
    weight = next((each for each in weights if each.is_floating_point() and each.dtype not in HALF), X)
    try:
        require_agreement(X, weight, "tokens", "weights")
    except HowsmoothError as refused:
        raise refused from error
    if "alloc" in said or "memory" in said:
        return
    layer = "" if module is None else "; of one that reads more, hs.load(model).activations(ids).at(layer=0) is a map"
    raise AssumptionError(
        f"{name} does not work on tokens of the shape {tuple(X.shape)} in {str(X.dtype).removeprefix('torch.')}: "
        f"{type(error).__name__}, {said[:200].rstrip('.')}{layer}.",
        field="f",
    ) from error


def value_of(f: Callable[[Tensor], Any], X: Tensor) -> Tensor:
    """Return the value of a map or callable, as it is measured: modules in eval mode, half precision in float32."""
    with torch.no_grad():
        return f(X) if isinstance(f, Differentiable) else evaluate(f, X)[1].detach()


def check_value(value: Any, X: Tensor, axes: int) -> None:
    """Refuse what is no output of a map on the tokens ``X``, of whose axes the first are batch axes."""
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"the callable must return one tensor, got {type(value).__name__}; wrap it, e.g. lambda X: f(X)[0].",
            field="f",
        )
    require_floating(value, "the output of the callable")
    if value.shape[:axes] != X.shape[:axes]:
        raise ShapeError(
            f"the output must keep the batch axes {tuple(X.shape[:axes])} of the input, got {tuple(value.shape)}; "
            "if X is one input, use hs.spectral.JacobianOperator(f, X, batch_axes=0).",
            field="f",
        )
    require_finite(value.detach(), "the output of the callable")


def require_gradients(f: Callable[[Tensor], Tensor], X: Tensor, value: Tensor, E: Tensor, pushed: Tensor) -> None:
    r"""Refuse a callable whose outputs move by more than its derivative says: gradients do not reach X.

    The derivative is believed as soon as :math:`\|f(X+hE)-f(X-hE)\|/2h\le1.25\,\|D_XfE\|` for one step h. It is refused
    where two steps contradict it that agree with each other: there the outputs move in proportion to h and hardly bend,
    :math:`\|f(X+hE)-2f(X)+f(X-hE)\|` is small against their movement. Rounding, kinks and jumps bend, and at critical
    points movements are not in proportion. Costs two evaluations, unless the first step is in doubt.
    ``pushed`` is the image of the perturbation E under the derivative, ``value`` the output at X.
    """
    largest = float(X.abs().max()) or 1.0
    size = largest * float((X / largest).double().square().mean().sqrt()) or 1.0
    predicted, length = float(pushed.double().norm()), float(E.double().norm())
    root = torch.finfo(X.dtype).eps ** (1 / 3)
    contradicted: list[float] = []
    for step in (*(root * factor for factor in STEP_FACTORS if root * factor < LARGEST_STEP), LARGEST_STEP):
        h = step * size
        ahead, behind = (f(X + side * h * E).double() for side in (1, -1))
        moved = float((ahead - behind).norm()) / 2
        if 0 < moved <= EXCESS * h * predicted:
            return
        if 0 < moved < math.inf and float((ahead - 2 * value.double() + behind).norm()) <= BENT * moved:
            contradicted.append(moved / h)
    contradicted.sort()
    if any(second <= EXCESS * first for first, second in itertools.pairwise(contradicted)):
        raise AssumptionError(
            f"outputs move by {contradicted[0] / length:.3g} for each unit of a small perturbation, and the derivative "
            f"says {predicted / length:.3g}: gradients do not reach X. Is a part of the callable detached, run under "
            "torch.no_grad or torch.inference_mode, computed by NumPy, or rounded to a grid? Let it compute with "
            "torch, on X itself.",
            field="f",
        )


@contextmanager
def measuring(f: Callable[[Tensor], Any]) -> Iterator[Callable[[Tensor], Any]]:
    """Put modules in eval mode and use kernels that can be differentiated; yield what to call instead of ``f``."""
    with _ALONE, plain_mode(), _as_measured(f):
        yield _on_tokens(_in_float32(f), f) if isinstance(f, nn.Module) else f


@contextmanager
def _as_measured(f: Callable[[Tensor], Any]) -> Iterator[None]:
    modules = [] if (root := _module_of(f)) is None else list(root.modules())
    training = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        # the math kernel is for calls of torch's attention that nothing replaces
        with in_place_of_torch(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for module, was_training in zip(modules, training, strict=True):
            module.training = was_training


def _module_of(f: object) -> nn.Module | None:
    """Return the module that is called: the callable itself, or the owner of a method, inside any partial."""
    while isinstance(f, functools.partial):
        f = f.func
    owner = f.__self__ if isinstance(f, types.MethodType) else f
    return owner if isinstance(owner, nn.Module) else None


def _in_float32(module: nn.Module) -> Callable[..., Any]:
    """Call the module with float32 copies of its half-precision parameters and buffers, if it has any."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    halves = {name: x.float() for name, x in tensors.items() if x.dtype in HALF}
    return module if not halves else lambda *X: torch.func.functional_call(module, halves, X)


def _on_tokens(call: Callable[..., Any], module: nn.Module) -> Callable[[Tensor], Any]:
    """Return a module as a map on one sequence or a batch of them, and nn.MultiheadAttention as self-attention."""

    def on_one(X: Tensor) -> Any:
        try:
            return call(X)
        except (RuntimeError, TypeError, ValueError, LookupError):
            if X.ndim != 2:
                raise
            try:  # most modules read batches alone
                return call(X[None]).squeeze(0)
            except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
                pass
            raise

    if not isinstance(module, TORCH_LAYERS):
        return on_one

    def on_tokens(X: Tensor) -> Tensor:
        X = oriented(module, X)
        value = call(X, X, X)[0] if isinstance(module, nn.MultiheadAttention) else call(X)
        return oriented(module, value)

    return on_tokens


def require_one_reading(f: Callable[[Tensor], Any], X: Tensor) -> None:
    """Refuse a module that does one thing to a sequence (n, d) and another to the same in a batch of one.

    Some read the tokens of one sequence as a batch, or the other way round, and say nothing.
    """
    if not isinstance(f, nn.Module) or isinstance(f, TORCH_LAYERS):
        return
    turned = any(isinstance(part, nn.MultiheadAttention) and not part.batch_first for part in f.modules())
    if not (X.ndim == 2 or (X.ndim == 3 and turned)):
        return
    with torch.inference_mode(False), torch.no_grad(), plain_mode(), _ALONE, _as_measured(f):
        one = X if X.ndim == 2 else X[0]
        try:
            alone, batch = (_in_float32(f)(Z.clone()) for Z in (one, one[None]))
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
            return  # it reads the one or the other alone
    if not (isinstance(alone, Tensor) and isinstance(batch, Tensor) and batch.shape == (1, *alone.shape)):
        return
    apart = float((batch[0] - alone).double().norm())
    if apart > torch.finfo(X.dtype).eps ** 0.5 * float(alone.double().norm()):
        raise AssumptionError(
            f"{type(f).__name__} does one thing to tokens (n, d) and another to a batch of one, (1, n, d); give "
            "lambda X: module(X), with X in the shape that it reads.",
            field="f",
        )


def oriented(module: nn.Module, X: Tensor) -> Tensor:
    """Exchange the first two axes for layers of torch that read (n, batch, d), which they do unless batch_first."""
    part: Any = module.layers[0] if isinstance(module, nn.TransformerEncoder) else module
    part = part.self_attn if isinstance(part, nn.TransformerEncoderLayer) else part
    exchanged = isinstance(part, nn.MultiheadAttention) and not part.batch_first and X.ndim == 3
    return X.transpose(0, 1) if exchanged else X
