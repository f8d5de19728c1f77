"""Rounding-error bounds for all heads of a layer at one input (Theorem 3, rounding)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.linalg.matrix_norms import NOTHING, UNIT, norm_upper


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerErrorBounds:
    r"""Rounding-error bounds for all heads of a layer at one input; one number for each head, or head and row.

    Attributes:
        weight_change: The share of a weight that may be wrong, :attr:`HeadErrorBounds.change`, with the weights that
            are too small to be kept.
        value_radius: A bound on the distances of true values :math:`W_hV_hx_j` from their middle.
        value_error: A bound on the error of a value :math:`W_hV_hx_j`.
        key_radius: A bound on the distances of true keys from their middle, times :math:`\|Q_h\|`.
        key_error: A bound on the error of a key, times :math:`\|Q_h\|`.
        gradient: A bound on the true :math:`|g^h_i|`.
        gradient_error: A bound on the error of :math:`g^h_i`.
        product_error: A bound on the error of the product :math:`W_hV_h`, in the norm.
        P_norm: A bound on :math:`\|P^h\|` for the true weights.
        WV_norm: A bound on :math:`\|W_hV_h\|`.
    """

    weight_change: Float[Tensor, "heads n"]
    value_radius: Float[Tensor, " heads"]
    value_error: Float[Tensor, " heads"]
    key_radius: Float[Tensor, " heads"]
    key_error: Float[Tensor, " heads"]
    gradient: Float[Tensor, "heads n"]
    gradient_error: Float[Tensor, "heads n"]
    product_error: Float[Tensor, " heads"]
    P_norm: Float[Tensor, " heads"]
    WV_norm: Float[Tensor, " heads"]

    @classmethod
    def of(cls, views: list[HeadAtInput]) -> "LayerErrorBounds":
        """Gather the rounding errors of every head."""
        rows, heads = [], []
        for view, W in zip(views, outputs(views), strict=True):
            r, head, n = view.errors, view.head, len(view.P)
            K, norm_W, norm_Q = float(head.K.norm()), norm_upper(W), norm_upper(head.Q)
            product_error = sum(head.V.shape) * UNIT * float(W.norm()) * float(head.V.norm())
            gradient_error = r.query * K + 2 * len(head.K) * UNIT * view.q.norm(dim=-1) * K
            rows.append(
                {
                    # what was flushed to zero is NOTHING at most, for each of n tokens
                    "weight_change": r.change + n * NOTHING * r.growth,
                    "gradient": (1 + 64 * UNIT) * (view.q @ head.K).norm(dim=-1) + gradient_error,
                    "gradient_error": gradient_error,
                }
            )
            heads.append(
                {
                    "value_radius": norm_W * (view.value_radius + 2 * r.value),
                    "value_error": norm_W * r.value,
                    "key_radius": norm_Q * (view.key_radius + 2 * r.key),
                    "key_error": norm_Q * r.key,
                    "product_error": product_error,
                    "P_norm": view.norm_P(),
                    "WV_norm": (1 + 8 * sum(head.V.shape) * UNIT) * head.norm_WV + product_error,
                }
            )
        return cls(
            **{name: torch.stack([row[name] for row in rows]) for name in rows[0]},
            **{name: torch.tensor([head[name] for head in heads], dtype=torch.float64) for name in heads[0]},
        )

    def value_term(self) -> float:
        r"""Bound :math:`\|\sum_h\delta P^h\otimes B_h\|`, errors of the weights and of the products."""
        share = self.weight_change.amax(-1) + 64 * self.weight_change.shape[1] * UNIT
        return float((share * self.P_norm * self.WV_norm + self.product_error * self.P_norm).sum())

    def value_rows(self) -> Float[Tensor, " n"]:
        r"""Bound the same for every row of :math:`\sum_hP^h\otimes B_h`; no row of weights is longer than one."""
        share = self.weight_change + 64 * self.weight_change.shape[1] * UNIT
        return (share * self.WV_norm[:, None]).sum(0) + self.product_error.sum()

    def query_term(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Return a bound on the error of the query term in every row, and one on the term itself.

        Covariances of any weights are at most the product of both radii, and with weights that are wrong by a share
        of c they are wrong by that share of it.
        """
        largest = (self.value_radius * self.key_radius)[:, None]
        # sums of n products, a few of each
        share = self.weight_change + (8 * self.weight_change.shape[1] + 64) * UNIT
        values_and_keys = self.value_error * self.key_radius + self.key_error * self.value_radius
        error = share * largest + 4 * values_and_keys[:, None]
        return error.sum(0), largest.sum(0).expand(len(share[0]))

    def key_term(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Return the same for the key term.

        With :math:`\alpha_j = P_{ij}(y_j-\bar y_i)`, :math:`|\alpha|` is at most the radius of values for any weights,
        and wrong by a share of 2c of it: by c in the weights, and by c in the mean.
        """
        radius, value_error = self.value_radius[:, None], self.value_error[:, None]
        share = 2 * self.weight_change + (8 * self.weight_change.shape[1] + 64) * UNIT
        error = (share * radius + 4 * value_error) * self.gradient + radius * self.gradient_error
        return error.sum(0), (radius * self.gradient).sum(0)


def outputs(views: list[HeadAtInput]) -> list[Float[Tensor, "out v"]]:
    """Return the output projection of every head; concatenated heads have slices of the identity."""
    # With W = slices of the identity, concatenated heads are a sum of heads as well: one code for both.
    given = [view.head.W for view in views if view.head.W is not None]
    width = views[0].y.shape[1]
    return given or list(torch.eye(len(views) * width, dtype=torch.float64).split(width, 1))
