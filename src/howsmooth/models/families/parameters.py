"""What readers of families share: parameters of Hugging Face modules in the shapes of our maps, and lists of layers."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.maps.activations import ACTIVATIONS, Activation, entrywise
from howsmooth.maps.mlp import MLP, Dense, GatedMLP
from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.positions import Rotary
from howsmooth.models.attention_layer import AttentionLayer
from howsmooth.models.parts.block import FeedForward

# Classes of activations in Hugging Face's models and in torch, by the function that they compute.
ACTIVATION_CLASSES = {
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
# The same of functions.
ACTIVATION_FUNCTIONS = {
    nn.functional.relu: "relu",
    torch.relu: "relu",
    nn.functional.gelu: "gelu",
    nn.functional.silu: "silu",
    nn.functional.tanh: "tanh",
    torch.tanh: "tanh",
}
# Splits the rows of a matrix, or the entries of a bias, into those of queries, keys and values.
Split = Callable[[Tensor], Sequence[Tensor]]


def token_table(module: Any) -> nn.Embedding | None:
    """Return the token embeddings of a model; none for models of pictures, and for modules that do not tell."""
    try:
        found = module.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # plain modules have no such method, and some wrappers only its name
        return None
    return found if isinstance(found, nn.Embedding) else None


def linear(module: Any) -> Dense:
    """Read a linear layer."""
    return Dense(weight=_matrix(module), bias=_bias(module))


def layer_norm(module: Any) -> LayerNorm:
    """Read a LayerNorm."""
    return LayerNorm(gain=module.weight.detach(), bias=_bias(module), eps=float(module.eps))


def rms_norm(module: Any, *, offset: float = 0.0) -> RMSNorm:
    """Read an RMSNorm; Gemma adds one to its gain."""
    eps = getattr(module, "variance_epsilon", None)
    return RMSNorm(gain=module.weight.detach() + offset, eps=float(module.eps if eps is None else eps))


def projections(query: Any, key: Any, value: Any, output: Any, heads: int, groups: int | None = None) -> dict[str, Any]:
    """Return the arguments of Attention from four linear layers; ``groups`` of heads share keys and values."""
    groups = heads if groups is None else groups
    counts = ((query, heads), (key, groups), (value, groups))
    weights = [_rows(_matrix(module), count) for module, count in counts]
    biases = [None if module.bias is None else _rows(_bias(module), count) for module, count in counts]
    return _arguments(weights, biases, output, heads)


def separate_projections(attn: Any, output: Any, heads: int, groups: int | None = None) -> dict[str, Any]:
    """Return the arguments of Attention from a module with ``q_proj``, ``k_proj`` and ``v_proj``."""
    return projections(attn.q_proj, attn.k_proj, attn.v_proj, output, heads, groups)


def fused_projections(fused: Any, output: Any, heads: int, split: Split) -> dict[str, Any]:
    """Return the arguments of Attention from one linear layer for queries, keys and values, and the output layer."""
    biases = (None, None, None) if fused.bias is None else split(_bias(fused))
    return _arguments(split(_matrix(fused)), biases, output, heads)


def stacked(heads: int) -> Split:
    """Split rows stored as all queries, then all keys, then all values."""
    return lambda x: [_rows(part, heads) for part in x.chunk(3)]


def interleaved(heads: int) -> Split:
    """Split rows stored head by head: its query, its key, its value."""
    return lambda x: _rows(x, heads).chunk(3, dim=1)


def mlp(up: Any, activation: Any, down: Any) -> MLP:
    """Read two linear layers and the activation between them."""
    parameters = {"up": _matrix(up), "down": _matrix(down), "up_bias": _bias(up), "down_bias": _bias(down)}
    return MLP(**parameters, activation=activation_of(activation))


def gated_mlp(gate: Any, up: Any, activation: Any, down: Any) -> GatedMLP:
    """Read the three linear layers of a gated MLP and its activation."""
    return _gated(_matrix(gate), _matrix(up), _bias(gate), _bias(up), activation, down)


def fused_gated_mlp(gate_and_up: Any, activation: Any, down: Any) -> GatedMLP:
    """Read a gated MLP whose gate and hidden layer are one matrix, the rows of the gate first."""
    gate, up = _matrix(gate_and_up).chunk(2)
    gate_bias, up_bias = (None, None) if gate_and_up.bias is None else _bias(gate_and_up).chunk(2)
    return _gated(gate, up, gate_bias, up_bias, activation, down)


def _gated(gate: Tensor, up: Tensor, gate_bias: Any, up_bias: Any, activation: Any, down: Any) -> GatedMLP:
    parameters = {"gate": gate, "up": up, "gate_bias": gate_bias, "up_bias": up_bias}
    return GatedMLP(**parameters, down=_matrix(down), down_bias=_bias(down), activation=activation_of(activation))


def rotary(model: Any, *, key: str | None = None) -> Rotary:
    """Read the frequencies of a rotary embedding, whatever rule they come from.

    Some rules have other frequencies for long sequences; then those for short ones are read, with the longest length
    that they apply to.
    """
    module, prefix = model.rotary_emb, f"{key}_" if key else ""
    reach = _rotary_reach(module, key)
    # the module may have seen a long sequence before
    frequencies = getattr(module, f"{prefix}inv_freq" if reach is None else f"{prefix}original_inv_freq").detach()
    return Rotary(frequencies=frequencies, dim=2 * frequencies.numel(), reach=reach)


def _rotary_reach(module: Any, key: str | None) -> int | None:
    """Return the longest sequence for which a rotary embedding uses its first frequencies."""
    rule, settings = module.rope_type, module.config.rope_parameters
    if key is not None:
        rule, settings = rule[key], settings[key]
    if rule == "longrope":
        return settings["original_max_position_embeddings"]
    # one less than it says: at its full length a module keeps the frequencies of a longer sequence that it saw before
    return module.original_max_seq_len - 1 if "dynamic" in rule else None


def rotary_gain(model: Any, *, key: str | None = None) -> float:
    """Return the factor of queries and keys in the embedding: one, except for extended contexts."""
    return float(getattr(model.rotary_emb, f"{key}_attention_scaling" if key else "attention_scaling", 1.0))


def with_rotary_gain(arguments: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return the arguments of Attention with queries and keys multiplied by the gain of the rotary embedding.

    Only the coordinates that are rotated are multiplied, so the scale of the scores cannot absorb it.
    """
    gain = torch.ones_like(arguments["query"][0, :, 0])
    gain[: rotary(model).dim] = rotary_gain(model)
    changed = {}
    for side in ("query", "key"):
        norm, bias = arguments.get(f"{side}_norm"), arguments.get(f"{side}_bias")
        if norm is not None:  # the embedding follows the norm
            bias = None if norm.bias is None else gain * norm.bias
            changed[f"{side}_norm"] = dataclasses.replace(norm, gain=gain * norm.gain, bias=bias)
        else:
            changed[side] = gain[:, None] * arguments[side]
            changed[f"{side}_bias"] = None if bias is None else gain * bias
    return arguments | changed


