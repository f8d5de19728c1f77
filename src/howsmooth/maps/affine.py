"""Affine maps of whole sequences: embeddings of patches, class tokens and positions; readouts."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import ShapeError
from howsmooth.linear_operators import Operator
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_finite, require_floating, require_parameter


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

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.weight.dtype

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m out"]:
        """Apply the map to every sequence of the batch."""
        self._check(X)
        return torch.einsum("mond,...nd->...mo", self.weight, X) + self.bias

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "AffineJacobian":
        """Differentiate: the same matrix at every input."""
        self._check(X)
        m, out, n, d = self.weight.shape
        return AffineJacobian(
            weight=self.weight,
            batch=tuple(X.shape[:-2]),
            domain=(n, d),
            codomain=(m, out),
            dtype=X.dtype,
            device=X.device,
        )

    def _check(self, X: Tensor) -> None:
        if X.shape[-2:] != self.weight.shape[2:]:
            raise ShapeError(
                f"this map takes {self.weight.shape[2]} tokens of dimension {self.weight.shape[3]}, "
                f"got {tuple(X.shape[-2:])}."
            )

    def __repr__(self) -> str:
        m, out, n, d = self.weight.shape
        return f"Affine({n} × {d} → {m} × {out}, {self.weight.dtype})"


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineJacobian(Operator):
    """The derivative of an affine map: its matrix."""

    weight: Float[Tensor, "m out n d"]

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m out"]:
        """Push a perturbation forward."""
        self.check_perturbation(E)
        return torch.einsum("mond,...nd->...mo", self.weight, E)

    def vjp(self, G: Float[Tensor, "*batch m out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        self.check_cotangent(G)
        return torch.einsum("mond,...mo->...nd", self.weight, G)

    def take(self, index: Tensor) -> "AffineJacobian":
        """Pick some operators of the batch; all are equal."""
        return dataclasses.replace(self, batch=(len(index),))
