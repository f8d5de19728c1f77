"""Which coordinates of the concatenated heads belong to which head: seen by moving the values of the first."""

from typing import Any

import torch
from torch import Tensor, nn

from howsmooth.models.part_calls import PartCall
from howsmooth.models.tracing import Event, Place

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
VALUES = ("v_proj", "value", "value_proj", "v_lin", "v_linear", "v", "wv")


def heads_in_a_row(own: Event, projection: Event) -> int | None:
    """Return how many heads stand one after the other in what the output projection reads; none if that is not seen.

    The values of the first group of heads are moved; then their coordinates must move, and no others.
    """
    module, width = own.call.module, projection.reads[0].shape[-1]
    count = _count(module)
    values = next((part for name, part in module.named_modules() if name.rpartition(".")[2] in VALUES), None)
    if count is None or width % count or not isinstance(values, nn.Linear):
        return None
    v = width // count
    groups, left = divmod(values.out_features, v)
    if left or not groups or count % groups:
        return None
    heads = _heads(own, projection)
    moved = heads(_moving(values, v)) - heads(None)
    touched = moved.flatten(0, -2).abs().amax(0) > 0
    expected = torch.arange(width, device=touched.device) < v * (count // groups)
    return count if torch.equal(touched, expected) else None


def _count(module: nn.Module) -> int | None:
    config: Any = getattr(module, "config", None)
    for name in COUNTS:
        found = getattr(module, name, getattr(config, name, None))
        if isinstance(found, int) and found > 0:
            return found
    return None


def _heads(own: Event, projection: Event) -> Any:
    """Return the heads as a function of a hook that changes the values."""
    X = own.call.tokens
    inside = projection.path.startswith(f"{own.path}.")
    place = Place(path=projection.path, turn=0, side="reads") if inside else Place(path=own.path, side="writes")
    call = PartCall(call=own.call, root=own.path, places=(place,))

    def run(change: Any) -> Tensor:
        if change is None:
            return call(X)
        values, hook = change
        handle = values.register_forward_hook(hook)
        try:
            return call(X)
        finally:
            handle.remove()

    return run


def _moving(values: nn.Linear, v: int) -> Any:
    noise = torch.randn(values.out_features, generator=torch.Generator().manual_seed(0)).to(values.weight)
    noise[v:] = 0
    return values, lambda _module, _inputs, output: output + noise
