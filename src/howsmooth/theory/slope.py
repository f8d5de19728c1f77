"""The first derivative of a whole layer on a ball: heads side by side, each by what the ball allows it."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.doubt import outputs
from howsmooth.theory.moved import Centre
from howsmooth.theory.region import Region, softened
from howsmooth.theory.scales import row_norm, stack_norm
from howsmooth.theory.views import View

# Steps towards the centre of the smallest ball around the values.
STEPS = 24
# What sums of so many products may lose.
ROUNDING = 1 + 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Slope:
    r"""All heads at X, for the three terms of the derivative at X + E.

    Tokens are split into what they were and how they moved, :math:`z_j = x_j+e_j`; so are pulls,
    :math:`g^h_i+A_he_i`. Row i of the third term takes F to the sum of

    .. math:: \textstyle\sum_hW_h\sum_jP_{ij}V_h(x_j-m_i)\langle g^h_i+A_he_i,f_j\rangle,\qquad
              \sum_hB_h\sum_jP_{ij}(e_j-\bar e_i)\langle g^h_i+A_he_i,f_j\rangle

    with :math:`\nu_{hi} \ge \|[P_{ij}V_h(x_j-m_i)]_j\|` and :math:`\mu_{hi} \ge \|[P_{ij}(e_j-\bar e_i)]_j\|`. Points
    in a ball of radius r have at most :math:`r/\sqrt2` there, whatever the weights are, and movements of length t at
    most :math:`\|\mathrm{diag}(p)-pp^\top\|t \le t/2`. All rows see the same F, so before the pulls of X both parts
    are at most

    .. math:: \|[c_hW_h]_h\|\,\lambda_{\max}\Bigl(\sum_{hi}\frac{\nu_{hi}^2}{c_h^2}g^h_i{g^h_i}^\top\Bigr)^{1/2},\qquad
              \|[B_h/s_h]_h\|\,\lambda_{\max}\Bigl(\sum_{hi}s_h^2\mu_{hi}^2g^h_i{g^h_i}^\top\Bigr)^{1/2}.

    Movements of pulls count once and not for every row: :math:`\sum_i|e_i|^2 \le t^2`. The covariances of the second
    term have four parts likewise, :math:`\sum_hW_hC_hQ_h \le \|[c_hW_h]_h\|\max_h(\|C_h\|/c_hd_h)\,\|(d_hQ_h)_h\|`.

    Attributes:
        centre: The vectors.
        radius: The radius of a ball around all values of a head, around them before the output projection, and around
            its keys as tokens see them.
        values: Scales for the first term, and the norm that stands before it.
        outputs: Scales :math:`c_h`, :math:`\|[c_hW_h]_h\|`, and the norm of :math:`(\nu_hA_h/c_h)_h` for the largest ν.
        moved: Scales :math:`s_h`, :math:`\|[B_h/s_h]_h\|`, and the norm of :math:`(s_hA_h)_h`.
        covariance: The largest that :math:`\|\sum_hW_hC_hQ_h\|` may be for covariances of values and keys.
        passed: The same for :math:`\|\sum_hB_hC_hQ_h\|`, of keys and anything of standard deviation one.
    """

    centre: Centre
    radius: tuple[Float[Tensor, " heads"], Float[Tensor, " heads"], Float[Tensor, " heads"]]
    values: tuple[Float[Tensor, " heads"], float]
    outputs: tuple[Float[Tensor, " heads"], float, float]
    moved: tuple[Float[Tensor, " heads"], float, float]
    covariance: float
    passed: float

    @classmethod
    def of(cls, views: list[View], centre: Centre) -> "Slope":
        """Choose balls and scales."""
        W, Q = torch.stack(outputs(views)), torch.stack([view.head.Q for view in views])
        places = (
            torch.stack([view.y for view in views]) @ W.mT,
            torch.stack([view.y for view in views]),
            centre.keys,
        )
        mixed, alone, keys = (
            torch.stack([_radius(x) for x in place]) + wrong
            for place, wrong in zip(places, centre.wrong[:3], strict=True)
        )
        short_keys = torch.stack([_radius(view.k) + 4 * view.rounding.key for view in views])
        values, _alone, forms, stretch = centre.norms
        pull, steep = centre.steep.amax(1), alone * centre.steep.amax(1)
        s = _relative(values).sqrt()
        c = (_relative(steep) / _relative(stretch)).sqrt()
        m = (_relative(values) / _relative(pull)).sqrt()

        def stacked(scale: Tensor) -> float:
            return stack_norm(scale[:, None, None] * centre.A[0]) + 1e-12 * float((scale * forms).sum())

        return cls(
            centre=centre,
            radius=(mixed, alone, keys),
            values=(s, row_norm(centre.B / s[:, None, None])),
            outputs=(c, row_norm(c[:, None, None] * W), stacked(alone / math.sqrt(2) / c)),
            moved=(m, row_norm(centre.B / m[:, None, None]), stacked(m)),
            covariance=_between(W, stretch, Q, alone * short_keys),
            passed=_between(centre.B, values, Q, short_keys),
        )

    def within(self, alone: list[Region], mixed: list[Region], t: float, per_token: bool = False) -> float:
        """Bound the derivative on the ball of radius t, by regions of values before and after the output projection."""
        P, low, peak, drift = (torch.stack([getattr(r, name) for r in alone]) for name in ("P", "low", "peak", "drift"))
        # deviations of what tokens were, under the weights of the ball
        tau, sigma_alone, sigma = (
            torch.minimum((torch.stack(seen) - norm[:, None] * drift).clamp_min(0), radius[:, None])
            for seen, norm, radius in (
                ([r.tau for r in alone], self.centre.norms[2], self.radius[2]),
                ([r.sigma for r in alone], self.centre.norms[1], self.radius[1]),
                ([r.sigma for r in mixed], self.centre.norms[0], self.radius[0]),
            )
        )
        # and of movements, EᵀSE and SE with the derivative S of the softmax
        slope, _diagonal = softened(P, low)
        deviation = drift if per_token else torch.minimum(drift, t * slope.sqrt())
        mu = (peak.sqrt() * drift).clamp_max(t / math.sqrt(2))
        mu = mu if per_token else torch.minimum(mu, t * slope)
        total = self._first(P) + self._second(sigma, sigma_alone, tau, deviation)
        total += self._third(peak.sqrt(), sigma, sigma_alone, mu, t * (math.sqrt(P.shape[1]) if per_token else 1.0))
        return ROUNDING * total if math.isfinite(total) else math.inf

    def _first(self, P: Float[Tensor, "heads n n"]) -> float:
        columns = P.sum(1).clamp_max(P.shape[-1])  # the largest bounds ‖P‖², since rows add up to one
        s, factor = self.values
        beside = factor * float((s[:, None].square() * columns).sum(0).max().sqrt())
        return min(float((self.centre.norms[0] * columns.amax(-1).sqrt()).sum()), beside)

    def _second(self, sigma: Tensor, sigma_alone: Tensor, tau: Tensor, moved: Float[Tensor, "heads n"]) -> float:
        """Bound the covariances of values and keys: of what both were, of one and a movement, of both movements."""
        scaled = self.centre.norms[3][:, None] * sigma_alone * tau
        rows = torch.minimum((sigma * tau).sum(0), self.centre.beside * scaled.square().sum(0).sqrt())
        radius = self.radius[1].clamp_min(1e-300)[:, None]
        rows = torch.minimum(rows, self.covariance * (sigma_alone / radius).amax(0))
        (_c, W, forms), (s, B, stack) = self.outputs, self.moved
        passed = B * (s[:, None] * moved * tau).square().sum(0).sqrt()
        rows = rows + torch.minimum(passed, self.passed * moved.amax(0))
        rows = rows + W * forms * (sigma_alone * moved / (radius / math.sqrt(2))).amax(0)
        return float((rows + B * stack * moved.square().amax(0)).max())

    def _third(self, root: Tensor, sigma: Tensor, sigma_alone: Tensor, mu: Tensor, length: float) -> float:
        """Bound the third term: tokens as they were and as they moved, each before pulls as they were and moved."""
        (c, W, forms), (s, B, stack) = self.outputs, self.moved
        half = math.sqrt(2)
        nu = torch.minimum(root * sigma, self.radius[0][:, None] / half)
        nu_alone = torch.minimum(root * sigma_alone, self.radius[1][:, None] / half)
        # heads beside each other, or added up by the inequality of Cauchy and Schwarz for ν: for every row the better
        ways = torch.stack([W * nu_alone / c[:, None], (nu * nu.sum(0)).sqrt()])
        better = (ways * self.centre.steep).norm(dim=1).argmin(0)
        still = self._pulled(torch.where(better == 0, ways[0], ways[1])) + B * self._pulled(s[:, None] * mu)
        share = (nu_alone.amax(1) / (self.radius[1] / half).clamp_min(1e-300)).max().clamp_max(1.0)
        return still + (W * forms * float(share) + B * stack * float(mu.max())) * length

    def _pulled(self, nu: Float[Tensor, "heads n"]) -> float:
        r"""Bound :math:`\lambda_{\max}(\sum_{hi}\nu_{hi}^2g^h_i{g^h_i}^\top)^{1/2}`, for pulls that may be wrong."""
        return stack_norm(nu[..., None] * self.centre.pull) + float((nu * self.centre.wrong[3]).norm())


def _between(left: Tensor, left_norms: Tensor, right: Tensor, sizes: Float[Tensor, " heads"]) -> float:
    r"""Bound :math:`\|\sum_hL_hC_hR_h\|` for all matrices C of these sizes: :math:`\|[c_hL_h]_h\|\,\|(d_hR_h)_h\|`."""
    right_norms = right.flatten(1).norm(dim=1)
    c = (_relative(sizes) * _relative(right_norms) / _relative(left_norms)).sqrt()
    return row_norm(c[:, None, None] * left) * stack_norm((sizes / c)[:, None, None] * right)


def _relative(x: Float[Tensor, " heads"]) -> Float[Tensor, " heads"]:
    return (x / x.max().clamp_min(1e-300)).clamp_min(1e-12)


def _radius(y: Float[Tensor, "n v"]) -> Float[Tensor, ""]:
    """Return the radius of a small ball around points: its centre steps towards the farthest, ever less."""
    middle = y.mean(0)
    best = (y - middle).norm(dim=-1).max()
    for step in range(1, STEPS):
        middle = middle + (y[(y - middle).norm(dim=-1).argmax()] - middle) / (step + 1)
        best = torch.minimum(best, (y - middle).norm(dim=-1).max())
    return best
