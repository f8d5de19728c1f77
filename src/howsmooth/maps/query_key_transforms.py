"""Maps of queries, keys or values before the scores: value, derivative, transpose."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.protocols import take

F = TypeVar("F", bound="_Linear")


@runtime_checkable
class TransformJacobian(Protocol):
    """The derivative of a transform, token by token."""

    def jvp(self, E: Tensor, /) -> Tensor:
        """Push a perturbation of the input forward."""

    def vjp(self, G: Tensor, /) -> Tensor:
        """Pull a cotangent of the output back."""

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "TransformJacobian":
        """Pick entries of the leading ``batch`` axes, ``event`` axes being left: heads, tokens, coordinates."""


@runtime_checkable
class Transform(Protocol):
    """A map of queries, keys or values ``(*batch, heads, n, k)``, token by token; a norm is one."""

    def apply(self, X: Tensor, /) -> Tensor:
        """Transform, unchecked."""

    def linearise(self, X: Tensor, /) -> TransformJacobian:
        """Differentiate, unchecked."""


class Transforms(NamedTuple):
    """Transforms of queries, keys and values; ``None`` for the identity."""

    query: Transform | None = None
    key: Transform | None = None
    value: Transform | None = None

    def apply(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], "TransformJacobians"]:
        """Transform all three; return them with the derivatives."""
        done = [(x, None) if f is None else (f.apply(x), f.linearise(x)) for f, x in zip(self, (q, k, v), strict=True)]
        (q, dq), (k, dk), (v, dv) = done
        return (q, k, v), TransformJacobians(dq, dk, dv)


class TransformJacobians(NamedTuple):
    """The derivatives of transforms; ``None`` for the identity."""

    query: TransformJacobian | None = None
    key: TransformJacobian | None = None
    value: TransformJacobian | None = None

    def take(self, batch: tuple[int, ...], index: Tensor) -> "TransformJacobians":
        """Pick some entries of the batch."""
        return TransformJacobians(*(None if f is None else f.taken(batch, index, event=3) for f in self))


NO_TRANSFORMS, IDENTITY_TRANSFORMS = Transforms(), TransformJacobians()


class _Linear:
    """A linear transform, the same for every entry of the batch: it is its own derivative."""

    def linearise(self: F, X: Tensor) -> F:
        """Return itself."""
        return self

    def taken(self: F, batch: tuple[int, ...], index: Tensor, *, event: int) -> F:
        """Return itself: it serves every entry."""
        return self


@dataclass(frozen=True, eq=False)
class TokenScaling(_Linear):
    """Multiply every token by a number; it is its own derivative and its own transpose."""

    factor: Float[Tensor, "... 1 n_or_1 1"]

    def apply(self, X: Tensor) -> Tensor:
        """Multiply."""
        return self.factor * X

    jvp = vjp = apply

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "TokenScaling":
        """Pick entries of the batch."""
        return TokenScaling(take(self.factor, batch, index, event=event))


@dataclass(frozen=True, eq=False)
class L2KeyLift:
    r"""Lift keys to :math:`[k, |k|^2]`."""

    def apply(self, X: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k1"]:
        """Transform."""
        return torch.cat((X, X.square().sum(-1, keepdim=True)), dim=-1)

    def linearise(self, X: Float[Tensor, "*batch k"]) -> "L2KeyLiftJacobian":
        """Differentiate."""
        return L2KeyLiftJacobian(2 * X)


@dataclass(frozen=True, eq=False)
class L2KeyLiftJacobian:
    r"""The derivative :math:`[e, 2\langle k,e\rangle]`."""

    twice: Float[Tensor, "*batch k"]

    def jvp(self, E: Tensor) -> Tensor:
        """Push forward."""
        return torch.cat((E, (self.twice * E).sum(-1, keepdim=True)), dim=-1)

    def vjp(self, G: Tensor) -> Tensor:
        """Pull back."""
        return torch.addcmul(G[..., :-1], self.twice, G[..., -1:])

    def taken(self, batch: tuple[int, ...], index: Tensor, *, event: int) -> "L2KeyLiftJacobian":
        """Pick entries of the batch."""
        return L2KeyLiftJacobian(take(self.twice, batch, index, event=event))


@dataclass(frozen=True, eq=False)
class L2QueryLift(_Linear):
    r"""Lift queries to :math:`[2q, -1]`, so that with lifted keys scores are :math:`2\langle q,k\rangle-|k|^2`."""

    def apply(self, X: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch k1"]:
        """Transform."""
        return torch.cat((2 * X, -torch.ones_like(X[..., :1])), dim=-1)

    def jvp(self, E: Tensor) -> Tensor:
        """Push forward."""
        return torch.cat((2 * E, torch.zeros_like(E[..., :1])), dim=-1)

    def vjp(self, G: Tensor) -> Tensor:
        """Pull back."""
        return 2 * G[..., :-1]


@dataclass(frozen=True, eq=False)
class Halves(_Linear):
    """Cut tokens into two halves, which become a new first axis."""

    def apply(self, X: Float[Tensor, "*batch k"]) -> Float[Tensor, "2 *batch half"]:
        """Cut."""
        return X.unflatten(-1, (2, -1)).movedim(-2, 0)

    jvp = apply

    def vjp(self, G: Float[Tensor, "2 *batch half"]) -> Float[Tensor, "*batch k"]:
        """Put the halves together again."""
        return G.movedim(0, -2).flatten(-2)
