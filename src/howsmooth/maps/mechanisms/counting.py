"""Masses for mechanisms that count tokens: twice as many tokens are not the same as twice the mass."""

import math
from dataclasses import dataclass
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.mean_field import Atoms
from howsmooth.maps.scored import ScoreAttention

C = TypeVar("C", bound="CountingAttention")


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


def token_counts(
    weights: Float[Tensor, "... n"] | None, count: float | None, n: int, like: Tensor
) -> Float[Tensor, "... n"] | None:
    r"""Return for how many tokens each token counts, :math:`m_j = \mathrm{count}\cdot a_j/\sum_la_l`.

    ``None`` means one each, so it is for equal masses of as many tokens as there are.
    """
    if weights is None:
        return None if count is None or count == n else like.new_full((n,), count / n)
    return weights * ((n if count is None else count) / weights.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CountingAttention(ScoreAttention):
    """Attention by scores in which each token counts once.

    Attributes:
        count: How many tokens all mass stands for; ``None`` means as many as there are.
    """

    count: float | None = None

    def on(self: C, measure: Atoms) -> C:
        """Return the map that moves the atoms of a measure; ``count`` has to be given."""
        require_count_on_measures(self.count)
        return super().on(measure)

    def _check_options(self) -> None:
        super()._check_options()
        require_count(self.count)
