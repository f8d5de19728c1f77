"""Theorems 7 and 8: measures on a ball and Wasserstein distances; bounds without the number of tokens."""

import math

from scipy.optimize import minimize_scalar

from howsmooth.domains.domain import measures_in_ball
from howsmooth.domains.norm_image import StretchedSphere
from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import (
    refuse_biases,
    refuse_many_heads,
    require_causal_or_none,
    require_radius,
    require_scores_alone,
    require_unmasked,
)
from howsmooth.theory.heads import Head, combine_factors, heads_of, log, log_sum
from howsmooth.theory.results import Bound, lower_bound, upper_bound
from howsmooth.theory.worst_inputs.eigenvector import steepest_eigenvalue
from howsmooth.theory.worst_inputs.tied_pair import best_pair

FINITE = "sharp_upper for sequences of n tokens"
MASKED = "masked_mean_field_upper"
SEARCH = "hs.maximise, which finds inputs for any map"


def mean_field_upper(attention: Attention, *, radius: float) -> Bound:
    r"""Bound the Lipschitz constant on measures in a ball, in :math:`W_2`, as the paper does.

    .. math:: \mathrm{Lip}(F_{|\mathcal P(B_R)}) \le \|V\|\,(1+3c)\,e^{2c},\qquad c = \|A\|R^2

    After [geshkovski2023]. It bounds sequences of every length too. :func:`sharp_mean_field_upper` is always smaller.

    Raises:
        AssumptionError: If attention is masked, or scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> round(mean_field_upper(Attention.single_head(A=0 * identity, V=identity), radius=1.0).value, 9)
        1.0
    """
    heads = _unmasked_heads(attention, "the paper's mean-field bound", radius)
    log_value = combine_factors(heads, (math.log1p(3 * c) + 2 * c for c in _contrasts(heads, radius)))
    return upper_bound(log_value, "mean_field_upper", measures_in_ball(radius), "the paper, after Geshkovski et al.")


def sharp_mean_field_upper(attention: Attention, *, radius: float, p: float = 2.0) -> Bound:
    r"""Bound the Lipschitz constant on measures in a ball, in :math:`W_p`.

    .. math:: \mathrm{Lip}(F_{|\mathcal P(B_R)}) \le \|V\|\,\bigl((1+2c)\,e^{2c/p} + c\bigr),\qquad c = \|A\|R^2

    Since :math:`P(x,dy)\le e^{2c}\mu(dy)`, averaging by P has norm at most :math:`e^{2c/p}` on :math:`L^p(\mu)`.
    For ``p = 2`` it bounds sequences of every length too.

    Raises:
        AssumptionError: If ``p < 1``, if attention is masked, or scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> round(sharp_mean_field_upper(Attention.single_head(A=0 * identity, V=identity), radius=1.0).value, 9)
        1.0
    """
    _require_exponent(p, above=False)
    heads = _unmasked_heads(attention, "the mean-field bound", radius)
    # Scores in the ball differ by at most 2c, so weights are at most e^{2c} times uniform ones.
    logs = [log_sum((math.log1p(2 * c) + 2 * c / p, log(c))) for c in _contrasts(heads, radius)]
    domain = measures_in_ball(radius) if p == 2 else f"{measures_in_ball(radius)} in W_{p:g}"
    source = "ours: weights ≤ e^2c × uniform"
    return upper_bound(_summed(heads, logs, p), "sharp_mean_field_upper", domain, source)


def masked_mean_field_upper(attention: Attention, *, radius: float, p: float = 2.0) -> Bound:
    r"""Bound the Lipschitz constant of masked attention on measures with positions, in the conditional distance.

    .. math:: \mathrm{Lip}(F^m) \le \|V\|\,\Bigl(\tfrac{p}{p-1}\,(1+2c)\,e^{2c} + c\Bigr),\qquad c = \|A\|R^2

    Caution: the paper states the unmasked bound :math:`\|V\|(1+3c)e^{2c}`. Under
    :math:`d_p^p = \int W_p(\mu^s,\nu^s)^p\,d\theta(s)` that cannot hold for c < 0.155: equal tokens give the Cesàro
    operator, whose norm tends to 2. The factor :math:`p/(p-1)` is Hardy's; for p = 1 no bound without n exists.

    Raises:
        AssumptionError: If ``p <= 1``, or scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> f = Attention.single_head(A=0 * identity, V=identity, causal=True)
        >>> round(masked_mean_field_upper(f, radius=1.0).value, 9)
        2.0
    """
    _require_exponent(p, above=True)
    require_radius(radius)
    _plain_scores(attention, "the masked mean-field bound", FINITE)
    require_causal_or_none(attention, "the masked mean-field bound", FINITE)
    heads = heads_of(attention)
    # Hardy's inequality: the norm of the Cesàro operator on L^p, which is 1 for p = ∞
    hardy = math.log(p / (p - 1)) if p < math.inf else 0.0
    logs = [log_sum((hardy + math.log1p(2 * c) + 2 * c, log(c))) for c in _contrasts(heads, radius)]
    domain = f"{measures_in_ball(radius)} with positions" + ("" if p == 2 else f", in d_{p:g}")
    return upper_bound(_summed(heads, logs, p), "masked_mean_field_upper", domain, "ours: Hardy's inequality")


