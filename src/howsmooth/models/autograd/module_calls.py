"""Parts of a model as maps on hidden states: modules run again, and hooks replace inputs and keep outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from howsmooth.errors import AssumptionError
from howsmooth.maps.real_tokens import OnRealTokens, zero_padded_outputs
from howsmooth.models.autograd.hooks import InputHook, ModuleCall, OutputHook, StopForward, hooked
from howsmooth.models.autograd.traced_parts import Side, TensorLocation, tensors
from howsmooth.models.module_comparison import reason, rounding
from howsmooth.spectral.autograd import JacobianOperator, oriented

if TYPE_CHECKING:  # a transformer runs its module
    from howsmooth.models.transformer import Transformer


# The output of the module that is called.
OUTPUT = TensorLocation(path="", side="output")


@dataclass(frozen=True, kw_only=True, eq=False)
class PartCall:
    """The sum of the tensors at some locations, while a module runs with other hidden states in it or in a part."""

    call: ModuleCall  # how the module was called
    locations: tuple[TensorLocation, ...]  # where the tensors occur
    root: str = ""  # the path of the module, with which the paths of locations begin
    enters: tuple[str, int] | None = None  # the part whose hidden states are replaced, and its call; else the module

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch n out"]:
        """Run the module until all tensors are known, and add them up: a row for each token, or one for a sequence."""

        def sequence(value: Tensor) -> Tensor:
            one = value.ndim == X.ndim - 1 and value.shape[0] == X.shape[0]
            return value.unsqueeze(-2) if one else value.reshape(*X.shape[:-1], -1)

        first, *others = map(sequence, self.tensors(X))
        return sum(others) + first

    def tensors(self, X: Float[Tensor, "batch n d"]) -> list[Tensor]:
        """Run the module until all tensors are known, and return them as they are."""
        values: dict[TensorLocation, Tensor] = {}
        module = self.call.module

        def keep(path: str, side: Side, arguments: Any, turn: int) -> None:
            found = list(tensors(arguments))
            for location in self.locations:
                if (self._inner(location.path), location.side, location.turn) == (path, side, turn):
                    values[location] = oriented(module.get_submodule(path), found[location.index])
            if len(values) == len(self.locations):
                raise StopForward

        def keep_inputs(call: ModuleCall, turn: int) -> None:
            keep(call.path, "input", (call.positional, call.named), turn)

        def keep_outputs(path: str) -> OutputHook:
            return lambda output, turn: keep(path, "output", output, turn)

        inputs = {self._inner(at.path): keep_inputs for at in self.locations if at.side == "input"}
        written = {self._inner(at.path) for at in self.locations if at.side == "output"}
        outputs = {path: keep_outputs(path) for path in written}
        entrance: dict[str, InputHook] = {}
        if self.enters is not None:
            path, entry_turn = self.enters
            entrance[self._inner(path)] = lambda call, turn: call.at(X) if turn == entry_turn else None
        # prepended: other hooks belong to the part
        with hooked(module, inputs=inputs, outputs=outputs), hooked(module, inputs=entrance, prepend=True):
            self.call(X if self.enters is None else self.call.tokens)
        return [values[location] for location in self.locations]

    def module(self, path: str) -> nn.Module:
        """Return the part at a path."""
        return self.call.module.get_submodule(self._inner(path))

    def _inner(self, path: str) -> str:
        """Return a path within the module that is called."""
        return path.removeprefix(self.root).removeprefix(".")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadCall:
    """One head with its columns of the output projection, without the projection's bias."""

    heads: PartCall  # all heads, concatenated
    columns: slice  # which coordinates of those belong to the head
    weight: Float[Tensor, "out v"]  # the columns of the projection, (out, v)

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
    """A callable on padded sequences, restricted to real tokens, as :class:`~howsmooth.maps.real_tokens.RealTokens`."""

    call: Callable[[Tensor], Any]  # the callable, which autograd differentiates
    real: Bool[Tensor, "batch n"]  # True for real tokens

    def __call__(self, X: Float[Tensor, "batch n d"]) -> Float[Tensor, "batch m out"]:
        """Apply the callable; outputs at padded tokens are zero."""
        return zero_padded_outputs(self.call(X), self.real)

    def jacobian(self, X: Float[Tensor, "batch n d"]) -> OnRealTokens:
        """Differentiate with respect to real tokens; padded ones are constant."""
        real, fixed = self.real.unsqueeze(-1), X.detach()
        return OnRealTokens(JacobianOperator(lambda Y: self(torch.where(real, Y, fixed)), X), self.real)


