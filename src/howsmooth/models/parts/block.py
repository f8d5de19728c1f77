"""A block in closed form: attention and its feed-forward part, in sequence or in parallel, with norms and residuals."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.composition import Chain, Residual, Sum
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.models.autograd.hooks import first_tensor
from howsmooth.spectral.autograd import JacobianOperator

if TYPE_CHECKING:  # an attention layer returns its block
    from howsmooth.models.attention_layer import AttentionLayer


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedForward:
    """The feed-forward part of a block."""

    map: Map  # the MLP
    pre_norm: Norm | None = None  # the norm in front of it
    output_norm: Norm | None = None  # the norm behind it, before the residual is added
    post_norm: Norm | None = None  # the norm behind the residual sum
    residual_scale: float = 1.0  # the factor of its output in the residual sum
    residual_after_norm: bool = False  # whether the residual branches off behind the norm in front, not before it
    parallel: bool = False  # whether it reads the input of the block, in parallel to attention

    @property
    def scaled(self) -> Map:
        """The map with its output multiplied as it is added to the residual."""
        if self.residual_scale == 1.0 or not isinstance(self.map, MLP | GatedMLP):
            return self.map
        bias = None if self.map.down_bias is None else self.residual_scale * self.map.down_bias
        return dataclasses.replace(self.map, down=self.residual_scale * self.map.down, down_bias=bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class AutogradMLP:
    """A module on hidden states ``(batch, n, d)`` as a map that autograd differentiates."""

    module: nn.Module  # the module; it must treat the sequences of a batch independently

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
        super().__init__(f.__call__, X)
        self._map = f

    def take(self, index: Tensor) -> "AutogradMLPJacobian":
        """Return some operators of the batch: the module is recorded again at their tokens."""
        return AutogradMLPJacobian(self._map, self._X.reshape(-1, *self.domain)[index])


def block(layer: "AttentionLayer", attention: Attention) -> Chain:
    """Return the whole block of a layer, with its attention as padding changes it."""
    mlp = feed_forward(layer)
    second = chain(mlp.scaled, mlp.output_norm)
    if mlp.parallel:
        first = chain(_scaled(attention, layer.residual_scale), layer.output_norm)
        if mlp.pre_norm is layer.pre_norm and mlp.pre_norm is not None:
            return Chain(Residual(Chain(mlp.pre_norm, Sum(first, second))))  # both read one norm, which is applied once
        return Chain(Residual(Sum(chain(layer.pre_norm, *first.maps), chain(mlp.pre_norm, *second.maps))))
    behind = (
        (mlp.pre_norm, Residual(second)) if mlp.residual_after_norm else (Residual(chain(mlp.pre_norm, *second.maps)),)
    )
    return chain(*_maps(residual_sum(layer, attention)), *behind, mlp.post_norm)


def residual_sum(layer: "AttentionLayer", attention: Attention) -> Chain | Residual:
    """Return the residual sum around attention, normed if the layer is post-norm."""
    attention = _scaled(attention, layer.residual_scale)
    if layer.residual_after_norm:
        return chain(layer.pre_norm, Residual(attention), layer.post_norm)
    residual = Residual(chain(layer.pre_norm, attention, layer.output_norm))
    return residual if layer.post_norm is None else Chain(residual, layer.post_norm)


def entering(layer: "AttentionLayer", attention: Attention) -> Callable[[Tensor], Tensor]:
    """Return the map from the input of the block to the input of its MLP; the arguments are those of :func:`block`."""
    mlp = feed_forward(layer)
    maps = () if mlp.parallel else _maps(residual_sum(layer, attention))
    maps = maps if mlp.pre_norm is None else (*maps, mlp.pre_norm)
    return Chain(*maps) if maps else lambda X: X


def feed_forward(layer: "AttentionLayer") -> FeedForward:
    """Return the feed-forward part of a layer."""
    if layer.feed_forward is None:
        raise AssumptionError(
            "the feed-forward part of this model's family has no closed form here; use map='block', which is measured "
            "as the model calls it.",
            field="map",
        )
    return layer.feed_forward


def chain(*parts: Map | None) -> Chain:
    """Chain the parts that are not None."""
    return Chain(*(part for part in parts if part is not None))


def _scaled(attention: Attention, factor: float) -> Attention:
    """Multiply the output of attention: the values carry the factor, whether heads are mixed or not."""
    if factor == 1.0:
        return attention
    biases = {"value_bias": attention.value_bias, "output_bias": attention.output_bias}
    changed: dict[str, Any] = {name: factor * bias for name, bias in biases.items() if bias is not None}
    return dataclasses.replace(attention, value=factor * attention.value, **changed)


def _maps(f: Map) -> tuple[Map, ...]:
    return f.maps if isinstance(f, Chain) else (f,)
