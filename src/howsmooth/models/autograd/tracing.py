"""Copies of all inputs and outputs of the modules of a model in one forward pass, for small inputs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from howsmooth.models.autograd.hooks import InputHook, ModuleCall, hooked

Side = Literal["input", "output"]


@dataclass(frozen=True, kw_only=True)
class TensorLocation:
    """Where a tensor occurs in a forward pass: among the inputs or the outputs of a module.

    Attributes:
        path: The path of the module.
        side: Whether it is an input or an output.
        turn: At which call of the module, from 0.
        index: Which of the floating-point tensors there.
    """

    path: str
    side: Side
    turn: int = 0
    index: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedCall:
    """One call of a module, with copies of its tensors.

    Attributes:
        path: The module's path.
        turn: Which of its calls this is.
        call: The call itself.
        begin: When it began, counted in beginnings and ends of calls.
        end: When it ended.
        inputs: The tensors among its arguments.
        outputs: The tensors among its results.
    """

    path: str
    turn: int
    call: ModuleCall
    begin: int
    end: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def tokens(self) -> tuple[TensorLocation, Tensor]:
        """The hidden states among the inputs, as they were then, and where they occur."""
        given = tensors((self.call.positional, self.call.named))
        index = next(i for i, x in enumerate(given) if x is self.call.tokens)
        return self.location("input", index), self.inputs[index]

    def location(self, side: Side, index: int = 0) -> TensorLocation:
        """Return where one of the tensors of this call occurs."""
        return TensorLocation(path=self.path, turn=self.turn, side=side, index=index)

    def located(self, side: Side) -> list[tuple[TensorLocation, Tensor]]:
        """Return the inputs or the outputs, and where each occurs."""
        values = self.inputs if side == "input" else self.outputs
        return [(self.location(side, i), x) for i, x in enumerate(values)]


def trace(model: nn.Module, tokens: Tensor) -> list[TracedCall]:
    """Run a model once and return the calls of all of its modules, in the order in which they ended."""
    finished: list[TracedCall] = []
    running: list[tuple[str, ModuleCall, int, tuple[Tensor, ...]]] = []
    clock = iter(range(10**9))

    def begin(path: str) -> InputHook:
        def keep(call: ModuleCall, _turn: int) -> None:
            # copied now: the module may work in place
            running.append((path, call, next(clock), _copies((call.positional, call.named))))

        return keep

    def end(output: Any, turn: int) -> None:
        path, call, began, inputs = running.pop()
        ended, outputs = next(clock), _copies(output)
        finished.append(
            TracedCall(path=path, turn=turn, call=call, begin=began, end=ended, inputs=inputs, outputs=outputs)
        )

    paths = [path for path, _part in model.named_modules()]
    with hooked(model, inputs={path: begin(path) for path in paths}, outputs=dict.fromkeys(paths, end)):
        model(tokens)
    return finished


def tensors(x: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in arguments or results, however they are nested."""
    if isinstance(x, Tensor):
        if x.is_floating_point():
            yield x
    elif isinstance(x, dict):
        for part in x.values():
            yield from tensors(part)
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors(part)


def _copies(x: Any) -> tuple[Tensor, ...]:
    return tuple(part.detach().clone() for part in tensors(x))
