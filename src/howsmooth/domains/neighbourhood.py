"""The inputs near a given one."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.domains.ball import Ball
from howsmooth.domains.domain import tokens
from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.validation import require_finite, require_floating

# What rounding carried outside is shrunk so often before it is given up for the centre.
SHRINKINGS = 4


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    r"""The inputs near a given one: :math:`\|Z-X\|_F \le \epsilon`, or :math:`|z_i-x_i| \le \epsilon` for every token.

    Attributes:
        X: The given input.
        eps: How far its neighbours are.
        per_token: Whether every token may move that far, or all of them together.

    Example:
        >>> Neighbourhood(torch.zeros(2, 1), eps=5.0).nearest(torch.tensor([[6.0], [8.0]]))
        tensor([[3.],
                [4.]])
    """

    X: Float[Tensor, "n d"]
    eps: float
    per_token: bool = False

    def __post_init__(self) -> None:
        """Check the input once."""
        require_floating(self.X, "X")
        if self.X.ndim != 2 or not self.X.numel():
            raise ShapeError(f"X must be one input, (n, d), got {tuple(self.X.shape)}.", field="X")
        require_finite(self.X, "X")
        if not 0 < self.eps < math.inf:
            raise AssumptionError(f"eps must be positive and finite, got {self.eps}.", field="eps")

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """The shape of the given input."""
        n, d = self.X.shape
        return n, d

    @property
    def scale(self) -> float:
        """The unit of length for the steps of a token."""
        return self.eps if self.per_token else self.eps / math.sqrt(self.X.shape[0])

    def nearest(self, Z: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Project onto the neighbourhood; what rounding carries outside is brought back, at worst to the centre.

        The distance is taken in float64: near a large token, float32 has few numbers within a small ``eps``.
        """
        X = self.X.to(Z.device, torch.float64)
        offset = self._ball.nearest(self._apart(Z.double() - X))
        for _try in range(SHRINKINGS):
            rounded = (X + offset.reshape(Z.shape)).to(Z.dtype)
            length = torch.linalg.vector_norm(self._apart(rounded.double() - X), dim=-1, keepdim=True)
            outside = length > self.eps
            if not bool(outside.any()):
                return rounded
            # by twice what is too much: the next rounding may carry outwards again
            offset = torch.where(outside, offset * (2 * self.eps / length - 1).clamp_min(0.5), offset)
        return (X + torch.where(outside, 0.0, offset).reshape(Z.shape)).to(Z.dtype)

    def direction(self, Z: Float[Tensor, "*batch n d"], G: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Return the direction of steepest ascent in the neighbourhood: on its surface nothing moves outwards."""
        return self._ball.direction(self._apart(Z - self.X.to(Z)), self._apart(G)).reshape(Z.shape)

    def draw(
        self, count: int, n: int, like: Float[Tensor, " d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "count n d"]:
        """Draw from concentric neighbourhoods, from a small one to the whole; the first is the given input itself."""
        whole = self._apart(self.X.to(like))
        offsets = self._ball.draw(count, whole.shape[0], whole[0], generator)
        offsets[:1] = 0
        return self.nearest(self.X.to(like) + offsets.reshape(count, *self.X.shape))

    def describe(self, n: int) -> str:
        """Describe an input of ``n`` tokens in words."""
        how = "every one" if self.per_token else "all together"
        return f"{tokens(n)} within {self.eps:g} of a given input, {how}"

    @property
    def _ball(self) -> Ball:
        return Ball(self.eps)

    def _apart(self, Z: Tensor) -> Tensor:
        """Return what may move on its own: the tokens, or the whole input as one long token."""
        return Z if self.per_token else Z.flatten(-2).unsqueeze(-2)
