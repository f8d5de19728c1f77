"""EntmaxAttention: sparse weights."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Mechanism
from howsmooth.maps.mechanisms.sigmoid import CountingAttention, token_counts
from howsmooth.maps.weighting import Pick, SymmetricWeights, Tile, softmax_magnitudes
from howsmooth.torch_internals import in_place, softmax_derivative

ALPHAS = (1.5, 2.0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EntmaxAttention(CountingAttention):
    r"""Attention with the α-entmax in place of the softmax :cite:`peters2019`.

    .. math:: P^h_{ij} = m_j\,\bigl[(\alpha-1)(S_{ij}-\tau_i)\bigr]_+^{1/(\alpha-1)},\qquad \sum_jP^h_{ij} = 1

    α = 2 is the sparsemax. Each token counts once, :math:`m_j = 1`; with masses :math:`m_j = N a_j/\sum_l a_l`, where
    N is ``count``: the number of tokens that the total mass represents. Scores are those of
    :class:`howsmooth.Attention`.

    The derivative of a row is :math:`\mathrm{diag}(g) - gg^\top/\sum g`, :math:`g_j = m_j(P_{ij}/m_j)^{2-\alpha}` on
    the support; where the support changes there is none, and this is the one from within.

    Attributes:
        alpha: α, 1.5 or 2.
        count: N; ``None`` means the number of tokens.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> one = torch.eye(1)
        >>> EntmaxAttention.single_head(Q=one, K=one, V=one, alpha=2.0)(torch.tensor([[1.0], [3.0]]))
        tensor([[3.],
                [3.]])
    """

    alpha: float = 1.5

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"entmax": {"alpha": 1.5}, "sparsemax": {"alpha": 2.0}}
    counting_kinds: ClassVar[tuple[str, ...]] = ("entmax", "sparsemax")

    def _mechanism(self, X: Tensor) -> Mechanism:
        n = X.shape[-2]
        masses = token_counts(self.weights, self.count, n, X)
        if masses is not None:
            masses = masses.expand(*X.shape[:-2], n).reshape(-1, 1, n).repeat_interleave(self.layout.groups, dim=0)
        return Mechanism(weighting=Entmax(alpha=self.alpha, masses=masses), value=self.value, masses_in_scores=False)

    def _check_options(self) -> None:
        super()._check_options()
        if self.alpha not in ALPHAS:
            raise AssumptionError(
                f"alpha must be 1.5 or 2, got {self.alpha}; for 1 use hs.Attention, whose softmax is the limit.",
                field="alpha",
            )


@dataclass(frozen=True, eq=False)
class EntmaxWeights(SymmetricWeights):
    r"""Weights whose rows have the derivative :math:`\gamma(\mathrm{diag}(w) - ww^\top)`: γ times a softmax's."""

    P: Float[Tensor, "stack rows columns"]
    w: Float[Tensor, "stack rows columns"]  # g/γ
    total: Float[Tensor, "stack rows 1"]  # γ = Σ g

    def jvp(self, D: Tensor) -> Tensor:
        """Push a change of scores forward, or pull a cotangent of weights back."""
        moved = softmax_derivative(D, self.w)
        return moved.mul_(self.total) if in_place(moved, self.total) else moved * self.total

    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the sum of the absolute values of both terms of every entry."""
        return softmax_magnitudes(D, self.w) * self.total

    def take(self, pick: Pick) -> "EntmaxWeights":
        """Return the weights of some entries of the batch."""
        return EntmaxWeights(pick(self.P), pick(self.w), pick(self.total))


@dataclass(frozen=True, kw_only=True, eq=False)
class Entmax:
    """The rule of α-entmax, exactly: by sorting."""

    alpha: float  # α
    masses: Float[Tensor, "stack 1 n"] | None  # the number of tokens that each token counts for, or none for one

    couples_rows = False
    matrices = 2
    allows_empty_rows = False
    sums_to_one = True

    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> EntmaxWeights:
        """Return the weights of a tile of scores."""
        m = S.new_ones(()) if self.masses is None else self.masses[..., tile.columns]
        visible = -torch.inf < S
        m = torch.where(visible, m, 0)
        z = (self.alpha - 1) * S
        # τ moves with a common shift of the row: near zero its sums of squares keep their digits
        z = torch.where(visible, z - z.detach().amax(-1, keepdim=True), 0)
        t = (z - self._threshold(z, m)).relu()
        if self.alpha == 2:
            P, g = m * t, m * (t > 0)
        else:
            P, g = m * t.square(), m * t
        total = g.sum(-1, keepdim=True)
        return EntmaxWeights(P, g / total, total)

    def _threshold(self, z: Tensor, m: Tensor) -> Float[Tensor, "stack rows 1"]:
        """Return τ: from the support, which is the longest top of the row whose own τ lies below it."""
        with torch.no_grad():
            top, order = z.sort(dim=-1, descending=True)
            each = self._from_sums(*(x.cumsum(-1) for x in _moments(top, m.gather(-1, order))))
            last = ((each <= top) * torch.arange(1, z.shape[-1] + 1, device=z.device)).amax(-1, keepdim=True)
            support = z >= top.gather(-1, last - 1)
        # once more outside of no_grad, on the support alone: autograd follows this and not the sorting
        return self._from_sums(*(x.sum(-1, keepdim=True) for x in _moments(z, m * support)))

    def _from_sums(self, count: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Solve for τ, given the sums of m, mz and mz² over the support."""
        mean = first / count
        if self.alpha == 2:
            return mean - 1 / count
        return mean - ((1 - (second - first * mean)) / count).clamp_min(0).sqrt()

    def rounding(self, n: int) -> float:
        r"""The largest of the slopes g of a row is at least :math:`1/\sqrt n`, and moves by as much as scores do."""
        return float(n) ** 0.5

    def take(self, pick: Pick) -> "Entmax":
        """Return the rules of some entries of the batch."""
        return Entmax(alpha=self.alpha, masses=None if self.masses is None else pick(self.masses))


def _moments(z: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return m, m * z, m * z.square()
