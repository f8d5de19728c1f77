r"""The remainder of MLPs and of single activations: :ref:`Theorem 11 <mlp-remainder>`.

Neuron i moves by :math:`|t_i|\le s_i`, and its remainder is at most :math:`\tfrac12c_it_i^2` with
:math:`c_i = \sup|\varphi''|` over its interval. That of a ReLU is straight on both sides of a kink; lines other than
its derivative are in :mod:`howsmooth.certificates.relu_stage`.
"""

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from howsmooth.certificates.image_norms import UnitBall, packed_pairs
from howsmooth.certificates.stages import FirstOrder, SmoothStage, Stage, at_every_token, matrix_root
from howsmooth.errors import AssumptionError
from howsmooth.maps.activations import ACTIVATIONS, Activation, known_activation
from howsmooth.maps.mlp import MLP, GatedMLP
from howsmooth.rounding import GRID_ERROR

# Activations whose second derivative has a derivative everywhere.
SMOOTH = frozenset(ACTIVATIONS) - {"relu", "relu_squared"}
# The grid on which peaks of |φ''| and |φ'''| are looked for. Beyond its ends the activations of neural networks are
# straight to the last digit, or their curvature decreases.
GRID_END, GRID_POINTS = 24.0, 2**16


def require_known(activation: Activation | str) -> Activation:
    """Return an activation whose curvature is known.

    Raises:
        AssumptionError: If it is not one of ours: autograd would call a kink straight.
    """
    found = known_activation(activation)
    if ACTIVATIONS.get(found.name) is not found:
        raise AssumptionError(
            f"certificates need an activation whose curvature is known ({', '.join(ACTIVATIONS)}), got {found.name}.",
            field="classifier",
        )
    return found


def derivatives(activation: Activation, x: Tensor, order: int) -> list[Tensor]:
    r"""Return :math:`\varphi''(x)` and higher derivatives, up to an order."""
    # By autograd from φ', which is written out for every activation: no second derivative has to be kept in step.
    watched, found = x.detach().clone().requires_grad_(), list[Tensor]()
    with torch.enable_grad():
        last = activation.slope(watched)
        for left in reversed(range(order - 1)):
            if last.requires_grad:
                (last,) = torch.autograd.grad(last.sum(), watched, create_graph=left > 0)
            else:  # a constant
                last = torch.zeros_like(x)
            found.append(last.detach())
    return found


def derivative(activation: Activation, x: Tensor, order: int = 2) -> Tensor:
    r"""Return :math:`\varphi''(x)` or a higher derivative."""
    return derivatives(activation, x, order)[-1]


def largest_derivatives(
    activation: Activation, low: Float[Tensor, "*any"], high: Float[Tensor, "*any"], order: int
) -> list[Tensor]:
    r"""Bound :math:`\sup|\varphi''|` and those of higher derivatives over every interval: at its ends, or at a peak."""
    every = []
    for each, at_ends in enumerate(derivatives(activation, torch.stack((low, high)), order), start=2):
        found = at_ends.abs().amax(0)
        for place, height in derivative_peaks(activation, each):
            # A peak of the grid stands for all points up to its neighbours.
            inside = (low - 2 * GRID_END / GRID_POINTS <= place) & (place <= high + 2 * GRID_END / GRID_POINTS)
            found = torch.where(inside, found.clamp_min(height), found)
        # A peak between two points of the grid is higher than both.
        every.append(found + GRID_ERROR)
    return every


def largest_derivative(
    activation: Activation, low: Float[Tensor, "*any"], high: Float[Tensor, "*any"], order: int = 2
) -> Tensor:
    r"""Bound :math:`\sup|\varphi''|`, or that of a higher derivative, over every interval."""
    return largest_derivatives(activation, low, high, order)[-1]


