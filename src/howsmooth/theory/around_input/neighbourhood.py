"""Theorem 5: the local constant of every input in a ball around one, and how far the output moves there."""

import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from howsmooth.theory.assumptions import has_key_norm, require_attention, require_one_sequence, require_positive
from howsmooth.theory.at_input.head_at_input import HeadAtInput, heads_at_input
from howsmooth.theory.at_input.rescaling import Rescaled
from howsmooth.theory.ball.softmax import sharp_upper
from howsmooth.theory.heads import log, on_cpu, output_norm
from howsmooth.theory.linalg.matrix_norms import norm_upper
from howsmooth.theory.results import Bound, upper_bound
from howsmooth.validation import require_sequences, tokens_for

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
    _require(attention, eps)
    centre = InputCentre(attention=attention, X=_one_sequence(attention, X))
    found = constants_on_balls(centre, eps, per_token, AroundOrigin(attention=attention))
    return upper_bound(log(found[-1]), "neighbourhood_upper", _ball(eps, per_token), SOURCE, centre.confidence)


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
    return displacement_uppers(attention, [_one_sequence(attention, X)], radii=[eps], metric=metric)[0][0]


def displacement_uppers(
    attention: Attention,
    inputs: Sequence[Float[Tensor, "n d"]],
    *,
    radii: Sequence[float],
    metric: str | Metric = "total",
    progress: Callable[[], None] = lambda: None,
) -> list[list[Bound]]:
    """Return :func:`displacement_upper` at several inputs of one length, for each within several radii.

    What is known at an input is shared by its radii, and what is known of balls around the origin by all. ``progress``
    is called after each bound.
    """
    per_token, around = _per_token(metric), AroundOrigin(attention=attention)
    found: dict[int, list[Bound]] = {}
    for eps in radii:
        _require(attention, eps)
    for i in sorted(range(len(inputs)), key=lambda i: _longest(inputs[i])):  # the smallest balls first
        centre = InputCentre(attention=attention, X=inputs[i])
        found[i] = []
        for eps in radii:
            found[i].append(_displacement(centre, eps, per_token, around))
            progress()
    return [found[i] for i in range(len(inputs))]


def _displacement(centre: "InputCentre", eps: float, per_token: bool, around: "AroundOrigin") -> Bound:
    # |f(Z) − f(X)| ≤ ∫|D f| along the segment, whose points at distance t lie in the ball of radius t: a straight path,
    # at the right end of every interval as for the constant
    step = eps / INTERVALS * (math.sqrt(len(centre.X)) if per_token else 1.0)
    value = centre.hull(eps)
    constants = constants_on_balls(centre, eps, per_token, around, enough=value / step)
    if len(constants) == INTERVALS:
        value = min(value, math.fsum(constants) * step * (1 + PRODUCT))
    source = "ours: second derivative along a path, or the hull of values"
    return upper_bound(log(value), "displacement_upper", _ball(eps, per_token), source, centre.confidence)


def _ball(eps: float, per_token: bool) -> str:
    """Say which ball it is."""
    return f"the ball of radius {eps:g} around the input" + (", for each token" if per_token else "")


def _per_token(metric: str | Metric) -> bool:
    """Tell whether a ball is one for each token.

    Raises:
        AssumptionError: If the theorem is not about balls in this metric.
    """
    name = as_metrics(metric).name
    if name not in ("total", "token"):
        raise AssumptionError(f"Theorem 5 is about the metrics total and token, got {name!r}.", field="metric")
    return name == "token"


def _hull(views: list[HeadAtInput], eps: float) -> float:
    """Bound the movement by the hull of values, which no row leaves."""
    # a row of f(Z) is a mean of values at Z, each within ‖WV‖ε of one at X: no row is farther from its old mean than
    # the farthest of these values, whatever the weights become
    rows = torch.zeros(len(views[0].P), dtype=torch.float64)
    for view in views:
        error = 4 * view.errors.value * view.value_norm / max(view.head.norm_V, TINY)
        distance = distances(view.mean, view.y) + error
        # the mean itself is known up to the rounding errors of its weights
        distance = distance + (view.errors.change * (2 * view.value_radius + error))[:, None]
        rows += torch.where(view.log_P > -torch.inf, distance, 0.0).amax(-1) + view.value_norm * eps
    return float(rows.norm()) * (1 + PRODUCT)


