r"""Sampled backward passes: inner products of random gradients with every error.

At each window the model runs forward once. Each pass draws a cotangent u of the output with
:math:`E[uu^\top] = H`, the second derivative of the cost, and goes backward to the tensors where errors enter; the
gradient there is multiplied with the displacements D of all errors on the spot, so that no gradient is kept:
:math:`I = \langle J^\top u, D\rangle` has :math:`E[I^2] = \langle JD, HJD\rangle`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.budgets.places import Error, Key, Places, error_of, require_places, weight_error
from howsmooth.budgets.subject import frozen
from howsmooth.errors import NonFiniteError, UnsupportedModelError
from howsmooth.models.autograd.hooks import first_tensor, hooked
from howsmooth.validation import is_finite


@dataclass(frozen=True, kw_only=True, eq=False)
class Products:
    """Inner products of sampled gradients with errors."""

    errors: tuple[Error, ...]
    values: Float[Tensor, "windows passes errors"]  # I, for every window, pass and error
    positions: int  # how many positions of the output each window has


def inner_products(places: Places, *, passes: int, seed: int, first: int = 0) -> Products:
    """Run backward passes at every window, and return their inner products with every error.

    Each window has draws of its own, whatever the others are; ``first`` is the number of the first one.
    """
    subject = places.subject
    windows = [_Window(places, window, passes) for window in range(len(subject.tokens))]
    errors: dict[Key, Error] = {}
    for number, window in enumerate(windows, first):
        window.run(torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63))
        # |δ|² of what the text decides is that of the first window
        errors |= {key: error for key, error in window.errors.items() if key not in errors}
    require_places(list(errors.values()), places)
    unused = torch.zeros(passes, dtype=torch.float64)  # a pooler behind which nothing stands changes no output
    values = torch.stack([torch.stack([window.table.get(key, unused) for key in errors], -1) for window in windows])
    if not is_finite(values):
        raise NonFiniteError("the gradients of the model hold NaN or infinity; compute in float64.", field="model")
    return Products(errors=tuple(errors.values()), values=values, positions=windows[-1].positions)


class _Stretch(NamedTuple):
    """A part of the forward pass that is differentiated alone, by all passes, so that its weights are read once."""

    entering: Tensor | None  # what enters it; none for the first
    end: Tensor  # what it puts out


class _Window:
    """The forward pass at one window, and the backward passes through it."""

    def __init__(self, places: Places, window: int, passes: int) -> None:
        self.places, self.window, self.passes = places, window, passes
        self.errors: dict[Key, Error] = {}  # those that are met
        self.table: dict[Key, Tensor] = {}  # the inner products of each, pass by pass
        self.positions = 0  # how many the output has
        self._turn = 0  # the pass that runs
        self._others = places.other_matrices()
        self._leaves: list[Tensor] = list(self._others.values())
        self._entering: Tensor | None = None
        self._stretches: list[_Stretch] = []

    def run(self, generator: torch.Generator) -> None:
        """Go forward once, and backward once for each pass."""
        subject = self.places.subject
        cuts = dict.fromkeys(subject.blocks if subject.transformer.stream is not None else (), self._cut)
        with frozen(subject.module, {id(parameter) for parameter in self._others.values()}), torch.enable_grad():
            with self.places.attached(self._meet) as arguments, hooked(subject.module, outputs=cuts):
                output = subject.outputs(self.window, **arguments)
            if not output.requires_grad:
                raise _no_backward(subject.transformer.name)
            if not is_finite(output.detach()):
                raise NonFiniteError(
                    f"the output of {subject.transformer.name!r} holds NaN or infinity.", field="model"
                )
            self.positions = len(output)
            self._stretches.append(_Stretch(self._entering, output))
            base = output.detach()
            self._backward(lambda _turn: subject.cotangent(base, generator))

    def _meet(self, Y: Tensor, here: Sequence[Error], displaced: Tensor) -> Tensor:
        self.errors.update({error.key: error for error in here if error.key not in self.errors})
        if not Y.requires_grad:  # nothing before it has an error: the backward pass ends here
            leaf = Y.detach().requires_grad_()
            self._leaves.append(leaf)
            Y = leaf.clone()  # what follows may write into it
            if not Y.requires_grad:
                raise _no_backward(self.places.subject.transformer.name)
        flat = displaced.flatten(1)

        def contract(gradient: Tensor) -> None:
            self._add(here, flat @ gradient.flatten())

        Y.register_hook(contract)
        return Y

    def _add(self, here: Sequence[Error], found: Tensor) -> None:
        for error, value in zip(here, found, strict=True):
            row = self.table.setdefault(error.key, torch.zeros(self.passes, dtype=torch.float64))
            row[self._turn] += value.double().cpu()

    def _cut(self, output: Any, _turn: int) -> Any:
        """End a stretch at the output of a block, unless nothing before it has an error."""
        Y = first_tensor(output)
        if not Y.requires_grad:
            return None
        self._stretches.append(_Stretch(self._entering, Y))
        self._entering = Y.detach().requires_grad_()
        found = self._entering.clone()
        return found if isinstance(output, Tensor) else (found, *output[1:])

    def _backward(self, cotangent: Callable[[int], Tensor]) -> None:
        """Let all passes go through one stretch after the other, the last one first."""
        while self._stretches:
            entering, end = self._stretches.pop()
            ahead = [] if entering is None else [entering]
            behind: list[Tensor] = []
            for turn in range(self.passes):
                self._turn = turn
                gradients = torch.autograd.grad(
                    end,
                    [*ahead, *self._leaves],
                    cotangent(turn),
                    # what is in front of all stretches, such as angles of positions, is passed by each of them
                    retain_graph=bool(ahead) or turn + 1 < self.passes,
                    allow_unused=True,
                )
                behind.append(gradients[0])
                if not ahead:
                    self._add_others(gradients)
            cotangent = behind.__getitem__

    def _add_others(self, gradients: Sequence[Tensor | None]) -> None:
        """Multiply errors of matrices that belong to no linear module with their gradients."""
        for (name, parameter), gradient in zip(self._others.items(), gradients, strict=False):
            if gradient is None:
                continue
            for scheme in self.places.at("weights"):
                delta = weight_error(name, parameter, scheme)
                if (name, scheme.name) not in self.errors:
                    self.errors[name, scheme.name] = error_of(name, parameter, scheme, delta)
                self._add([self.errors[name, scheme.name]], (gradient * delta).sum()[None])


def _no_backward(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the output of {name!r} cannot be differentiated: its weights are integers, or its forward pass leaves "
        "autograd; load it dequantised.",
        field="model",
    )
