"""A module inside a composition that autograd differentiates, for parts without a closed form."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.spectral.autograd import JacobianOperator


@dataclass(frozen=True, kw_only=True, eq=False)
class Differentiated:
    """A module on hidden states ``(batch, n, d)`` as a map.

    Attributes:
        module: The module; it must treat the sequences of a batch alone.
    """

    module: nn.Module

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Call the module, which knows one batch axis alone."""
        result: Any = self.module(X.reshape(-1, *X.shape[-2:]))
        found = result if isinstance(result, Tensor) else next(part for part in result if isinstance(part, Tensor))
        return found.reshape(*X.shape[:-1], found.shape[-1])

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "DifferentiatedJacobian":
        """Record the module at ``X``."""
        return DifferentiatedJacobian(self, X)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return next(self.module.parameters()).dtype

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Differentiated":
        """Return the same map in another dtype or on another device; the module itself is left as it is."""
        return Differentiated(module=copy.deepcopy(self.module).to(dtype=dtype, device=device))


class DifferentiatedJacobian(JacobianOperator):
    """The derivative of a module by autograd, which can be had for some sequences of the batch alone."""

    def __init__(self, f: Differentiated, X: Float[Tensor, "*batch n d"]) -> None:
        """Record ``f`` at ``X``."""
        super().__init__(f.__call__, X)
        self._map = f

    def take(self, index: Tensor) -> "DifferentiatedJacobian":
        """Pick some operators of the batch: the module is recorded again at their tokens."""
        return DifferentiatedJacobian(self._map, self._X.reshape(-1, *self.domain)[index])
