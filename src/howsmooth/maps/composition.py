"""Maps made of maps: one after another, and around a residual connection."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import DtypeError, ShapeError
from howsmooth.maps.values import Jacobian, Map


@dataclass(frozen=True, init=False, eq=False)
class Chain:
    """The maps one after another, the first one first: ``Chain(norm, attention)(X) == attention(norm(X))``."""

    maps: tuple[Map, ...]

    def __init__(self, *maps: Map) -> None:
        """Compose ``maps`` in the order in which they are applied."""
        if not maps:
            raise ShapeError("a Chain needs at least one map, got none.")
        for f in maps:
            _require_map(f)
        object.__setattr__(self, "maps", maps)

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*more n out"]:
        """Apply one map after another."""
        for f in self.maps:
            X = f(X)
        return X

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "ChainJacobian":
        """Differentiate by the chain rule."""
        links = []
        for f in self.maps:
            links.append(f.jacobian(X))
            X = f(X)
        return ChainJacobian(tuple(links))

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.maps[0].dtype

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Chain":
        """Return the same chain in another dtype or on another device."""
        return Chain(*(f.to(dtype, device) for f in self.maps))


@dataclass(frozen=True, eq=False)
class Residual:
    """``X + f(X)``."""

    map: Map

    def __post_init__(self) -> None:
        """Check that there is something to add."""
        _require_map(self.map)

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*more n d"]:
        """Add the tokens to the map's output."""
        Y = self.map(X)
        _require_same_width(X.shape[-1], Y.shape[-1])
        return X + Y

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "ResidualJacobian":
        """Differentiate: the identity plus the map's Jacobian."""
        inner = self.map.jacobian(X)
        _require_same_width(inner.domain[-1], inner.codomain[-1])
        return ResidualJacobian(inner)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.map.dtype

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "Residual":
        """Return the same map in another dtype or on another device."""
        return Residual(self.map.to(dtype, device))


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
        self.links = links
        self.batch, self.domain, self.codomain = last.batch, first.domain, last.codomain
        self.dtype, self.device = last.dtype, last.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push a perturbation through every link."""
        for link in self.links:
            E = link.jvp(E)
        return E

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back through every link."""
        for link in reversed(self.links):
            G = link.vjp(G)
        return G

    def take(self, index: Tensor) -> "ChainJacobian":
        """Pick some operators of the batch."""
        return ChainJacobian(tuple(link.take(index) for link in self.links))


class ResidualJacobian:
    """The identity plus a Jacobian."""

    def __init__(self, inner: Jacobian) -> None:
        """Wrap the Jacobian of the map inside the residual."""
        self.inner = inner
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


def _require_same_width(tokens: int, outputs: int) -> None:
    if tokens != outputs:
        raise ShapeError(
            f"a residual adds input and output, so their dimensions must agree: got {tokens} and {outputs}."
        )


def _require_map(f: object) -> None:
    if not isinstance(f, Map):
        raise DtypeError(
            f"a composition takes maps with a `jacobian`, got {type(f).__name__}; "
            "for other callables measure a function that composes them: hs.local_lipschitz(lambda X: g(f(X)), X)."
        )
