"""A module as it was called while the model ran: a map on hidden states, with its other arguments as they were."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from howsmooth.errors import UnsupportedModelError


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
        found = self.positional[0] if self.positional else self.named.get("hidden_states")
        if not isinstance(found, Tensor):
            raise UnsupportedModelError(f"{type(self.module).__name__} was not called with hidden states.")
        return found

    def __call__(self, X: Tensor) -> Tensor:
        """Call the module again at other hidden states, wherever they came in (as query, key and value, say)."""
        tokens = self.tokens
        positional = (X if argument is tokens else argument for argument in self.positional)
        named = {name: X if argument is tokens else argument for name, argument in self.named.items()}
        result = self.module(*positional, **named)
        return result if isinstance(result, Tensor) else next(part for part in result if isinstance(part, Tensor))


@contextmanager
def listening(module: nn.Module, paths: Mapping[str, int]) -> Iterator[dict[tuple[str, int], Call]]:
    """Keep the calls of some parts of a module while it runs, by path and how often the part had been called."""
    heard: dict[tuple[str, int], Call] = {}
    modules = dict(module.named_modules())

    def listener(path: str) -> Any:
        def keep(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            # weights shared by several layers are called once for each of them
            turn = sum(known == path for known, _turn in heard)
            heard[path, turn] = Call(module=part, positional=positional, named=named)

        return keep

    hooks = [modules[path].register_forward_pre_hook(listener(path), with_kwargs=True) for path in paths]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
    if missed := [path for path, times in paths.items() for turn in range(times) if (path, turn) not in heard]:
        raise UnsupportedModelError(f"{missed[0]!r} did not run, so what it reads is not known.")
