"""Masses for mechanisms that count tokens: twice as many tokens are not the same as twice the mass."""

import math

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError


def require_count(count: float | None) -> None:
    """Refuse what is no number of tokens."""
    if count is not None and not 0 < count < math.inf:
        raise AssumptionError(f"count must be positive and finite, got {count}.", field="count")


def require_count_on_measures(count: float | None) -> None:
    """Refuse a map on measures that would depend on how many atoms happen to stand for the mass."""
    if count is None:
        raise AssumptionError(
            "this attention counts tokens, so on measures it needs count=…, the number of tokens that the mass of one "
            "stands for.",
            field="count",
        )


def counted(
    weights: Float[Tensor, "... n"] | None, count: float | None, n: int, like: Tensor
) -> Float[Tensor, "... n"] | None:
    r"""Return for how many tokens each token counts, :math:`m_j = \mathrm{count}\cdot a_j/\sum_la_l`.

    ``None`` means one each, so it is for equal masses of as many tokens as there are.
    """
    if weights is None:
        return None if count is None or count == n else like.new_full((n,), count / n)
    return weights * ((n if count is None else count) / weights.sum(-1, keepdim=True))
