"""How far what was computed of all heads at an input may be from what is true."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.rounding import NOTHING, UNIT, safe_norm
from howsmooth.theory.views import View


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubt:
    r"""How far the parts of a certificate may be from what is true; one number for each head, or head and row.

    Attributes:
        change: The share of a weight that may be wrong, :attr:`~howsmooth.theory.rounding.Rounding.change`, with the
            weights that are too small to be kept.
        reach: How far true values :math:`W_hV_hx_j` are from their middle, at most.
        wrong: How far a computed value is from the true one.
        keys: How far true keys are from their middle, times :math:`\|Q_h\|`.
        wrong_keys: How far a computed key is from the true one, times :math:`\|Q_h\|`.
        pull: The largest that the true :math:`|g^h_i|` may be.
        wrong_pull: How far the computed :math:`g^h_i` is from the true one.
        lost: What the product :math:`W_hV_h` may have lost.
        norms: Bounds on :math:`\|P^h\|`, for the true weights.
        values: Bounds on :math:`\|W_hV_h\|`.
    """

    change: Float[Tensor, "heads n"]
    reach: Float[Tensor, " heads"]
    wrong: Float[Tensor, " heads"]
    keys: Float[Tensor, " heads"]
    wrong_keys: Float[Tensor, " heads"]
    pull: Float[Tensor, "heads n"]
    wrong_pull: Float[Tensor, "heads n"]
    lost: Float[Tensor, " heads"]
    norms: Float[Tensor, " heads"]
    values: Float[Tensor, " heads"]

    @classmethod
    def of(cls, views: list[View]) -> "Doubt":
        """Gather what rounding may have done to every head."""
        change, pull, wrong_pull, others = [], [], [], []
        for view, W in zip(views, outputs(views), strict=True):
            r, head, n = view.rounding, view.head, len(view.P)
            K, stretch, Q = float(head.K.norm()), safe_norm(W), safe_norm(head.Q)
            wrong, lost = stretch * r.value, sum(head.V.shape) * UNIT * float(W.norm()) * float(head.V.norm())
            off = r.query * K + 2 * len(head.K) * UNIT * view.q.norm(dim=-1) * K
            change.append(r.change + n * NOTHING * r.growth)
            pull.append((1 + 64 * UNIT) * (view.q @ head.K).norm(dim=-1) + off)
            wrong_pull.append(off)
            reach, keys = stretch * (view.reach + 2 * r.value), Q * (view.key_reach + 2 * r.key)
            values = (1 + 8 * sum(head.V.shape) * UNIT) * head.norm_WV + lost
            others.append((reach, wrong, keys, Q * r.key, lost, view.norm_P(), values))
        numbers = torch.tensor(others, dtype=torch.float64).mT
        names = ("reach", "wrong", "keys", "wrong_keys", "lost", "norms", "values")
        return cls(
            change=torch.stack(change),
            pull=torch.stack(pull),
            wrong_pull=torch.stack(wrong_pull),
            **dict(zip(names, numbers, strict=True)),
        )

    def of_weights(self) -> float:
        r"""Bound :math:`\|\sum_h\delta P^h\otimes B_h\|` for what may be wrong in the weights and in the products."""
        share = self.change.amax(-1) + 64 * self.change.shape[1] * UNIT
        return float((share * self.norms * self.values + self.lost * self.norms).sum())

    def of_rows(self) -> Float[Tensor, " n"]:
        r"""Bound the same for every row of :math:`\sum_hP^h\otimes B_h`; no row of weights is longer than one."""
        share = self.change + 64 * self.change.shape[1] * UNIT
        return (share * self.values[:, None]).sum(0) + self.lost.sum()

    def of_second(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Return what the second term of every row may have lost, and the most that it can be.

        Covariances of any weights are at most the product of both reaches, and with weights that are wrong by a share
        of c they are wrong by that share of it.
        """
        most = (self.reach * self.keys)[:, None]
        share = self.change + (8 * self.change.shape[1] + 64) * UNIT
        lost = share * most + 4 * (self.wrong * self.keys + self.wrong_keys * self.reach)[:, None]
        return lost.sum(0), most.sum(0).expand(len(share[0]))

    def of_third(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Return the same for the third term.

        With :math:`\alpha_j = P_{ij}(y_j-\bar y_i)`, :math:`|\alpha|` is at most the reach of values for any weights,
        and wrong by a share of 2c of it: by c in the weights, and by c in the mean.
        """
        reach, wrong = self.reach[:, None], self.wrong[:, None]
        share = 2 * self.change + (8 * self.change.shape[1] + 64) * UNIT
        lost = (share * reach + 4 * wrong) * self.pull + reach * self.wrong_pull
        return lost.sum(0), (reach * self.pull).sum(0)


def outputs(views: list[View]) -> list[Float[Tensor, "out v"]]:
    """Return the output projection of every head; concatenated heads have slices of the identity."""
    given = [view.head.W for view in views if view.head.W is not None]
    width = views[0].y.shape[1]
    return given or list(torch.eye(len(views) * width, dtype=torch.float64).split(width, 1))
