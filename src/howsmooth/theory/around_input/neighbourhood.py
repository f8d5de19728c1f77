"""Theorem 5: the local constant of every input in a ball around one, and how far the output moves there."""

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning
from howsmooth.linear_operators import LinearOperator
from howsmooth.maps.attention import Attention
from howsmooth.metrics import Metric, as_metrics
from howsmooth.rounding import PRODUCT
from howsmooth.spectral.solvers import local_lipschitz, widening
from howsmooth.theory.around_input.first_derivative import FirstDerivative
from howsmooth.theory.around_input.head_on_ball import TINY, HeadAtCentre, HeadOnBall, distances
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, LayerOnBall
from howsmooth.theory.around_input.second_derivative import SecondDerivative
from howsmooth.theory.assumptions import has_key_norm, require_attention
from howsmooth.theory.at_input.head_at_input import heads_at_input
from howsmooth.theory.at_input.rescaling import Rescaled
from howsmooth.theory.ball.softmax import sharp_upper
from howsmooth.theory.heads import log, on_cpu, output_norm
from howsmooth.theory.linalg.matrix_norms import norm_upper
from howsmooth.theory.results import Bound, upper_bound

# The second derivative is summed from above on so many intervals.
INTERVALS = 16
# A constant at the centre that is measured enters with its upper end.
CONFIDENCE = 1 - 1e-12
# Up to so many rows and columns the derivative at the centre is decomposed, and nothing is left to chance.
DENSE = 1024
# In balls smaller than this share of the largest token, those around the origin say nothing better.
NEAR = 0.1
# Beyond so many times the tokens nothing is known but what holds everywhere.
FARTHEST = 1e100
# Gram matrices for every row are affordable up to so many numbers.
NUMBERS = 2e7
SOURCE = "ours: second derivative"


def neighbourhood_upper(
    attention: Attention, X: Float[Tensor, "n d"], *, eps: float, metric: str | Metric = "total"
) -> Bound:
    r"""Bound the local constant at every input within ``eps`` of ``X``.

    .. math:: \sup_{\|Z-X\|\le\varepsilon}\|D_Zf\| \le \|D_Xf\| + \int_0^\varepsilon H(t)\,dt,\qquad
              H(t) \ge \sup_{\|Z-X\|\le t}\|D_Z^2f\|

    H is given in the docs: for the whole layer, by exact Gram matrices at X and norms for what is added around it; for
    long sequences, head by head. Far from X the terms of ``local_upper`` and ``sharp_upper``, taken on the whole ball,
    are smaller; the smallest is returned. The constant at X is decomposed if the derivative is small, otherwise
    measured at a confidence that the bound states.

    Args:
        attention: The map.
        X: The centre, one sequence.
        eps: The radius.
        metric: How :math:`\|Z-X\|` is measured: ``total``, or ``token`` for each token; other norms are Euclidean.

    Raises:
        AssumptionError: If ``eps`` is not positive, or under rotary positions, soft caps, query or key norms.
    """
    per_token = _per_token(metric)
    found = ConstantsOnBalls.of(attention, X, eps=eps, per_token=per_token)
    return upper_bound(log(float(found.values[-1])), "neighbourhood_upper", found.domain, SOURCE, found.confidence)


def displacement_upper(
    attention: Attention, X: Float[Tensor, "n d"], *, eps: float, metric: str | Metric = "total"
) -> Bound:
    r"""Bound how far the output moves when the input moves by at most ``eps``: a distance, not a slope.

    .. math:: \sup_{\|Z-X\|\le\varepsilon}\|f(Z)-f(X)\| \le \int_0^\varepsilon g(t)\,dt,\qquad
              g(t) \ge \sup_{\|Z-X\|\le t}\|D_Zf\|

    with g as in :func:`neighbourhood_upper`; each token within ``eps``: :math:`\sqrt n` times that. It is never more
    than the values allow, since a row stays in their hull:
    :math:`(\sum_i(\sum_h\max_j|y^h_j-\bar y^h_i| + \|W_hV_h\|\varepsilon)^2)^{1/2}`.

    Args:
        attention: The map.
        X: The centre, one sequence.
        eps: The radius.
        metric: How :math:`\|Z-X\|` is measured: ``total``, or ``token`` for each token; other norms are Euclidean.

    Raises:
        AssumptionError: As :func:`neighbourhood_upper`.
    """
    return displacement_uppers(attention, [X], eps=eps, metric=metric)[0]


def displacement_uppers(
    attention: Attention, inputs: Sequence[Float[Tensor, "n d"]], *, eps: float, metric: str | Metric = "total"
) -> list[Bound]:
    """Return :func:`displacement_upper` at several inputs of one length, whose balls around the origin are shared."""
    per_token, around = _per_token(metric), AroundOrigin(attention=attention)
    smallest_first = sorted(range(len(inputs)), key=lambda i: _longest(inputs[i]))
    found = {i: _displacement(attention, inputs[i], eps, per_token, around) for i in smallest_first}
    return [found[i] for i in range(len(inputs))]


