"""Attention on measures: the map F(μ), and its derivative in the metric of the masses."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.linear_operators import Operator, fields_of
from howsmooth.maps.heads_derivative import HeadsJacobian


@runtime_checkable
class Atoms(Protocol):
    """A measure with atoms, as far as attention needs to know it."""

    @property
    def points(self) -> Float[Tensor, "n d"]:
        """The places of the atoms."""

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
    """A map, such as attention, that moves the atoms of a measure."""

    def on(self, measure: Any) -> Callable[[Tensor], Tensor]:
        """Return the map that moves the atoms of one measure."""


def mean_field(attention: Any) -> Callable[[Any], Any]:
    r"""Return attention as a map on measures: ``mean_field(attention)(measure)`` is :math:`F(\mu)`.

    .. math:: F(\mu) = (\Gamma_\mu)_\sharp\mu,\qquad
              \Gamma_\mu(x) = \int Vy\,e^{\langle Ax,y\rangle}d\mu(y)\Big/\int e^{\langle Ax,y\rangle}d\mu(y)

    Exact on discrete measures, and on Gaussian ones, where it takes a residual around attention too; masked attention
    integrates over what lies at the position of x or before. A sequence is the measure of its tokens with equal masses.
    """
    return lambda measure: measure.push_forward(
        attention.on_gaussian(measure) if hasattr(measure, "covariance") else attention.on(measure)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedJacobian(Operator):
    r"""The derivative of attention at :math:`\mu = \sum_ia_i\delta_{x_i}`, when atoms move without splitting.

    A perturbation has the norm :math:`(\sum_ia_i|e_i|^2)^{1/2}`, so the operator is
    :math:`J_\mu = D^{1/2}JD^{-1/2}` with :math:`D = \mathrm{diag}(a)\otimes I`: vectors are :math:`\sqrt{a_i}\,e_i`.
    """

    plain: HeadsJacobian  # J
    roots: Float[Tensor, "*batch n 1"]  # √aᵢ

    @classmethod
    def of(cls, plain: HeadsJacobian, masses: Float[Tensor, "*batch n"]) -> "WeightedJacobian":
        """Weight the derivative of attention on tokens by the masses of the atoms."""
        return cls(plain=plain, roots=masses.sqrt().unsqueeze(-1), **fields_of(plain))

    @property
    def forward_rounding(self) -> float:
        """Bound the relative rounding error of the attention weights."""
        return self.plain.forward_rounding

    @property
    def derivative_rounding(self) -> float:
        """Bound the absolute rounding error beyond that, amplified by the roots of the masses."""
        return self.plain.derivative_rounding * float(self.roots.max() / self.roots.min())

    def cancelled(
        self, E: Float[Tensor, "*batch n d"], scale: Float[Tensor, "*batch #n 1"] | None = None
    ) -> tuple[float, float]:
        """Return the cancellation ratios over heads and over all terms."""
        return self.plain.cancelled(E / self.roots, self.roots if scale is None else self.roots * scale)

    def _push(self, E: Tensor) -> Tensor:
        return self.roots * self.plain.jvp(E / self.roots)

    def _pull(self, G: Tensor) -> Tensor:
        return self.plain.vjp(G * self.roots) / self.roots

    def compress(self) -> tuple["WeightedJacobian", Callable[[Tensor], Tensor]]:
        """Restrict tokens to the row space of the projections; masses act on whole tokens."""
        small, embed = self.plain.compress()
        return dataclasses.replace(self, plain=small, **fields_of(small)), embed
