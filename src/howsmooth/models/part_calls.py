"""A part of a block as a map: the block runs, and what is heard at a place inside is what comes out."""

import threading
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.models.calls import Call
from howsmooth.models.comparison import reason, rounding
from howsmooth.models.tracing import Place, tensors


class _Enough(Exception):  # noqa: N818 — no error: all places were heard, and the rest need not run
    """Stop a module half way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartCall:
    """The sum of what is heard at some places while a module runs at other hidden states.

    Attributes:
        call: How the model called the module.
        root: Its path.
        places: Where to listen; tensors are added.
        enters: The path of the part whose hidden states are swapped; those of the module itself by default.
    """

    call: Call
    root: str
    places: tuple[Place, ...]
    enters: str = ""

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n out"]:
        """Run the module, as far as needed."""
        heard: dict[Place, Tensor] = {}
        hooks = [hook for path in {place.path for place in self.places} for hook in self._listen(path, heard)]
        if self.enters:
            hooks.append(self.module(self.enters).register_forward_pre_hook(_swap(X), prepend=True, with_kwargs=True))
        try:
            self.call(self.call.tokens if self.enters else X)
        except _Enough:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        parts = [heard[place] for place in self.places]
        return sum(part.reshape(*X.shape[:-1], -1) for part in parts[1:]) + parts[0].reshape(*X.shape[:-1], -1)

    def module(self, path: str) -> nn.Module:
        """Return the part at a path."""
        inner = path.removeprefix(self.root).removeprefix(".")
        return self.call.module.get_submodule(inner) if inner else self.call.module

    def _listen(self, path: str, heard: dict[Place, Tensor]) -> list[Any]:
        here, module = threading.get_ident(), self.module(path)
        turns = {"reads": 0, "writes": 0}

        def keep(side: Any, x: Any) -> None:
            if threading.get_ident() != here:  # somebody else runs the same module meanwhile
                return
            found = list(tensors(x))
            for place in self.places:
                if (place.path, place.side, place.turn) == (path, side, turns[side]):
                    heard[place] = found[place.index]
            turns[side] += 1
            if len(heard) == len(self.places):
                raise _Enough

        return [
            module.register_forward_pre_hook(
                lambda _part, given, named: keep("reads", (given, named)), with_kwargs=True
            ),
            module.register_forward_hook(lambda _part, _given, output: keep("writes", output)),
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadCall:
    """One head with its columns of the output projection, without the projection's bias.

    Attributes:
        heads: All heads, concatenated.
        columns: Which coordinates of those are the head's.
        weight: The columns of the projection, ``(out, v)``.
    """

    heads: PartCall
    columns: slice
    weight: Float[Tensor, "out v"]

    @classmethod
    def of(cls, heads: PartCall, projection: Any, h: int, count: int, X: Tensor) -> "HeadCall":
        """Cut the columns of head ``h`` out of a projection; GPT-2's kind of module keeps its matrix transposed.

        Raises:
            AssumptionError: If the projection is not its matrix and its bias, where the heads read ``X``.
        """
        weight = projection.weight if isinstance(projection, nn.Linear) else projection.weight.mT
        with torch.no_grad():
            Z = heads(X)
            off, allowed = rounding(lambda Y: nn.functional.linear(Y, weight, projection.bias), Z, projection(Z))
        if not bool((off <= allowed).all()):
            raise AssumptionError(
                "heads are cut out of the matrix of the output projection, but that does not put out what its weights "
                f"say: {reason(projection)}; use map='heads' for all of them.",
                field="map",
            )
        v = weight.shape[-1] // count
        columns = slice(h * v, (h + 1) * v)
        return cls(heads=heads, columns=columns, weight=weight.detach()[:, columns])

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n out"]:
        """Run the heads, and project one."""
        return self.heads(X)[..., self.columns] @ self.weight.mT


def _swap(X: Tensor) -> Any:
    here = threading.get_ident()

    def swapped(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if threading.get_ident() != here:
            return positional, named
        return Call(module=part, positional=positional, named=named).at(X)

    return swapped
