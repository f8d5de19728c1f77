"""Affine maps that mix tokens: embeddings of patches and positions, readouts, weighted means."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.linear_operators import SeparableOperator, on_tokens
from howsmooth.maps.norms import RMSNorm
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import (
    require_agreement,
    require_boolean,
    require_finite,
    require_floating,
    require_numbers,
    require_parameter,
    require_tokens,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Affine(TensorDataclass):
    r"""Mix all tokens: :math:`f(X)_i = \sum_jW_{ij}x_j + b_i`.

    An image is a sequence of one token, so that this map may cut it into patches, put a class token before them and add
    positions; behind the last layer it may read all tokens out into the logits.

    Attributes:
        weight: :math:`W`, ``(m, out, n, d)``.
        bias: :math:`b`, ``(m, out)``.

    Example:
        >>> f = Affine(weight=torch.ones(1, 1, 2, 2), bias=torch.zeros(1, 1))
        >>> f(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[10.]])
    """

    weight: Float[Tensor, "m out n d"]
    bias: Float[Tensor, "m out"]

    def __post_init__(self) -> None:
        require_floating(self.weight, "weight")
        if self.weight.ndim != 4 or not self.weight.numel():
            raise ShapeError(
                f"weight must have the shape (m, out, n, d), got {tuple(self.weight.shape)}.", field="weight"
            )
        require_finite(self.weight, "weight")
        require_parameter(self.bias, tuple(self.weight.shape[:2]), self.weight, "bias", "weight")

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m out"]:
        """Apply the map to every sequence of the batch."""
        self._check(X)
        return torch.einsum("mond,...nd->...mo", self.weight, X) + self.bias

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "AffineJacobian":
        """Differentiate: the same matrix at every input."""
        self._check(X)
        return AffineJacobian(weight=self.weight, **on_tokens(X) | {"codomain": tuple(self.weight.shape[:2])})

    def _check(self, X: Tensor) -> None:
        require_tokens(X, self.weight)
        if X.shape[-2:] != self.weight.shape[2:]:
            raise ShapeError(
                f"this map takes {self.weight.shape[2]} tokens of dimension {self.weight.shape[3]}, "
                f"got {tuple(X.shape[-2:])}.",
                field="X",
            )

    def __repr__(self) -> str:
        m, out, n, d = self.weight.shape
        return f"Affine({n} × {d} → {m} × {out}, {self.weight.dtype})"


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineJacobian(SeparableOperator):
    """The derivative of an affine map: its matrix."""

    weight: Float[Tensor, "m out n d"]

    def _push(self, E: Tensor) -> Tensor:
        return torch.einsum("mond,...nd->...mo", self.weight, E)

    def _pull(self, G: Tensor) -> Tensor:
        return torch.einsum("mond,...mo->...nd", self.weight, G)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooling(TensorDataclass):
    r"""Make one token of many: :math:`f(X) = \sum_i w_i x_i`, a sequence of length one.

    Attributes:
        weights: :math:`w`, one for each token; leading axes are batch axes. :meth:`mean`, :meth:`first` and
            :meth:`last` have the usual ones.

    Example:
        >>> Pooling.mean(n=2)(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        tensor([[2., 1.]])
    """

    weights: Float[Tensor, "*batch n"]

    def __post_init__(self) -> None:
        require_floating(self.weights, "weights")
        if not self.weights.ndim or not self.weights.numel():
            raise ShapeError(
                f"weights must have one entry for each token, got {tuple(self.weights.shape)}.", field="weights"
            )
        require_finite(self.weights, "weights")

    @classmethod
    def mean(
        cls, *, n: int | None = None, real: Bool[Tensor, "*batch n"] | None = None, like: Tensor | None = None
    ) -> "Pooling":
        """Take the mean of ``n`` tokens, or of those that are ``real``.

        Args:
            n: How many tokens there are.
            real: True for real tokens, where some are padding.
            like: A tensor with the dtype and device of the weights.
        """
        return cls._spread(_real(n, real), like)

    @classmethod
    def first(
        cls, *, n: int | None = None, real: Bool[Tensor, "*batch n"] | None = None, like: Tensor | None = None
    ) -> "Pooling":
        """Take the first token, or the first that is real; the arguments are those of :meth:`mean`."""
        kept = _real(n, real)
        return cls._spread(kept & (kept.cumsum(-1) == 1), like)

    @classmethod
    def last(
        cls, *, n: int | None = None, real: Bool[Tensor, "*batch n"] | None = None, like: Tensor | None = None
    ) -> "Pooling":
        """Take the last token, or the last that is real; the arguments are those of :meth:`mean`."""
        kept = _real(n, real)
        return cls._spread(kept & (kept.cumsum(-1) == kept.sum(-1, keepdim=True)), like)

    @classmethod
    def _spread(cls, kept: Bool[Tensor, "*batch n"], like: Tensor | None) -> "Pooling":
        if like is not None:
            require_floating(like, "like")
        if not bool(kept.any(-1).all()):
            raise AssumptionError("every sequence needs at least one real token, got one without.", field="real")
        weights = kept.to(torch.get_default_dtype()) if like is None else kept.to(like)
        return cls(weights=weights / weights.sum(-1, keepdim=True))

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 d"]:
        """Sum the tokens up."""
        self._require(X)
        return self.weights.unsqueeze(-2) @ X

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "PoolingJacobian":
        """Differentiate: the same sum at every input."""
        self._require(X)
        return PoolingJacobian(weights=self.weights, **on_tokens(X) | {"codomain": (1, X.shape[-1])})

    def _require(self, X: Tensor) -> None:
        require_floating(X, "tokens")
        n = self.weights.shape[-1]
        lead = self.weights.shape[:-1]
        if X.ndim < 2 or X.numel() == 0 or X.shape[-2] != n or lead not in (X.shape[:-2], ()):
            raise ShapeError(
                f"tokens must have the shape (*batch, {n}, d) with the batch axes {tuple(lead)} of the weights, if "
                f"they have any, got {tuple(X.shape)}.",
                field="X",
            )
        require_agreement(X, self.weights, "tokens", "weights")
        require_numbers(X, "tokens")
        require_finite(X, "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolingJacobian(SeparableOperator):
    """The derivative of pooling: the sum itself."""

    weights: Float[Tensor, "... n"]

    batched: ClassVar[dict[str, int]] = {"weights": 1}

    def _push(self, E: Tensor) -> Tensor:
        return self.weights.unsqueeze(-2) @ E

    def _pull(self, G: Tensor) -> Tensor:
        return self.weights.unsqueeze(-1) * G


def onto_sphere(d: int, like: Tensor) -> RMSNorm:
    r"""Return the map :math:`x \mapsto x/|x|`: a root mean square norm with the gain :math:`1/\sqrt d` and no eps."""
    return RMSNorm(gain=torch.full((d,), d**-0.5, dtype=like.dtype, device=like.device), eps=0.0)


def _real(n: int | None, real: Tensor | None) -> Tensor:
    """Return which tokens are real, from their number or from the mask."""
    if (n is None) == (real is None):
        raise AssumptionError("give either n or real, not both.", field="n")
    if real is not None:
        require_boolean(real, "real")
        require_numbers(real, "real")
        return real
    if n is None or n < 1:
        raise ShapeError(f"n must be at least 1, got {n}.", field="n")
    return torch.ones(n, dtype=torch.bool)
