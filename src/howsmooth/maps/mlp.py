"""Layers applied to every token: linear ones, and plain or gated MLPs with an activation between two of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from howsmooth.errors import ShapeError
from howsmooth.linear_operators import SeparableOperator, on_tokens
from howsmooth.maps.activations import Activation, known_activation
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.torch_internals import recorded
from howsmooth.validation import (
    require_agreement,
    require_finite,
    require_floating,
    require_like,
    require_parameter,
    require_shape,
    require_tokens,
)


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
    def device(self) -> torch.device:
        """The device of the matrix."""
        return self.weight.device

    def jvp(self, E: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch out"]:
        """Multiply vectors by the matrix."""
        require_like(E, self, (*self.batch, *self.domain), "the vector")
        return (self.weight @ E.unsqueeze(-1)).squeeze(-1)

    def vjp(self, G: Float[Tensor, "*batch out"]) -> Float[Tensor, "*batch d"]:
        """Multiply vectors by the transpose."""
        require_like(G, self, (*self.batch, *self.codomain), "the vector")
        return (self.weight.mT @ G.unsqueeze(-1)).squeeze(-1)

    def take(self, index: Tensor) -> "Dense":
        """Pick some matrices of the batch."""
        return Dense(self.weight.flatten(0, -3)[index])

    def __repr__(self) -> str:
        return f"Dense({' × '.join(map(str, self.weight.shape))}, {self.weight.dtype})"


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseJacobian(SeparableOperator):
    """The derivative of a linear layer: its matrix, for every token."""

    weight: Float[Tensor, "out d"]

    def _push(self, E: Tensor) -> Tensor:
        return functional.linear(E, self.weight)

    def _pull(self, G: Tensor) -> Tensor:
        return G @ self.weight


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


class _FeedForward(TensorDataclass, ABC):
    """What plain and gated MLPs share: a hidden layer, and the matrix that maps it to the output."""

    up: Tensor
    down: Tensor
    down_bias: Tensor | None
    activation: Activation | str

    @abstractmethod
    def _hidden(self, X: Tensor) -> "tuple[Tensor, Callable[[], MLPJacobian | GatedJacobian]]":
        """Return the hidden layer at ``X``, and what makes the derivative of the map, which shares products with it."""

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply the map to every token."""
        hidden, _jacobian = self._hidden(X)
        return functional.linear(hidden, self.down, self.down_bias)

    def value_and_jacobian(self, X: Tensor, *, memory: int = 0) -> "tuple[Tensor, MLPJacobian | GatedJacobian]":
        """Return the value and the derivative at ``X``; ``memory`` is for maps with weights."""
        hidden, jacobian = self._hidden(X)
        return functional.linear(hidden, self.down, self.down_bias), jacobian()

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "MLPJacobian | GatedJacobian":
        """Differentiate at ``X``."""
        _hidden, jacobian = self._hidden(X)
        return jacobian()

    def __repr__(self) -> str:
        hidden, d = self.up.shape
        kind, out = type(self).__name__, self.down.shape[0]
        return f"{kind}(d={d}, hidden={hidden}, out={out}, {self.activation}, {self.up.dtype})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MLP(_FeedForward):
    r"""Two linear layers with an activation between them: :math:`f(x) = W_2\,\varphi(W_1x + b_1) + b_2`.

    Attributes:
        up: :math:`W_1`, ``(hidden, d)``.
        down: :math:`W_2`, ``(out, hidden)``.
        up_bias: :math:`b_1`, or ``None`` for zero.
        down_bias: :math:`b_2`, or ``None`` for zero.
        activation: :math:`\varphi`, or its name: ``gelu``, ``gelu_tanh``, ``quick_gelu``, ``silu``, ``relu``,
            ``relu_squared``, ``tanh``, ``identity``.

    Example:
        >>> identity = torch.eye(2)
        >>> MLP(up=identity, down=2 * identity, activation="relu")(torch.tensor([[-1.0, 3.0]]))
        tensor([[0., 6.]])
    """

    up: Float[Tensor, "hidden d"]
    down: Float[Tensor, "out hidden"]
    up_bias: Float[Tensor, " hidden"] | None = None
    down_bias: Float[Tensor, " out"] | None = None
    activation: Activation | str = "gelu"

    def __post_init__(self) -> None:
        _require_layers(self)
        object.__setattr__(self, "activation", known_activation(self.activation))

    def _hidden(self, X: Tensor) -> "tuple[Tensor, Callable[[], MLPJacobian]]":
        require_tokens(X, self.up)
        activation, out = known_activation(self.activation), self.down.shape[0]
        hidden = functional.linear(X, self.up, self.up_bias)
        return activation.value(hidden), lambda: MLPJacobian(
            slopes=activation.slope(hidden), up=self.up, down=self.down, **on_tokens(X, out)
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GatedMLP(_FeedForward):
    r"""An MLP whose hidden layer is multiplied by a gate (SwiGLU, GeGLU).

    .. math:: f(x) = W_2\,\bigl(\varphi(a)\circ u\bigr) + b_2,\qquad a = Gx + b_g,\quad u = Ux + b_u

    Attributes:
        gate: :math:`G`, ``(hidden, d)``: what the activation is applied to.
        up: :math:`U`, ``(hidden, d)``.
        down: :math:`W_2`, ``(out, hidden)``.
        gate_bias: :math:`b_g`, or ``None`` for zero.
        up_bias: :math:`b_u`, likewise.
        down_bias: :math:`b_2`, likewise.
        activation: :math:`\varphi`, or its name, as in :class:`MLP`.

    Example:
        >>> one = torch.ones(1, 1)
        >>> GatedMLP(gate=one, up=one, down=one, activation="relu")(torch.tensor([[3.0]]))
        tensor([[9.]])
    """

    gate: Float[Tensor, "hidden d"]
    up: Float[Tensor, "hidden d"]
    down: Float[Tensor, "out hidden"]
    gate_bias: Float[Tensor, " hidden"] | None = None
    up_bias: Float[Tensor, " hidden"] | None = None
    down_bias: Float[Tensor, " out"] | None = None
    activation: Activation | str = "silu"

    def __post_init__(self) -> None:
        require_matrix(self.gate, "gate")
        _require_layers(self)
        require_shape(self.gate, tuple(self.up.shape), "gate")
        require_agreement(self.gate, self.up, "gate", "up")
        require_bias(self.gate_bias, self.gate, "gate_bias", "gate")
        object.__setattr__(self, "activation", known_activation(self.activation))

    def _hidden(self, X: Tensor) -> "tuple[Tensor, Callable[[], GatedJacobian]]":
        require_tokens(X, self.up)
        activation, out = known_activation(self.activation), self.down.shape[0]
        gates = functional.linear(X, self.gate, self.gate_bias)
        hidden = functional.linear(X, self.up, self.up_bias)
        opened = activation.value(gates)
        matrices: dict[str, Any] = {"gate": self.gate, "up": self.up, "down": self.down}
        return opened * hidden, lambda: GatedJacobian(
            opened=opened, slopes=hidden * activation.slope(gates), **matrices, **on_tokens(X, out)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MLPJacobian(SeparableOperator):
    r"""The derivative of an MLP: :math:`J = W_2\,\mathrm{diag}(\varphi'(W_1x + b_1))\,W_1`."""

    slopes: Float[Tensor, "*batch n hidden"]
    up: Float[Tensor, "hidden d"]
    down: Float[Tensor, "out hidden"]

    batched: ClassVar[dict[str, int]] = {"slopes": 2}

    def _push(self, E: Tensor) -> Tensor:
        return functional.linear(times(functional.linear(E, self.up), self.slopes), self.down)

    def _pull(self, G: Tensor) -> Tensor:
        return times(G @ self.down, self.slopes) @ self.up


@dataclass(frozen=True, kw_only=True, eq=False)
class GatedJacobian(SeparableOperator):
    r"""The derivative of a gated MLP.

    .. math:: J = W_2\,\bigl(\mathrm{diag}(\varphi(a))\,U + \mathrm{diag}(u\circ\varphi'(a))\,G\bigr)
    """

    opened: Float[Tensor, "*batch n hidden"]  # φ(a)
    slopes: Float[Tensor, "*batch n hidden"]  # u∘φ'(a)
    gate: Float[Tensor, "hidden d"]  # G
    up: Float[Tensor, "hidden d"]  # U
    down: Float[Tensor, "out hidden"]  # W₂

    batched: ClassVar[dict[str, int]] = {"opened": 2, "slopes": 2}

    def _push(self, E: Tensor) -> Tensor:
        # Why not one product with both matrices stacked: it would copy them, and they are most of the memory.
        hidden = times(functional.linear(E, self.up), self.opened)
        return functional.linear(hidden.addcmul(functional.linear(E, self.gate), self.slopes), self.down)

    def _pull(self, G: Tensor) -> Tensor:
        g = G @ self.down
        # first the product that still needs g: the other one may be written over it
        through_gates = (g * self.slopes) @ self.gate
        return through_gates + times(g, self.opened) @ self.up


def times(x: Tensor, factors: Tensor) -> Tensor:
    """Return ``x * factors``, in place of ``x`` where autograd does not record; ``x`` must have no other user."""
    return x * factors if recorded(x, factors) else x.mul_(factors)


def _require_layers(f: MLP | GatedMLP) -> None:
    require_matrix(f.up, "up")
    require_matrix(f.down, "down")
    require_shape(f.down, (f.down.shape[0], f.up.shape[0]), "down")
    require_agreement(f.down, f.up, "down", "up")
    require_bias(f.up_bias, f.up, "up_bias", "up")
    require_bias(f.down_bias, f.down, "down_bias", "down")
