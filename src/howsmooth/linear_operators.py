"""Linear operators without matrices: the protocol that solvers take, and the fields that operators share."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.validation import require_like

S = TypeVar("S", bound="SeparableOperator")
T = TypeVar("T", Tensor, Tensor | None)


@runtime_checkable
class LinearOperator(Protocol):
    """A batch of linear operators from vectors of shape ``domain`` to vectors of shape ``codomain``.

    An operator may be able to do more, see :mod:`howsmooth.spectral.operators`: ``compress`` itself to a smaller space,
    ``take`` some operators out of the batch, ``guess`` a direction that it stretches.
    """

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""

    @property
    def domain(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape of one output."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the products."""

    @property
    def device(self) -> torch.device:
        """The device of the products."""

    def jvp(self, E: Float[Tensor, "*shape"]) -> Float[Tensor, "*other"]:
        """Apply the operator to ``(*batch, *domain)``."""

    def vjp(self, G: Float[Tensor, "*other"]) -> Float[Tensor, "*shape"]:
        """Apply the transpose to ``(*batch, *codomain)``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Operator(ABC):
    """Shapes, dtype and device of a batch of operators; it checks the vectors, subclasses supply the products."""

    batch: tuple[int, ...]
    domain: tuple[int, ...]  # the shape of one perturbation
    codomain: tuple[int, ...]  # the shape of one response
    dtype: torch.dtype
    device: torch.device

    def jvp(self, E: Float[Tensor, "*shape"]) -> Float[Tensor, "*other"]:
        """Push a perturbation forward: J E."""
        require_like(E, self, (*self.batch, *self.domain), "the perturbation")
        return self._push(E)

    def vjp(self, G: Float[Tensor, "*other"]) -> Float[Tensor, "*shape"]:
        """Pull a cotangent back: Jᵀ G."""
        require_like(G, self, (*self.batch, *self.codomain), "the cotangent")
        return self._pull(G)

    @abstractmethod
    def _push(self, E: Tensor) -> Tensor: ...

    @abstractmethod
    def _pull(self, G: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SeparableOperator(Operator):
    """A batch of operators that can be taken apart."""

    # the fields with an entry for each operator, and how many axes one entry has
    batched: ClassVar[dict[str, int]] = {}

    def take(self: S, index: Tensor) -> S:
        """Pick some operators of the batch, as a batch with one axis."""
        picked = {name: take(getattr(self, name), self.batch, index, event=n) for name, n in self.batched.items()}
        return dataclasses.replace(self, batch=(len(index),), **picked)


def take(x: T, batch: tuple[int, ...], index: Tensor, *, event: int) -> T:
    """Pick entries ``index`` of the flattened batch axes; what has no batch axes serves every entry.

    The last ``event`` axes are no batch axes.
    """
    if x is None or x.ndim <= event:
        return x
    return x.expand(*batch, *x.shape[x.ndim - event :]).flatten(0, len(batch) - 1)[index]


def on_tokens(X: Float[Tensor, "*batch n d"], out: int | None = None) -> dict[str, Any]:
    """Return the fields of an operator from tokens such as ``X`` to as many tokens of dimension ``out``, or d."""
    n, d = X.shape[-2:]
    codomain = (n, d if out is None else out)
    return {"batch": tuple(X.shape[:-2]), "domain": (n, d), "codomain": codomain, "dtype": X.dtype, "device": X.device}


def fields_of(op: LinearOperator) -> dict[str, Any]:
    """Return the fields of an operator with the shapes of another."""
    return {name: getattr(op, name) for name in ("batch", "domain", "codomain", "dtype", "device")}