def _displacement(attention: Attention, X: Tensor, eps: float, per_token: bool, around: "AroundOrigin") -> Bound:
    found = ConstantsOnBalls.of(attention, X, eps=eps, per_token=per_token, around=around)
    # a straight path, at the right end of every interval as for the constant
    # |f(Z) − f(X)| ≤ ∫|D f| along the segment, whose points at distance t lie in the ball of radius t.
    step = eps / len(found.values) * (math.sqrt(len(X)) if per_token else 1.0)
    along = float(found.values.sum()) * step * (1 + PRODUCT)
    unit = Rescaled.of(attention, X)
    size = token_unit(X, unit)
    value = min(along, size * unit.in_original_units(_hull(unit, eps / size)))
    source = "ours: second derivative along a path, or the hull of values"
    return upper_bound(log(value), "displacement_upper", found.domain, source, found.confidence)


def _per_token(metric: str | Metric) -> bool:
    """Tell whether a ball is one for each token.

    Raises:
        AssumptionError: If the theorem is not about balls in this metric.
    """
    name = as_metrics(metric).name
    if name not in ("total", "token"):
        raise AssumptionError(f"Theorem 5 is about the metrics total and token, got {name!r}.", field="metric")
    return name == "token"


def _hull(unit: Rescaled, eps: float) -> float:
    """Bound the movement by the hull of values, which no row leaves."""
    rows = torch.zeros(len(unit.X), dtype=torch.float64)
    for view in (alone.mixed() for alone in heads_at_input(unit.attention, unit.X)):
        error = 4 * view.errors.value * view.value_norm / max(view.head.norm_V, TINY)
        distance = distances(view.mean, view.y) + error
        # the mean itself is known up to the rounding errors of its weights
        distance = distance + (view.errors.change * (2 * view.value_radius + error))[:, None]
        rows += torch.where(view.log_P > -torch.inf, distance, 0.0).amax(-1) + view.value_norm * eps
    return float(rows.norm()) * (1 + PRODUCT)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConstantsOnBalls:
    """Bounds on the local constant on balls around one input, their radii at equal steps up to ``eps``."""

    values: Float[Tensor, " steps"]
    domain: str  # the whole ball, in words
    confidence: float  # 1, or that of the constant at the centre

    @classmethod
    def of(
        cls,
        attention: Attention,
        X: Float[Tensor, "n d"],
        *,
        eps: float,
        per_token: bool,
        around: "AroundOrigin | None" = None,
    ) -> "ConstantsOnBalls":
        """Bound the constant on every ball; what is known of balls ``around`` the origin is not computed again."""
        _require(attention, eps)
        around = AroundOrigin(attention=attention) if around is None else around
        unit = Rescaled.of(attention, X)
        share = eps / token_unit(X, unit)
        centre, confidence = _constant_at_centre(unit)
        t = torch.linspace(0, share, INTERVALS + 1, dtype=torch.float64)[1:]
        second, first = _derivatives(unit, t, per_token) if share < FARTHEST else torch.full((2, INTERVALS), torch.inf)
        # Why the right end of every interval: the bound on the second derivative grows with t, so the sum lies above
        # the integral; a rule of higher order would be nearer to it, and no theorem.
        along = centre + second.cumsum(0) * (share / INTERVALS)
        found = torch.tensor(
            [unit.in_original_units(float(x)) for x in torch.minimum(along, first)], dtype=torch.float64
        )
        return cls(
            values=found.nan_to_num(torch.inf, torch.inf).clamp_max(around.upper(X, eps, found)),
            domain=f"the ball of radius {eps:g} around the input" + (", for each token" if per_token else ""),
            confidence=confidence,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AroundOrigin:
    """Theorem 1 on balls around the origin, for inputs of one length: asked only where it may say less."""

    attention: Attention
    known: list[tuple[float, float]] = field(default_factory=list)  # the radii of balls, and their bounds

    def upper(self, X: Tensor, eps: float, found: Tensor) -> float:
        """Bound the constant on the ball around the origin that holds all balls; infinite if ``found`` is smaller."""
        size = _longest(X)
        if eps < NEAR * size and math.isfinite(float(found[-1])):
            return math.inf
        radius = (size + eps) * (1 + PRODUCT)
        # the theorem grows with the radius: what does not help on a smaller ball does not on this one
        if any(smaller <= radius and bound >= float(found.max()) for smaller, bound in self.known):
            return math.inf
        bound = sharp_upper(self.attention, n=X.shape[0], radius=radius).value
        self.known.append((radius, bound))
        return bound


def _longest(X: Float[Tensor, "n d"]) -> float:
    """Return the norm of the longest token."""
    return float(on_cpu(X).norm(dim=-1).max())


def token_unit(X: Tensor, unit: Rescaled) -> float:
    """Return the length, a power of two, that tokens were divided by."""
    size = float(unit.X.abs().max())
    return float(on_cpu(X).abs().max()) / size if size > 0 else 1.0


def _require(attention: Attention, eps: float) -> None:
    require_attention(attention)
    if not 0 < eps < math.inf:
        raise AssumptionError(f"eps must be positive and finite, got {eps}.", field="eps")
    if attention.positions.rotary is not None or attention.softcap is not None or has_key_norm(attention):
        raise AssumptionError(
            "neighbourhood_upper covers neither rotary positions nor soft caps nor query/key norms; "
            "use local_upper at an input, or hs.maximise over hs.domains.Neighbourhood.",
            field="attention",
        )


def _constant_at_centre(unit: Rescaled) -> tuple[float, float]:
    """Bound the constant at the centre, in float64 whatever the weights were in; return it with its confidence."""
    f, X = unit.attention, unit.X
    J = f.jacobian(X)
    if max(X.numel(), math.prod(J.codomain)) <= DENSE:
        share = widening(J)
        return (norm_upper(_matrix(J)) * (1 + share) if share < 0.1 else math.inf), 1.0
    with warnings.catch_warnings():
        # where scores are so large that products contradict each other it is infinite, and the other terms bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(local_lipschitz(f, X, confidence=CONFIDENCE, seed=_start(f, X)).upper), CONFIDENCE


def _matrix(J: LinearOperator) -> Float[Tensor, "m n"]:
    """Write an operator down, column by column or row by row, whichever are fewer."""
    narrow = math.prod(J.domain) <= math.prod(J.codomain)
    side, product = (J.domain, J.jvp) if narrow else (J.codomain, J.vjp)
    units = torch.eye(math.prod(side), dtype=J.dtype).reshape(-1, *side)
    return torch.stack([product(unit).flatten() for unit in units])


def _start(attention: Attention, X: Tensor) -> torch.Generator:
    """Return a source of randomness that is the same for the same question and unknown to who chose the weights.

    Why not one fixed seed: values orthogonal to its start could be chosen, and the bound would miss them.
    """
    digest = hashlib.sha256()
    for x in (attention.query, attention.key, attention.value, X):
        digest.update(x.detach().contiguous().numpy().tobytes())
    return torch.Generator().manual_seed(int.from_bytes(digest.digest()[:7]))


def _derivatives(unit: Rescaled, t: Float[Tensor, " steps"], per_token: bool) -> Float[Tensor, "2 steps"]:
    """Bound the second and the first derivative on balls of radii t: head by head, and for the whole layer."""
    views = heads_at_input(unit.attention, unit.X)
    before, after = ([HeadAtCentre.of(view) for view in side] for side in (views, [view.mixed() for view in views]))
    # Values before W (heads joined by ‖W‖) and after W (heads added up): weights are the same for both.
    values = [[head.on_ball(float(s), per_token) for head in before] for s in t]
    # the output projection changes values and no weights
    outputs = [
        [head.on_ball(float(s), per_token, like=x) for head, x in zip(after, side, strict=True)]
        for s, side in zip(t, values, strict=True)
    ]
    norm_W = None if unit.attention.output is None else output_norm(tuple(view.head for view in views))
    by_heads = torch.stack([_by_heads(v, o, norm_W, per_token) for v, o in zip(values, outputs, strict=True)], dim=1)
    heads, n = len(views), len(unit.X)
    if n * (heads * n) ** 2 > NUMBERS:
        return by_heads
    try:
        centre = LayerAtCentre.of(views)
        second, first = SecondDerivative(centre=centre), FirstDerivative.of(views, centre)
        length = math.sqrt(n) if per_token else 1.0  # a movement of every token by one is √n long
        whole = [
            (
                length * second.upper(LayerOnBall.of(centre, v, float(s), per_token)),
                first.upper(v, o, float(s), per_token),
            )
            for s, v, o in zip(t, values, outputs, strict=True)
        ]
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # numbers beyond the range of floats
        return by_heads
    return torch.fmin(by_heads, torch.tensor(whole, dtype=torch.float64).mT)


def _by_heads(
    values: list[HeadOnBall], outputs: list[HeadOnBall], norm_W: float | None, per_token: bool
) -> Float[Tensor, " 2"]:
    r"""Join heads by :math:`\|W\|(\sum_hv_h^2)^{1/2}`, or by the sum of what they put out."""
    v, o = (
        torch.tensor([(h.second_derivative(per_token), h.first_derivative()) for h in side], dtype=torch.float64)
        for side in (values, outputs)
    )
    stacked = v.square().sum(0).sqrt()
    return stacked if norm_W is None else torch.minimum(stacked * norm_W, o.sum(0))
