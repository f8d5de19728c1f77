"""The feed-forward part of a block: two linear layers and an activation between them, plain or gated."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from howsmooth.linear_operators import Operator, on_tokens
from howsmooth.maps.activations import Activation, known_activation
from howsmooth.maps.dense import require_bias, require_matrix
from howsmooth.maps.protocols import take
from howsmooth.maps.weighting import recorded
from howsmooth.tensor_dataclass import TensorDataclass
from howsmooth.validation import require_agreement, require_shape, require_tokens


class _FeedForward(TensorDataclass, ABC):
    """What plain and gated MLPs share."""

    up: Tensor
    down: Tensor
    activation: Activation | str

    @abstractmethod
    def value_and_jacobian(self, X: Tensor, *, memory: int = 0) -> tuple[Tensor, "MLPJacobian | GatedJacobian"]:
        """Return the value and the derivative at ``X``, which share products; ``memory`` is for maps with weights."""

    def jacobian(self, X: Float[Tensor, "*batch n d"]) -> "MLPJacobian | GatedJacobian":
        """Differentiate at ``X``."""
        _value, jacobian = self.value_and_jacobian(X)
        return jacobian

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.up.dtype

    def __repr__(self) -> str:
        """Show its shape, without its numbers."""
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
        """Check the parameters once, and look the activation up."""
        _require_layers(self)
        object.__setattr__(self, "activation", known_activation(self.activation))

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply the map to every token."""
        require_tokens(X, self.up)
        hidden = functional.linear(X, self.up, self.up_bias)
        return functional.linear(known_activation(self.activation).value(hidden), self.down, self.down_bias)

    def value_and_jacobian(
        self, X: Float[Tensor, "*batch n d"], *, memory: int = 0
    ) -> tuple[Float[Tensor, "*batch n out"], "MLPJacobian"]:
        """Return the value and the derivative at ``X``, which share a product; ``memory`` is for maps with weights."""
        require_tokens(X, self.up)
        activation = known_activation(self.activation)
        hidden = functional.linear(X, self.up, self.up_bias)
        value = functional.linear(activation.value(hidden), self.down, self.down_bias)
        slopes = activation.slope(hidden)
        return value, MLPJacobian(slopes=slopes, up=self.up, down=self.down, **on_tokens(X, self.down.shape[0]))


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
        """Check the parameters once, and look the activation up."""
        require_matrix(self.gate, "gate")
        _require_layers(self)
        require_shape(self.gate, tuple(self.up.shape), "gate")
        require_agreement(self.gate, self.up, "gate", "up")
        require_bias(self.gate_bias, self.gate, "gate_bias", "gate")
        object.__setattr__(self, "activation", known_activation(self.activation))

    def __call__(self, X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Apply the map to every token."""
        require_tokens(X, self.up)
        gates = functional.linear(X, self.gate, self.gate_bias)
        hidden = functional.linear(X, self.up, self.up_bias)
        return functional.linear(known_activation(self.activation).value(gates) * hidden, self.down, self.down_bias)

    def value_and_jacobian(
        self, X: Float[Tensor, "*batch n d"], *, memory: int = 0
    ) -> tuple[Float[Tensor, "*batch n out"], "GatedJacobian"]:
        """Return the value and the derivative at ``X``, which share products; ``memory`` is for maps with weights."""
        require_tokens(X, self.up)
        activation = known_activation(self.activation)
        gates = functional.linear(X, self.gate, self.gate_bias)
        hidden = functional.linear(X, self.up, self.up_bias)
        opened = activation.value(gates)
        value = functional.linear(opened * hidden, self.down, self.down_bias)
        return value, GatedJacobian(
            opened=opened,
            slopes=hidden * activation.slope(gates),
            gate=self.gate,
            up=self.up,
            down=self.down,
            **on_tokens(X, self.down.shape[0]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MLPJacobian(Operator):
    r"""The derivative of an MLP: :math:`J = W_2\,\mathrm{diag}(\varphi'(W_1x + b_1))\,W_1`."""

    slopes: Float[Tensor, "*batch n hidden"]
    up: Float[Tensor, "hidden d"]
    down: Float[Tensor, "out hidden"]

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push a perturbation forward."""
        self.check_perturbation(E)
        return functional.linear(times(functional.linear(E, self.up), self.slopes), self.down)

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        self.check_cotangent(G)
        return times(G @ self.down, self.slopes) @ self.up

    def take(self, index: Tensor) -> "MLPJacobian":
        """Pick some operators of the batch."""
        return dataclasses.replace(self, slopes=take(self.slopes, self.batch, index, event=2), batch=(len(index),))


@dataclass(frozen=True, kw_only=True, eq=False)
class GatedJacobian(Operator):
    r"""The derivative of a gated MLP.

    .. math:: J = W_2\,\bigl(\mathrm{diag}(\varphi(a))\,U + \mathrm{diag}(u\circ\varphi'(a))\,G\bigr)

    Attributes:
        opened: :math:`\varphi(a)`.
        slopes: :math:`u\circ\varphi'(a)`.
        gate: :math:`G`.
        up: :math:`U`.
        down: :math:`W_2`.
    """

    opened: Float[Tensor, "*batch n hidden"]
    slopes: Float[Tensor, "*batch n hidden"]
    gate: Float[Tensor, "hidden d"]
    up: Float[Tensor, "hidden d"]
    down: Float[Tensor, "out hidden"]

    def jvp(self, E: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n out"]:
        """Push a perturbation forward."""
        self.check_perturbation(E)
        # Why not one product with both matrices stacked: it would copy them, and they are most of the memory.
        hidden = times(functional.linear(E, self.up), self.opened)
        return functional.linear(hidden.addcmul(functional.linear(E, self.gate), self.slopes), self.down)

    def vjp(self, G: Float[Tensor, "*batch n out"]) -> Float[Tensor, "*batch n d"]:
        """Pull a cotangent back."""
        self.check_cotangent(G)
        g = G @ self.down
        through_gates = (g * self.slopes) @ self.gate
        return through_gates + times(g, self.opened) @ self.up

    def take(self, index: Tensor) -> "GatedJacobian":
        """Pick some operators of the batch."""
        opened, slopes = (take(x, self.batch, index, event=2) for x in (self.opened, self.slopes))
        return dataclasses.replace(self, opened=opened, slopes=slopes, batch=(len(index),))


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