@dataclass(frozen=True, kw_only=True, eq=False)
class InputCentre:
    """The input that balls are around: everything there is computed once, for balls of all radii."""

    attention: Attention
    X: Float[Tensor, "n d"]

    @functools.cached_property
    def unit(self) -> Rescaled:
        """The map and the input in other units."""
        return Rescaled.of(self.attention, self.X)

    @functools.cached_property
    def size(self) -> float:
        """The length that tokens were divided by."""
        return token_unit(self.X, self.unit)

    @functools.cached_property
    def constant(self) -> tuple[float, float]:
        """A bound on the constant at the input, in those units, and its confidence."""
        return _constant_at_centre(self.unit)

    @property
    def confidence(self) -> float:
        """The confidence of everything that follows from it."""
        _constant, confidence = self.constant
        return confidence

    @functools.cached_property
    def heads(self) -> tuple[list[HeadAtCentre], list[HeadAtCentre]]:
        """All heads, their values before W (heads joined by ‖W‖) and after W (heads added up): weights are the same."""
        before, after = ([HeadAtCentre.of(view) for view in side] for side in (self._views, self._mixed))
        return before, after

    @functools.cached_property
    def output_norm(self) -> float | None:
        """The norm of the output projection, if there is one."""
        plain = self.unit.attention.output is None
        return None if plain else output_norm(tuple(view.head for view in self._mixed))

    @functools.cached_property
    def layer(self) -> tuple[SecondDerivative, FirstDerivative] | None:
        """Both derivatives of the whole layer; none where that takes too much memory, or leaves the range of floats."""
        heads, n = len(self._views), len(self.X)
        if n * (heads * n) ** 2 > NUMBERS:
            return None
        try:
            at_X = LayerAtCentre.of(self._views)
            return SecondDerivative(centre=at_X), FirstDerivative.of(self._views, at_X)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None

    def hull(self, eps: float) -> float:
        """Bound the movement by the hull of values."""
        return self.size * self.unit.in_original_units(_hull(self._mixed, eps / self.size))

    def constants(self, eps: float, per_token: bool) -> Iterator[float]:
        """Yield bounds on the constant on balls of radii at equal steps up to ``eps``: each from that before."""
        share = eps / self.size
        along, _confidence = self.constant
        # Why the right end of every interval: the bound on the second derivative grows with t, so the sum lies above
        # the integral; a rule of higher order would be nearer to it, and no theorem.
        for t in torch.linspace(0, share, INTERVALS + 1, dtype=torch.float64)[1:].tolist():
            second, first = self._derivatives(t, per_token) if share < FARTHEST else (math.inf, math.inf)
            along += second * (share / INTERVALS)
            found = math.nan if math.isnan(along + first) else self.unit.in_original_units(min(along, first))
            yield math.inf if math.isnan(found) else found

    def _derivatives(self, t: float, per_token: bool) -> tuple[float, float]:
        """Bound the second and the first derivative on the ball of radius t: head by head, and for the whole layer."""
        before, after = self.heads
        values = [head.on_ball(t, per_token) for head in before]
        # the output projection changes values and no weights
        outputs = [head.on_ball(t, per_token, like=x) for head, x in zip(after, values, strict=True)]
        by_heads = _by_heads(values, outputs, self.output_norm, per_token)
        if self.layer is None:
            return by_heads
        second, first = self.layer
        length = math.sqrt(len(self.X)) if per_token else 1.0  # a movement of every token by one is √n long
        try:
            ball = LayerOnBall.of(second.centre, values, t, per_token)
            whole = length * second.upper(ball), first.upper(values, outputs, t, per_token)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # numbers beyond the range of floats
            return by_heads
        return _least(by_heads[0], whole[0]), _least(by_heads[1], whole[1])

    @functools.cached_property
    def _views(self) -> list[HeadAtInput]:
        return heads_at_input(self.unit.attention, self.unit.X)

    @functools.cached_property
    def _mixed(self) -> list[HeadAtInput]:
        return [view.mixed() for view in self._views]


