"""Where a model computes, and with which numbers."""

import copy

import torch
from torch import nn

from howsmooth.errors import DeviceError, DtypeError, UnsupportedModelError
from howsmooth.spectral.protocols import HALF
from howsmooth.wording import percent


def placed(
    module: nn.Module, *, device: torch.device | str | None, dtype: torch.dtype | None, borrowed: bool = False
) -> tuple[nn.Module, tuple[str, ...]]:
    """Move a module to a device and to other numbers; half precision is measured in float32.

    Args:
        module: The model.
        device: Where to put it; where it is by default.
        dtype: The numbers; those of its weights by default. Half precision rounds the weights, and nothing else.
        borrowed: Whether it belongs to somebody else, so that its weights must not change.

    Returns:
        The module, a copy if it is borrowed and its numbers change; and what to know about its numbers.

    Raises:
        DeviceError: If there is no such device here.
        DtypeError: If the numbers are not real floating-point ones.
        UnsupportedModelError: If its weights are in less than half precision.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise DtypeError(f"dtype must be real floating-point numbers of torch, got {dtype!r}.", field="dtype")
    if device is not None:
        _require_device(device)
    own = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    if coarse := next((kind for kind in (*own, dtype or torch.float32) if kind.itemsize < 2), None):
        raise UnsupportedModelError(
            f"numbers of {_name(coarse)} come with scales of their own, which are not read; convert the model to "
            "bfloat16 or float32 first.",
            field="model" if coarse in own else "dtype",
        )
    wanted, notes = _numbers(own, dtype)
    if borrowed and wanted is not None and own != {wanted}:
        module = copy.deepcopy(module)
    if dtype in HALF:
        module = module.to(dtype=dtype)
    return module.to(device=device, dtype=wanted), notes


def _numbers(own: set[torch.dtype], asked: torch.dtype | None) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """Return the numbers to measure in, and what to say about them."""
    if asked is not None and asked in HALF:
        how = f"its weights were rounded to {_name(asked)}, as asked for, and are measured in float32"
        return torch.float32, (f"{how}; {_worth(asked)}",)
    half = next((kind for kind in own if kind in HALF), None)
    if half is None:
        return asked, ()
    wanted = torch.float32 if asked is None else asked
    return wanted, (f"its weights are {_name(half)}, and are measured as they are in {_name(wanted)}; {_worth(half)}",)


def _worth(half: torch.dtype) -> str:
    """Say what a model loses that computes in half precision."""
    error = percent(torch.finfo(half).eps / 2)
    return f"run in {_name(half)}, every rounding of an activation would change it by up to {error}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require_device(device: torch.device | str) -> None:
    """Try the device with one number: what torch cannot do here it says in many ways."""
    try:
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceError(f"the device {str(device)!r} cannot be used here: {why}", field="device") from error
