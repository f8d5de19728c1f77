"""Attention that counts tokens, so that twice as many are not the same as twice the mass: sigmoid and entmax."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.projections import TokenScaling, Transforms
from howsmooth.maps.weighting import Tile, Weighting, Weights, softmax_magnitudes
from howsmooth.torch_internals import in_place, sigmoid_backward, softmax_derivative

C = TypeVar("C", bound="CountingAttention")


def require_count(count: float | None) -> None:
    """Refuse a number of tokens that is not positive and finite."""
    if count is not None and not 0 < count < math.inf:
        raise AssumptionError(f"count must be positive and finite, got {count}.", field="count")


def require_count_on_measures(count: float | None) -> None:
    """Refuse a map on measures that would depend on the number of atoms."""
    if count is None:
        raise AssumptionError(
            "this attention counts tokens, so on measures it needs count=…, the number of tokens that the mass of one "
            "stands for.",
            field="count",
        )


def token_counts(
    weights: Float[Tensor, "... n"] | None, count: float | None, n: int, like: Tensor
) -> Float[Tensor, "... n"] | None:
    r"""Return the number of tokens that each token counts for, :math:`m_j = \mathrm{count}\cdot a_j/\sum_la_l`.

    ``None`` means one each, so it is for equal masses of as many tokens as there are.
    """
    if weights is None:
        return None if count is None or count == n else like.new_full((n,), count / n)
    return weights * ((n if count is None else count) / weights.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CountingAttention(ScoreAttention):
    """Attention by scores without normalisation by mass: each token counts once."""

    count: float | None = None  # the number of tokens that the total mass represents; none means as many as there are

    def on(self: C, measure: object) -> C:
        """Return the map that moves the atoms of a measure; ``count`` has to be given."""
        require_count_on_measures(self.count)
        return super().on(measure)

    def _check_options(self) -> None:
        super()._check_options()
        require_count(self.count)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SigmoidAttention(CountingAttention):
    r"""Attention whose weights do not compete :cite:`ramapuram2025`.

    .. math:: f(X)_i = \sum_h W_h \sum_j m_j\,\sigma\bigl(s\,\langle Q_h x_i + b_q,\; K_h x_j + b_k\rangle + b\bigr)
              \,(V_h x_j + b_v) + b_o

    The bias is :math:`-\log n` by default, so that weights add up to about one. Each token counts once,
    :math:`m_j = 1`; with masses :math:`m_j = N a_j/\sum_l a_l`, where N is ``count``: the number of tokens that the
    total mass represents. On measures this is :math:`\int N\sigma(\cdot - \log N)\,Vy\,d\mu(y)`, and ``count`` is
    needed.

    Attributes:
        bias: :math:`b`; ``None`` means :math:`-\log N`.
        count: :math:`N`; ``None`` means the number of tokens.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> one = torch.eye(1)
        >>> SigmoidAttention.single_head(Q=0 * one, K=0 * one, V=one, bias=0.0)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    bias: float | None = None

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"sigmoid": {}}
    counting_kinds: ClassVar[tuple[str, ...]] = ("sigmoid",)

    def _mechanism(self, X: Tensor) -> Mechanism:
        n = X.shape[-2]
        bias = -math.log(n if self.count is None else self.count) if self.bias is None else self.bias
        masses = token_counts(self.weights, self.count, n, X)
        by_token = None if masses is None else TokenScaling(masses[..., None, :, None])
        return Mechanism(
            weighting=Sigmoid(bias=bias),
            value=self.value,
            transforms=Transforms(value=by_token),
            masses_in_scores=False,
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.bias is not None and not math.isfinite(self.bias):
            raise AssumptionError(f"bias must be finite, got {self.bias}.", field="bias")


@dataclass(frozen=True, eq=False)
class SigmoidWeights(Weights):
    r"""Weights that move with their own scores alone: :math:`dP = P\circ(1-P)\circ dS`."""

    def jvp(self, D: Tensor) -> Tensor:
        """Multiply by the slopes."""
        return sigmoid_backward(D, self.P, out=D if in_place(D, self.P) else None)

    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the sum of the absolute values of both terms of every entry."""
        return (self.P + self.P.square()) * D.abs()


@dataclass(frozen=True, kw_only=True, eq=False)
class Sigmoid(Weighting):
    r"""The rule :math:`P_{ij} = \sigma(S_{ij} + b)`; a weight's relative error is at most its score's absolute one."""

    bias: float

    allows_empty_rows = True
    sums_to_one = False

    def __call__(self, S: Float[Tensor, "stack rows columns"], tile: Tile) -> SigmoidWeights:
        """Return the weights of a tile of scores."""
        if in_place(S):
            return SigmoidWeights(S.add_(self.bias).sigmoid_())
        return SigmoidWeights(torch.sigmoid(S + self.bias))


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
class EntmaxWeights(Weights):
    r"""Weights whose rows have the derivative :math:`\gamma(\mathrm{diag}(w) - ww^\top)`: γ times a softmax's."""

    w: Float[Tensor, "stack rows columns"]  # g/γ
    total: Float[Tensor, "stack rows 1"]  # γ = Σ g

    def jvp(self, D: Tensor) -> Tensor:
        """Push a change of scores forward, or pull a cotangent of weights back."""
        moved = softmax_derivative(D, self.w)
        return moved.mul_(self.total) if in_place(moved, self.total) else moved * self.total

    def magnitudes(self, D: Tensor) -> Tensor:
        """Return the sum of the absolute values of both terms of every entry."""
        return softmax_magnitudes(D, self.w) * self.total


@dataclass(frozen=True, kw_only=True, eq=False)
class Entmax(Weighting):
    """The rule of α-entmax, exactly: by sorting."""

    alpha: float  # α
    masses: Float[Tensor, "stack 1 n"] | None  # the number of tokens that each token counts for, or none for one

    matrices = 2

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


def _moments(z: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return m, m * z, m * z.square()
