"""Attention on a measure: its derivative in the metric of the masses."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.maps.heads_derivative import HeadsJacobian


@runtime_checkable
class Atoms(Protocol):
    """What attention needs to know of a measure."""

    @property
    def points(self) -> Float[Tensor, "n d"]:
        """Where they are."""

    @property
    def weights(self) -> Float[Tensor, " n"]:
        """Their masses."""

    @property
    def positions(self) -> Float[Tensor, " n"] | None:
        """Their positions, which masked attention needs."""


def visible(positions: Float[Tensor, " n"]) -> Bool[Tensor, "n n"]:
    """Tell which atoms each atom sees under a causal mask: those at its own position or before."""
    return positions[None, :] <= positions[:, None]


@runtime_checkable
class MeasureMovingMap(Protocol):
    """What moves atoms: attention."""

    def on(self, measure: Any) -> Callable[[Tensor], Tensor]:
        """Return the map that moves the atoms of one measure."""


@dataclass(frozen=True, eq=False)
class MeanField:
    r"""Attention as a map on measures, :math:`F(\mu) = (\Gamma_\mu)_\sharp\mu`.

    .. math:: \Gamma_\mu(x) = \int Vy\,e^{\langle Ax,y\rangle}d\mu(y)\Big/\int e^{\langle Ax,y\rangle}d\mu(y)

    Exact on discrete measures; masked attention integrates over what lies at the position of x or before. A sequence
    is the measure of its tokens with equal masses.
    """

    attention: MeasureMovingMap

    def __call__(self, measure: Any) -> Any:
        """Move every atom of a measure."""
        return measure.push_forward(self.attention.on(measure))


def mean_field(attention: MeasureMovingMap) -> MeanField:
    r"""Return attention as a map on measures: ``mean_field(attention)(measure)`` is :math:`F(\mu)`."""
    return MeanField(attention)


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedJacobian:
    r"""The derivative of attention at :math:`\mu = \sum_ia_i\delta_{x_i}`, when atoms move without splitting.

    A perturbation has the norm :math:`(\sum_ia_i|e_i|^2)^{1/2}`, so the operator is
    :math:`J_\mu = D^{1/2}JD^{-1/2}` with :math:`D = \mathrm{diag}(a)\otimes I`: vectors are :math:`\sqrt{a_i}\,e_i`.

    Attributes:
        plain: :math:`J`.
        roots: :math:`\sqrt{a_i}`.
    """

    plain: HeadsJacobian
    roots: Float[Tensor, "*batch n 1"]

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.plain.batch

    @property
    def domain(self) -> tuple[int, ...]:
        """The shape ``(n, d)`` of one perturbation."""
        return self.plain.domain

    @property
    def codomain(self) -> tuple[int, ...]:
        """The shape ``(n, out)`` of one response."""
        return self.plain.codomain

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it computes with."""
        return self.plain.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.plain.device

    @property
    def forward_rounding(self) -> float:
        """What rounding may have done to the weights; the masses do not mind."""
        return self.plain.forward_rounding

    @property
    def derivative_rounding(self) -> float:
        """What rounding may have done beyond that; roots of masses stretch it."""
        return self.plain.derivative_rounding * float(self.roots.max() / self.roots.min())

    def cancelled(self, E: Float[Tensor, "*batch n d"]) -> tuple[float, float]:
        """Return how much longer the answers of heads are than their sum, and their terms."""
        return self.plain.cancelled(E / self.roots)

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push a perturbation forward."""
        return self.roots * self.plain.jvp(E / self.roots)

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        return self.plain.vjp(G * self.roots) / self.roots

    def compress(self) -> tuple["WeightedJacobian", Callable[[Tensor], Tensor]]:
        """Restrict tokens to what heads see; the masses do not mind."""
        small, embed = self.plain.compress()
        return dataclasses.replace(self, plain=small), embed
