"""A module as it was called while the model ran: a map on hidden states, with its other arguments as they were."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from howsmooth.errors import UnsupportedModelError

Kept = TypeVar("Kept")


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of a module.

    Attributes:
        module: What was called.
        positional: Its arguments in order.
        named: Its arguments by name.
    """

    module: nn.Module
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def tokens(self) -> Tensor:
        """The hidden states that came in."""
        found = self.positional[0] if self.positional else self.named.get("hidden_states", self.named.get("query"))
        if not isinstance(found, Tensor):
            raise UnsupportedModelError(f"{type(self.module).__name__} was not called with hidden states.")
        return found

    def at(self, X: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other hidden states, wherever they came in (as query, key and value, say)."""
        tokens = self.tokens

        def swapped(argument: Any) -> Any:
            if argument is tokens:
                return X
            return None if _remembers(argument) else argument

        return tuple(map(swapped, self.positional)), {name: swapped(x) for name, x in self.named.items()}

    def __call__(self, X: Tensor) -> Tensor:
        """Call the module again at other hidden states."""
        positional, named = self.at(X)
        result = self.module(*positional, **named)
        return result if isinstance(result, Tensor) else next(part for part in result if isinstance(part, Tensor))


def _remembers(argument: Any) -> bool:
    """Tell whether an argument is a cache of keys: another call would find those of the first in it."""
    return any(kind.__name__ == "Cache" for kind in type(argument).__mro__)


@contextmanager
def listening(module: nn.Module, paths: Mapping[str, int]) -> Iterator[dict[tuple[str, int], Call]]:
    """Keep the calls of some parts of a module while it runs, by path and how often the part had been called."""
    heard: dict[tuple[str, int], Call] = {}
    modules = dict(module.named_modules())
    here = threading.get_ident()

    def listener(path: str) -> Any:
        def keep(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            if threading.get_ident() != here:  # somebody else differentiates the same module meanwhile
                return
            # weights shared by several layers are called once for each of them
            turn = sum(known == path for known, _turn in heard)
            heard[path, turn] = Call(module=part, positional=positional, named=named)

        return keep

    # before all other hooks: those are parts of the module, and run again where it is called again
    hooks = [modules[path].register_forward_pre_hook(listener(path), prepend=True, with_kwargs=True) for path in paths]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
    if missed := [path for path, times in paths.items() for turn in range(times) if (path, turn) not in heard]:
        raise UnsupportedModelError(f"{missed[0]!r} did not run, so what it reads is not known.")


def in_turn(paths: Sequence[str], kept: Mapping[tuple[str, int], Kept]) -> tuple[Kept, ...]:
    """Return what was kept for each layer; a module that several layers share was called once for each of them."""
    return tuple(kept[path, paths[:i].count(path)] for i, path in enumerate(paths))


@contextmanager
def without_cache(module: nn.Module) -> Iterator[None]:
    """Keep decoders from remembering the keys of one call in the next."""
    config: Any = getattr(module, "config", None)
    kept = getattr(config, "use_cache", None)
    if kept is None:
        yield
        return
    config.use_cache = False
    try:
        yield
    finally:
        config.use_cache = kept
