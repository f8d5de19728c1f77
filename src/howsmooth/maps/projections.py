"""From tokens to the queries, keys and values of every head, and back; transforms of these before the scores."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.linear_operators import take
from howsmooth.maps.norms import JointNormJacobian, NormJacobian
from howsmooth.maps.positions import Rotation

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


class Layout(NamedTuple):
    """How many heads share how many key/value groups, and the widths of keys and values."""

    heads: int
    groups: int
    k: int
    v: int

    @property
    def shared(self) -> int:
        """How many query heads share one key/value head."""
        return self.heads // self.groups

    def split(self, Y: Float[Tensor, "*batch n p"]) -> tuple[Tensor, Tensor, Tensor]:
        """Cut stacked projections into queries, keys and values ``(*batch, heads or groups, n, width)``."""
        queries, keys, values = self._views(Y)
        return queries, keys, values

    def join(self, queries: Tensor, keys: Tensor, values: Tensor) -> Float[Tensor, "*batch n p"]:
        """Undo :meth:`split`."""
        p = self.heads * self.k + self.groups * (self.k + self.v)
        # written block by block: to transpose each and concatenate them would copy everything twice
        Y = queries.new_empty(*queries.shape[:-3], queries.shape[-2], p)
        for view, part in zip(self._views(Y), (queries, keys, values), strict=True):
            view.copy_(part)
        return Y

    def _views(self, Y: Tensor) -> Iterator[Tensor]:
        """Yield the three blocks, each as one strided view: at small n the dispatch of views is what costs."""
        *batch, token, _one = Y.stride()
        offset = Y.storage_offset()
        for count, width in ((self.heads, self.k), (self.groups, self.k), (self.groups, self.v)):
            yield Y.as_strided((*Y.shape[:-2], count, Y.shape[-2], width), (*batch, width, token, 1), offset)
            offset += count * width


@dataclass(frozen=True, kw_only=True, eq=False)
class Projections:
    r"""The derivative of tokens ↦ (queries, keys, values), all heads stacked in one matrix.

    It is linear but for the query and key norms and the transforms.
    """

    weight: Float[Tensor, "*batch p d"]  # the stacked projections: queries of all heads, then keys, then values
    layout: Layout  # how to cut them
    query_norm: NormJacobian | JointNormJacobian | None  # the derivative of the query norm, if there is one
    key_norm: NormJacobian | JointNormJacobian | None  # the derivative of the key norm, if there is one
    rotation: Rotation | None  # the rotary embedding, if there is one
    transforms: TransformJacobians = IDENTITY_TRANSFORMS  # derivatives of the maps that some mechanisms apply last
    sizes: tuple[Tensor, ...] | None = None  # where there are norms, |w∘x| of queries and of keys before them

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Push a perturbation of the tokens to queries, keys and values."""
        dq, dk, dv = self.layout.split(E @ self.weight.mT)
        dq, dk = _pushed(self.query_norm, dq, E), _pushed(self.key_norm, dk, E)
        if self.rotation is not None:
            dq, dk = self.rotation(dq), self.rotation(dk)
        dq, dk, dv = (x if f is None else f.jvp(x) for f, x in zip(self.transforms, (dq, dk, dv), strict=True))
        return dq, dk, dv

    def vjp(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Float[Tensor, "*batch n d"]:
        """Pull cotangents of queries, keys and values back to the tokens."""
        dq, dk, dv = (x if f is None else f.vjp(x) for f, x in zip(self.transforms, (dq, dk, dv), strict=True))
        if self.rotation is not None:
            dq, dk = self.rotation.T(dq), self.rotation.T(dk)
        dq, past_queries = _pulled(self.query_norm, dq)
        dk, past_keys = _pulled(self.key_norm, dk)
        E = self.layout.join(dq, dk, dv) @ self.weight
        for past in (past_queries, past_keys):
            E = E if past is None else E + past
        return E

    def normed_rounding(self) -> tuple[tuple[float, float], tuple[float, float]]:
        r"""Return, for queries and for keys, the largest factor of the norm, and its rounding error in units of eps.

        Sums of products have rounding errors of the order of :math:`|w\circ x|`, which may exceed the sums by far.
        """
        if self.sizes is None:
            return (0.0, 0.0), (0.0, 0.0)
        query, key = (_stretched(norm, x) for norm, x in zip((self.query_norm, self.key_norm), self.sizes, strict=True))
        return query, key

    @property
    def joint(self) -> bool:
        """Whether a norm acts on the queries or keys of all heads together."""
        return any(isinstance(norm, JointNormJacobian) for norm in (self.query_norm, self.key_norm))

    def restricted(self) -> tuple["Projections", Float[Tensor, "*batch d p"]]:
        r"""Restrict the tokens to the span of the projections, :math:`W^\top = B R`, :math:`B^\top B = I`.

        Perturbations orthogonal to the columns of ``B`` move nothing, so no singular value but zero is lost.
        """
        basis, triangle = torch.linalg.qr(self.weight.mT)
        return dataclasses.replace(self, weight=triangle.mT), basis

    def take(self, batch: tuple[int, ...], index: Tensor) -> "Projections":
        """Pick the projections of some entries of the batch."""
        return dataclasses.replace(
            self,
            weight=take(self.weight, batch, index, event=2),
            query_norm=None if self.query_norm is None else self.query_norm.taken(batch, index, event=3),
            key_norm=None if self.key_norm is None else self.key_norm.taken(batch, index, event=3),
            rotation=None if self.rotation is None else self.rotation.take(batch, index),
            transforms=self.transforms.take(batch, index),
            sizes=None if self.sizes is None else tuple(take(x, batch, index, event=3) for x in self.sizes),
        )


def sizes_of(
    X: Float[Tensor, "... n d"], weight: Float[Tensor, "... heads k d"], bias: Float[Tensor, "... heads k"] | None
) -> Float[Tensor, "... heads n 1"]:
    r"""Return :math:`|w\circ x|` over all rows of a head: the size of the terms of its queries or keys."""
    with torch.no_grad():
        squares = (X.square() @ weight.square().sum(-2).mT).mT
        squares = squares if bias is None else squares + bias.square().sum(-1, keepdim=True)
        return squares.sqrt().unsqueeze(-1)


def _stretched(norm: NormJacobian | JointNormJacobian | None, size: Tensor) -> tuple[float, float]:
    if norm is None:
        return 0.0, 0.0
    stretch = (norm.gain / norm.scale if isinstance(norm, JointNormJacobian) else norm.stretch).detach().abs()
    stretch = stretch.amax(-1, keepdim=True)
    return float(stretch.max()), float((stretch * size).max())


def _pushed(norm: NormJacobian | JointNormJacobian | None, x: Tensor, E: Tensor) -> Tensor:
    if norm is None:
        return x
    return norm.jvp(x, E) if isinstance(norm, JointNormJacobian) else norm.jvp(x)


def _pulled(norm: NormJacobian | JointNormJacobian | None, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the cotangent of the projections, and what reaches the tokens past them."""
    if norm is None:
        return x, None
    return norm.vjp(x) if isinstance(norm, JointNormJacobian) else (norm.vjp(x), None)
