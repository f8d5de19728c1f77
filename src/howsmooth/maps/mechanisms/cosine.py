"""CosineAttention: scores are cosines of queries and keys."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.norms import RMSNorm
from howsmooth.maps.projections import TokenScaling, Transform, Transforms
from howsmooth.maps.weighting import Softmax


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
