"""The feed-forward part of a block: its map, the norms around it, and whether it runs in parallel to attention."""

import copy
import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.models.autograd.hooks import first_tensor
from howsmooth.spectral.autograd import JacobianOperator


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedForward:
    """The feed-forward part of a block.

    Attributes:
        map: The MLP.
        pre_norm: The norm in front of it.
        output_norm: The norm behind it, before the residual is added.
        post_norm: The norm behind the residual sum.
        residual_scale: The factor of its output in the residual sum.
        residual_after_norm: Whether the residual branches off behind the norm in front, not before it.
        parallel: Whether it reads the input of the block, in parallel to attention.
    """

    map: Map
    pre_norm: Norm | None = None
    output_norm: Norm | None = None
    post_norm: Norm | None = None
    residual_scale: float = 1.0
    residual_after_norm: bool = False
    parallel: bool = False

    @property
    def scaled(self) -> Map:
        """The map with its output multiplied as it is added to the residual."""
        if self.residual_scale == 1.0 or not isinstance(self.map, MLP | GatedMLP):
            return self.map
        bias = None if self.map.down_bias is None else self.residual_scale * self.map.down_bias
        return dataclasses.replace(self.map, down=self.residual_scale * self.map.down, down_bias=bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class AutogradMLP:
    """A module on hidden states ``(batch, n, d)`` as a map that autograd differentiates.

    Attributes:
        module: The module; it must treat the sequences of a batch independently.
    """

    module: nn.Module

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Call the module, which takes one batch axis."""
        result = first_tensor(self.module(X.reshape(-1, *X.shape[-2:])))
        return result.reshape(*X.shape[:-1], result.shape[-1])

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "AutogradMLPJacobian":
        """Record the module at ``X``."""
        return AutogradMLPJacobian(self, X)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype it computes in."""
        return next(self.module.parameters()).dtype

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "AutogradMLP":
        """Return a copy in another dtype or on another device."""
        return AutogradMLP(module=copy.deepcopy(self.module).to(dtype=dtype, device=device))


class AutogradMLPJacobian(JacobianOperator):
    """The derivative of a module by autograd, which can be restricted to some sequences of the batch."""

    def __init__(self, f: AutogradMLP, X: Float[Tensor, "*batch n d"]) -> None:
        """Record ``f`` at ``X``."""
        super().__init__(f.__call__, X)
        self._map = f

    def take(self, index: Tensor) -> "AutogradMLPJacobian":
        """Return some operators of the batch: the module is recorded again at their tokens."""
        return AutogradMLPJacobian(self._map, self._X.reshape(-1, *self.domain)[index])
