"""Theorem 5, one head on a ball around X: bounds on its weights, deviations, score gradients and derivatives."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.rounding import LOG_WEIGHT, PRODUCT
from howsmooth.theory.at_input.head_at_input import HeadAtInput, weighted_pairs
from howsmooth.theory.linalg.matrix_norms import norm_upper, triangular_factor

# What no denominator is below, and what the growth of a standard deviation is not taken above: distances are less.
TINY, HUGE = 1e-300, 1e75


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAtCentre:
    """One head at X, rounding errors included in every length."""

    P: Float[Tensor, "n n"]  # weights
    log_P: Float[Tensor, "n n"]  # their logarithms, −∞ for hidden tokens
    query_gradient: Float[Tensor, "n n"]  # |κ_ij| = |Aᵀ(x_j − m_i)|, of score (i, j) for x_i, against its row's mean
    key_gradient: Float[Tensor, " n"]  # |g_i| = |Ax_i + Kᵀb|, of score (i, j) for x_j
    diagonal_gradient: Float[Tensor, " n"]  # |κ_ii + g_i|, of score (i, i)
    tau: Float[Tensor, " n"]  # ‖C_i^½A‖, the largest standard deviation of keys Aᵀx_j in row i
    sigma: Float[Tensor, " n"]  # ‖VC_i^½‖, that of values
    value_distance: Float[Tensor, "n n"]  # |V(x_j − m_i)|
    norm_A: float
    norm_V: float
    score_error: Float[Tensor, " n"]  # rounding errors of differences between two scores of a row

    @classmethod
    def of(cls, view: HeadAtInput) -> "HeadAtCentre":
        """Read one head; keys and values are k and v wide, so no d × d matrix is formed."""
        # Computed lengths are widened by what rounding may have taken, here once, so that no bound below mentions it.
        keys, g, r = view.k @ view.head.Q, view.q @ view.head.K, view.errors  # Aᵀx_j up to a common shift, and g_i
        mean = view.P @ keys
        key_error, query_error = 2 * r.key * norm_upper(view.head.Q), r.query * norm_upper(view.head.K)
        value_error = 2 * r.value * view.value_norm / max(view.head.norm_V, TINY)
        return cls(
            P=view.P,
            log_P=view.log_P,
            query_gradient=distances(mean, keys) + key_error,
            key_gradient=g.norm(dim=-1) + query_error,
            diagonal_gradient=(keys - mean + g).norm(dim=-1) + key_error + query_error,
            tau=_deviation(view.P, view.k, view.head.Q) + key_error,
            sigma=_deviation(view.P, view.y, None) + value_error,
            value_distance=distances(view.mean, view.y) + value_error,
            norm_A=view.head.norm_A,
            norm_V=view.value_norm,
            score_error=2 * r.scores,
        )

    def on_ball(self, t: float, per_token: bool, like: "HeadOnBall | None" = None) -> "HeadOnBall":
        """Bound everything on the ball of radius t; ``like`` is this head with other values: weights are known."""
        log_upper, log_lower = self._log_weights(t, per_token) if like is None else like.log_P
        upper, lower = log_upper.exp(), log_lower.exp()
        visible = self.log_P > -torch.inf
        # under weights of at most e^(2a)P, standard deviations are at most e^a times those under P
        growth = torch.where(visible, log_upper - self.log_P, 0.0).amax(-1).div(2).exp().clamp_max(HUGE)
        peak = upper.amax(-1)
        drift = torch.full_like(peak, t) if per_token else t * peak.sqrt()
        # Along the path the weights are at most growth² P, so covariances with scores grow by that much at most.
        score_deviation = growth.square() * self._score_deviation(t, per_token)
        by_weights = (torch.maximum(upper - self.P, self.P - lower) * self.value_distance).sum(-1)
        mean_shift = torch.minimum(by_weights, score_deviation * self.sigma) + self.norm_V * drift
        values = torch.where(visible, self.value_distance, 0.0)
        keys = torch.where(visible, self.query_gradient, 0.0)
        return HeadOnBall(
            log_P=(log_upper, log_lower),
            upper=upper,
            lower=lower,
            drift=drift,
            score_deviation=score_deviation,
            peak=peak,
            tau=_deviation_on_ball(self.tau, growth, upper, keys) + self.norm_A * drift,
            sigma=_deviation_on_ball(self.sigma, growth, upper, values) + self.norm_V * drift,
            rho=values.amax(-1) + self.norm_V * t + mean_shift,
            gamma=self.key_gradient + self.norm_A * t,
            norm_A=self.norm_A,
            norm_V=self.norm_V,
        )

    def _log_weights(self, t: float, per_token: bool) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        r"""Bound :math:`\log P_{ij}(Z)` on the ball from above and from below, each by the better of two proofs.

        Scores that move by at most :math:`\delta_{ij}` up to a shift of their row leave
        :math:`P_{ij}(Z) \le P_{ij}e^{\delta_{ij}}/(P_{ij}e^{\delta_{ij}}+\sum_{k\ne j}P_{ik}e^{-\delta_{ik}})`, and at
        least the same with :math:`-\delta`. Against the mean of their row they move by at most :math:`\eta_{ij}`: then
        :math:`P_{ij}(Z) \le P_{ij}e^{\eta_{ij}}`, since the logarithm of a sum of exponentials is convex, and
        :math:`P_{ij}(Z) \ge P_{ij}e^{-\eta_{ij}}/(1+\frac12\sum_kP_{ik}\eta_{ik}^2e^{\eta_{ik}})`, since
        :math:`e^z \le 1+z+\frac12z^2e^{|z|}` and the movements have mean zero.
        """
        delta, eta = self._score_change(t, per_token), self._centred_score_change(t, per_token)
        upper = torch.minimum(_shifted_log_weights(self.log_P, delta), self.log_P + eta) + LOG_WEIGHT
        # a weight of zero times an infinite exponential counts for nothing
        excess = torch.where(self.P > 0, self.P * eta.square() * eta.exp(), 0.0).sum(-1, keepdim=True) / 2
        by_mean = self.log_P - eta - torch.log1p(excess)
        return upper.clamp_max(0.0), torch.maximum(_shifted_log_weights(self.log_P, -delta), by_mean) - LOG_WEIGHT

    def _score_change(self, t: float, per_token: bool) -> Float[Tensor, "n n"]:
        r"""Bound :math:`\delta_{ij} = |\langle\kappa_{ij},e_i\rangle+\langle g_i+Ae_i,e_j\rangle|`."""
        g = self.key_gradient[:, None]
        if per_token:
            delta = t * (self.query_gradient + g) + self.norm_A * t**2
        else:  # |e_i|² + |e_j|² ≤ t², so |e_i||e_j| ≤ t²/2
            delta = t * (self.query_gradient.square() + g.square()).sqrt() + self.norm_A * t**2 / 2
        delta.diagonal().copy_(t * self.diagonal_gradient + self.norm_A * t**2)
        return delta + self.score_error[:, None]

    def _centred_score_change(self, t: float, per_token: bool) -> Float[Tensor, "n n"]:
        r"""Bound :math:`\eta_{ij} = |\langle\kappa_{ij},e_i\rangle + \langle g_i+Ae_i,e_j-\bar e_i\rangle|`.

        The coefficients of :math:`e_j-\bar e_i = (1-P_{ij})e_j - \sum_{k\ne j}P_{ik}e_k` have the length :math:`\nu`.
        """
        rest, g = 1 - self.P, self.key_gradient[:, None]
        if per_token:  # |e_j − ē_i| ≤ (1 − P_ij)t + Σ_{k≠j}P_ik t
            nu = 2 * rest
            linear = t * (self.query_gradient + g * nu)
        else:
            # x_i moves κ_ij and is one of the tokens of its mean: its coefficient is taken out of ν
            own = self.P.diagonal()[:, None].expand_as(self.P).clone()
            own.diagonal().copy_(rest.diagonal())
            nu = (rest.square() + (self.P.square().sum(-1, keepdim=True) - self.P.square())).sqrt()
            others = (nu.square() - own.square()).clamp_min(0)  # negative where 1 − P_ij is rounded to zero
            linear = t * ((self.query_gradient + own * g).square() + others * g.square()).sqrt()
        return (linear + self.norm_A * nu * t**2) * (1 + PRODUCT) + self.score_error[:, None]

    def _score_deviation(self, t: float, per_token: bool) -> Float[Tensor, " n"]:
        r"""Bound the standard deviation, under P, of the movements of a row's scores.

        It is at most :math:`\tau_i|e_i| + |g_i|\,\mathrm{sd}(e) + \|A\||e_i|\,\mathrm{sd}(e)` with
        :math:`\mathrm{sd}(e)^2 = \mathrm{tr}\,E^\top SE \le \|S\|t^2`, or :math:`t^2` if each token moves by t. The
        mean of any φ moves with the weights by the integral of its covariance with these movements.
        """
        norm_S, _diagonal = softmax_jacobian_bounds(self.P, self.P)
        sd = torch.full_like(norm_S, t) if per_token else t * norm_S.sqrt()
        key, query = self.key_gradient * sd, self.tau * t
        linear = query + key if per_token else torch.hypot(query, key)
        return (linear + self.norm_A * t * sd) * (1 + PRODUCT) + self.score_error


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadOnBall:
    """Bounds on one head at all points Z of a ball around X."""

    log_P: tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]  # logarithms of weights, from above and from below
    upper: Float[Tensor, "n n"]  # weights from above
    lower: Float[Tensor, "n n"]  # weights from below
    drift: Float[Tensor, " n"]  # (Σ_j P_ij|e_j|²)^½, how far tokens move in the mean of a row
    score_deviation: Float[Tensor, " n"]  # by how many standard deviations at X means move with the weights
    peak: Float[Tensor, " n"]  # max_j P_ij
    tau: Float[Tensor, " n"]  # ‖C_i^½A‖
    sigma: Float[Tensor, " n"]  # ‖VC_i^½‖
    rho: Float[Tensor, " n"]  # max_j |V(x_j − m_i)|
    gamma: Float[Tensor, " n"]  # |g_i|
    norm_A: float
    norm_V: float

    def second_derivative(self, per_token: bool) -> float:
        r"""Bound :math:`\|D^2f\|` of this head: Theorem 5, head by head.

        Row i of :math:`D^2f(E,F)` is at most :math:`(|e_i|,\eta_i(E))\,M_i\,(|f_i|,\eta_i(F))^\top` with

        .. math:: M_i = \begin{pmatrix}\rho\tau^2 & \|V\|\tau+\|A\|\sigma+\rho\tau\gamma\\
                  \cdot & 2\|V\|\gamma+\rho\gamma^2\end{pmatrix},\qquad \eta_i(E)^2 = \sum_jP_{ij}|e_j|^2.
        """
        # Third central moments are at most the largest distance times a covariance: ρ·τ·τ, ρ·τ·γ, ρ·γ·γ.
        query_query = self.rho * self.tau.square()
        query_key = self.norm_V * self.tau + self.norm_A * self.sigma + self.rho * self.tau * self.gamma
        key_key = 2 * self.norm_V * self.gamma + self.rho * self.gamma.square()
        if per_token:  # |e_i| ≤ 1 and η_i(E) ≤ 1
            keys = (self.upper * (query_key + key_key)[:, None].square()).sum(0).max().sqrt()
            return float((query_query + query_key).max() + keys)
        # Σ|e_i|² ≤ 1, so η_i(E)² ≤ max_j P_ij
        keys = (self.upper * key_key[:, None]).square().sum(0).max().sqrt()
        return float(query_query.max() + 2 * (query_key * self.peak.sqrt()).max() + keys)

    def first_derivative(self) -> float:
        r"""Bound :math:`\|D_Zf\|` of this head by its value, query and key terms, as in Theorem 3.

        :math:`\|V\|(\max_j\sum_i\hat P_{ij})^{1/2} + \max_i\sigma_i\tau_i + (\sum_i\gamma_i^2\hat p_i\sigma_i^2)^{1/2}`
        """
        # ‖P‖² ≤ max column sum, as rows sum to one; Σ_j P_ij²|v_j|² ≤ max_j P_ij · variance.
        value_term = self.norm_V * self.upper.sum(0).max().sqrt()
        key_term = (self.gamma.square() * self.peak * self.sigma.square()).sum().sqrt()
        return float(value_term + (self.sigma * self.tau).max() + key_term)


def softmax_jacobian_bounds(upper: Float[Tensor, "*rows n"], lower: Float[Tensor, "*rows n"]) -> tuple[Tensor, Tensor]:
    r"""Bound :math:`S = \mathrm{diag}(p)-pp^\top` for all p between: its norm, and a diagonal matrix above it.

    S is below :math:`\mathrm{diag}(p)`, and below :math:`2\,\mathrm{diag}(p_j(1-p_j))`, since it is the sum of
    :math:`p_jp_k(u_j-u_k)(u_j-u_k)^\top` over pairs of unit vectors, each below
    :math:`2p_jp_k(u_ju_j^\top+u_ku_k^\top)`. And :math:`u^\top Su` is the variance of numbers at most
    :math:`\sqrt2|u|` apart, so :math:`\|S\| \le 1/2`.
    """
    # 1 − p is the sum of the other weights; 1 less a weight near one, or their whole sum less it, would cancel
    # Every number here may be near 0 or near 1, and differences from 1 must keep their digits.
    rest = (upper @ (1 - torch.eye(upper.shape[-1], dtype=upper.dtype))).clamp_max(1.0)
    # p(1 − p) is largest at one half; 1e-16 is the rounding of 1 − p
    ends = torch.maximum(upper * (1 - upper), lower * (1 - lower))
    product = torch.where((upper >= 0.5) & (lower <= 0.5), 0.25, ends)
    twice = 2 * torch.minimum(product + 1e-16, upper * rest)
    diagonal = torch.where((twice.amax(-1) < upper.amax(-1))[..., None], twice, upper)
    return diagonal.amax(-1).clamp_max(0.5), diagonal


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of every point of ``a`` from every point of ``b``."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")  # products would cancel


def _shifted_log_weights(log_P: Tensor, delta: Tensor) -> Tensor:
    """Return the log of each weight when its own score moves by ``delta`` and all others of its row by the opposite."""
    own, others = log_P + delta, log_P - delta
    whole = others.logsumexp(-1, keepdim=True)
    # log Σ_{k≠j} from the whole sum, by removing one term; beside the largest, where that would cancel, summed anew
    rest = whole + torch.log1p(-(others - whole).exp())
    largest = others.argmax(-1, keepdim=True)
    rest = rest.scatter(-1, largest, others.scatter(-1, largest, -torch.inf).logsumexp(-1, keepdim=True))
    return torch.nn.functional.logsigmoid(own - rest)


def _deviation_on_ball(deviation: Tensor, growth: Tensor, upper: Tensor, distance: Tensor) -> Tensor:
    """Bound a standard deviation under the weights of the ball in three ways; distances are from the mean at X."""
    around = torch.minimum((upper * distance.square()).sum(-1).sqrt(), distance.amax(-1))
    return torch.minimum(growth * deviation, around)


def _deviation(P: Tensor, points: Tensor, form: Tensor | None) -> Float[Tensor, " n"]:
    """Return the largest standard deviation, over directions, of points under each row of weights."""
    # A shift changes no covariance and makes the numbers that cancel small.
    centred = points - points.mean(0)
    mean = P @ centred
    covariance = weighted_pairs(P, centred, centred) - mean[:, :, None] * mean[:, None, :]
    rounding = (16 + len(P)) * torch.finfo(P.dtype).eps * centred.square().sum(1).max()
    if form is not None:
        A = triangular_factor(form)
        covariance = A.mT @ covariance @ A
        rounding = rounding * torch.linalg.matrix_norm(A, ord=2) ** 2
    return (torch.linalg.eigvalsh(covariance)[:, -1].clamp_min(0) + rounding).sqrt()
