"""Dense: a linear layer applied to every token, and the operator on vectors that solvers take."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from howsmooth.errors import ShapeError
from howsmooth.linear_operators import Operator, on_tokens
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_finite, require_floating, require_parameter, require_tokens


@dataclass(frozen=True, eq=False, repr=False)
class Dense(TensorDataclass):
    r"""Multiply by one matrix and add a bias: :math:`f(x) = Wx + b`.

    A map on tokens, which composes with the others; and, since it is its own derivative, a linear operator on vectors:
    ``hs.spectral_norm(hs.maps.Dense(W))``. An operator may be a batch of matrices. Half precision becomes float32.

    Attributes:
        weight: :math:`W`, ``(out, d)``, or for operators ``(*batch, out, d)``.
        bias: :math:`b`, or ``None`` for zero.

    Example:
        >>> Dense(weight=torch.tensor([[1.0, 2.0]]), bias=torch.ones(1))(torch.tensor([[3.0, 1.0]]))
        tensor([[6.]])
    """

    weight: Float[Tensor, "*batch out d"]
    bias: Float[Tensor, " out"] | None = None

    def __post_init__(self) -> None:
        """Check the numbers once."""
        require_floating(self.weight, "weight")
        if self.weight.ndim < 2:
            raise ShapeError(
                f"weight must have the shape (*batch, out, d), got {tuple(self.weight.shape)}.", field="weight"
            )
        require_finite(self.weight, "weight")
        require_bias(self.bias, self.weight, "bias", "weight")
        for name in ("weight", "bias"):
            x = getattr(self, name)
            if x is not None and x.dtype in (torch.float16, torch.bfloat16):
                object.__setattr__(self, name, x.float())

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Multiply every token."""
        self._require_layer()
        require_tokens(X, self.weight)
        return functional.linear(X, self.weight, self.bias)

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "DenseJacobian":
        """Differentiate: the same matrix at every input."""
        self._require_layer()
        require_tokens(X, self.weight)
        return DenseJacobian(weight=self.weight, **on_tokens(X, self.weight.shape[0]))

    def _require_layer(self) -> None:
        if self.weight.ndim != 2 or not self.weight.numel():
            raise ShapeError(
                f"a map on tokens has one matrix that is not empty, (out, d), got {tuple(self.weight.shape)}.",
                field="weight",
            )

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes of the operator."""
        return tuple(self.weight.shape[:-2])

    @property
    def domain(self) -> tuple[int, ...]:
        """The number of columns."""
        return (self.weight.shape[-1],)

    @property
    def codomain(self) -> tuple[int, ...]:
        """The number of rows."""
        return (self.weight.shape[-2],)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the matrix."""
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of the matrix."""
        return self.weight.device

    def jvp(self, E: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch out"]:
        """Multiply vectors by the matrix."""
        return (self.weight @ E.unsqueeze(-1)).squeeze(-1)

    def vjp(self, G: Float[Tensor, "*batch out"]) -> Float[Tensor, "*batch d"]:
        """Multiply vectors by the transpose."""
        return (self.weight.mT @ G.unsqueeze(-1)).squeeze(-1)

    def take(self, index: Tensor) -> "Dense":
        """Pick some matrices of the batch."""
        return Dense(self.weight.flatten(0, -3)[index])

    def __repr__(self) -> str:
        """Show its shape, without its numbers."""
        return f"Dense({' × '.join(map(str, self.weight.shape))}, {self.weight.dtype})"


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseJacobian(Operator):
    """The derivative of a linear layer: its matrix, for every token."""

    weight: Float[Tensor, "out d"]

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push a perturbation forward."""
        self.check_perturbation(E)
        return functional.linear(E, self.weight)

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        self.check_cotangent(G)
        return G @ self.weight

    def take(self, index: Tensor) -> "DenseJacobian":
        """Pick some operators of the batch; all are equal."""
        return dataclasses.replace(self, batch=(len(index),))


def require_matrix(x: Tensor, name: str) -> None:
    """Refuse anything but a finite matrix that is not empty."""
    require_floating(x, name)
    if x.ndim != 2 or not x.numel():
        raise ShapeError(f"{name} must be a matrix, (rows, columns), got {tuple(x.shape)}.", field=name)
    require_finite(x, name)


def require_bias(x: Tensor | None, matrix: Tensor, name: str, matrix_name: str) -> None:
    """Refuse a bias that does not have one finite entry for each row of its matrix."""
    if x is not None:
        require_parameter(x, (matrix.shape[-2],), matrix, name, matrix_name)