def input_of(path: str, call: ModuleCall) -> Tensor:
    """Run a model until the part at a path is called, and return the hidden states that enter it."""
    found: list[Tensor] = []

    def keep(entered: ModuleCall, _turn: int) -> None:
        found.append(entered.tokens.detach())
        raise StopForward

    with hooked(call.module, inputs={path: keep}, prepend=True):
        call(call.tokens)
    return found[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleClassifier:
    """The logits of a module as a function of the sum of its embeddings, or of the hidden states before a layer."""

    module: nn.Module  # the module, with its head
    tokens: Int[Tensor, " n"]  # the sentence that it reads while hidden states are replaced
    enters: tuple[str, int]  # the part whose hidden states those are, and at which of its calls
    together: bool  # whether it takes several sequences at once; some do not if they have no padding token
    coordinates: Float[Tensor, "d d"] | None = None  # tokens are multiplied by these first, if they are given in others

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 classes"]:
        """Run the module with other hidden states, in its own dtype."""
        like = next(self.module.parameters())
        hidden = X if self.coordinates is None else X @ self.coordinates
        rows = hidden.reshape(-1, *X.shape[-2:]).to(like)
        logits = torch.cat([self._logits(part) for part in rows.split(len(rows) if self.together else 1)])
        return logits.to(X).reshape(*X.shape[:-2], 1, -1)

    def _logits(self, rows: Tensor) -> Tensor:
        tokens = self.tokens.to(rows.device).expand(len(rows), -1)
        call = ModuleCall(module=self.module, positional=(tokens,), named={})
        (logits,) = PartCall(call=call, enters=self.enters, locations=(OUTPUT,)).tensors(rows)
        return logits

    def value_and_jacobian(self, X: Float[Tensor, "*batch n d"]) -> "tuple[Tensor, _Pullback]":
        """Return the logits and their vector-Jacobian products, by autograd."""
        with torch.enable_grad():
            inputs = X.detach().requires_grad_()
            value = self(inputs)
        return value.detach(), _Pullback(inputs, value)


class _Pullback:
    def __init__(self, inputs: Tensor, value: Tensor) -> None:
        self._inputs, self._value = inputs, value

    def vjp(self, G: Tensor) -> Tensor:
        (pulled,) = torch.autograd.grad(self._value, self._inputs, G)
        return pulled


def module_classifier(
    transformer: "Transformer", tokens: Int[Tensor, " n"], layer: int | None = None
) -> ModuleClassifier:
    """Return the classifier of a model as its module computes it.

    It begins at a ``layer``, or at the sum of the embeddings.
    """
    module: Any = transformer.with_head
    stem = transformer.ends.stem
    paths = [part.block_path for part in transformer.layers]
    if layer is None and stem is not None and stem.path is not None:
        path, turn = stem.path, 0
    else:
        path, turn = paths[layer or 0], paths[: layer or 0].count(paths[layer or 0])
    trunk = next(name for name, part in module.named_modules() if part is transformer.module)
    config = getattr(module, "config", None)
    together = config is None or config.get_text_config().pad_token_id is not None
    enters = (f"{trunk}.{path}".removeprefix("."), turn)
    return ModuleClassifier(module=module, tokens=tokens, enters=enters, together=together)
