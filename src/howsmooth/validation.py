"""What howsmooth accepts as tokens and as weights; every refusal says what to do."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, DeviceError, DtypeError, NonFiniteError, ShapeError
from howsmooth.torch_internals import is_batched

# What seeds whatever is random, in every function that users call: a whole number, or a generator to draw from.
Seed = SupportsIndex | torch.Generator


def generator_from(seed: Seed | None) -> torch.Generator:
    """Return the generator that a seed stands for: a new one for a number, torch's global one for none."""
    if seed is None or isinstance(seed, torch.Generator):
        return torch.default_generator if seed is None else seed
    if not isinstance(seed, SupportsIndex) or isinstance(seed, bool | Tensor):
        raise DtypeError(f"seed must be a whole number or a torch.Generator, got {type(seed).__name__}.", field="seed")
    number = seed.__index__()
    if not 0 <= number < 2**63:
        raise AssumptionError(f"seed must be between 0 and 2^63 - 1, got {number}.", field="seed")
    return torch.Generator().manual_seed(number)


@contextmanager
def plain_mode() -> Iterator[None]:
    """Leave the modes that a caller is in: autocast rounds some products of a result, and inference mode keeps none."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


def argument(name: str) -> str | None:
    """Return the argument that a message calls ``name``; none for what is no argument, such as an output."""
    return "X" if name == "tokens" else name if name.isidentifier() else None


def require_dense(x: object, name: str) -> None:
    """Refuse anything but an ordinary tensor."""
    if not isinstance(x, Tensor):
        raise DtypeError(
            f"{name} must be a torch.Tensor, got {type(x).__name__}; convert with torch.as_tensor.",
            field=argument(name),
        )
    if x.layout != torch.strided or x.is_nested:
        raise DtypeError(
            f"{name} must be dense, got a {'nested' if x.is_nested else str(x.layout).removeprefix('torch.')} tensor; "
            f"convert with {'.to_padded_tensor(0.0)' if x.is_nested else '.to_dense()'}.",
            field=argument(name),
        )


def require_floating(x: object, name: str) -> None:
    """Refuse anything but an ordinary tensor of real floating-point numbers."""
    require_dense(x, name)
    assert isinstance(x, Tensor)  # for mypy
    if not x.is_floating_point():
        ids = ", or turn token ids into tokens with hs.load(model).activations(ids).at(layer=0)"
        raise DtypeError(
            f"{name} must hold real floating-point numbers, got {x.dtype}; convert with .double()"
            f"{ids if name == 'tokens' else ''}.",
            field=argument(name),
        )


def tokens_for(X: Any, f: Any) -> Any:
    """Return arrays and lists as tensors, in the numbers and on the device of a map; tensors and measures as is."""
    if isinstance(X, Tensor) or not isinstance(X, np.ndarray | list | tuple):
        return X
    found = tensor_of(X, "tokens")
    if not found.is_floating_point():
        return found
    weight = next(f.parameters(), None) if isinstance(f, nn.Module) else getattr(f, "query", None)
    own = getattr(f, "dtype", None) if weight is None else weight.dtype
    dtype = own if isinstance(own, torch.dtype) else torch.get_default_dtype() if isinstance(X, list | tuple) else None
    return found.to(device=None if weight is None else weight.device, dtype=dtype)


def tensor_of(x: Any, name: str) -> Tensor:
    """Return an array, or rows of numbers, as a tensor with memory of its own; a tensor as is."""
    if isinstance(x, Tensor):
        return x
    try:
        array = np.asarray(x)
        # a copy in order: torch takes no array that runs backwards, in the other order of bytes, or not to be written
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(
            f"{name} must be a tensor, an array or rows of numbers of one length, got a {type(x).__name__}; tokenizers "
            "make rows of one length with return_tensors='pt', padding=True.",
            field=argument(name),
        ) from error


def require_boolean(x: object, name: str) -> None:
    """Refuse any mask but one that is True for real tokens: of zeros and ones there are two conventions."""
    require_dense(x, name)
    assert isinstance(x, Tensor)  # for mypy
    if x.dtype != torch.bool:
        raise DtypeError(
            f"{name} must be boolean, True for real tokens, got {x.dtype}; convert with .bool().", field=name
        )


def token_ids(x: Any) -> Tensor:
    """Return rows of token ids as whole numbers of 64 bits, or refuse what is none."""
    x = tensor_of(x, "tokens")
    require_dense(x, "tokens")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise DtypeError(f"token ids must be whole numbers, got {x.dtype}.", field="tokens")
    require_numbers(x, "tokens")
    if not x.ndim:
        raise ShapeError("token ids must be a sequence, got a number.", field="tokens")
    return x.long()


def is_finite(x: Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor infinity.

    Its sum would not be finite either. That is asked first, since it is read once and takes no memory; finite numbers
    whose sum leaves the range of floats are looked at one by one.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def require_numbers(x: Tensor, name: str) -> None:
    """Refuse a tensor without numbers: an empty one, or one on the meta device, which knows its shape alone."""
    if x.is_meta:
        raise DeviceError(
            f"{name} must hold numbers, but is on torch's meta device, which holds none; load it first.",
            field=argument(name),
        )
    if not x.numel():
        raise ShapeError(f"{name} must not be empty, got the shape {tuple(x.shape)}.", field=argument(name))


def require_finite(x: Tensor, name: str) -> None:
    """Refuse NaN and infinity."""
    if is_batched(x):
        return  # inside torch.vmap the values cannot steer Python
    if not x.is_meta and not is_finite(x):
        bad = int((~torch.isfinite(x)).sum())
        raise NonFiniteError(
            f"{name} must be finite, but {bad} of its {x.numel()} entries are NaN or infinite.", field=argument(name)
        )


def require_agreement(x: Tensor, other: Any, name: str, other_name: str) -> None:
    """Refuse a tensor whose dtype or device is not that of another tensor, or of an operator."""
    if x.dtype != other.dtype:
        raise DtypeError(
            f"{name} and {other_name} must have one dtype, got {x.dtype} and {other.dtype}; convert one with .to().",
            field=argument(name),
        )
    if x.device != other.device:
        raise DeviceError(
            f"{name} and {other_name} must be on one device, got {x.device} and {other.device}; move one with .to().",
            field=argument(name),
        )


def require_sequences(X: object) -> None:
    """Refuse anything but finite, non-empty tokens ``(*batch, n, d)``, whatever acts on them."""
    require_floating(X, "tokens")
    assert isinstance(X, Tensor)  # for mypy
    if X.ndim < 2 or not X.numel():
        raise ShapeError(f"tokens must have the shape (*batch, n, d) with n >= 1, got {tuple(X.shape)}.", field="X")
    require_numbers(X, "tokens")
    require_finite(X.detach(), "tokens")


def require_tokens(X: Tensor, weights: Tensor) -> None:
    """Refuse anything but finite, non-empty tokens ``(*batch, n, d)`` on which ``weights`` with ``d`` columns act."""
    require_floating(X, "tokens")
    d = weights.shape[-1]
    if X.ndim < 2 or X.numel() == 0 or X.shape[-1] != d:
        raise ShapeError(f"tokens must have the shape (*batch, n, {d}) with n >= 1, got {tuple(X.shape)}.", field="X")
    require_agreement(X, weights, "tokens", "weights")
    require_numbers(X, "tokens")
    require_finite(X, "tokens")


def require_like(x: Tensor, like: Any, shape: tuple[int, ...], name: str) -> None:
    """Refuse a vector that an operator cannot be applied to; ``like`` has its dtype and device."""
    require_floating(x, name)
    require_shape(x, shape, name)
    require_agreement(x, like, name, "the operator")


def require_parameter(x: Tensor, shape: tuple[int, ...], other: Tensor, name: str, other_name: str) -> None:
    """Refuse anything but finite floating-point numbers of this shape, with the dtype and device of ``other``."""
    require_floating(x, name)
    require_shape(x, shape, name)
    require_agreement(x, other, name, other_name)
    require_finite(x, name)


def require_shape(x: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Refuse a tensor of any other shape."""
    if tuple(x.shape) != tuple(shape):
        raise ShapeError(f"{name} must have the shape {tuple(shape)}, got {tuple(x.shape)}.", field=argument(name))
