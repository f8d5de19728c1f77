"""What the derivative at the input predicts, for each unit of eps."""

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.ball import PerturbationBall
from howsmooth.attacks.objective import draw
from howsmooth.linear_operators import LinearOperator
from howsmooth.spectral.solvers import spectral_norm
from howsmooth.spectral.vectors import norms

# Block power iteration goes on until it gains less than this, or for so many steps.
RTOL, STEPS = 1e-4, 60
# It starts from the top singular vector and from so many random places.
PLACES = 3


@torch.no_grad()
def steepest(J: LinearOperator, norm: str, generator: torch.Generator) -> Float[Tensor, "*batch"]:
    r"""Maximise :math:`\|JE\|` over the ball of radius one: the largest singular value, or a search for each token.

    Under the norm of tokens no method is known to find the maximum; the value is attained, and at most
    :math:`\sqrt n` times the largest singular value.
    """
    top = spectral_norm(J, certify=False, generator=generator)
    ball = PerturbationBall(eps=1.0, norm=norm)
    if not ball.per_token:
        return top.lower.double()
    places = [top.direction, *(draw(J, ball, generator) for _place in range(PLACES))]
    return torch.stack([block_power(J, ball.surface(E), ball) for E in places]).amax(0)


def block_power(J: LinearOperator, E: Float[Tensor, "*batch n d"], ball: PerturbationBall) -> Float[Tensor, "*batch"]:
    r"""Iterate :math:`E \leftarrow \mathrm{surface}(J^\top JE)` and return :math:`\|JE\|`.

    The square of the norm is convex, so each step maximises a lower bound that touches it: the value never falls.
    """
    moved = J.jvp(E)
    value = norms(moved, J.batch)
    for _step in range(STEPS):
        moved = J.jvp(ball.surface(J.vjp(moved)))
        before, value = value, torch.maximum(value, norms(moved, J.batch))
        if bool((value <= before * (1 + RTOL)).all()):
            break
    return value


def dual(G: Float[Tensor, "*batch n d"], norm: str) -> Float[Tensor, "*batch"]:
    r"""Return the largest :math:`\langle G,E\rangle` over the unit ball: :math:`\|G\|_F` or :math:`\sum|g_i|`."""
    return PerturbationBall(eps=1.0, norm=norm).sizes(G).sum((-2, -1))
