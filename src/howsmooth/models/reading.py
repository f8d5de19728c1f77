"""Parameters of Hugging Face modules, in the shapes of our maps."""

from typing import Any

from torch import Tensor

from howsmooth.maps.norms import LayerNorm, RMSNorm
from howsmooth.maps.rotary import Rotary


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
    """Read the frequencies of a rotary embedding, whatever rule they come from."""
    module = model.rotary_emb
    frequencies = getattr(module, f"{key}_inv_freq" if key else "inv_freq").detach()
    return Rotary(frequencies=frequencies, dim=2 * frequencies.numel())


def rotary_gain(model: Any, *, key: str | None = None) -> float:
    """Return what the embedding multiplies queries and keys by (one, but for stretched contexts)."""
    return float(getattr(model.rotary_emb, f"{key}_attention_scaling" if key else "attention_scaling", 1.0))