@cache
def derivative_peaks(activation: Activation, order: int = 2) -> tuple[tuple[float, float], ...]:
    r"""Return where :math:`|\varphi''|` has local maxima above ``GRID_ERROR``, and how high they are on the grid."""
    grid = torch.linspace(-GRID_END, GRID_END, GRID_POINTS + 1, dtype=torch.float64)
    height = derivative(activation, grid, order).abs()
    middle = height[1:-1]
    # A plateau counts at its beginning; inside it the ends of an interval have its height.
    top = (middle > height[:-2]) & (middle >= height[2:]) & (middle > GRID_ERROR)
    return tuple(zip(grid[1:-1][top].tolist(), middle[top].tolist(), strict=True))


def activation_remainder(activation: Activation, y: Tensor, s: Tensor) -> Tensor:
    r"""Bound :math:`|\varphi(y+t)-\varphi(y)-\varphi'(y)t|` over :math:`|t|\le s`.

    That of a ReLU is :math:`(s-|y|)_+`, from its kink on; that of a smooth one :math:`\tfrac12\sup|\varphi''|s^2`.
    """
    if activation.name == "relu":
        return (s - y.abs()).clamp_min(0)
    return 0.5 * largest_derivative(activation, y - s, y + s) * s.square()


class FeedForwardStage(Stage):
    r"""Plain and gated MLPs: the remainder is :math:`W_2r`, r the remainders of hidden units.

    It lies along :math:`B = (W_2W_2^\top)^{1/2}`, which has d columns only, and is no longer than :math:`|r|`.
    """

    name = "mlp"

    def __init__(self, down: Float[Tensor, "out hidden"], n: int) -> None:
        r"""Keep the root of :math:`W_2W_2^\top`."""
        # Why not W₂ itself: it has as many columns as hidden units, several times d, and all would be propagated.
        self._root, self._down = matrix_root(down), down
        self._n = n

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._n)

    def directions(self) -> list[Tensor]:
        """Return the columns of the root at every token."""
        return [at_every_token(self._root, self._n)]


