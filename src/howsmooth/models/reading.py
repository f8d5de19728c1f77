"""Parameters of Hugging Face modules, in the shapes of our maps."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.rotary import Rotary


def token_table(module: Any) -> nn.Embedding | None:
    """Return the table of a model's token embeddings; none for models of pictures, and where nobody tells."""
    try:
        found = module.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # plain modules have no such method, and some wrappers only its name
        return None
    return found if isinstance(found, nn.Embedding) else None


def rows(weight: Tensor, heads: int) -> Tensor:
    """Split ``(heads · k, d)`` into ``(heads, k, d)``."""
    return weight.detach().unflatten(0, (heads, -1))


def columns(weight: Tensor, heads: int) -> Tensor:
    """Split ``(out, heads · v)`` into ``(heads, out, v)``."""
    return weight.detach().unflatten(1, (heads, -1)).transpose(0, 1)


def matrix(module: Any) -> Tensor:
    """Return the matrix of a linear layer, rows first."""
    return module.weight.detach()


def bias(module: Any, heads: int) -> Tensor | None:
    """Split the bias of a projection, if it has one."""
    return None if module.bias is None else module.bias.detach().unflatten(0, (heads, -1))


def projections(query: Any, key: Any, value: Any, output: Any, heads: int, groups: int) -> dict[str, Any]:
    """Return the arguments of Attention that four linear layers give."""
    return {
        "query": rows(matrix(query), heads),
        "key": rows(matrix(key), groups),
        "value": rows(matrix(value), groups),
        "output": columns(matrix(output), heads),
        "query_bias": bias(query, heads),
        "key_bias": bias(key, groups),
        "value_bias": bias(value, groups),
        "output_bias": None if output.bias is None else output.bias.detach(),
    }


def layer_norm(module: Any) -> LayerNorm:
    """Read a LayerNorm."""
    shift = None if module.bias is None else module.bias.detach()
    return LayerNorm(gain=module.weight.detach(), bias=shift, eps=float(module.eps))


def rms_norm(module: Any, *, offset: float = 0.0) -> RMSNorm:
    """Read an RMSNorm; Gemma adds one to its gain."""
    eps = getattr(module, "variance_epsilon", None)
    return RMSNorm(gain=module.weight.detach() + offset, eps=float(module.eps if eps is None else eps))


def rotary(model: Any, *, key: str | None = None) -> Rotary:
    """Read the frequencies of a rotary embedding, whatever rule they come from.

    Some rules have other frequencies for long sequences; then those for short ones are read, and reach as far as they.
    """
    module, prefix = model.rotary_emb, f"{key}_" if key else ""
    reach = _reach(module, key)
    # the module may have seen a long sequence before
    frequencies = getattr(module, f"{prefix}inv_freq" if reach is None else f"{prefix}original_inv_freq").detach()
    return Rotary(frequencies=frequencies, dim=2 * frequencies.numel(), reach=reach)


def _reach(module: Any, key: str | None) -> int | None:
    """Return the longest sequence that a rotary embedding has its first frequencies for."""
    rule, said = module.rope_type, module.config.rope_parameters
    if key is not None:
        rule, said = rule[key], said[key]
    if rule == "longrope":
        return said["original_max_position_embeddings"]
    # one less than it says: at its full length a module keeps the frequencies of a longer sequence that it saw before
    return module.original_max_seq_len - 1 if "dynamic" in rule else None


def rotary_gain(model: Any, *, key: str | None = None) -> float:
    """Return what the embedding multiplies queries and keys by (one, but for stretched contexts)."""
    return float(getattr(model.rotary_emb, f"{key}_attention_scaling" if key else "attention_scaling", 1.0))


def stretched(read: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return the arguments of Attention with queries and keys multiplied as stretched contexts want it.

    Only the coordinates that are rotated are multiplied, so the scale of the scores cannot stand for it.
    """
    gain = torch.ones_like(read["query"][0, :, 0])
    gain[: rotary(model).dim] = rotary_gain(model)
    changed = {}
    for side in ("query", "key"):
        norm, shift = read.get(f"{side}_norm"), read.get(f"{side}_bias")
        if norm is not None:  # the embedding comes behind the norm
            shift = None if norm.bias is None else gain * norm.bias
            changed[f"{side}_norm"] = dataclasses.replace(norm, gain=gain * norm.gain, bias=shift)
        else:
            changed[side] = gain[:, None] * read[side]
            changed[f"{side}_bias"] = None if shift is None else gain * shift
    return read | changed
