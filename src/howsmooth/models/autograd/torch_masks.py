"""The masks that torch's attention was called with: they are no part of its weights."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.maps.positions import Positions
from howsmooth.models.autograd.hooks import ModuleCall

SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def is_self_attention(call: ModuleCall) -> bool:
    """Tell whether queries, keys and values of a call of nn.MultiheadAttention are one sequence."""
    given = _arguments(call)
    return all(x is given["query"] or torch.equal(x, given["query"]) for x in (given["key"], given["value"]))


def positions_of(call: ModuleCall, *, heads: int, padding: bool) -> Positions:
    """Return the masks of a call of nn.MultiheadAttention.

    Where the caller knows of ``padding``, its mask is left out.
    """
    given = _arguments(call)
    mask, padded = given["attn_mask"], given["key_padding_mask"]
    real = None if padded is None or padding else _seen(padded)
    if real is not None and real.dtype != torch.bool:
        raise AssumptionError("a mask of padding must hide tokens or show them.", field="padding")
    # torch takes the hint for the mask where no weights are asked for
    if given["is_causal"] and padded is None and not given["need_weights"]:
        return Positions(causal=True)
    mask = None if mask is None else _seen(mask)
    if mask is None or (mask.dtype == torch.bool and bool(mask.all())):
        return Positions(padding=real)
    if mask.dtype == torch.bool and torch.equal(mask, torch.ones_like(mask).tril()):
        return Positions(causal=True, padding=real)
    return Positions(mask=mask if mask.ndim == 2 else mask.unflatten(0, (-1, heads)), padding=real)


def _arguments(call: ModuleCall) -> dict[str, Any]:
    bound = SIGNATURE.bind(call.module, *call.positional, **call.named)
    bound.apply_defaults()
    return bound.arguments


def _seen(mask: Tensor) -> Tensor:
    """Return a mask of torch, where True or minus infinity hides, as ours: True for what is seen, or what is added."""
    if mask.dtype == torch.bool:
        return ~mask
    return mask == 0 if bool(((mask == 0) | (mask == -torch.inf)).all()) else mask
