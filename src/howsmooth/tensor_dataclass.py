"""Frozen values made of tensors."""

import dataclasses
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

V = TypeVar("V", bound="TensorDataclass")


class TensorDataclass:
    """A frozen dataclass of tensors that can change dtype and device."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its first tensor."""
        return next(x.dtype for x in vars(self).values() if isinstance(x, Tensor | TensorDataclass))

    def to(self: V, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> V:
        """Return the same value in another dtype or on another device."""
        changes = {
            field.name: _moved(getattr(self, field.name), dtype, device)
            for field in dataclasses.fields(cast(Any, self))
            if field.init
        }
        return dataclasses.replace(cast(Any, self), **changes)


def _moved(part: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> Any:
    if isinstance(part, Tensor):
        if part.is_inference() and not torch.is_inference_mode_enabled():
            part = part.clone()  # autograd does not record what was made in inference mode
        return part.to(device=device, dtype=dtype if part.is_floating_point() else None)
    if isinstance(part, TensorDataclass):
        return part.to(dtype, device)
    return part
