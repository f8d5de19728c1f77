"""The feed-forward part of a block: its map, the norms around it, and where it stands beside attention."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from howsmooth.maps.activations import ACTIVATIONS, Activation, entrywise
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.maps.norms import Norm
from howsmooth.maps.protocols import Map
from howsmooth.models.reading import layer_norm

# Classes of activations in Hugging Face's models and in torch, by what they compute.
CLASSES = {
    "AccurateGELUActivation": "gelu_tanh",
    "BloomGelu": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "LinearActivation": "identity",
    "NewGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "ReLU": "relu",
    "ReLUSquaredActivation": "relu_squared",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "Tanh": "tanh",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedForward:
    """What a block has beside attention.

    Attributes:
        map: The map from what the MLP reads to what it puts out.
        before: The norm in front of it.
        after: The norm behind it, before the residual is added.
        outer: The norm behind the residual sum.
        share: What its output is multiplied by before the residual is added.
        adds_normed: Whether the residual is what the norm in front puts out, not what it reads.
        parallel: Whether it reads what the block reads, side by side with attention.
    """

    map: Map
    before: Norm | None = None
    after: Norm | None = None
    outer: Norm | None = None
    share: float = 1.0
    adds_normed: bool = False
    parallel: bool = False

    @property
    def shared(self) -> Map:
        """The map with its output multiplied as it is added to the residual."""
        if self.share == 1.0 or not isinstance(self.map, MLP | GatedMLP):
            return self.map
        bias = None if self.map.down_bias is None else self.share * self.map.down_bias
        return dataclasses.replace(self.map, down=self.share * self.map.down, down_bias=bias)


def mlp(up: Any, activation: Any, down: Any) -> MLP:
    """Read two linear layers and the activation between them."""
    return MLP(
        up=_matrix(up),
        down=_matrix(down),
        up_bias=_bias(up),
        down_bias=_bias(down),
        activation=activation_of(activation),
    )


def dense_pair(layer: Any) -> FeedForward:
    """Read the feed-forward part of a block of BERT and its kin: two linear layers, and the norm behind the sum."""
    return FeedForward(
        map=mlp(layer.intermediate.dense, layer.intermediate.intermediate_act_fn, layer.output.dense),
        outer=layer_norm(layer.output.LayerNorm),
    )


def gated(gate: Any, up: Any, activation: Any, down: Any) -> GatedMLP:
    """Read the three linear layers of a gated MLP and its activation."""
    return GatedMLP(
        gate=_matrix(gate),
        up=_matrix(up),
        down=_matrix(down),
        gate_bias=_bias(gate),
        up_bias=_bias(up),
        down_bias=_bias(down),
        activation=activation_of(activation),
    )


def joined_gated(both: Any, activation: Any, down: Any) -> GatedMLP:
    """Read a gated MLP whose gate and hidden layer are one matrix, the gate's rows first."""
    gate, up = both.weight.detach().chunk(2)
    gate_bias, up_bias = (None, None) if both.bias is None else both.bias.detach().chunk(2)
    return GatedMLP(
        gate=gate,
        up=up,
        down=_matrix(down),
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=_bias(down),
        activation=activation_of(activation),
    )


def activation_of(module: Any) -> Activation:
    """Return the activation that a module computes; one that is not known is differentiated by autograd."""
    kind = type(module).__name__
    if isinstance(module, nn.GELU):
        return ACTIVATIONS["gelu_tanh" if module.approximate == "tanh" else "gelu"]
    return ACTIVATIONS[CLASSES[kind]] if kind in CLASSES else entrywise(module, kind)


def _matrix(module: Any) -> Tensor:
    # GPT-2 stores its matrices columns first
    return module.weight.detach().mT if type(module).__name__ == "Conv1D" else module.weight.detach()


def _bias(module: Any) -> Tensor | None:
    return None if module.bias is None else module.bias.detach()
