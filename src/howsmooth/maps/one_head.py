"""One head from three matrices, as every mechanism has it."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.positions import Positions
from howsmooth.validation import require_floating


class OneHead(NamedTuple):
    """The projections of one head, and who sees whom."""

    query: Float[Tensor, "1 k d"]
    key: Float[Tensor, "1 k d"]
    value: Float[Tensor, "1 v d"]
    positions: Positions


def one_head(*, Q: Tensor, K: Tensor, V: Tensor, causal: bool, positions: Positions | None) -> OneHead:
    """Give three matrices a head axis; whether they fit together is checked with the layer that they make."""
    for name, x in (("Q", Q), ("K", K), ("V", V)):
        require_floating(x, name)
        if x.ndim != 2:
            raise ShapeError(f"{name} must be a matrix, got {tuple(x.shape)}.", field=name)
    if positions is not None and causal:
        raise AssumptionError("give either causal=True or positions=…, not both; Positions has a causal field.")
    return OneHead(Q[None], K[None], V[None], positions or Positions(causal=causal))
