"""L2Attention: scores are squared distances of queries and keys."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Mechanism, ScoreAttention
from howsmooth.maps.projections import L2KeyLift, L2QueryLift, Transforms
from howsmooth.maps.weighting import Softmax


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
