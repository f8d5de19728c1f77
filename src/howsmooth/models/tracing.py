"""Every tensor that goes in and out of the modules of a model while it runs once: small inputs only, all is kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from howsmooth.models.calls import Call

Side = Literal["reads", "writes"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor can be heard: one of those that a module reads or writes.

    Attributes:
        path: The module.
        turn: Which of its calls is meant, from 0.
        side: Whether it goes in or comes out.
        index: Which of the floating-point tensors there.
    """

    path: str
    side: Side
    turn: int = 0
    index: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Event:
    """One call of a module, with copies of its tensors.

    Attributes:
        path: The module's path.
        turn: Which of its calls this is.
        call: The call itself.
        begin: When it began, counted in events.
        end: When it ended.
        reads: What went in.
        writes: What came out.
    """

    path: str
    turn: int
    call: Call
    begin: int
    end: int
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]

    @property
    def tokens(self) -> tuple[Place, Tensor]:
        """The hidden states that came in, as they were then, and where they are heard."""
        index = next(i for i, x in enumerate(tensors((self.call.positional, self.call.named))) if x is self.call.tokens)
        return Place(path=self.path, turn=self.turn, side="reads", index=index), self.reads[index]

    def places(self, side: Side) -> list[tuple[Place, Tensor]]:
        """Return the tensors of one side, and where each is heard."""
        tensors = self.reads if side == "reads" else self.writes
        return [(Place(path=self.path, turn=self.turn, side=side, index=i), x) for i, x in enumerate(tensors)]


def trace(model: nn.Module, tokens: Tensor) -> list[Event]:
    """Run a model once and return the calls of all of its modules, in the order in which they ended."""
    events: list[Event] = []
    begun: list[tuple[str, Call, int, tuple[Tensor, ...]]] = []
    clock = iter(range(10**9))

    def enter(path: str) -> Any:
        def keep(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            call = Call(module=part, positional=positional, named=named)
            begun.append((path, call, next(clock), _copies((positional, named))))  # now: it may work in place

        return keep

    def leave(_part: nn.Module, _inputs: Any, output: Any) -> None:
        path, call, begin, reads = begun.pop()
        turn = sum(event.path == path for event in events)
        end, writes = next(clock), _copies(output)
        events.append(Event(path=path, turn=turn, call=call, begin=begin, end=end, reads=reads, writes=writes))

    hooks = []
    for path, part in model.named_modules():
        hooks += [part.register_forward_pre_hook(enter(path), with_kwargs=True), part.register_forward_hook(leave)]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return events


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