def constants_on_balls(
    centre: InputCentre, eps: float, per_token: bool, around: "AroundOrigin", enough: float = math.inf
) -> list[float]:
    """Bound the constant on balls of radii at equal steps up to ``eps``; fewer where the sum of all exceeds ``enough``.

    What is known of balls ``around`` the origin is not computed again.
    """
    found: list[float] = []
    # Why stop early: constants grow with the ball, so once the sum must exceed ``enough`` the intervals that are left,
    # each as costly as those before, cannot make the bound smaller than what is known without them.
    for value in centre.constants(eps, per_token):
        found.append(value)
        if len(found) < INTERVALS and _sum_of_all(found) > enough:
            limit = around.upper(centre.X, eps, value)
            if _sum_of_all([min(x, limit) for x in found]) > enough:
                return found
    limit = around.upper(centre.X, eps, found[-1])
    return [min(x, limit) for x in found]


def _sum_of_all(constants: list[float]) -> float:
    """Return what the constants on all balls add up to, at least: they grow with the ball."""
    return sum(constants) + (INTERVALS - len(constants)) * constants[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class AroundOrigin:
    """Theorem 1 on balls around the origin, for inputs of one length: asked only where it may say less."""

    attention: Attention
    known: dict[float, float] = field(default_factory=dict)  # bounds on balls, by their radii

    def upper(self, X: Tensor, eps: float, found: float) -> float:
        """Bound the constant on the ball around the origin that holds all balls; infinite if ``found`` is smaller."""
        size = _longest(X)
        if eps < NEAR * size and math.isfinite(found):
            return math.inf
        radius = (size + eps) * (1 + PRODUCT)
        # the theorem grows with the radius: what does not help on a smaller ball does not on this one
        if any(smaller <= radius and bound >= found for smaller, bound in self.known.items()):
            return math.inf
        if radius not in self.known:
            self.known[radius] = sharp_upper(self.attention, n=X.shape[0], radius=radius).value
        return self.known[radius]


def _longest(X: Float[Tensor, "n d"]) -> float:
    """Return the norm of the longest token."""
    return float(on_cpu(X).norm(dim=-1).max())


def token_unit(X: Tensor, unit: Rescaled) -> float:
    """Return the length, a power of two, that tokens were divided by."""
    size = float(unit.X.abs().max())
    return float(on_cpu(X).abs().max()) / size if size > 0 else 1.0


def _one_sequence(attention: Attention, X: Tensor) -> Tensor:
    """Take arrays and lists as the tokens of one sequence."""
    X = tokens_for(X, attention)
    require_sequences(X)
    require_one_sequence(X)
    return X


def _require(attention: Attention, eps: float) -> None:
    require_attention(attention)
    require_positive(eps, "eps")
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


def _by_heads(
    values: list[HeadOnBall], outputs: list[HeadOnBall], norm_W: float | None, per_token: bool
) -> tuple[float, float]:
    r"""Join heads by :math:`\|W\|(\sum_hv_h^2)^{1/2}`, or by the sum of what they put out."""
    v, o = (
        torch.tensor([(h.second_derivative(per_token), h.first_derivative()) for h in side], dtype=torch.float64)
        for side in (values, outputs)
    )
    stacked = v.square().sum(0).sqrt()
    second, first = (stacked if norm_W is None else torch.minimum(stacked * norm_W, o.sum(0))).tolist()
    return second, first


def _least(a: float, b: float) -> float:
    """Return the smaller one; what is no number says nothing."""
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)
