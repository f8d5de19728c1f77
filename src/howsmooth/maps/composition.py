"""Maps made of maps: one after another, side by side, and around a residual connection."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.gaussian_attention import Gaussian, GaussianAttention
from howsmooth.maps.heads import GIBIBYTE, MultiHead, require_memory
from howsmooth.maps.protocols import Jacobian, Linearisable, Map
from howsmooth.token_ring import TokenRing
from howsmooth.validation import tokens_for

C = TypeVar("C", bound="ComposedMap")


class ComposedMap(ABC):
    """A map made of maps; ``evaluate`` says how, for any way to evaluate its parts."""

    @property
    @abstractmethod
    def children(self) -> tuple[Map, ...]:
        """The maps that it is made of."""

    @abstractmethod
    def evaluate(self, X: Tensor, apply: Callable[[Map, Tensor], Tensor]) -> Tensor:
        """Return the value at ``X`` if ``apply(f, X)`` is the value of each part f."""

    @abstractmethod
    def value_and_jacobian(self, X: Tensor, *, memory: int = GIBIBYTE) -> tuple[Tensor, Jacobian]:
        """Return the value and the derivative at ``X``: every map is evaluated once."""

    def with_children(self: C, *children: Map) -> C:
        """Return the same composition of other maps."""
        return type(self)(*children)

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*more m out"]:
        """Apply the map to every sequence of the batch."""
        return self.evaluate(tokens_for(X, self), lambda f, Y: f(Y))

    def jacobian(self, X: Float[Tensor, "*batch n d"], *, memory: int = GIBIBYTE) -> Jacobian:
        """Differentiate at ``X``.

        The attention weights of all maps together may take ``memory`` bytes, as in :meth:`Attention.jacobian`.
        """
        _value, jacobian = self.value_and_jacobian(tokens_for(X, self), memory=memory)
        return jacobian

    def sharded(self, ring: TokenRing) -> Any:
        """Return the map on the tokens of this process, whose attention sees those of all processes of a ring."""
        from howsmooth.maps.sharded_attention import sharded  # which imports this file

        return sharded(self, ring)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its first map."""
        return self.children[0].dtype

    def to(self: C, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> C:
        """Return the same map in another dtype or on another device."""
        return self.with_children(*(f.to(dtype, device) for f in self.children))


@dataclass(frozen=True, init=False, eq=False)
class _ManyMaps(ComposedMap):
    maps: tuple[Map, ...]

    def __init__(self, *maps: Map) -> None:
        if not maps:
            raise ShapeError(f"a {type(self).__name__} needs at least one map, got none.", field="maps")
        for f in maps:
            _require_map(f)
        object.__setattr__(self, "maps", maps)

    @property
    def children(self) -> tuple[Map, ...]:
        """The maps, in order."""
        return self.maps


class Chain(_ManyMaps):
    """The maps one after another, the first one first: ``Chain(norm, attention)(X) == attention(norm(X))``."""

    def evaluate(self, X: Tensor, apply: Callable[[Map, Tensor], Tensor]) -> Tensor:
        """Apply one map after another."""
        for f in self.maps:
            X = apply(f, X)
        return X

    def value_and_jacobian(self, X: Tensor, *, memory: int = GIBIBYTE) -> "tuple[Tensor, ChainJacobian]":
        """Differentiate by the chain rule."""
        links, each = [], _each(memory, self.maps)
        for f in self.maps:
            X, link = linearised(f, X, each)
            links.append(link)
        return X, ChainJacobian(tuple(links))


class Sum(_ManyMaps):
    """The maps side by side, their outputs added: ``Sum(attention, mlp)(X) == attention(X) + mlp(X)``."""

    def evaluate(self, X: Tensor, apply: Callable[[Map, Tensor], Tensor]) -> Tensor:
        """Add up the outputs of the maps."""
        return _total([apply(f, X) for f in self.maps])

    def value_and_jacobian(self, X: Tensor, *, memory: int = GIBIBYTE) -> "tuple[Tensor, SumJacobian]":
        """Differentiate: the sum of the maps' Jacobians."""
        each = _each(memory, self.maps)
        values, terms = zip(*(linearised(f, X, each) for f in self.maps), strict=True)
        return _total(values), SumJacobian(terms)


@dataclass(frozen=True, eq=False)
class Residual(ComposedMap):
    """``X + f(X)``."""

    map: Map

    def __post_init__(self) -> None:
        _require_map(self.map)

    @property
    def children(self) -> tuple[Map, ...]:
        """The map inside."""
        return (self.map,)

    def evaluate(self, X: Tensor, apply: Callable[[Map, Tensor], Tensor]) -> Tensor:
        """Add the tokens to the map's output."""
        Y = apply(self.map, X)
        _require_same_shape(X.shape[-2:], Y.shape[-2:])
        return X + Y

    def value_and_jacobian(self, X: Tensor, *, memory: int = GIBIBYTE) -> "tuple[Tensor, ResidualJacobian]":
        """Differentiate: the identity plus the map's Jacobian."""
        X = tokens_for(X, self)
        Y, inner = linearised(self.map, X, _each(memory, (self.map,)))
        _require_same_shape(inner.domain, inner.codomain)
        return X + Y, ResidualJacobian(inner)

    def on_gaussian(self, measure: Gaussian) -> GaussianAttention:
        """Return the affine map that moves the tokens of a Gaussian measure, where attention is inside."""
        if not isinstance(self.map, Attention):
            raise AssumptionError(
                f"softmax attention, alone or in a residual, moves Gaussian measures; got a residual of "
                f"{type(self.map).__name__}.",
                field="map",
            )
        return self.map.on_gaussian(measure).with_residual()


class ChainJacobian:
    """The product of the Jacobians of a chain, the first map's applied first."""

    def __init__(self, links: tuple[Jacobian, ...]) -> None:
        """Keep the links; the last one has every batch axis that the maps brought in."""
        first, last = links[0], links[-1]
        if any(link.batch != last.batch for link in links):
            raise ShapeError(
                "the maps of a chain must share their batch axes: give the tokens the batch shape "
                f"{last.batch} from the start (X.expand), got {first.batch}."
            )
        self.links = self.parts = links
        self.batch, self.domain, self.codomain = last.batch, first.domain, last.codomain
        self.dtype, self.device = last.dtype, last.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m out"]:
        """Push a perturbation through every link."""
        for link in self.links:
            E = link.jvp(E)
        return E

    def vjp(self, G: Float[Tensor, "*batch m out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back through every link."""
        for link in reversed(self.links):
            G = link.vjp(G)
        return G

    def take(self, index: Tensor) -> "ChainJacobian":
        """Pick some operators of the batch."""
        return ChainJacobian(tuple(link.take(index) for link in self.links))


class SumJacobian:
    """The sum of Jacobians at one input."""

    def __init__(self, terms: tuple[Jacobian, ...]) -> None:
        first = terms[0]
        if any((term.batch, term.codomain) != (first.batch, first.codomain) for term in terms):
            shapes = ", ".join(str((*term.batch, *term.codomain)) for term in terms)
            raise ShapeError(f"the outputs of a sum must have one shape, got {shapes}.", field="maps")
        self.terms = self.parts = terms
        self.batch, self.domain, self.codomain = first.batch, first.domain, first.codomain
        self.dtype, self.device = first.dtype, first.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m out"]:
        """Push a perturbation through every term."""
        return _total([term.jvp(E) for term in self.terms])

    def vjp(self, G: Float[Tensor, "*batch m out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back through every term."""
        return _total([term.vjp(G) for term in self.terms])

    def take(self, index: Tensor) -> "SumJacobian":
        """Pick some operators of the batch."""
        return SumJacobian(tuple(term.take(index) for term in self.terms))


class ResidualJacobian:
    """The identity plus a Jacobian."""

    def __init__(self, inner: Jacobian) -> None:
        self.inner, self.parts = inner, (inner,)
        self.batch, self.domain, self.codomain = inner.batch, inner.domain, inner.codomain
        self.dtype, self.device = inner.dtype, inner.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Push a perturbation forward."""
        return E + self.inner.jvp(E)

    def vjp(self, G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        return G + self.inner.vjp(G)

    def take(self, index: Tensor) -> "ResidualJacobian":
        """Pick some operators of the batch."""
        return ResidualJacobian(self.inner.take(index))


def linearised(f: Map, X: Tensor, each: int) -> tuple[Tensor, Jacobian]:
    """Return the value and the derivative of a map at ``X``, together where the map can.

    Every attention map in it may keep ``each`` bytes.
    """
    if isinstance(f, Linearisable):
        return f.value_and_jacobian(X, memory=each * max(1, _attentions(f)))
    return f(X), f.jacobian(X)


def leaves(f: Any) -> Iterator[Any]:
    """Yield the maps that a composition is made of, in order; any other map yields itself."""
    if isinstance(f, ComposedMap):
        for child in f.children:
            yield from leaves(child)
    else:
        yield f


def map_leaves(f: Any, change: Callable[[Any], Any]) -> Any:
    """Return a composition with every leaf replaced by ``change(leaf)``."""
    return f.with_children(*(map_leaves(g, change) for g in f.children)) if isinstance(f, ComposedMap) else change(f)


def _each(memory: int, maps: tuple[Map, ...]) -> int:
    """Return the bytes that each attention map may keep, if all of them together may keep ``memory``."""
    require_memory(memory)
    return memory // max(1, sum(map(_attentions, maps)))


def _attentions(f: Map) -> int:
    """Count the attention maps inside a map."""
    return sum(isinstance(leaf, MultiHead) for leaf in leaves(f))


def _total(terms: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    first, *others = terms
    if any(term.shape != first.shape for term in others):
        shapes = ", ".join(str(tuple(term.shape)) for term in terms)
        raise ShapeError(f"the outputs of a sum must have one shape, got {shapes}.", field="maps")
    return sum(others, first)


def _require_same_shape(tokens: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    if tokens[-1] != outputs[-1]:
        raise ShapeError(
            f"a residual adds input and output, so their dimensions must agree: got {tokens[-1]} and {outputs[-1]}.",
            field="map",
        )
    if tokens != outputs:
        raise ShapeError(
            f"a residual adds input and output, so both must have as many tokens: got {tokens[0]} and {outputs[0]}.",
            field="map",
        )


def _require_map(f: object) -> None:
    if not isinstance(f, Map):
        raise DtypeError(
            f"a composition takes maps with a `jacobian`, got {type(f).__name__}; "
            "for other callables measure a function that composes them: hs.local_lipschitz(lambda X: g(f(X)), X).",
            field="maps",
        )
