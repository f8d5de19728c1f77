r"""Theorem 5 far from X: the first derivative of a whole layer on a ball, by its value, query and key terms.

Tokens at X + E are split into what they were and how they moved, :math:`x_j+e_j`, and so are score gradients,
:math:`g^h_i+A_he_i`. Movements of score gradients count once and not for every row: :math:`\sum_i|e_i|^2 \le t^2`.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.rounding import PRODUCT, TERM
from howsmooth.theory.around_input.head_on_ball import TINY, HeadOnBall, softmax_jacobian_bounds
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, Scaled, row_norm, stack_norm
from howsmooth.theory.at_input.head_at_input import HeadAtInput
from howsmooth.theory.at_input.layer_errors import outputs

# Steps towards the centre of the smallest ball around points.
STEPS = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class Deviations:
    """Standard deviations in every row under the weights of a ball, of tokens as they were and of their movements."""

    P: Float[Tensor, "heads n n"]  # weights from above
    root_peak: Float[Tensor, "heads n"]  # (max_j P_ij)^½
    outputs: Float[Tensor, "heads n"]  # of Bx_j
    values: Float[Tensor, "heads n"]  # of Vx_j
    keys: Float[Tensor, "heads n"]  # of Aᵀx_j
    movements: Float[Tensor, "heads n"]  # of e_j, ‖EᵀSE‖^½ with the derivative S of the softmax
    weighted_movements: Float[Tensor, "heads n"]  # ‖SE‖ = ‖[P_ij(e_j − ē_i)]_j‖
    length: float  # ‖E‖_F


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstDerivative:
    """All heads around X: radii of balls around their points, and scales under which heads are joined."""

    centre: LayerAtCentre
    output_radius: Float[Tensor, " heads"]  # of a ball around all Bx_j
    value_radius: Float[Tensor, " heads"]  # around all Vx_j
    key_radius: Float[Tensor, " heads"]  # around all Aᵀx_j
    value_scales: Scaled  # s, ‖[B_h/s_h]_h‖
    rest_scales: Scaled  # c, ‖[c_hW_h]_h‖
    rest_forms: float  # ‖(r_hA_h/√2c_h)_h‖, r the radius of values
    move_scales: Scaled  # s, ‖[B_h/s_h]_h‖
    move_forms: float  # ‖(s_hA_h)_h‖
    covariance: float  # the largest ‖ΣW_hC_hQ_h‖ for covariances C_h of values and keys
    key_covariance: float  # the largest ‖ΣB_hC_hQ_h‖ for those of keys and anything of deviation one

    @classmethod
    def of(cls, views: list[HeadAtInput], c: LayerAtCentre) -> "FirstDerivative":
        """Choose balls and scales; any positive scales give a bound."""
        W, Q, y = (torch.stack(x) for x in (outputs(views), [v.head.Q for v in views], [v.y for v in views]))
        output_radius, value_radius, key_radius = (
            torch.stack([_radius(x) for x in points]) + error
            for points, error in ((y @ W.mT, c.outputs.error), (y, c.values.error), (c.y_keys, c.keys.error))
        )
        short_key_radius = torch.stack([_radius(view.k) + 4 * view.errors.key for view in views])
        # Scales make heads count alike on both sides; they are relative, so that no head has a scale of zero or
        # infinity.
        steepest = c.g_length.amax(1)
        value = _relative(c.outputs.norm).sqrt()
        rest = (_relative(value_radius * steepest) / _relative(c.W_norm)).sqrt()
        move = (_relative(c.outputs.norm) / _relative(steepest)).sqrt()

        def forms(scale: Float[Tensor, " heads"]) -> float:
            return stack_norm(scale[:, None, None] * c.A) + PRODUCT * float((scale * c.keys.norm).sum())

        return cls(
            centre=c,
            output_radius=output_radius,
            value_radius=value_radius,
            key_radius=key_radius,
            value_scales=Scaled(value, row_norm(c.B / value[:, None, None])),
            rest_scales=Scaled(rest, row_norm(rest[:, None, None] * W)),
            rest_forms=forms(value_radius / math.sqrt(2) / rest),
            move_scales=Scaled(move, row_norm(c.B / move[:, None, None])),
            move_forms=forms(move),
            covariance=_joint_norm(W, c.W_norm, Q, value_radius * short_key_radius),
            key_covariance=_joint_norm(c.B, c.outputs.norm, Q, short_key_radius),
        )

    def upper(self, values: list[HeadOnBall], outputs: list[HeadOnBall], t: float, per_token: bool = False) -> float:
        """Bound the derivative on the ball of radius t, from every head on it with values before and after W."""
        d = self.deviations(values, outputs, t, per_token)
        total = self.value_term(d) + self.query_term(d) + self.key_term(d)
        return (1 + TERM) * total if math.isfinite(total) else math.inf

    def deviations(self, values: list[HeadOnBall], outputs: list[HeadOnBall], t: float, per_token: bool) -> Deviations:
        """Bound all standard deviations; those of points are at most the radius of a ball around them."""
        c = self.centre
        P, lower, root_peak, drift = (
            torch.stack(x) for x in zip(*((h.upper, h.lower, h.peak.sqrt(), h.drift) for h in values), strict=True)
        )
        norm_S, _diagonal = softmax_jacobian_bounds(P, lower)

        def at_rest(total: list[Tensor], norm: Tensor, radius: Tensor) -> Float[Tensor, "heads n"]:
            # heads on the ball have the movement of tokens in their deviations; here it counts apart
            return torch.minimum((torch.stack(total) - norm[:, None] * drift).clamp_min(0), radius[:, None])

        return Deviations(
            P=P,
            root_peak=root_peak,
            outputs=at_rest([h.sigma for h in outputs], c.outputs.norm, self.output_radius),
            values=at_rest([h.sigma for h in values], c.values.norm, self.value_radius),
            keys=at_rest([h.tau for h in values], c.keys.norm, self.key_radius),
            # ‖E‖ ≤ t, or every |e_j| ≤ t: then points in a ball of radius t have ‖SE‖ ≤ t/√2
            movements=drift if per_token else t * norm_S.sqrt(),
            weighted_movements=(root_peak * drift).clamp_max(t / math.sqrt(2)) if per_token else t * norm_S,
            length=t * (math.sqrt(P.shape[1]) if per_token else 1.0),
        )

    def value_term(self, d: Deviations) -> float:
        r"""Bound :math:`\|\sum_hP^h\otimes B_h\|`: heads add up, or are joined under scales.

        Rows of weights add up to one, so :math:`P^\top P` is below the diagonal matrix of its column sums and
        :math:`\|(s_hP^h)_h\|^2 \le \max_j\sum_{hi}s_h^2P^h_{ij}`.
        """
        # A column of n weights sums to n at most, whatever the bounds on single weights say.
        columns, (s, norm) = d.P.sum(1).clamp_max(d.P.shape[-1]), self.value_scales
        joined = norm * float((s[:, None].square() * columns).sum(0).max().sqrt())
        return min(float((self.centre.outputs.norm * columns.amax(-1).sqrt()).sum()), joined)

    def query_term(self, d: Deviations) -> float:
        r"""Bound :math:`\max_i\|\sum_hB_hC^h_iA_h\|`, covariances of values and keys, in four parts.

        A covariance is at most the product of two deviations, and
        :math:`\|\sum_hL_hC_hR_h\| \le \|[c_hL_h]_h\|\max_h(\|C_h\|/c_hd_h)\,\|(d_hR_h)_h\|` for any scales c, d.
        """
        (_c, W), (s, B) = self.rest_scales, self.move_scales
        radius = self.value_radius.clamp_min(TINY)[:, None]
        # Each of values and keys is at rest (x) or moves (e): four covariances, four ways to join the heads.
        rest_rest = self.centre.combined(d.outputs * d.keys, d.values * d.keys)
        rest_rest = torch.minimum(rest_rest, self.covariance * (d.values / radius).amax(0))
        move_rest = B * (s[:, None] * d.movements * d.keys).square().sum(0).sqrt()
        move_rest = torch.minimum(move_rest, self.key_covariance * d.movements.amax(0))
        rest_move = W * self.rest_forms * (d.values * d.movements / (radius / math.sqrt(2))).amax(0)
        move_move = B * self.move_forms * d.movements.square().amax(0)
        return float((rest_rest + move_rest + rest_move + move_move).max())

    def key_term(self, d: Deviations) -> float:
        r"""Bound the map :math:`F\mapsto(\sum_{hj}P_{ij}B(z_j-m_i)\langle g_i+Ae_i,f_j\rangle)_i`, in four parts.

        All rows see the same F. With :math:`\nu_{hi} \ge \|[P_{ij}V_h(x_j-m_i)]_j\|`, the lesser of the deviation times
        :math:`(\max_jP_{ij})^{1/2}` and the radius over :math:`\sqrt2`, they are at rest at most

        .. math:: \|[c_hW_h]_h\|\,\lambda_{\max}\Bigl(\sum_{hi}\frac{\nu_{hi}^2}{c_h^2}g^h_i{g^h_i}^\top\Bigr)^{1/2},

        or, by Cauchy and Schwarz over heads, the same with :math:`\nu_{hi}\sum_k\nu_{ki}` in place of
        :math:`\|[c_hW_h]_h\|^2\nu_{hi}^2/c_h^2` for the :math:`\nu` of outputs; every row takes the better one.
        """
        (c, W), (s, B), root2 = self.rest_scales, self.move_scales, math.sqrt(2)
        # ν: (Σ_j P_ij²|v_j|²)^½ ≤ (max_j P_ij)^½ · deviation; and S² ≤ S/2 for the derivative S of the softmax, so
        # radius/√2.
        nu_outputs = torch.minimum(d.root_peak * d.outputs, self.output_radius[:, None] / root2)
        nu = torch.minimum(d.root_peak * d.values, self.value_radius[:, None] / root2)
        joined, added = W * nu / c[:, None], (nu_outputs * nu_outputs.sum(0)).sqrt()
        joined_row, added_row = ((weights * self.centre.g_length).norm(dim=0) for weights in (joined, added))
        rest_rest = self._g_norm(torch.where(joined_row <= added_row, joined, added))
        move_rest = B * self._g_norm(s[:, None] * d.weighted_movements)
        # What is left has Ae_i in place of g_i: a sum over rows of |e_i|², so the length of E and one norm of all
        # forms.
        share = (nu.amax(1) / (self.value_radius / root2).clamp_min(TINY)).max()
        moving = W * self.rest_forms * float(share) + B * self.move_forms * float(d.weighted_movements.max())
        return rest_rest + move_rest + moving * d.length

    def _g_norm(self, nu: Float[Tensor, "heads n"]) -> float:
        r"""Bound :math:`\lambda_{\max}(\sum_{hi}\nu_{hi}^2g^h_i{g^h_i}^\top)^{1/2}`, rounding errors of g included."""
        return stack_norm(nu[..., None] * self.centre.g) + float((nu * self.centre.g_error).norm())


def _joint_norm(left: Tensor, left_norms: Tensor, right: Tensor, sizes: Float[Tensor, " heads"]) -> float:
    r"""Bound :math:`\|\sum_hL_hC_hR_h\|` for all matrices C of these sizes: :math:`\|[c_hL_h]_h\|\,\|(d_hR_h)_h\|`."""
    right_norms = right.flatten(1).norm(dim=1)
    c = (_relative(sizes) * _relative(right_norms) / _relative(left_norms)).sqrt()
    return row_norm(c[:, None, None] * left) * stack_norm((sizes / c)[:, None, None] * right)


def _relative(x: Float[Tensor, " heads"]) -> Float[Tensor, " heads"]:
    return (x / x.max().clamp_min(TINY)).clamp_min(1e-12)


def _radius(y: Float[Tensor, "n v"]) -> Float[Tensor, ""]:
    """Return the radius of a small ball around points: its centre steps towards the farthest, ever less."""
    middle = y.mean(0)
    best = (y - middle).norm(dim=-1).max()
    # Bădoiu and Clarkson: the step towards the farthest point is 1/(k+1); any centre gives a true radius.
    for step in range(1, STEPS):
        middle = middle + (y[(y - middle).norm(dim=-1).argmax()] - middle) / (step + 1)
        best = torch.minimum(best, (y - middle).norm(dim=-1).max())
    return best
