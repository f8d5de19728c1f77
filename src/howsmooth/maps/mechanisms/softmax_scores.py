"""Other scores for the softmax: squared distances (L2), cosines, and the difference of two softmaxes."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ShapeError
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.norms import RMSNorm
from howsmooth.maps.projections import Halves, L2KeyLift, L2QueryLift, TokenScaling, Transform, Transforms
from howsmooth.maps.weighting import Softmax, Tile, Weighting, Weights, softmax_magnitudes
from howsmooth.torch_internals import in_place, softmax, softmax_backward, softmax_derivative
from howsmooth.validation import require_parameter


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class L2Attention(ScoreAttention):
    r"""Attention by distance :cite:`kim2021`.

    .. math:: f(X)_i = \sum_h W_h \sum_j P^h_{ij}\,(V_h x_j + b_v) + b_o,\qquad
              P^h_{ij} \propto a_j \exp\bigl(-s\,|Q_h x_i + b_q - K_h x_j - b_k|^2\bigr)

    With ``tied``, keys are queries and values pass through :math:`A_h = s\,Q_h^\top Q_h` first: :math:`V_hA_hx_j` in
    place of :math:`V_hx_j`. That is the map that Kim, Papamakarios and Mnih prove to be Lipschitz; the untied one is
    not.

    Since :math:`-|q|^2` is the same for a whole row, scores are :math:`\langle[2q,-1],[k,|k|^2]\rangle`: products of
    matrices, as in plain attention.

    Attributes:
        tied: Whether keys are queries and values pass through :math:`A_h`; ``key`` has to be ``query`` then.

    The other fields are those of :class:`howsmooth.Attention`; there is no soft cap.

    Example:
        >>> one = torch.eye(1)
        >>> L2Attention.single_head(Q=0 * one, K=0 * one, V=one)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    tied: bool = False

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"l2": {}, "l2-tied": {"tied": True}}

    def _mechanism(self, X: Tensor) -> Mechanism:
        value = self.value
        if self.tied:
            value = self.score_scale * (value @ self.query.mT) @ self.query
        return Mechanism(weighting=Softmax(), value=value, transforms=Transforms(L2QueryLift(), L2KeyLift()))

    def _check_options(self) -> None:
        super()._check_options()
        if self.softcap is not None:
            raise AssumptionError("attention by distance has no soft cap.", field="softcap")
        if self.positions.distances is not None:
            raise AssumptionError("attention by distance of tokens has no keys of positions.", field="positions")
        if self.tied and not (self.key.shape == self.query.shape and torch.equal(self.key, self.query)):
            raise AssumptionError("tied=True needs key to be query; give key=query, or tied=False.", field="key")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CosineAttention(ScoreAttention):
    r"""Scaled cosine similarity attention :cite:`qi2023`.

    .. math:: f(X)_i = \nu\sum_h W_h \sum_j P^h_{ij}\,v_j + b_o,\qquad
              P^h_{ij} \propto a_j \exp\bigl(\tau\,\langle\hat q_i, \hat k_j\rangle\bigr),\qquad
              \hat q = q/\sqrt{|q|^2+\epsilon}

    with :math:`q = Q_hx + b_q` and so on. The theorem of LipsFormer is about values that are normalised too.

    Attributes:
        scale: :math:`\tau`; ``None`` means one.
        gain: :math:`\nu`.
        eps: :math:`\epsilon`.
        normalise_values: Whether means are of :math:`\hat v_j` in place of :math:`v_j`.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> one = torch.eye(1)
        >>> CosineAttention.single_head(Q=0 * one, K=one, V=one, eps=1.0)(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """

    gain: float = 1.0
    eps: float = 1e-6
    normalise_values: bool = False

    kinds: ClassVar[dict[str, dict[str, Any]]] = {"cosine": {"eps": 0.01}}

    @property
    def score_scale(self) -> float:
        r"""The factor of the cosines, :math:`\tau`."""
        return 1.0 if self.scale is None else self.scale

    def _mechanism(self, X: Tensor) -> Mechanism:
        unit = self._unit(self.layout.k, 1.0)
        values: Transform | None = None
        if self.normalise_values:
            values = self._unit(self.layout.v, self.gain)
        elif self.gain != 1:
            values = TokenScaling(X.new_full((1, 1, 1), self.gain))
        return Mechanism(weighting=Softmax(), value=self.value, transforms=Transforms(unit, unit, values))

    def _unit(self, width: int, length: float) -> RMSNorm:
        """Return the norm that gives vectors of ``width`` numbers the length ``length``, nearly."""
        return RMSNorm(gain=self.query.new_full((width,), length / math.sqrt(width)), eps=self.eps / width)

    def _check_options(self) -> None:
        super()._check_options()
        if not 0 <= self.eps < math.inf:
            raise AssumptionError(f"eps must not be negative and must be finite, got {self.eps}.", field="eps")
        if not math.isfinite(self.gain):
            raise AssumptionError(f"gain must be finite, got {self.gain}.", field="gain")
        if self.positions.distances is not None:
            raise AssumptionError("attention by cosines has no keys of distances.", field="positions")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DifferentialAttention(ScoreAttention):
    r"""Attention whose weights are the difference of two softmaxes, so that they may be negative :cite:`ye2025`.

    .. math:: f(X)_i = \sum_h W_h \sum_j\bigl(P^{h1}_{ij} - \lambda_hP^{h2}_{ij}\bigr)(V_h x_j + b_v) + b_o

    Queries and keys of a head are twice as wide: the first half of their coordinates makes :math:`P^{h1}`, the second
    :math:`P^{h2}`. The norm that follows in a Differential Transformer is not part of this map.

    Attributes:
        query: ``(heads, 2k, d)``.
        key: ``(groups, 2k, d)``.
        scale: ``None`` means :math:`1/\sqrt k`.
        subtracted: :math:`\lambda`, ``(heads,)``.

    The other fields are those of :class:`howsmooth.Attention`.

    Example:
        >>> zero, one = torch.zeros(2, 1), torch.eye(1)
        >>> DifferentialAttention.single_head(Q=zero, K=zero, V=one, subtracted=0.5)(torch.tensor([[1.0], [3.0]]))
        tensor([[1.],
                [1.]])
    """

    subtracted: Float[Tensor, "*w heads"]

    for_each_head: ClassVar[tuple[str, ...]] = ("subtracted",)
    single_head_defaults: ClassVar[dict[str, Any]] = {"scale": 1.0, "subtracted": 0.5}

    @property
    def score_scale(self) -> float:
        r"""The factor of the scores, ``scale`` or :math:`1/\sqrt k` where none is given."""
        return 1 / math.sqrt(self.layout.k // 2) if self.scale is None else self.scale

    def _mechanism(self, X: Tensor) -> Mechanism:
        subtracted = self.subtracted.expand(*X.shape[:-2], -1).reshape(-1, self.layout.shared)
        return Mechanism(
            weighting=SoftmaxDifference(subtracted=subtracted),
            value=self.value,
            transforms=Transforms(Halves(), Halves()),
            lead=(2,),
        )

    def _check_options(self) -> None:
        super()._check_options()
        if self.layout.k % 2 or not self.layout.k:
            raise ShapeError(
                f"queries and keys have two halves, so their width must be even, got {self.layout.k}.", field="query"
            )
        shape = (*self.query.shape[:-3], self.layout.heads)
        require_parameter(self.subtracted, shape, self.query, "subtracted", "query")
        for what in ("rotary", "distances"):
            if getattr(self.positions, what) is not None:
                raise AssumptionError(f"differential attention does not know {what} positions.", field="positions")


@dataclass(frozen=True, eq=False)
class SoftmaxDifferenceWeights(Weights):
    r"""The weights :math:`P_1 - \lambda P_2`; their scores are stacked, those of :math:`P_1` first."""

    first: Float[Tensor, "stack rows columns"]  # P₁
    second: Float[Tensor, "stack rows columns"]  # P₂
    subtracted: Float[Tensor, "stack rows 1"]  # λ for each row

    def jvp(self, D: Float[Tensor, "twice rows columns"]) -> Float[Tensor, "stack rows columns"]:
        """Push a change of both scores forward."""
        one, two = D.chunk(2)
        moved, back = softmax_derivative(one, self.first), softmax_derivative(two, self.second)
        if in_place(moved, back, self.subtracted):
            return moved.addcmul_(back, self.subtracted, value=-1)
        return torch.addcmul(moved, back, self.subtracted, value=-1)

    def vjp(self, D: Float[Tensor, "stack rows columns"]) -> Float[Tensor, "twice rows columns"]:
        """Pull a cotangent of weights back to both scores."""
        if not in_place(D, self.first, self.subtracted):
            return torch.cat((softmax_backward(D, self.first), softmax_backward(-self.subtracted * D, self.second)))
        # both cotangents are written where they will be read, stacked: a concatenation would copy two tiles
        both = D.new_empty(2 * D.shape[0], *D.shape[1:])
        one, two = both.chunk(2)
        softmax_backward(torch.mul(D, -self.subtracted, out=two), self.second, out=two)
        softmax_backward(D, self.first, out=one)
        return both

    def magnitudes(self, D: Float[Tensor, "twice rows columns"]) -> Float[Tensor, "stack rows columns"]:
        """Return the sum of the absolute values of the terms of every entry."""
        one, two = D.chunk(2)
        return softmax_magnitudes(one, self.first) + self.subtracted.abs() * softmax_magnitudes(two, self.second)


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxDifference(Weighting):
    """The rule from two stacked scores to the difference of their softmaxes."""

    subtracted: Float[Tensor, "stack shared"]

    matrices = 2
    sums_to_one = False

    def __call__(self, S: Float[Tensor, "twice rows columns"], tile: Tile) -> SoftmaxDifferenceWeights:
        """Return the weights of two stacked tiles of scores."""
        first, second = softmax(S).chunk(2)
        subtracted = self.subtracted.repeat_interleave(tile.height, dim=1).unsqueeze(-1)
        return SoftmaxDifferenceWeights(torch.addcmul(first, second, subtracted, value=-1), first, second, subtracted)

    def rounding(self, n: int) -> float:
        """Two weights are subtracted, each with the error of a softmax."""
        return 2.0
