"""Forward hooks on parts of a module: the one place where they are registered; calls of modules, and their masks."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.maps.positions import Positions
from howsmooth.spectral.autograd import oriented

Recorded = TypeVar("Recorded")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class StopForward(Exception):  # noqa: N818 — no error: a hook has what it needs
    """Raised by a hook to end the forward pass early; :func:`hooked` catches it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleCall:
    """One call of a module, as a map on hidden states with its other arguments fixed.

    Hidden states are ``(batch, n, d)``; torch's own layers read ``(n, batch, d)`` unless they are ``batch_first``, and
    are given those.
    """

    module: nn.Module  # the module that was called
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    path: str = ""  # that of the module in the one to which hooks are attached

    @classmethod
    def of(
        cls, module: nn.Module, tokens: Tensor, padding: Tensor | None = None, named: Mapping[str, Any] | None = None
    ) -> "ModuleCall":
        """Return the call of a whole model at token ids, pixels or hidden states."""
        raw = oriented(module, tokens)
        positional = (raw, raw, raw) if isinstance(module, nn.MultiheadAttention) else (raw,)
        return cls(module=module, positional=positional, named={**_padding(module, padding), **(named or {})})

    @property
    def tokens(self) -> Tensor:
        """The hidden states among the arguments."""
        return oriented(self.module, self.given)

    @property
    def given(self) -> Tensor:
        """The same as the module was given them."""
        found = next(iter(self.positional), None)
        found = next((self.named[name] for name in TOKENS if name in self.named), None) if found is None else found
        if not isinstance(found, Tensor):
            raise UnsupportedModelError(f"{type(self.module).__name__} was not called with hidden states.")
        return found

    def at(self, X: Tensor) -> Arguments:
        """Return the arguments with other hidden states, wherever they occur (as query, key and value, say)."""
        tokens, raw = self.given, oriented(self.module, X)

        def replaced(argument: Any) -> Any:
            if argument is tokens:
                return raw
            cache = any(kind.__name__ == "Cache" for kind in type(argument).__mro__)
            return None if cache else argument  # a second call would find the keys of the first in it

        return tuple(map(replaced, self.positional)), {name: replaced(x) for name, x in self.named.items()}

    def __call__(self, X: Tensor) -> Tensor:
        """Call the module again at other hidden states."""
        positional, named = self.at(X)
        with without_cache(self.module):
            return oriented(self.module, first_tensor(self.module(*positional, **named)))


# Keywords of hidden states.
TOKENS = ("hidden_states", "query", "src")


def _padding(module: nn.Module, padding: Tensor | None) -> dict[str, Tensor]:
    """Return the keyword by which a model is told of padding."""
    if padding is None:
        return {}
    if isinstance(module, nn.MultiheadAttention):
        return {"key_padding_mask": ~padding}
    if isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        return {"src_key_padding_mask": ~padding}
    parameters = inspect.signature(module.forward).parameters.values()
    if not any(known.name == "attention_mask" or known.kind is known.VAR_KEYWORD for known in parameters):
        raise AssumptionError(
            f"{type(module).__name__}.forward takes no attention_mask, so it cannot be told of padding; give sequences "
            "of one length without padding, or its own mask by its own keyword.",
            field="padding",
        )
    return {"attention_mask": padding.long()}


# Called before a part runs, with its call and how many calls came before; may return other arguments.
InputHook = Callable[[ModuleCall, int], Arguments | None]
# Called after a part has run, with its output and how many calls came before; may return another output.
OutputHook = Callable[[Any, int], Any]


@contextmanager
def hooked(
    module: nn.Module,
    *,
    inputs: Mapping[str, InputHook] | None = None,
    outputs: Mapping[str, OutputHook] | None = None,
    prepend: bool = False,
) -> Iterator[None]:
    """Attach hooks to parts of a module, for the forward passes of this thread within the ``with`` block.

    Other threads may run the same module at the same time; their calls are ignored. The fast path of torch's encoder
    layers, which calls none of their parts, is off in the meantime.

    Input hooks with ``prepend`` run before those that are there already, which belong to the part: a recorded call runs
    them again when it is repeated.
    """
    thread = threading.get_ident()

    def counted(hook: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
        calls = iter(range(10**9))
        return lambda value: hook(value, next(calls)) if threading.get_ident() == thread else None

    def before(path: str, hook: InputHook) -> Any:
        run = counted(hook)

        def pre_hook(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return run(ModuleCall(module=part, positional=positional, named=named, path=path))

        return module.get_submodule(path).register_forward_pre_hook(pre_hook, prepend=prepend, with_kwargs=True)

    def after(path: str, hook: OutputHook) -> Any:
        run = counted(hook)
        return module.get_submodule(path).register_forward_hook(lambda _part, _inputs, output: run(output))

    handles, fast_path = [], torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for path, hook in (inputs or {}).items():
            handles.append(before(path, hook))
        for path, output_hook in (outputs or {}).items():
            handles.append(after(path, output_hook))
        yield
    except StopForward:
        pass
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for handle in handles:
            handle.remove()


@contextmanager
def recorded_calls(module: nn.Module, paths: Mapping[str, int]) -> Iterator[dict[tuple[str, int], ModuleCall]]:
    """Record the calls of some parts of a module while it runs, by path and how many calls came before.

    ``paths`` says how often each must be called: weights may be shared by several layers.
    """
    calls: dict[tuple[str, int], ModuleCall] = {}

    def keep(call: ModuleCall, turn: int) -> None:
        calls[call.path, turn] = call

    with hooked(module, inputs=dict.fromkeys(paths, keep), prepend=True):
        yield calls
    if missing := [path for path, times in paths.items() if (path, times - 1) not in calls]:
        raise UnsupportedModelError(f"{missing[0]!r} did not run, so what it reads is not known.")


@contextmanager
def recorded_outputs(module: nn.Module, paths: set[str]) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Record the outputs of some parts of a module while it runs, by path and how many calls came before."""
    kept: dict[tuple[str, int], Tensor] = {}

    def record(path: str) -> OutputHook:
        def keep(output: Any, turn: int) -> None:
            kept[path, turn] = oriented(module.get_submodule(path), first_tensor(output).detach())

        return keep

    with hooked(module, outputs={path: record(path) for path in paths}):
        yield kept


def layer_by_layer(paths: Sequence[str], recorded: Mapping[tuple[str, int], Recorded]) -> tuple[Recorded, ...]:
    """Return what was recorded for each layer; a module that layers share is called once for each of them."""
    return tuple(recorded[path, paths[:i].count(path)] for i, path in enumerate(paths))


def first_tensor(output: Any) -> Tensor:
    """Return the hidden states among the outputs of a module."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output
    return next(part for part in parts if isinstance(part, Tensor))


@contextmanager
def without_cache(module: nn.Module) -> Iterator[None]:
    """Keep decoders from storing the keys of one call for the next."""
    config: Any = getattr(module, "config", None)
    stored = getattr(config, "use_cache", None)
    if stored is None:
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = stored


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
