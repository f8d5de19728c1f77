"""What a ball around one input allows one head: bounds on its weights, spreads and slopes there."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.heads import short
from howsmooth.theory.rounding import safe_norm
from howsmooth.theory.views import View, weighted_pairs


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
        doubt: How far, by rounding, differences between two scores of a row may be from what is true.
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
    doubt: Float[Tensor, " n"]

    @classmethod
    def of(cls, view: View) -> "Centre":
        """Look at one head; everything is seen through keys and values, never as a d × d matrix."""
        pulled = view.k @ view.head.Q  # rows Aᵀx_j, up to a shift that differences remove
        g = view.q @ view.head.K
        middle = view.P @ pulled
        r = view.rounding
        keys, queries = 2 * r.key * safe_norm(view.head.Q), r.query * safe_norm(view.head.K)
        values = 2 * r.value * view.value_norm / max(view.head.norm_V, 1e-300)
        return cls(
            P=view.P,
            log_P=view.log_P,
            query_steep=torch.cdist(middle, pulled, compute_mode="donot_use_mm_for_euclid_dist") + keys,
            key_steep=g.norm(dim=-1) + queries,
            own_steep=(pulled - middle + g).norm(dim=-1) + keys + queries,
            tau=_deviation(view.P, view.k, view.head.Q) + keys,
            sigma=_deviation(view.P, view.y, None) + values,
            far=torch.cdist(view.mean, view.y, compute_mode="donot_use_mm_for_euclid_dist") + values,
            norm_A=view.head.norm_A,
            norm_V=view.value_norm,
            doubt=2 * r.scores,
        )

    def within(self, t: float, per_token: bool, like: "Region | None" = None) -> "Region":
        r"""Bound everything on the ball of radius t.

        Scores, up to a shift of each row that the softmax ignores, move by at most :math:`\delta_{ij}`, so
        :math:`P_{ij}(Z) \le P_{ij}e^{\delta_{ij}}/(P_{ij}e^{\delta_{ij}} + \sum_{k\ne j}P_{ik}e^{-\delta_{ik}})`. And
        by convexity the logarithm of a weight grows by no more than its score does against the mean of its row.
        Weights that are known from the same head, ``like``, are not bounded again.
        """
        log_up, log_down = self._log_weights(t, per_token) if like is None else like.log_weights
        up, down = log_up.exp(), log_down.exp()
        visible = self.log_P > -torch.inf
        growth = torch.where(visible, log_up - self.log_P, 0.0).amax(-1).div(2).exp()
        peak = up.amax(-1)
        # the tokens' own movement, averaged by the weights of a row
        drift = torch.full_like(peak, t) if per_token else t * peak.sqrt()
        spread = growth.square().clamp_max(1e150) * self._score_spread(t, per_token)
        shift = (torch.maximum(up - self.P, self.P - down) * self.far).sum(-1)
        shift = torch.minimum(shift, spread * self.sigma) + self.norm_V * drift
        far = torch.where(visible, self.far, 0.0)
        steep = torch.where(visible, self.query_steep, 0.0)
        return Region(
            log_weights=(log_up, log_down),
            P=up,
            low=down,
            drift=drift,
            spread=spread,
            peak=peak,
            tau=_spread(self.tau, growth, up, steep) + self.norm_A * drift,
            sigma=_spread(self.sigma, growth, up, far) + self.norm_V * drift,
            rho=far.amax(-1) + self.norm_V * t + shift,
            alpha=self.key_steep + self.norm_A * t,
            norm_A=self.norm_A,
            norm_V=self.norm_V,
        )

    def _log_weights(self, t: float, per_token: bool) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        """Bound the logarithms of weights on the ball of radius t, from above and from below."""
        delta, centred = self._score_change(t, per_token), self._centred_change(t, per_token)
        # the sum of the others is never taken below 10⁻¹² of the row, so a weight of one may come out that much smaller
        up = torch.minimum(_log_reach(self.log_P, delta), self.log_P + centred) + 2e-12
        # the mean of e^z is at most 1 + the mean of z²e^|z|/2 where the mean of z is zero
        spread = torch.where(self.P > 0, self.P * centred.square() * centred.exp(), 0.0).sum(-1, keepdim=True) / 2
        down = torch.maximum(_log_reach(self.log_P, -delta), self.log_P - centred - torch.log1p(spread)) - 2e-12
        return up.clamp_max(0.0), down

    def _centred_change(self, t: float, per_token: bool) -> Float[Tensor, "n n"]:
        r"""Bound how far :math:`S_{ij} - \sum_kP_{ik}S_{ik}` moves: by :math:`x_j - m_i` against the pull of row i."""
        rest, steep = (1 - self.P).clamp_min(0), self.key_steep[:, None]
        if per_token:
            far = 2 * rest
            moved = t * (self.query_steep + steep * far)
        else:
            # the token of the row itself takes part in the mean
            own = self.P.diagonal()[:, None].expand_as(self.P).clone()
            own.diagonal().copy_(rest.diagonal())
            far = (rest.square() + (self.P.square().sum(-1, keepdim=True) - self.P.square()).clamp_min(0)).sqrt()
            others = (far.square() - own.square()).clamp_min(0)
            moved = t * ((self.query_steep + own * steep).square() + others * steep.square()).sqrt()
        return (moved + self.norm_A * far * t**2) * (1 + 1e-12) + self.doubt[:, None]

    def _score_spread(self, t: float, per_token: bool) -> Float[Tensor, " n"]:
        r"""Bound the standard deviation, under P, of how far the scores of a row move.

        It is at most :math:`\tau_i|e_i| + |g_i|\,\mathrm{sd}(e) + \|A\||e_i|\,\mathrm{sd}(e)`. Between two rows of
        weights the mean of φ moves by the integral of the covariance of φ and these movements.
        """
        slope, _diagonal = softened(self.P, self.P)
        own, others = (t, t) if per_token else (t, t * slope.sqrt())
        both = (
            self.tau * own + self.key_steep * others
            if per_token
            else torch.hypot(self.tau * own, self.key_steep * others)
        )
        return (both + self.norm_A * own * others) * (1 + 1e-12) + self.doubt

    def _score_change(self, t: float, per_token: bool) -> Float[Tensor, "n n"]:
        steep = self.key_steep[:, None]
        if per_token:
            delta = t * (self.query_steep + steep) + self.norm_A * t**2
        else:
            delta = t * (self.query_steep.square() + steep.square()).sqrt() + self.norm_A * t**2 / 2
        delta.diagonal().copy_(t * self.own_steep + self.norm_A * t**2)
        return delta + self.doubt[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """Upper bounds, on a ball around X, on what enters the derivatives; the letters are those of the theorem.

    ``low`` is a lower bound on the weights, ``drift`` how far tokens move on average, by the weights of a row, and
    ``spread`` by how many standard deviations of anything its mean moves because weights change.
    """

    log_weights: tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]
    P: Float[Tensor, "n n"]
    low: Float[Tensor, "n n"]
    drift: Float[Tensor, " n"]
    spread: Float[Tensor, " n"]
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


def softened(up: Float[Tensor, "*rows n"], down: Float[Tensor, "*rows n"]) -> tuple[Tensor, Tensor]:
    r"""Bound :math:`S = \mathrm{diag}(p)-pp^\top` for all p between: its norm, and a diagonal matrix above it.

    S is below :math:`\mathrm{diag}(p)`, and below :math:`2\,\mathrm{diag}(p_j(1-p_j))`, since it is the sum of
    :math:`p_jp_k(u_j-u_k)(u_j-u_k)^\top` over pairs of unit vectors, each below
    :math:`2p_jp_k(u_ju_j^\top+u_ku_k^\top)`.
    """
    # 1 − p without cancellation: the other weights add up to it
    rest = (up.sum(-1, keepdim=True) - up).clamp_max(1.0)
    between = torch.where((up >= 0.5) & (down <= 0.5), 0.25, torch.maximum(up * (1 - up), down * (1 - down)))
    twice = 2 * torch.minimum(between + 1e-16, up * rest)
    better = twice.amax(-1) < up.amax(-1)
    spread = torch.where(better[..., None], twice, up)
    return spread.amax(-1).clamp_max(0.5), spread


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
    rounding = (16 + len(P)) * torch.finfo(P.dtype).eps * centred.square().sum(1).max()
    if form is not None:
        A = short(form)
        covariance = A.mT @ covariance @ A
        rounding = rounding * torch.linalg.matrix_norm(A, ord=2) ** 2
    return (torch.linalg.eigvalsh(covariance)[:, -1].clamp_min(0) + rounding).sqrt()
