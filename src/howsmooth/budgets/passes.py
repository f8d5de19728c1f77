r"""Sampled backward passes: inner products of random gradients with every error.

At each window the model runs forward once. Each pass draws a cotangent u of the output with
:math:`E[uu^\top] = H`, the second derivative of the cost, and goes backward to the tensors where errors enter; the
gradient there is multiplied with the displacements D of all errors on the spot, so that no gradient is kept:
:math:`I = \langle J^\top u, D\rangle` has :math:`E[I^2] = \langle JD, HJD\rangle`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.budgets.places import Error, Key, Places, error_of, require_places, weight_error
from howsmooth.budgets.subject import frozen
from howsmooth.errors import NonFiniteError, UnsupportedModelError


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
    tables, positions = [], 0
    errors: dict[Key, Error] = {}
    for window in range(len(subject.tokens)):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + first + window) % 2**63)
        found, positions = _at_window(places, window, passes, generator, errors)
        tables.append(found)
    require_places(list(errors.values()), places)
    unused = torch.zeros(passes, dtype=torch.float64)  # a pooler behind which nothing stands changes no output
    values = torch.stack([torch.stack([table.get(key, unused) for key in errors], -1) for table in tables])
    if not bool(values.isfinite().all()):
        raise NonFiniteError("the gradients of the model hold NaN or infinity; compute in float64.", field="model")
    return Products(errors=tuple(errors.values()), values=values, positions=positions)


def _at_window(
    places: Places, window: int, passes: int, generator: torch.Generator, errors: dict[Key, Error]
) -> tuple[Mapping[Key, Tensor], int]:
    """Return the inner products at one window by error, and the number of positions; note the errors that are met."""
    subject, others = places.subject, places.other_matrices()
    table: dict[Key, Tensor] = {}
    leaves: list[Tensor] = list(others.values())
    turn = 0

    def add(here: Sequence[Error], found: Tensor) -> None:
        for error, value in zip(here, found, strict=True):
            table.setdefault(error.key, torch.zeros(passes, dtype=torch.float64))[turn] += value.double().cpu()

    def meet(Y: Tensor, here: Sequence[Error], displaced: Tensor) -> Tensor:
        errors.update({error.key: error for error in here if error.key not in errors})
        if not Y.requires_grad:  # nothing before it has an error: the backward pass ends here
            leaf = Y.detach().requires_grad_()
            leaves.append(leaf)
            Y = leaf.clone()  # what follows may write into it
            if not Y.requires_grad:
                raise _no_backward(subject.transformer.name)
        flat = displaced.flatten(1)

        def contract(gradient: Tensor) -> None:
            add(here, flat @ gradient.flatten())

        Y.register_hook(contract)
        return Y

    with frozen(subject.module, {id(parameter) for parameter in others.values()}), torch.enable_grad():
        with places.attached(meet) as arguments:
            output = subject.outputs(window, **arguments)
        if not output.requires_grad:
            raise _no_backward(subject.transformer.name)
        if not bool(output.isfinite().all()):
            raise NonFiniteError(f"the output of {subject.transformer.name!r} holds NaN or infinity.", field="model")
        base = output.detach()
        for turn in range(passes):
            cotangent = subject.cotangent(base, generator)
            gradients = torch.autograd.grad(
                output, leaves, cotangent, retain_graph=turn + 1 < passes, allow_unused=True
            )
            for (name, parameter), gradient in zip(others.items(), gradients, strict=False):
                for scheme in places.at("weights") if gradient is not None else ():
                    delta = weight_error(name, parameter, scheme)
                    if (name, scheme.name) not in errors:
                        errors[name, scheme.name] = error_of(name, parameter, scheme, delta)
                    add([errors[name, scheme.name]], (gradient * delta).sum()[None])
    return table, len(base)


def _no_backward(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the output of {name!r} cannot be differentiated: its weights are integers, or its forward pass leaves "
        "autograd; load it dequantised.",
        field="model",
    )
