"""A map at perturbed inputs, with every pass counted: values, gradients, products with the derivative."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError, ShapeError
from howsmooth.linear_operators import LinearOperator
from howsmooth.maps.composition import linearised
from howsmooth.maps.heads import GIBIBYTE
from howsmooth.maps.protocols import Map
from howsmooth.spectral.autograd import evaluate
from howsmooth.spectral.operators import Constrained, Differentiable

Pull = Callable[[Tensor], Tensor]


def run(f: Callable[[Tensor], Any], Z: Tensor) -> Float[Tensor, "*shape"]:
    """Return the value of a map or callable, as it is measured: modules in eval mode, half precision in float32."""
    with torch.no_grad():
        return f(Z) if isinstance(f, Differentiable) else evaluate(f, Z)[1].detach()


def run_and_pull(f: Callable[[Tensor], Any], Z: Tensor) -> tuple[Float[Tensor, "*shape"], Pull]:
    """Return the value at ``Z``, and what pulls cotangents back from there."""
    if isinstance(f, Differentiable):
        with torch.no_grad():
            value, J = linearised(f, Z, GIBIBYTE) if isinstance(f, Map) else (f(Z), f.jacobian(Z))
        return value, J.vjp
    inputs, recorded = evaluate(f, Z)

    def vjp(G: Tensor) -> Tensor:
        if not recorded.requires_grad:
            return torch.zeros_like(inputs)  # a constant map
        (pulled,) = torch.autograd.grad(recorded, inputs, G, materialize_grads=True)
        return pulled

    return recorded.detach(), vjp


class CountedOperator:
    """A linear operator that tells how often it was applied."""

    def __init__(self, op: LinearOperator, spend: Callable[[int], None]) -> None:
        """Call ``spend`` with one for every product with ``op`` or its transpose."""
        self.op, self.spend = op, spend
        self.batch, self.domain, self.codomain = op.batch, op.domain, op.codomain
        self.dtype, self.device = op.dtype, op.device

    def jvp(self, E: Tensor) -> Tensor:
        """Apply the operator."""
        self.spend(1)
        return self.op.jvp(E)

    def vjp(self, G: Tensor) -> Tensor:
        """Apply the transpose."""
        self.spend(1)
        return self.op.vjp(G)

    def constrain(self, E: Tensor) -> Tensor:
        """Return the part of a perturbation that may move: all of it, unless some tokens are padding."""
        return self.op.constrain(E) if isinstance(self.op, Constrained) else E


def check_value(value: object, X: Tensor) -> None:
    """Refuse what is no value of a map on the sequences of a batch.

    Raises:
        DtypeError: If it is no tensor.
        ShapeError: If it does not keep the batch axes.
    """
    batch = X.shape[:-2]
    if not isinstance(value, Tensor):
        raise DtypeError(f"f must return one tensor, got {type(value).__name__}; wrap it.", field="f")
    if value.shape[: len(batch)] != batch or value.ndim - X.ndim > 0:
        raise ShapeError(
            f"f must keep the batch axes {tuple(batch)} of X and add none, got a value of the shape "
            f"{tuple(value.shape)}; attack one map at a time.",
            field="f",
        )
