"""Linear operators without matrices: the protocol that solvers take, and the fields that operators share."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.validation import require_like


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
class Operator:
    """Shapes, dtype and device of a batch of operators; subclasses add the products."""

    batch: tuple[int, ...]
    domain: tuple[int, ...]  # the shape of one perturbation
    codomain: tuple[int, ...]  # the shape of one response
    dtype: torch.dtype
    device: torch.device

    def check_perturbation(self, E: Tensor) -> None:
        """Refuse what the operator cannot be applied to."""
        require_like(E, self, (*self.batch, *self.domain), "the perturbation")

    def check_cotangent(self, G: Tensor) -> None:
        """Refuse what the transpose cannot be applied to."""
        require_like(G, self, (*self.batch, *self.codomain), "the cotangent")


def on_tokens(X: Float[Tensor, "*batch n d"], out: int | None = None) -> dict[str, Any]:
    """Return the fields of an operator from tokens such as ``X`` to as many tokens of dimension ``out``, or d."""
    n, d = X.shape[-2:]
    codomain = (n, d if out is None else out)
    return {"batch": tuple(X.shape[:-2]), "domain": (n, d), "codomain": codomain, "dtype": X.dtype, "device": X.device}


def fields_of(op: LinearOperator) -> dict[str, Any]:
    """Return the fields of an operator with the shapes of another."""
    return {name: getattr(op, name) for name in ("batch", "domain", "codomain", "dtype", "device")}
