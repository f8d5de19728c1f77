"""On a ball around one input: a bound on the local constant of every input in it, from the second derivative."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.spectral.solvers import local_lipschitz
from howsmooth.theory.assumptions import has_key_norm, require_attention
from howsmooth.theory.discrete import sharp_upper
from howsmooth.theory.heads import heads_of, log, output_norm, short
from howsmooth.theory.results import Bound, upper_bound
from howsmooth.theory.views import View, views, weighted_pairs

# The second derivative is summed from above on so many intervals.
INTERVALS = 64
# The constant at the centre enters with its upper end.
CONFIDENCE = 1 - 1e-12


def neighbourhood_upper(attention: Attention, X: Float[Tensor, "n d"], *, eps: float, per_token: bool = False) -> Bound:
    r"""Bound the local constant at every input within ``eps`` of ``X``.

    .. math:: \sup_{\|Z-X\|\le\varepsilon}\|D_Zf\| \le \|D_Xf\| + \int_0^\varepsilon H(t)\,dt,\qquad
              H(t) \ge \sup_{\|Z-X\|\le t}\|D_Z^2f\|

    H is given in the docs. Far from X the terms of ``local_upper`` and ``sharp_upper``, taken on the whole ball, are
    smaller; the smallest of the three is returned. Masked and multi-head; O(n²) for each of 64 values of t.

    Args:
        attention: The map.
        X: The centre, one sequence.
        eps: The radius.
        per_token: Whether ``eps`` bounds the movement of each token instead of :math:`\|Z-X\|_F`.

    Raises:
        AssumptionError: If ``eps`` is not positive, or under rotary positions, soft caps, query or key norms.
    """
    require_attention(attention)
    if not 0 < eps < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.")
    if attention.positions.rotary is not None or attention.softcap is not None or has_key_norm(attention):
        raise AssumptionError(
            "neighbourhood_upper covers neither rotary positions nor soft caps nor query/key norms; "
            "use local_upper at an input, or hs.maximise over hs.Neighbourhood."
        )
    t = torch.linspace(0, eps, INTERVALS + 1, dtype=torch.float64)[1:]
    growth, cap = _layer(attention, X, t, per_token)
    centre = local_lipschitz(attention, X, confidence=CONFIDENCE, generator=torch.Generator().manual_seed(0))
    radius = float(X.double().norm(dim=-1).max()) + eps
    whole = sharp_upper(attention, n=X.shape[0], radius=radius).value
    value = min(float(centre.upper) + float(growth.sum()) * eps / INTERVALS, float(cap[-1]), whole)
    domain = f"the ball of radius {eps:g} around the input" + (", for each token" if per_token else "")
    return upper_bound(log(value), "neighbourhood_upper", domain, "ours: second derivative", CONFIDENCE)


def _layer(attention: Attention, X: Tensor, t: Tensor, per_token: bool) -> tuple[Tensor, Tensor]:
    """Combine heads at every t in the better of two ways; return the second derivative and the first."""
    alone = views(attention, X)
    stacked = torch.stack([_head(view, t, per_token) for view in alone])
    together = stacked.square().sum(0).sqrt()
    if attention.output is not None:
        apart = torch.stack([_head(view.mixed(), t, per_token) for view in alone]).sum(0)
        together = torch.minimum(together * output_norm(heads_of(attention)), apart)
    growth, cap = together.unbind(-1)
    return growth, cap


def _head(view: View, t: Tensor, per_token: bool) -> Float[Tensor, "times 2"]:
    """Return bounds on the second and on the first derivative of one head, on the ball of every radius in ``t``."""
    centre = Centre.of(view)
    return torch.tensor([derivatives(centre.within(float(s), per_token), per_token) for s in t], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Centre:
    r"""What is known of one head at X; rows i, and pairs (i, j).

    Attributes:
        P: Weights.
        log_P: Their logarithms, −∞ for hidden tokens.
        query_steep: :math:`|A^\top(x_j-m_i)|`: how the score of (i, j), against its row's mean, moves with
            :math:`x_i`.
        key_steep: :math:`|Ax_i+b|`: how it moves with :math:`x_j`.
        own_steep: How the score of (i, i) moves with :math:`x_i`.
        tau: :math:`\|C_i^{1/2}A\|`.
        sigma: :math:`\|VC_i^{1/2}\|`.
        far: :math:`|V(x_j-m_i)|`.
        norm_A: :math:`\|A\|`.
        norm_V: :math:`\|V\|`.
    """

    P: Float[Tensor, "n n"]
    log_P: Float[Tensor, "n n"]
    query_steep: Float[Tensor, "n n"]
    key_steep: Float[Tensor, " n"]
    own_steep: Float[Tensor, " n"]
    tau: Float[Tensor, " n"]
    sigma: Float[Tensor, " n"]
    far: Float[Tensor, "n n"]
    norm_A: float
    norm_V: float

    @classmethod
    def of(cls, view: View) -> "Centre":
        """Look at one head; everything is seen through keys and values, never as a d × d matrix."""
        pulled = view.k @ view.head.Q  # rows Aᵀx_j, up to a shift that differences remove
        g = view.q @ view.head.K
        middle = view.P @ pulled
        return cls(
            P=view.P,
            log_P=view.log_P,
            query_steep=torch.cdist(middle, pulled, compute_mode="donot_use_mm_for_euclid_dist"),
            key_steep=g.norm(dim=-1),
            own_steep=(pulled - middle + g).norm(dim=-1),
            tau=_deviation(view.P, view.k, view.head.Q),
            sigma=_deviation(view.P, view.y, None),
            far=torch.cdist(view.mean, view.y, compute_mode="donot_use_mm_for_euclid_dist"),
            norm_A=view.head.norm_A,
            norm_V=view.value_norm,
        )

    def within(self, t: float, per_token: bool) -> "Region":
        r"""Bound everything on the ball of radius t.

        Scores, up to a shift of each row that the softmax ignores, move by at most :math:`\delta_{ij}`, so
        :math:`P_{ij}(Z) \le P_{ij}e^{\delta_{ij}}/(P_{ij}e^{\delta_{ij}} + \sum_{k\ne j}P_{ik}e^{-\delta_{ik}})`.
        """
        delta = self._score_change(t, per_token)
        log_up = _log_reach(self.log_P, delta)
        up, down = log_up.exp(), _log_reach(self.log_P, -delta).exp()
        visible = self.log_P > -torch.inf
        growth = torch.where(visible, log_up - self.log_P, 0.0).amax(-1).div(2).exp()
        peak = up.amax(-1)
        # the tokens' own movement, averaged by the weights of a row
        drift = torch.full_like(peak, t) if per_token else t * peak.sqrt()
        shift = (torch.maximum(up - self.P, self.P - down) * self.far).sum(-1) + self.norm_V * drift
        far = torch.where(visible, self.far, 0.0)
        steep = torch.where(visible, self.query_steep, 0.0)
        return Region(
            P=up,
            peak=peak,
            tau=_spread(self.tau, growth, up, steep) + self.norm_A * drift,
            sigma=_spread(self.sigma, growth, up, far) + self.norm_V * drift,
            rho=far.amax(-1) + self.norm_V * t + shift,
            alpha=self.key_steep + self.norm_A * t,
            norm_A=self.norm_A,
            norm_V=self.norm_V,
        )

    def _score_change(self, t: float, per_token: bool) -> Float[Tensor, "n n"]:
        steep = self.key_steep[:, None]
        if per_token:
            delta = t * (self.query_steep + steep) + self.norm_A * t**2
        else:
            delta = t * (self.query_steep.square() + steep.square()).sqrt() + self.norm_A * t**2 / 2
        delta.diagonal().copy_(t * self.own_steep + self.norm_A * t**2)
        return delta


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """Upper bounds, on a ball around X, on what enters the derivatives; the letters are those of the theorem."""

    P: Float[Tensor, "n n"]
    peak: Float[Tensor, " n"]
    tau: Float[Tensor, " n"]
    sigma: Float[Tensor, " n"]
    rho: Float[Tensor, " n"]
    alpha: Float[Tensor, " n"]
    norm_A: float
    norm_V: float


def derivatives(r: Region, per_token: bool) -> tuple[float, float]:
    r"""Bound the second and the first derivative on a region.

    Row i of :math:`D^2f(E,F)` is at most :math:`(|e_i|,\eta_i(E))\,M_i\,(|f_i|,\eta_i(F))^\top` with

    .. math:: M_i = \begin{pmatrix}\rho\tau^2 & \|V\|\tau+\|A\|\sigma+\rho\tau\alpha\\
              \cdot & 2\|V\|\alpha+\rho\alpha^2\end{pmatrix},\qquad \eta_i(E)^2 = \sum_jP_{ij}|e_j|^2.
    """
    own = r.rho * r.tau.square()
    mixed = r.norm_V * r.tau + r.norm_A * r.sigma + r.rho * r.tau * r.alpha
    seen = 2 * r.norm_V * r.alpha + r.rho * r.alpha.square()
    if per_token:  # |e_i| ≤ 1 and η_i(E) ≤ 1
        among = (r.P * (mixed + seen)[:, None].square()).sum(0).max().sqrt()
        second = (own + mixed).max() + among
    else:  # Σ|e_i|² ≤ 1, so η_i(E)² ≤ max_j P_ij
        among = (r.P * seen[:, None]).square().sum(0).max().sqrt()
        second = own.max() + 2 * (mixed * r.peak.sqrt()).max() + among
    third_term = (r.alpha.square() * r.peak * r.sigma.square()).sum().sqrt()
    first = r.norm_V * r.P.sum(0).max().sqrt() + (r.sigma * r.tau).max() + third_term
    return float(second), float(first)


def _log_reach(log_P: Tensor, delta: Tensor) -> Tensor:
    """Return the log of each weight when its own score moves by ``delta`` and all others of its row by the opposite."""
    own, others = log_P + delta, log_P - delta
    whole = others.logsumexp(-1, keepdim=True)
    # log Σ_{k≠j} from the whole sum, by removing one term
    rest = whole + torch.log1p(-(others - whole).exp().clamp_max(1 - 1e-12))
    return torch.nn.functional.logsigmoid(own - rest)


def _spread(deviation: Tensor, growth: Tensor, up: Tensor, distances: Tensor) -> Tensor:
    """Bound a standard deviation under larger weights, in three ways; distances are from the old mean."""
    around = torch.minimum((up * distances.square()).sum(-1).sqrt(), distances.amax(-1))
    return torch.minimum(growth.clamp_max(1e150) * deviation, around)


def _deviation(P: Tensor, points: Tensor, form: Tensor | None) -> Float[Tensor, " n"]:
    """Return the largest standard deviation, over directions, of points under each row of weights."""
    centred = points - points.mean(0)
    mean = P @ centred
    covariance = weighted_pairs(P, centred, centred) - mean[:, :, None] * mean[:, None, :]
    rounding = 16 * torch.finfo(P.dtype).eps * centred.square().sum(1).max()
    if form is not None:
        A = short(form)
        covariance = A.mT @ covariance @ A
        rounding = rounding * torch.linalg.matrix_norm(A, ord=2) ** 2
    return (torch.linalg.eigvalsh(covariance)[:, -1].clamp_min(0) + rounding).sqrt()
