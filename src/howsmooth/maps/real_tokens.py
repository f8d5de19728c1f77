"""Maps restricted to the real tokens of padded sequences."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import ShapeError
from howsmooth.linear_operators import take
from howsmooth.maps.derivative import AttentionJacobian
from howsmooth.maps.protocols import Jacobian, Map
from howsmooth.validation import require_boolean


@dataclass(frozen=True, kw_only=True, eq=False)
class RealTokens:
    r"""A map restricted to real tokens: its derivative is :math:`MJM`, with M the projection onto them.

    A padded sequence then has the constant of the sequence alone, as long as real tokens do not see padding. The rows
    of padded tokens come out as zeros.
    """

    map: Map  # the map on padded sequences
    real: Bool[Tensor, "*batch n"]  # True for real tokens; its axes in front of the last are batch axes

    def __post_init__(self) -> None:
        require_boolean(self.real, "real")

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*more m out"]:
        """Apply the map, with zeros at padded tokens."""
        _require_fit(self.real, X)
        return zero_padded_outputs(self.map(X), self.real)

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "RealTokensJacobian":
        """Differentiate among real tokens."""
        _require_fit(self.real, X)
        inner = self.map.jacobian(X)
        known = isinstance(inner, AttentionJacobian)
        return (RealAttentionJacobian if known else RealTokensJacobian)(inner, self.real)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the map."""
        return self.map.dtype

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "RealTokens":
        """Return the same map in another dtype or on another device."""
        return RealTokens(map=self.map.to(dtype, device), real=self.real.to(device=device))


class OnRealTokens:
    """An operator between sequences, restricted to real tokens on both sides."""

    def __init__(self, inner: Any, real: Bool[Tensor, "*batch n"]) -> None:
        self.inner, self.parts = inner, (inner,)
        self.real = real.expand(*inner.batch, real.shape[-1])
        self.batch, self.domain, self.codomain = inner.batch, inner.domain, inner.codomain
        self.dtype, self.device = inner.dtype, inner.device

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m out"]:
        """Push a perturbation of the real tokens to the real outputs."""
        return zero_padded_outputs(self.inner.jvp(zero_padding(E, self.real)), self.real)

    def vjp(self, G: Float[Tensor, "*batch m out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back, likewise."""
        return zero_padding(self.inner.vjp(zero_padded_outputs(G, self.real)), self.real)

    def constrain(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Write zeros at padded tokens."""
        return zero_padding(E, self.real)


class RealTokensJacobian(OnRealTokens):
    """The derivative of a map, restricted to real tokens."""

    inner: Jacobian

    def take(self, index: Tensor) -> "RealTokensJacobian":
        """Pick some operators of the batch."""
        return type(self)(self.inner.take(index), take(self.real, self.batch, index, event=1))


class RealAttentionJacobian(RealTokensJacobian):
    """The derivative of attention, restricted to real tokens, with the abilities of an attention Jacobian."""

    inner: AttentionJacobian

    @property
    def forward_rounding(self) -> float:
        """Bound the relative rounding error of the attention weights."""
        return self.inner.forward_rounding

    @property
    def derivative_rounding(self) -> float:
        """Bound the absolute rounding error beyond that."""
        return self.inner.derivative_rounding

    def cancelled(
        self, E: Float[Tensor, "*batch n d"], scale: Float[Tensor, "*batch #n 1"] | None = None
    ) -> tuple[float, float]:
        """Return the cancellation ratios over heads and over all terms."""
        return self.inner.cancelled(zero_padding(E, self.real), scale)

    def guess(self) -> Float[Tensor, "*batch n d"]:
        """Return an approximate top right singular vector."""
        return zero_padding(self.inner.guess(), self.real)

    def compress(self) -> tuple["RealAttentionJacobian", Callable[[Tensor], Tensor]]:
        """Restrict tokens to the row space of the projections, which mixes no tokens."""
        small, embed = self.inner.compress()
        return RealAttentionJacobian(small, self.real), embed


def zero_padding(X: Float[Tensor, "*batch n d"], real: Bool[Tensor, "*#batch n"]) -> Float[Tensor, "*batch n d"]:
    """Write zeros at padded tokens; a product would keep NaN, which some modules return there."""
    return X.masked_fill(~real.unsqueeze(-1), 0.0)


def zero_padded_outputs(Y: Float[Tensor, "*batch m d"], real: Bool[Tensor, "*#batch n"]) -> Float[Tensor, "*batch m d"]:
    """Write zeros at padded tokens of an output; a pooled output has no padding."""
    return zero_padding(Y, real) if Y.shape[-2] == real.shape[-1] else Y


def _require_fit(real: Tensor, X: Tensor) -> None:
    if real.shape[-1] != X.shape[-2]:
        raise ShapeError(
            f"real must have one entry for each of {X.shape[-2]} tokens, got {real.shape[-1]}.", field="real"
        )
