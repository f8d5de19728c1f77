"""The device and the dtype of a model."""

import copy

import torch
from torch import nn

from howsmooth.errors import DeviceError, DtypeError, UnsupportedModelError
from howsmooth.spectral.operators import HALF
from howsmooth.wording import percent


def placed(
    module: nn.Module, *, device: torch.device | str | None, dtype: torch.dtype | None, borrowed: bool = False
) -> tuple[nn.Module, tuple[str, ...]]:
    """Move a module to a device and a dtype; half precision is measured in float32.

    Args:
        module: The model.
        device: The device; by default it stays where it is.
        dtype: The dtype; by default that of its weights. Half precision rounds the weights, and nothing else.
        borrowed: Whether the caller keeps the module, so that its weights must not change.

    Returns:
        The module, a copy if it is borrowed and its dtype changes; and notes.

    Raises:
        DeviceError: If the device cannot be used here.
        DtypeError: If the dtype is not a real floating-point one.
        UnsupportedModelError: If its weights are in less than half precision.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise DtypeError(f"dtype must be real floating-point numbers of torch, got {dtype!r}.", field="dtype")
    if device is not None:
        _require_device(device)
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    if coarse := next((kind for kind in (*dtypes, dtype or torch.float32) if kind.itemsize < 2), None):
        raise UnsupportedModelError(
            f"numbers of {_name(coarse)} come with scales of their own, which are not read; convert the model to "
            "bfloat16 or float32 first.",
            field="model" if coarse in dtypes else "dtype",
        )
    wanted, notes = _computing_dtype(dtypes, dtype)
    if borrowed and wanted is not None and dtypes != {wanted}:
        module = copy.deepcopy(module)
    if dtype in HALF:
        module = module.to(dtype=dtype)
    return module.to(device=device, dtype=wanted), notes


def _computing_dtype(dtypes: set[torch.dtype], given: torch.dtype | None) -> tuple[torch.dtype | None, tuple[str, ...]]:
    """Return the dtype to measure in, and notes."""
    if given is not None and given in HALF:
        how = f"its weights were rounded to {_name(given)}, as asked for, and are measured in float32"
        return torch.float32, (f"{how}; {_rounding_note(given)}",)
    half = next((kind for kind in dtypes if kind in HALF), None)
    if half is None:
        return given, ()
    wanted = torch.float32 if given is None else given
    how = f"its weights are {_name(half)}, and are measured as they are in {_name(wanted)}"
    return wanted, (f"{how}; {_rounding_note(half)}",)


def _rounding_note(half: torch.dtype) -> str:
    """Return the rounding error of a model that computes in half precision."""
    error = percent(torch.finfo(half).eps / 2)
    return f"run in {_name(half)}, every rounding of an activation would change it by up to {error}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _require_device(device: torch.device | str) -> None:
    """Try the device with one number: torch raises many kinds of errors."""
    try:
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceError(f"the device {str(device)!r} cannot be used here: {why}", field="device") from error
