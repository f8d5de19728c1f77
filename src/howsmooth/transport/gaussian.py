"""Gaussian measures: what attention on infinitely many tokens is studied on, since it keeps them Gaussian."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, ShapeError
from howsmooth.validation import (
    Seed,
    generator_from,
    plain_mode,
    require_finite,
    require_floating,
    require_numbers,
    require_parameter,
)

# How far a covariance may be from symmetric, and below zero, as a share of its largest entry.
ASYMMETRY = 1e-5


@runtime_checkable
class AffineMap(Protocol):
    """A map of tokens, matrix · x + offset."""

    @property
    def matrix(self) -> Float[Tensor, "out d"]:
        """Its linear part."""

    @property
    def offset(self) -> Float[Tensor, " out"]:
        """What it adds."""


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMeasure:
    r"""The Gaussian measure :math:`\mathcal N(m,\Sigma)` as an input of attention.

    Softmax attention moves its tokens by an affine map (:meth:`howsmooth.Attention.on`), so its image is Gaussian:
    ``hs.maps.mean_field(attention)(measure)``. ``hs.local_lipschitz(attention, measure)`` is the constant of that map
    in :math:`W_2`, at this measure and among Gaussian ones.

    Attributes:
        mean: :math:`m`.
        covariance: :math:`\Sigma`, symmetric and without negative eigenvalues.

    Example:
        >>> GaussianMeasure.standard(2).distance(GaussianMeasure(torch.tensor([3.0, 4.0]), torch.eye(2)))
        tensor(5.)
    """

    mean: Float[Tensor, " d"]
    covariance: Float[Tensor, "d d"]

    def __post_init__(self) -> None:
        require_floating(self.mean, "mean")
        if self.mean.ndim != 1 or not len(self.mean):
            raise ShapeError(f"mean must be a vector, got shape {tuple(self.mean.shape)}.", field="mean")
        require_numbers(self.mean, "mean")
        require_finite(self.mean, "mean")
        require_parameter(self.covariance, (self.d, self.d), self.mean, "covariance", "mean")
        require_finite(self.covariance, "covariance")
        if self.dtype in (torch.float16, torch.bfloat16):
            raise DtypeError(
                f"roots of covariances are taken in float32 or float64, got {self.dtype}; convert with .float().",
                field="covariance",
            )
        size = float(self.covariance.detach().abs().max())
        if float((self.covariance - self.covariance.mT).detach().abs().max()) > ASYMMETRY * size:
            raise AssumptionError("covariance must be symmetric; use (S + S.mT) / 2.", field="covariance")
        object.__setattr__(self, "covariance", (self.covariance + self.covariance.mT) / 2)
        least = float(torch.linalg.eigvalsh(self.covariance.detach())[0])
        if least < -ASYMMETRY * size:
            raise AssumptionError(
                f"covariance must have no negative eigenvalue, got {least:.3g}; it is no covariance.",
                field="covariance",
            )

    @classmethod
    def standard(cls, d: int, *, dtype: torch.dtype | None = None) -> "GaussianMeasure":
        """Return the measure of mean zero and covariance one in dimension ``d``."""
        return cls(torch.zeros(d, dtype=dtype), torch.eye(d, dtype=dtype))

    @classmethod
    @plain_mode()
    def fitted(cls, X: Float[Tensor, "n d"]) -> "GaussianMeasure":
        """Return the Gaussian measure with the mean and the covariance of tokens (divided by n, not n − 1)."""
        require_floating(X, "X")
        require_numbers(X, "X")
        if X.ndim != 2 or not X.numel():
            raise ShapeError(f"X must be tokens (n, d), got {tuple(X.shape)}.", field="X")
        mean = X.mean(0)
        return cls(mean, (X - mean).mT @ (X - mean) / len(X))

    @property
    def d(self) -> int:
        """The dimension of a token."""
        return self.mean.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The numbers it is made of."""
        return self.mean.dtype

    def __repr__(self) -> str:
        """Say its dimension and its size."""
        size, trace = float(self.mean.norm()), float(self.covariance.trace())
        return f"GaussianMeasure in dimension {self.d}: |mean| {size:.4g}, trace {trace:.4g}"

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "GaussianMeasure":
        """Return the same measure in another dtype or on another device."""
        return GaussianMeasure(*(x.to(dtype=dtype, device=device) for x in (self.mean, self.covariance)))

    @property
    def root(self) -> Float[Tensor, "d d"]:
        r"""The symmetric square root :math:`\Sigma^{1/2}`."""
        squares, basis = torch.linalg.eigh(self.covariance)
        return (basis * squares.clamp(min=0).sqrt()) @ basis.mT

    def sample(self, n: int, *, seed: Seed | None = None) -> Float[Tensor, "n d"]:
        """Draw ``n`` tokens."""
        if not (isinstance(n, int) and n >= 1):
            raise AssumptionError(f"n must be a whole number, at least 1, got {n}.", field="n")
        return self.mean + torch.randn(n, self.d, dtype=self.dtype, generator=generator_from(seed)) @ self.root

    @plain_mode()
    def push_forward(self, f: object) -> "GaussianMeasure":
        r"""Move every token by an affine map, such as ``attention.on(measure)``.

        .. math:: x\mapsto Mx+b:\quad\mathcal N(m,\Sigma)\mapsto\mathcal N(Mm+b, M\Sigma M^\top)
        """
        if not isinstance(f, AffineMap):
            raise AssumptionError(
                f"a Gaussian measure stays Gaussian under affine maps (matrix and offset), got {type(f).__name__}; "
                "draw tokens with measure.sample(n).",
                field="f",
            )
        root = f.matrix @ self.root
        return GaussianMeasure(f.matrix @ self.mean + f.offset, root @ root.mT)

    def distance(self, other: "GaussianMeasure") -> Float[Tensor, ""]:
        r"""Return :math:`W_2` to another Gaussian measure (Bures and Wasserstein).

        .. math:: W_2^2 = |m-m'|^2+\operatorname{tr}\bigl(\Sigma+\Sigma'-2(\Sigma^{1/2}\Sigma'\Sigma^{1/2})^{1/2}\bigr)
                        = |m-m'|^2 + \min_{O^\top O = I}\bigl\|\Sigma^{1/2}-\Sigma'^{1/2}O\bigr\|_F^2

        The minimum is attained at the polar factor of :math:`\Sigma'^{1/2}\Sigma^{1/2}`; it is computed there, since
        the traces cancel where the measures are near each other.
        """
        require_parameter(other.mean, (self.d,), self.mean, "the other mean", "mean")
        first, second = self.root, other.root
        left, _singular, right = torch.linalg.svd(second @ first)
        apart = torch.cat((self.mean - other.mean, (first - second @ (left @ right)).flatten()))
        return torch.linalg.vector_norm(apart)
