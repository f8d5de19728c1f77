"""What no adversary can exceed: the bound on a ball around the input, where a theorem has one."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.ball import PerturbationBall
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.theory.neighbourhood import neighbourhood_upper


def ceiling(f: Any, X: Float[Tensor, "*batch n d"], ball: PerturbationBall) -> Float[Tensor, "*batch"] | None:
    r"""Bound the displacement over the ball by the largest derivative along straight lines.

    .. math:: \|f(X+E)-f(X)\| \le \|E\|_F\,\sup_{t\in[0,1]}\|D_{X+tE}f\|

    with :math:`\|E\|_F\le\epsilon`, or :math:`\sqrt n\,\epsilon` where every token may move by :math:`\epsilon`.

    Returns:
        The bound of each sequence; none if the map is no attention, or not of a form that the theorem covers.
    """
    if not isinstance(f, Attention):
        return None
    rows = X.reshape(-1, *X.shape[-2:])
    try:
        found = [_at(f, x, ball) for x in rows]
    except AssumptionError:
        return None
    return torch.tensor(found, dtype=torch.float64, device=X.device).reshape(X.shape[:-2])


def _at(f: Attention, x: Float[Tensor, "n d"], ball: PerturbationBall) -> float:
    return ball.scale(len(x)) * neighbourhood_upper(f, x, eps=ball.eps, per_token=ball.per_token).value
