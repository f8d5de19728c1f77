"""The rest of a model as a function of what enters a block, by running the module: for families that are not known."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.models.calls import Call, without_cache


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run of a model.

    Attributes:
        module: The model.
        tokens: What it read.
        named: Its other arguments.
    """

    module: nn.Module
    tokens: Tensor
    named: Mapping[str, Any]

    def __call__(self) -> Any:
        """Run the model again."""
        with without_cache(self.module):
            return self.module(self.tokens, **self.named)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rest:
    """What a model puts out, or one of its blocks, as a function of what enters a block: the model runs, and we swap.

    Attributes:
        run: How the model was run.
        enters: The block whose hidden states are swapped, and how often it had run before.
        leaves: The block whose output is returned, likewise; none for the last hidden states of the model.
    """

    run: Run
    enters: tuple[str, int]
    leaves: tuple[str, int] | None = None

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch *out"]:
        """Run the model with other hidden states."""
        kept: list[Tensor] = []
        with self._swapped(X), self._kept(kept):
            result = self.run()
        if self.leaves is None:
            return first_tensor(result)
        return kept[self.leaves[1]]

    @contextmanager
    def _swapped(self, X: Tensor) -> Iterator[None]:
        path, turn = self.enters
        part, here, turns = self.run.module.get_submodule(path), threading.get_ident(), 0

        def swap(_part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
            nonlocal turns
            if threading.get_ident() != here:
                return None
            turns += 1
            return Call(module=part, positional=positional, named=named).at(X) if turns == turn + 1 else None

        # before all other hooks, which belong to the part
        with _hooked(part.register_forward_pre_hook(swap, prepend=True, with_kwargs=True)):
            yield

    @contextmanager
    def _kept(self, kept: list[Tensor]) -> Iterator[None]:
        if self.leaves is None:
            yield
            return
        here = threading.get_ident()

        def keep(_part: nn.Module, _inputs: Any, output: Any) -> None:
            if threading.get_ident() == here:
                kept.append(first_tensor(output))

        with _hooked(self.run.module.get_submodule(self.leaves[0]).register_forward_hook(keep)):
            yield


def first_tensor(output: Any) -> Tensor:
    """Return the hidden states among what a module puts out."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output
    return next(part for part in parts if isinstance(part, Tensor))


@contextmanager
def _hooked(hook: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()
