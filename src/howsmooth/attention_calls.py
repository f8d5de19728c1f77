"""Which function runs where a module calls torch's scaled dot-product attention, and who sees its arguments."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from howsmooth.errors import AssumptionError
from howsmooth.scaled_dot_product import TORCH_SDPA, sdpa

Attend = Callable[..., Tensor]


@contextmanager
def use_sdpa(module: nn.Module) -> Iterator[nn.Module]:
    """Let a module call :func:`sdpa` wherever it calls torch's function, until the end of the ``with`` block.

    For ``nn.MultiheadAttention`` (with ``need_weights=False``), ``nn.TransformerEncoder``, models of the transformers
    library that run ``attn_implementation="sdpa"``, and every other module that calls
    ``torch.nn.functional.scaled_dot_product_attention`` by this name. Torch's fast path, which has no derivatives, is
    off while the module runs.

    Args:
        module: The module; at the end it is as it was.
    """

    def replaced(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def with_sdpa(*positional: Any, **named: Any) -> Any:
            with in_place_of_torch():
                return forward(*positional, **named)

        return with_sdpa

    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise AssumptionError(
            "torch.jit has compiled calls of torch's attention, so that nothing can take its place; give the module "
            "that was compiled.",
            field="module",
        )
    # Why every part: a checkpoint runs some of them again on the way back, outside of the module
    parts = list(module.modules())
    own = [vars(part).get("forward") for part in parts]
    for part in parts:
        part.forward = replaced(part.forward)
    try:
        yield module
    finally:
        for part, forward in zip(parts, own, strict=True):
            del part.forward
            if forward is not None:
                part.forward = forward


class _Replacements(threading.local):
    """What stands in the place of torch's function in this thread, the last one on top, and who sees its calls."""

    def __init__(self) -> None:
        self.functions: list[Attend] = []
        self.observers: list[Callable[..., None]] = []


_REPLACEMENTS, _LOCK = _Replacements(), threading.Lock()
_open_blocks, _fast_path = 0, True


@contextmanager
def in_place_of_torch(function: Attend = sdpa) -> Iterator[None]:
    """Put :func:`sdpa`, or another function of the same values, in the place of torch's, for this thread."""
    with _on_top(_REPLACEMENTS.functions, function):
        yield


@contextmanager
def calls_observed(observer: Callable[..., None]) -> Iterator[None]:
    """Show the arguments of every call of torch's function in this thread, or of what stands in its place."""
    with _on_top(_REPLACEMENTS.observers, observer):
        yield


@contextmanager
def _on_top(stack: list[Any], entry: Any) -> Iterator[None]:
    global _open_blocks, _fast_path  # torch has one attribute for all threads
    with _LOCK:
        if _open_blocks == 0:
            _fast_path = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            functional.scaled_dot_product_attention = _current
        _open_blocks += 1
    stack.append(entry)
    try:
        yield
    finally:
        stack.pop()
        with _LOCK:
            _open_blocks -= 1
            if _open_blocks == 0:
                torch.backends.mha.set_fastpath_enabled(_fast_path)
                functional.scaled_dot_product_attention = TORCH_SDPA


def _current(*positional: Any, **named: Any) -> Tensor:
    for observer in _REPLACEMENTS.observers:
        observer(*positional, **named)
    functions = _REPLACEMENTS.functions
    return (functions[-1] if functions else TORCH_SDPA)(*positional, **named)
