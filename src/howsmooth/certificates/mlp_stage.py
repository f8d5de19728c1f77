"""The remainder of feed-forward parts and of single activations."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from howsmooth.certificates.curvature import SMOOTH, derivative, largest_curvature, require_known
from howsmooth.certificates.sizes import Ball, Squares
from howsmooth.certificates.stages import Bent, First, Stage, at_every_token, root
from howsmooth.maps.activations import Activation
from howsmooth.maps.mlp import MLP, GatedMLP

# So many pairs of columns meet at once.
PAIRS = 2**10


def bending(activation: Activation, y: Tensor, s: Tensor) -> Tensor:
    r"""Bound :math:`|\varphi(y+t)-\varphi(y)-\varphi'(y)t|` over :math:`|t|\le s`.

    A kink counts from where it is; a smooth activation by :math:`\tfrac12\sup|\varphi''|s^2`.
    """
    if activation.name == "relu":
        return (s - y.abs()).clamp_min(0)
    return 0.5 * largest_curvature(activation, y - s, y + s) * s.square()


class FeedForwardStage(Stage):
    r"""What plain and gated MLPs share: the remainder is :math:`W_2r`, r the remainders of hidden units.

    It is along :math:`B = (W_2W_2^\top)^{1/2}`, which has d columns only, and no longer than :math:`|r|`.
    """

    name = "mlp"

    def __init__(self, down: Float[Tensor, "out hidden"], n: int) -> None:
        r"""Keep the root of :math:`W_2W_2^\top`."""
        self._root, self._down = root(down), down
        self._n = n

    @property
    def tokens(self) -> Tensor:
        """The token of every group of directions."""
        return torch.arange(self._n)

    def directions(self) -> list[Tensor]:
        """Return the columns of the root at every token."""
        return [at_every_token(self._root, self._n)]


class MLPStage(FeedForwardStage):
    r"""An MLP at tokens x: neuron i moves by at most :math:`s_i`, and bends by at most :math:`r_i`."""

    def __init__(self, f: MLP, X: Float[Tensor, "n d"]) -> None:
        """Look at the MLP at ``X``."""
        super().__init__(f.down, len(X))
        self._up = f.up
        self._activation = require_known(f.activation)
        self._hidden = functional.linear(X, f.up, f.up_bias)
        self._slope = self._activation.slope(self._hidden)

    def through(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> tuple[Tensor, Tensor]:
        """Return how far every neuron moves, and what leaves."""
        moved = bundle @ self._up.mT
        return ball.numbers(moved).flatten(1), (moved * self._slope) @ self._down.mT

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the length of what all neurons of a token bend by."""
        return bending(self._activation, self._hidden, sizes.view_as(self._hidden)).norm(dim=-1)


class SmoothStage(MLPStage, Bent):
    r"""An MLP with a smooth activation: :math:`r_i\le\tfrac12c_it_i^2`.

    So that also :math:`|r|\le\tfrac12\max_i(\sqrt{c_i}s_i)\,|\sqrt c\circ t|`.
    """

    def __init__(self, f: MLP, X: Float[Tensor, "n d"]) -> None:
        """Look at the MLP at ``X``."""
        super().__init__(f, X)
        self._bend = derivative(self._activation, self._hidden)

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the length of what all neurons of a token bend by, each for itself or by what moves them all."""
        s = sizes.view_as(self._hidden)
        root = largest_curvature(self._activation, self._hidden - s, self._hidden + s).sqrt()
        later = (s - first.eps * first.sizes.view_as(s)).clamp_min(0)
        moved = (first.bundle @ self._up.mT) * root
        together = first.eps * first.ball.vectors(moved)[0] + (root * later).norm(dim=-1)
        each = super().bounds(sizes, first)
        return torch.minimum(each, 0.5 * (root * s).amax(-1) * together)

    def second(self, bundle: Float[Tensor, "1 r n d"]) -> Float[Tensor, "1 pairs n out"]:
        r"""Return :math:`W_2\tfrac12\varphi''t^2`."""
        moved = bundle[0] @ self._up.mT
        a, b, times = Squares().packed(len(moved))
        parts = zip(a.split(PAIRS), b.split(PAIRS), times.split(PAIRS), strict=True)
        half = 0.5 * self._bend
        columns = [(many[:, None, None] * half * moved[i] * moved[j]) @ self._down.mT for i, j, many in parts]
        return torch.cat(columns)[None]

    def beyond(self, one: Tensor, rest: Tensor, inside: Tensor | None = None) -> Tensor:
        r"""Bound :math:`\tfrac12\varphi''(y)(t^2-t_1^2) + \tfrac16\varphi^{(3)}t^3`, or all of it."""
        first, later = one.view_as(self._hidden), rest.view_as(self._hidden)
        s, c = first + later, self._bend.abs()
        third = largest_curvature(self._activation, self._hidden - s, self._hidden + s, order=3)
        beyond = 0.5 * c * later * (first + s) + third * s**3 / 6
        whole = bending(self._activation, self._hidden, s) + 0.5 * c * first.square()
        return torch.minimum(beyond, whole).norm(dim=-1)


def mlp_stage(f: MLP, X: Float[Tensor, "n d"]) -> MLPStage:
    """Look at an MLP at ``X``, by its second order where it has one."""
    return SmoothStage(f, X) if require_known(f.activation).name in SMOOTH else MLPStage(f, X)


class GatedStage(FeedForwardStage):
    r"""A gated MLP at tokens x: gates :math:`a` move by at most s, what they open, u, by at most :math:`\tau`.

    .. math:: \varphi(a+t)(u+\tau) - \varphi(a)u - \varphi'(a)tu - \varphi(a)\tau
              = \mathrm{bend}(t)\,u + \bigl(\varphi'(a)t + \mathrm{bend}(t)\bigr)\tau
    """

    def __init__(self, f: GatedMLP, X: Float[Tensor, "n d"]) -> None:
        """Look at the gated MLP at ``X``."""
        super().__init__(f.down, len(X))
        self._both = torch.cat((f.gate, f.up))
        self._activation = require_known(f.activation)
        self._gates = functional.linear(X, f.gate, f.gate_bias)
        self._hidden = functional.linear(X, f.up, f.up_bias)

    def through(self, bundle: Float[Tensor, "groups r n d"], ball: Ball) -> tuple[Tensor, Tensor]:
        """Return how far gates and hidden units move, and what leaves."""
        moved = bundle @ self._both.mT
        gates, hidden = moved.chunk(2, dim=-1)
        opened = self._activation.value(self._gates) * hidden
        opened = opened + self._activation.slope(self._gates) * self._hidden * gates
        return ball.numbers(moved).flatten(1), opened @ self._down.mT

    def bounds(self, sizes: Tensor, first: First) -> Tensor:
        """Bound the length of the remainders of all hidden units of a token."""
        s, tau = sizes.view(self._n, -1).chunk(2, dim=-1)
        bent = bending(self._activation, self._gates, s)
        opened = self._activation.slope(self._gates).abs() * s + bent
        return (bent * self._hidden.abs() + opened * tau).norm(dim=-1)