def activation_of(module: Any) -> Activation:
    """Return the activation that a module computes; an unknown one is differentiated by autograd."""
    kind = type(module).__name__
    if module in ACTIVATION_FUNCTIONS:
        return ACTIVATIONS[ACTIVATION_FUNCTIONS[module]]
    if isinstance(module, nn.GELU):
        return ACTIVATIONS["gelu_tanh" if module.approximate == "tanh" else "gelu"]
    return ACTIVATIONS[ACTIVATION_CLASSES[kind]] if kind in ACTIVATION_CLASSES else entrywise(module, kind)


def _arguments(weights: Sequence[Tensor], biases: Sequence[Tensor | None], output: Any, heads: int) -> dict[str, Any]:
    """Return the arguments of Attention; the output ``(out, heads · v)`` is split into ``(heads, out, v)``."""
    query, key, value = weights
    query_bias, key_bias, value_bias = biases
    return {
        "query": query,
        "key": key,
        "value": value,
        "query_bias": query_bias,
        "key_bias": key_bias,
        "value_bias": value_bias,
        "output": _matrix(output).unflatten(1, (heads, -1)).transpose(0, 1),
        "output_bias": _bias(output),
    }


def _rows(x: Any, heads: int) -> Tensor:
    """Split ``(heads · k, …)`` into ``(heads, k, …)``."""
    return x.unflatten(0, (heads, -1))


def _matrix(module: Any) -> Tensor:
    # GPT-2 stores its matrices transposed
    return module.weight.detach().mT if type(module).__name__ == "Conv1D" else module.weight.detach()


def _bias(module: Any) -> Any:
    return None if module.bias is None else module.bias.detach()


def read_layers(
    blocks: Iterable[Any], path: str, attention: str, projection: str, read: Callable[[Any], dict[str, Any]]
) -> list[AttentionLayer]:
    """Read a list of blocks.

    Paths of ``attention`` and ``projection`` are within a block; ``read`` returns the other fields of AttentionLayer.
    """
    return [
        AttentionLayer(
            index=i,
            attention_path=f"{path}.{i}.{attention}",
            projection_path=f"{path}.{i}.{projection}",
            block_path=f"{path}.{i}",
            **read(block),
        )
        for i, block in enumerate(blocks)
    ]


def pre_norm_mlp(
    norm: Any, mlp_norm: Any, up: Any, activation: Any, down: Any, *, parallel: bool = False
) -> dict[str, Any]:
    """Read a LayerNorm in front of attention and one in front of a plain MLP; parallel parts may share one module."""
    pre_norm = layer_norm(norm)
    second = pre_norm if mlp_norm is norm else layer_norm(mlp_norm)
    feed_forward = FeedForward(map=mlp(up, activation, down), pre_norm=second, parallel=parallel)
    return {"pre_norm": pre_norm, "feed_forward": feed_forward}


def post_norm_mlp(norm: Any, mlp_norm: Any, up: Any, activation: Any, down: Any) -> dict[str, Any]:
    """Read a plain MLP, and a LayerNorm behind each residual sum."""
    feed_forward = FeedForward(map=mlp(up, activation, down), post_norm=layer_norm(mlp_norm))
    return {"post_norm": layer_norm(norm), "feed_forward": feed_forward}