class MLPStage(FeedForwardStage):
    r"""An MLP at tokens x: neuron i moves by at most :math:`s_i`, and its remainder is at most :math:`r_i`."""

    def __init__(self, f: MLP, X: Float[Tensor, "n d"]) -> None:
        """Evaluate the MLP at ``X``."""
        super().__init__(f.down, len(X))
        self._up = f.up
        self._activation = require_known(f.activation)
        self._hidden = functional.linear(X, f.up, f.up_bias)
        self._slope = self._activation.slope(self._hidden)

    def propagate(self, columns: Float[Tensor, "groups r n d"], ball: UnitBall) -> tuple[Tensor, Tensor]:
        """Return how far every neuron moves, and what leaves."""
        hidden = self._up @ columns.movedim(1, -1)
        leaving = (self._down * self._slope[:, None]) @ hidden
        return ball.scalar_norms(hidden.movedim(-1, 1)).flatten(1), leaving.movedim(-1, 1)

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound the length of the remainders of all neurons of a token."""
        return activation_remainder(self._activation, self._hidden, norms.view_as(self._hidden)).norm(dim=-1)


class SmoothMLPStage(MLPStage, SmoothStage):
    r"""An MLP with a smooth activation: :math:`r_i\le\tfrac12c_it_i^2`.

    So that also :math:`|r|\le\tfrac12\max_i(\sqrt{c_i}s_i)\,|\sqrt c\circ t|`.
    """

    def __init__(self, f: MLP, X: Float[Tensor, "n d"]) -> None:
        """Evaluate the MLP at ``X``."""
        super().__init__(f, X)
        self._curvature = derivative(self._activation, self._hidden)

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound the length of the remainders of a token, neuron by neuron or by what moves all of them."""
        s = norms.view_as(self._hidden)
        root = largest_derivative(self._activation, self._hidden - s, self._hidden + s).sqrt()
        # |√c∘t| of the word itself is the norm of a matrix; only what comes from remainders is added up by neurons.
        later = (s - first.eps * first.norms.view_as(s)).clamp_min(0)
        weighted = (first.columns @ self._up.mT) * root
        together = first.eps * first.ball.vector_norms(weighted)[0] + (root * later).norm(dim=-1)
        each = super().remainder(norms, first)
        return torch.minimum(each, 0.5 * (root * s).amax(-1) * together)

    def second_order(self, columns: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        r"""Return :math:`W_2\tfrac12\varphi''t^2`."""
        hidden = self._up @ columns[0].movedim(0, -1)
        a, b, factors = packed_pairs(hidden.shape[-1])
        found = hidden.new_empty(len(hidden), len(self._down), len(a))
        # Token by token: products of all pairs of columns of one fit into the cache.
        for out, t, curvature in zip(found, hidden, self._curvature, strict=True):
            torch.mm(self._down * (0.5 * curvature), t.index_select(-1, a) * t.index_select(-1, b), out=out)
        return found.mul_(factors).movedim(-1, 0)[None]

    def third_order_remainder(self, first: Tensor, later: Tensor, forms: Tensor | None = None) -> Tensor:
        r"""Bound :math:`\tfrac12\varphi''(y)(t^2-t_1^2) + \tfrac16\varphi^{(3)}t^3`, or all of it."""
        s1, s_later = first.view_as(self._hidden), later.view_as(self._hidden)
        s, c = s1 + s_later, self._curvature.abs()
        second, third = largest_derivatives(self._activation, self._hidden - s, self._hidden + s, order=3)
        # t² − t₁² = (t − t₁)(t + t₁): a difference of squares would lose the small part.
        beyond = 0.5 * c * s_later * (s1 + s) + third * s**3 / 6
        whole = 0.5 * second * s.square() + 0.5 * c * s1.square()
        return torch.minimum(beyond, whole).norm(dim=-1)


def mlp_stage(f: MLP, X: Float[Tensor, "n d"]) -> MLPStage:
    """Evaluate an MLP at ``X``, with its second order where it has one."""
    return SmoothMLPStage(f, X) if require_known(f.activation).name in SMOOTH else MLPStage(f, X)


class GatedStage(FeedForwardStage):
    r"""A gated MLP at tokens x: gates :math:`a` move by :math:`|t|\le s`, the hidden units u by at most :math:`\tau`.

    .. math:: \varphi(a+t)(u+\tau) - \varphi(a)u - \varphi'(a)tu - \varphi(a)\tau
              = r(t)\,u + \bigl(\varphi'(a)t + r(t)\bigr)\tau
    """

    def __init__(self, f: GatedMLP, X: Float[Tensor, "n d"]) -> None:
        """Evaluate the gated MLP at ``X``."""
        super().__init__(f.down, len(X))
        self._gate_and_up = torch.cat((f.gate, f.up))
        self._activation = require_known(f.activation)
        self._gates = functional.linear(X, f.gate, f.gate_bias)
        self._hidden = functional.linear(X, f.up, f.up_bias)

    def propagate(self, columns: Float[Tensor, "groups r n d"], ball: UnitBall) -> tuple[Tensor, Tensor]:
        """Return how far gates and hidden units move, and what leaves."""
        both = columns @ self._gate_and_up.mT
        gates, hidden = both.chunk(2, dim=-1)
        product = self._activation.value(self._gates) * hidden
        product = product + self._activation.slope(self._gates) * self._hidden * gates
        return ball.scalar_norms(both).flatten(1), product @ self._down.mT

    def remainder(self, norms: Tensor, first: FirstOrder) -> Tensor:
        """Bound the length of the remainders of all hidden units of a token."""
        s, tau = norms.view(self._n, -1).chunk(2, dim=-1)
        r = activation_remainder(self._activation, self._gates, s)
        # The product of both changes is of second order; it is a part of the remainder, as gates have no exact one.
        change = self._activation.slope(self._gates).abs() * s + r
        return (r * self._hidden.abs() + change * tau).norm(dim=-1)
