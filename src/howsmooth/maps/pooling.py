"""Pooling: a weighted mean of the tokens, and the projection of sentence embeddings onto the sphere."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.linear_operators import Operator, on_tokens
from howsmooth.maps.norms import RMSNorm
from howsmooth.maps.protocols import take
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_agreement, require_finite, require_floating


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

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.weights.dtype

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
        require_finite(X, "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolingJacobian(Operator):
    """The derivative of pooling: the sum itself."""

    weights: Float[Tensor, "... n"]

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 d"]:
        """Push a perturbation forward."""
        self.check_perturbation(E)
        return self.weights.unsqueeze(-2) @ E

    def vjp(self, G: Float[Tensor, "*batch 1 d"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        self.check_cotangent(G)
        return self.weights.unsqueeze(-1) * G

    def take(self, index: Tensor) -> "PoolingJacobian":
        """Pick some operators of the batch."""
        return dataclasses.replace(self, weights=take(self.weights, self.batch, index, event=1), batch=(len(index),))


def onto_sphere(d: int, like: Tensor) -> RMSNorm:
    r"""Return the map :math:`x \mapsto x/|x|`: a root mean square norm with the gain :math:`1/\sqrt d` and no eps."""
    return RMSNorm(gain=torch.full((d,), d**-0.5, dtype=like.dtype, device=like.device), eps=0.0)


def _real(n: int | None, real: Tensor | None) -> Tensor:
    """Return which tokens are real, from their number or from the mask."""
    if (n is None) == (real is None):
        raise AssumptionError("give either n or real, not both.", field="n")
    if real is not None:
        return real
    if n is None or n < 1:
        raise ShapeError(f"n must be at least 1, got {n}.", field="n")
    return torch.ones(n, dtype=torch.bool)
