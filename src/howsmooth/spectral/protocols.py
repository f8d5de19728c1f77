"""Optional abilities of maps and operators, one protocol each."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from howsmooth.errors import DtypeError

# Too coarse to measure in: computed in float32 instead.
HALF = (torch.float16, torch.bfloat16)


@runtime_checkable
class Separable(Protocol):
    """A batch of operators that can be taken apart, so that a solver goes on with unfinished ones alone."""

    def take(self, index: Tensor) -> Any:
        """Return some operators of the flattened batch, as a batch with one axis."""


@runtime_checkable
class Compressible(Protocol):
    """An operator that knows a smaller one with the same singular values."""

    def compress(self) -> tuple[Any, Callable[[Tensor], Tensor]]:
        """Return the smaller operator, and the isometry from its domain into the operator's own."""


@runtime_checkable
class Guessing(Protocol):
    """An operator that knows an approximate top singular vector, at the cost of about one product."""

    def guess(self) -> Tensor:
        """Return that direction, of any norm."""


@runtime_checkable
class Constrained(Protocol):
    """An operator whose perturbations live in a part of its domain, such as the real tokens of padded sequences."""

    def constrain(self, E: Tensor) -> Tensor:
        """Project a perturbation onto that part."""


@runtime_checkable
class Rounded(Protocol):
    """An operator that bounds its rounding errors, in the forward pass of its map and in products."""

    @property
    def forward_rounding(self) -> float:
        """The relative error, to first order: the rounding unit times the largest exponent in the forward pass."""

    @property
    def derivative_rounding(self) -> float:
        """The absolute error beyond that, of the product with a unit vector."""

    def cancelled(self, E: Tensor) -> tuple[float, float]:
        """Return the cancellation ratios of the product with ``E``: over its parts, and over their terms."""


@runtime_checkable
class Differentiable(Protocol):
    """A map that knows its derivative."""

    def jacobian(self, X: Tensor) -> Any:
        """Return the derivative at ``X`` as a linear operator."""


@runtime_checkable
class Recastable(Protocol):
    """A map that computes in one dtype, and can be had in another."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""

    def to(self, dtype: torch.dtype) -> Any:
        """Return the same map in another dtype."""


@runtime_checkable
class DifferentiableOnMeasures(Protocol):
    """A map that knows its derivative at a measure."""

    def jacobian_on(self, measure: Any) -> Any:
        """Return the derivative when atoms move without splitting, in the metric of the masses."""


@runtime_checkable
class HasPoints(Protocol):
    """A measure, which has atoms; a tensor of tokens has none."""

    @property
    def points(self) -> Tensor:
        """The places of the atoms."""


def require_map(f: object) -> None:
    """Refuse what is neither a map nor anything that can be called."""
    if not (callable(f) or isinstance(f, Differentiable)):
        raise DtypeError(f"f must be a map, a module or a callable on tensors, got {type(f).__name__}.", field="f")


def measurable(f: Any) -> Any:
    """Return a map that knows its derivative in at least float32; leave every other callable alone.

    A module is left alone too: its ``to`` changes the module itself, which belongs to the caller.
    """
    if isinstance(f, Differentiable) and isinstance(f, Recastable) and f.dtype in HALF:
        return f.to(torch.float32)
    return f
