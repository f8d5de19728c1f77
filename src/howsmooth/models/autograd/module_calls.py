"""Parts of a block as maps on hidden states: the modules run again, and intermediate tensors are the outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.maps.real_tokens import OnRealTokens, zero_padded_outputs
from howsmooth.models.autograd.hooks import ModuleCall, StopForward, hooked
from howsmooth.models.autograd.tracing import Side, TensorLocation, tensors
from howsmooth.models.module_comparison import reason, rounding
from howsmooth.spectral.autograd import JacobianOperator


@dataclass(frozen=True, kw_only=True, eq=False)
class PartCall:
    """The sum of the tensors at some locations while a module runs at other hidden states.

    Attributes:
        call: How the model called the module.
        root: The path of the module.
        locations: Where the tensors occur.
        enters: The path of the part whose hidden states are replaced; by default those of the module itself.
    """

    call: ModuleCall
    root: str
    locations: tuple[TensorLocation, ...]
    enters: str = ""

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n out"]:
        """Run the module until all tensors are known."""
        values: dict[TensorLocation, Tensor] = {}

        def keep(path: str, side: Side, arguments: Any, turn: int) -> None:
            found = list(tensors(arguments))
            for location in self.locations:
                if (location.path, location.side, location.turn) == (path, side, turn):
                    values[location] = found[location.index]
            if len(values) == len(self.locations):
                raise StopForward

        def keep_inputs(path: str) -> Callable[[ModuleCall, int], None]:
            return lambda call, turn: keep(path, "input", (call.positional, call.named), turn)

        def keep_outputs(path: str) -> Callable[[Any, int], None]:
            return lambda output, turn: keep(path, "output", output, turn)

        read, written = (
            {location.path for location in self.locations if location.side == side} for side in ("input", "output")
        )
        with (
            hooked(
                self.call.module,
                inputs={self._inner(path): keep_inputs(path) for path in read},
                outputs={self._inner(path): keep_outputs(path) for path in written},
            ),
            hooked(
                self.call.module,
                inputs={self._inner(self.enters): lambda call, _turn: call.at(X)} if self.enters else {},
                prepend=True,
            ),
        ):
            self.call(self.call.tokens if self.enters else X)
        first, *others = (values[location].reshape(*X.shape[:-1], -1) for location in self.locations)
        return sum(others) + first

    def module(self, path: str) -> nn.Module:
        """Return the part at a path."""
        return self.call.module.get_submodule(self._inner(path))

    def _inner(self, path: str) -> str:
        """Return a path within the module that is called."""
        return path.removeprefix(self.root).removeprefix(".")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadCall:
    """One head with its columns of the output projection, without the projection's bias.

    Attributes:
        heads: All heads, concatenated.
        columns: Which coordinates of those belong to the head.
        weight: The columns of the projection, ``(out, v)``.
    """

    heads: PartCall
    columns: slice
    weight: Float[Tensor, "out v"]

    @classmethod
    def of(cls, heads: PartCall, projection: Any, h: int, count: int, X: Tensor) -> "HeadCall":
        """Cut the columns of head ``h`` out of a projection; ``Conv1D`` of GPT-2 stores its matrix transposed."""
        weight = projection.weight if isinstance(projection, nn.Linear) else projection.weight.mT
        with torch.no_grad():
            Z = heads(X)
            difference, allowed = rounding(lambda Y: nn.functional.linear(Y, weight, projection.bias), Z, projection(Z))
        if not bool((difference <= allowed).all()):
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


@dataclass(frozen=True, kw_only=True, eq=False)
class RealTokensCall:
    """A callable on padded sequences, restricted to real tokens as :class:`howsmooth.maps.real_tokens.RealTokens` is.

    Attributes:
        call: The callable, which autograd differentiates.
        real: True for real tokens.
    """

    call: Callable[[Tensor], Any]
    real: Bool[Tensor, "batch n"]

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch m out"]:
        """Apply the callable; outputs at padded tokens are zero."""
        return zero_padded_outputs(self.call(X), self.real)

    def jacobian(self, X: Float[Tensor, "batch n d"]) -> OnRealTokens:
        """Differentiate with respect to real tokens; padded ones are constant."""
        real, fixed = self.real.unsqueeze(-1), X.detach()
        return OnRealTokens(JacobianOperator(lambda Y: self(torch.where(real, Y, fixed)), X), self.real)