def mean_field_lower(attention: Attention, *, radius: float) -> Bound:
    r"""Bound the Lipschitz constant on measures from below, as the paper does.

    .. math:: \mathrm{Lip}(F) \ge \tfrac\gamma2R^2e^{\gamma R^2}\,|Vu|,\qquad \gamma = \max(-\gamma_\delta, \gamma_1/8)

    from two points on the real eigenvector u, with n of the order of :math:`e^{2\gamma R^2}` tokens, or a light Dirac
    of mass :math:`e^{-2\gamma R^2}`. The paper takes V = I.

    Raises:
        AssumptionError: If A has no real eigenvalue other than zero (:func:`sharp_mean_field_lower` needs none), for
            several heads, if attention is masked, or scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> mean_field_lower(Attention.single_head(A=-one, V=one), radius=2.0).digits  # 2 e⁴
        '109.19'
    """
    head = require_mean_field(attention, "the paper's mean-field lower bound", radius)
    best = steepest_eigenvalue(head, "sharp_mean_field_lower")
    if best.gamma <= 0:
        raise AssumptionError(
            "A has no real eigenvalue other than zero; use sharp_mean_field_lower, which needs none.", field="attention"
        )
    # Logarithms: e^(γR²) leaves the range of floats at γR² = 710.
    contrast = best.gamma * radius**2
    log_value = log(contrast / 2) + contrast + log(float((head.mixed @ best.direction).norm()))
    return lower_bound(
        log_value, "mean_field_lower", measures_in_ball(radius), "the paper, two Diracs on an eigenvector"
    )


def sharp_mean_field_lower(attention: Attention, *, radius: float) -> Bound:
    r"""Bound the Lipschitz constant on measures from below: the best explicit input, over the number of tokens too.

    The largest of

    .. math:: \tfrac12\,e^{\Delta/2}\,|Ae|\,rR\sin\theta\,|Vz|
              \qquad\text{and}\qquad \max_{t>0}\; e^{\gamma R^2}\,\tfrac{\sqrt t}{1+t}\,|Vu|\,
              \bigl(1 + 2\gamma R^2\,\tfrac t{1+t}\bigr),

    the tied pair of :func:`sharp_lower` at its best number :math:`2e^\Delta` of copies, and two Diracs on a real
    eigenvector (t = 3 gives :math:`\tfrac{3\sqrt3}8\gamma R^2e^{\gamma R^2}`); and ‖V‖, attained at a single Dirac.

    Raises:
        AssumptionError: For several heads, if attention is masked, or scores are not :math:`\langle Ax,y\rangle` alone.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> sharp_mean_field_lower(Attention.single_head(A=-one, V=one), radius=2.0).digits
        '165.79'
    """
    head = require_mean_field(attention, "sharp_mean_field_lower", radius)
    log_value = max(log(head.norm_WV), _two_diracs(head, radius), _tied_diracs(head, radius))
    return lower_bound(
        log_value, "sharp_mean_field_lower", measures_in_ball(radius), "ours: explicit Diracs, best masses"
    )


def _two_diracs(head: Head, radius: float) -> float:
    try:
        best = steepest_eigenvalue(head, "tied pairs")
    except AssumptionError:
        return -math.inf
    contrast = best.gamma * radius**2

    # over the logarithm of t, the mass ratio: the value has one maximum there, far inside the bounds
    def loss(log_t: float) -> float:
        t = math.exp(log_t)
        return -(0.5 * log_t - math.log1p(t) + math.log1p(2 * contrast * t / (1 + t)))

    found = minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded")
    return contrast - float(found.fun) + log(float((head.mixed @ best.direction).norm()))


def _tied_diracs(head: Head, radius: float) -> float:
    if head.d < 2 or head.norm_A == 0 or head.norm_WV == 0:
        return -math.inf
    return best_pair(head, StretchedSphere.ball(head.d, radius, solid=True), None).log_value


def require_mean_field(attention: Attention, theorem: str, radius: float) -> Head:
    """Return the one head of an unmasked map whose scores are ⟨Ax, y⟩ alone; refuse any other."""
    refuse_many_heads(attention, theorem, SEARCH)
    (head,) = _unmasked_heads(attention, theorem, radius, instead=SEARCH, masked=SEARCH)
    return head


def _unmasked_heads(
    attention: Attention, theorem: str, radius: float, *, instead: str = FINITE, masked: str = MASKED
) -> tuple[Head, ...]:
    require_radius(radius)
    _plain_scores(attention, theorem, instead)
    require_causal_or_none(attention, theorem, instead)
    require_unmasked(attention, theorem, masked)
    return heads_of(attention)


def _plain_scores(attention: Attention, theorem: str, instead: str) -> None:
    require_scores_alone(attention, theorem, instead)
    refuse_biases(attention, theorem, instead)


def _contrasts(heads: tuple[Head, ...], radius: float) -> list[float]:
    r"""Return :math:`c_h = \|A_h\|R^2`."""
    return [head.norm_A * radius**2 for head in heads]


def _summed(heads: tuple[Head, ...], logs: list[float], p: float) -> float:
    """Combine heads; below p = 2 only Minkowski's inequality is at hand, which adds them."""
    # The concatenated bound adds squares of heads, which needs p ≥ 2.
    if p >= 2:
        return combine_factors(heads, logs)
    return log_sum(log(head.norm_WV) + g for head, g in zip(heads, logs, strict=True))


def _require_exponent(p: float, *, above: bool) -> None:
    if not (p > 1 if above else p >= 1):
        need = "above 1 (for p = 1 no bound without n exists)" if above else "at least 1"
        raise AssumptionError(f"p must be {need}, got {p}.", field="p")
