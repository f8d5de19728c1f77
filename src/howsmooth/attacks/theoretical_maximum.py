"""What no adversary can exceed: the displacement that is proven on a ball around the input."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.attacks.ball import PerturbationBall
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.theory.around_input.displacement import displacement_upper


def ceiling(f: Any, X: Float[Tensor, "*batch n d"], ball: PerturbationBall) -> Float[Tensor, "*batch"] | None:
    r"""Bound the displacement over the ball by :func:`howsmooth.bounds.displacement_upper`.

    .. math:: \|f(X+E)-f(X)\| \le \int_0^\epsilon g(t)\,dt, \qquad g(t) \ge \sup_{\|E\|\le t}\|D_{X+E}f\|

    or by the hull of the values, where that is smaller. It can be less than the derivative at X predicts: the output
    of a softmax saturates.

    Returns:
        The bound of each sequence; none if the map is no attention, or not of a form that the theorem covers.
    """
    if not isinstance(f, Attention):
        return None
    rows = X.reshape(-1, *X.shape[-2:])
    try:
        found = [displacement_upper(f, x, eps=ball.eps, per_token=ball.per_token).value for x in rows]
    except AssumptionError:
        return None
    return torch.tensor(found, dtype=torch.float64, device=X.device).reshape(X.shape[:-2])
