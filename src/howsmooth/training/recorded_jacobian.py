"""One forward pass of a callable, recorded so that products with its Jacobian can themselves be differentiated."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointError

from howsmooth.errors import AssumptionError, FallbackWarning
from howsmooth.spectral.autograd import (
    check_value,
    measuring,
    require_gradients,
    require_one_reading,
    run,
    treats_batch_independently,
)
from howsmooth.spectral.operators import HALF
from howsmooth.torch_internals import compiled, compiler_loaded


class RecordedJacobian:
    r"""The Jacobian of a callable at the tokens of a batch, by one forward pass.

    Products with J and :math:`J^\top` read the graph of that pass; :meth:`pullback` records a graph of its own, so that
    its result can be differentiated with respect to parameters and tokens. Why not forward mode for J: it evaluates the
    callable anew for every product.

    The pass itself is made in full precision whatever ``autocast`` says, in eval mode, uncompiled, and with
    :func:`howsmooth.sdpa` for torch's attention: none of that outlives it, and the graph does not depend on it.
    """

    def __init__(
        self, f: Callable[[Tensor], Any], X: Float[Tensor, "*batch n d"], *, owner: nn.Module | None = None
    ) -> None:
        """Record ``f`` at ``X``.

        ``owner`` is the module that ``f`` calls, if ``f`` does not show it.
        """
        axes = max(X.ndim - 2, 0)
        self._f = f.module if isinstance(f, DistributedDataParallel) else f
        self._owner = owner
        with torch.inference_mode(False), torch.enable_grad():
            full = X.float() if X.dtype in HALF else X
            self.inputs = full.clone() if full.requires_grad else full.detach().clone().requires_grad_()
            self.value = self._run(self.inputs)
        check_value(self.value, X, axes)
        self.batch, self.domain = tuple(X.shape[:axes]), tuple(X.shape[axes:])
        self.codomain = tuple(self.value.shape[axes:])
        self.dtype, self.device = self.inputs.dtype, X.device
        self._tangents: tuple[Tensor, Tensor] | None = None

    def _run(self, Z: Tensor) -> Any:
        called: Callable[[Tensor], Any] = self._f if self._owner is None else self._owner
        with _eager(self._f, called), measuring(called) as g:
            # a copy: the callable may work in place
            return run(called, g if self._owner is None else self._f, Z.clone())

    def vjp(self, G: Tensor) -> Tensor:
        """Pull the cotangent ``G`` back: Jᵀ G."""
        return self._pulled(G, create_graph=False)

    def jvp(self, E: Tensor) -> Tensor:
        """Push the perturbation ``E`` forward: J E, the derivative of the pullback with respect to its cotangent."""
        if self._tangents is None:
            with torch.enable_grad():
                cotangent = torch.zeros_like(self.value, requires_grad=True)
                self._tangents = cotangent, self._pulled(cotangent, create_graph=True)
        cotangent, pulled = self._tangents
        if not pulled.requires_grad:
            return torch.zeros_like(self.value)  # a constant map
        (pushed,) = torch.autograd.grad(pulled, cotangent, E, retain_graph=True, materialize_grads=True)
        return pushed

    def pullback(self, u: Tensor) -> Tensor:
        r"""Return :math:`J^\top u` with its graph."""
        with torch.enable_grad():
            return self._pulled(u, create_graph=True)

    def _pulled(self, G: Tensor, *, create_graph: bool) -> Tensor:
        if not self.value.requires_grad:
            return torch.zeros_like(self.inputs)
        try:
            (found,) = torch.autograd.grad(
                self.value, self.inputs, G, retain_graph=True, create_graph=create_graph, materialize_grads=True
            )
        except CheckpointError as error:
            # on the way back it would run torch's attention, in whose place `sdpa` was recorded
            raise AssumptionError(
                "a checkpointed part of the callable runs differently the second time; give the part itself, without "
                "checkpoint around it: the penalty keeps little in memory.",
                field="f",
            ) from error
        except RuntimeError as error:
            if "use_reentrant" in str(error):
                raise AssumptionError(
                    "a part of the callable is checkpointed with use_reentrant=True, which cannot be differentiated "
                    "twice; use torch.utils.checkpoint.checkpoint(…, use_reentrant=False).",
                    field="f",
                ) from error
            raise
        return found

    def require_gradients(self) -> None:
        """Refuse a callable whose gradients do not reach the tokens: its penalty would be zero."""
        require_one_reading(self._f, self.inputs.detach())
        E = torch.randn(self.inputs.shape, generator=torch.Generator().manual_seed(0)).to(self.inputs)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # said once, when it was recorded
            require_gradients(self._run, self.inputs.detach(), self.value.detach(), E, self.jvp(E))

    def require_independent(self) -> None:
        """Refuse a callable that mixes the sequences of the batch."""
        if not treats_batch_independently(self, self.value):
            raise AssumptionError(
                "the callable mixes the sequences of the batch, so that none of them has a constant of its own; "
                "penalise them one by one.",
                field="f",
            )


@contextlib.contextmanager
def _eager(f: object, owner: object) -> Iterator[None]:
    """Compute as written: compiled code cannot be differentiated twice."""
    with contextlib.ExitStack() as stack:
        if compiler_loaded():
            if compiled(f) or compiled(owner):
                warnings.warn(
                    "compiled code cannot be differentiated twice: the penalty runs it uncompiled, all else stays as "
                    "it is.",
                    FallbackWarning,
                    stacklevel=5,
                )
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
