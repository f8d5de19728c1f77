"""The first derivative of a whole layer on a ball: heads side by side, each by what the ball allows it."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.curvature import Centre
from howsmooth.theory.region import Region
from howsmooth.theory.doubt import outputs
from howsmooth.theory.scales import row_norm
from howsmooth.theory.traces import largest_eigenvalues
from howsmooth.theory.views import View

# Steps towards the centre of the smallest ball around the values.
STEPS = 24
# What sums of so many products may lose.
ROUNDING = 1 + 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Slope:
    r"""All heads at X, for the three terms of the derivative around it.

    Row i of the third term is :math:`[c_hW_h]_h` times the concatenation of
    :math:`\sum_jP_{ij}V_h(x_j-m_i)\langle g_i,e_j\rangle/c_h`, hence at most
    :math:`\|[c_hW_h]_h\|\,\|[\nu_{hi}g^h_i/c_h]_h\|` with :math:`\nu_{hi} \ge \|[P_{ij}V_h(x_j-m_i)]_j\|`. If values
    lie in a ball of radius r, :math:`\nu \le r/\sqrt2` whatever the weights are. Or heads are added up.

    Attributes:
        centre: The vectors.
        radius: The radius of a ball around all values of a head, around them before the output projection, and around
            its keys.
        values: Scales for the first term, and the norm that stands before it.
        outputs: Scales :math:`c_h` for the third term, and the norm that stands before it.
    """

    centre: Centre
    radius: tuple[Float[Tensor, " heads"], Float[Tensor, " heads"], Float[Tensor, " heads"]]
    values: tuple[Float[Tensor, " heads"], float]
    outputs: tuple[Float[Tensor, " heads"], float]

    @classmethod
    def of(cls, views: list[View], centre: Centre) -> "Slope":
        """Choose balls and scales."""
        W = torch.stack(outputs(views))
        places = (
            torch.stack([view.y for view in views]) @ W.mT,
            torch.stack([view.y for view in views]),
            centre.keys,
        )
        mixed, alone, keys = (
            torch.stack([_radius(x) for x in place]) + wrong
            for place, wrong in zip(places, centre.wrong[:3], strict=True)
        )
        values, _alone, _forms, stretch = centre.norms
        steep = alone * centre.steep.amax(1)
        s = (values / values.max().clamp_min(1e-300)).clamp_min(1e-12).sqrt()
        c = ((steep / steep.max().clamp_min(1e-300)).clamp_min(1e-12) / _relative(stretch)).sqrt()
        return cls(
            centre=centre,
            radius=(mixed, alone, keys),
            values=(s, row_norm(centre.B / s[:, None, None])),
            outputs=(c, row_norm(c[:, None, None] * W)),
        )

    def within(self, alone: list[Region], mixed: list[Region], t: float) -> float:
        """Bound the derivative on the ball of radius t, by regions of values before and after the output projection."""
        P, peak, tau = (torch.stack([getattr(r, name) for r in alone]) for name in ("P", "peak", "tau"))
        values, apart, forms, _stretch = self.centre.norms
        far, far_alone, keys = (
            (radius + slope * t)[:, None] for radius, slope in zip(self.radius, (values, apart, forms), strict=True)
        )
        sigma = torch.minimum(torch.stack([r.sigma for r in mixed]), far)
        sigma_alone = torch.minimum(torch.stack([r.sigma for r in alone]), far_alone)
        tau, root = torch.minimum(tau, keys), peak.sqrt()
        nu = torch.minimum(root * sigma, far / math.sqrt(2))
        nu_alone = torch.minimum(root * sigma_alone, far_alone / math.sqrt(2))
        more = forms[:, None] * t + self.centre.wrong[3]
        total = self._first(P) + self._second(sigma * tau, sigma_alone * tau)
        total += float(torch.minimum(self._added(nu, more), self._beside(nu_alone, more)).norm())
        return ROUNDING * total if math.isfinite(total) else math.inf

    def _first(self, P: Float[Tensor, "heads n n"]) -> float:
        columns = P.sum(1).amax(-1).clamp_max(P.shape[-1])  # bound ‖P‖², since rows add up to one
        s, factor = self.values
        return min(float((self.centre.norms[0] * columns.sqrt()).sum()), factor * float((s * columns.sqrt()).norm()))

    def _second(self, mixed: Float[Tensor, "heads n"], alone: Float[Tensor, "heads n"]) -> float:
        scaled = self.centre.norms[3][:, None] * alone
        return float(torch.minimum(mixed.sum(0), self.centre.beside * scaled.square().sum(0).sqrt()).max())

    def _beside(self, nu: Float[Tensor, "heads n"], more: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        """Bound rows of the third term by the concatenation of heads."""
        c, factor = self.outputs
        return factor * self._pulled(nu / c[:, None], more)

    def _added(self, nu: Float[Tensor, "heads n"], more: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        r"""Bound rows by the sum over heads, with the inequality of Cauchy and Schwarz for :math:`\nu_h`."""
        return nu.sum(0).sqrt() * self._pulled(nu.sqrt(), more)

    def _pulled(self, nu: Float[Tensor, "heads n"], more: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`\|[\nu_{hi}g^h_i]_h\|` for every row."""
        g = (nu[..., None] * self.centre.pull).transpose(0, 1)
        return largest_eigenvalues(g @ g.mT).sqrt() + (nu * more).square().sum(0).sqrt()


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
