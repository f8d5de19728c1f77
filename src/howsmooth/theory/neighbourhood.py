"""On a ball around one input: a bound on the local constant of every input in it, from the second derivative."""

import hashlib
import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import AssumptionError, ConvergenceWarning
from howsmooth.maps.attention import Attention
from howsmooth.spectral.operators import LinearOperator
from howsmooth.spectral.solvers import local_lipschitz, widening
from howsmooth.theory.assumptions import has_key_norm, require_attention
from howsmooth.theory.curvature import Curvature
from howsmooth.theory.discrete import sharp_upper
from howsmooth.theory.heads import log, on_cpu, output_norm
from howsmooth.theory.region import Centre, Region, derivatives
from howsmooth.theory.results import Bound, upper_bound
from howsmooth.theory.rounding import safe_norm
from howsmooth.theory.slope import Slope
from howsmooth.theory.unit import Unit
from howsmooth.theory.views import View, views

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


def neighbourhood_upper(attention: Attention, X: Float[Tensor, "n d"], *, eps: float, per_token: bool = False) -> Bound:
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
        per_token: Whether ``eps`` bounds the movement of each token instead of :math:`\|Z-X\|_F`.

    Raises:
        AssumptionError: If ``eps`` is not positive, or under rotary positions, soft caps, query or key norms.
    """
    slopes = Slopes.of(attention, X, eps=eps, per_token=per_token)
    return upper_bound(log(float(slopes.values[-1])), "neighbourhood_upper", slopes.domain, SOURCE, slopes.confidence)


SOURCE = "ours: second derivative"


@dataclass(frozen=True, kw_only=True, eq=False)
class Slopes:
    """Bounds on the local constant on balls around one input, from small ones to the whole.

    Attributes:
        values: The bounds, at equal steps; the last one is for the whole ball.
        domain: The whole ball, in words.
        confidence: 1, or that of the constant at the centre.
    """

    values: Float[Tensor, " steps"]
    domain: str
    confidence: float

    @classmethod
    def of(cls, attention: Attention, X: Float[Tensor, "n d"], *, eps: float, per_token: bool) -> "Slopes":
        """Bound the constant on every ball."""
        _require(attention, eps)
        unit = Unit.of(attention, X)
        share = eps / token_unit(X, unit)
        centre, confidence = _centre(unit)
        t = torch.linspace(0, share, INTERVALS + 1, dtype=torch.float64)[1:]
        bounds = _bounds(unit, t, per_token) if share < FARTHEST else torch.full((INTERVALS, 2), torch.inf).double()
        second, first = bounds.unbind(-1)
        # Why the right end of every interval: the bound on the second derivative grows with t, so the sum lies above
        # the integral; a rule of higher order would be nearer to it, and no theorem.
        along = centre + second.cumsum(0) * (share / INTERVALS)
        found = torch.tensor([unit.back(float(x)) for x in torch.minimum(along, first)], dtype=torch.float64)
        return cls(
            values=found.nan_to_num(torch.inf, torch.inf).clamp_max(_whole(attention, X, eps, found)),
            domain=f"the ball of radius {eps:g} around the input" + (", for each token" if per_token else ""),
            confidence=confidence,
        )


def _whole(attention: Attention, X: Tensor, eps: float, found: Tensor) -> float:
    """Return what holds in a ball around the origin, where it may be less: far from the centre."""
    size = float(on_cpu(X).norm(dim=-1).max())
    if eps < NEAR * size and math.isfinite(float(found[-1])):
        return math.inf
    return sharp_upper(attention, n=X.shape[0], radius=(size + eps) * (1 + 1e-12)).value


def token_unit(X: Tensor, unit: Unit) -> float:
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
            "use local_upper at an input, or hs.maximise over hs.Neighbourhood.",
            field="attention",
        )


def _centre(unit: Unit) -> tuple[float, float]:
    """Bound the constant at the centre, in float64 whatever the weights were in; return it with its confidence."""
    f, X = unit.attention, unit.X
    J = f.jacobian(X)
    if max(X.numel(), math.prod(J.codomain)) <= DENSE:
        lost = widening(J)
        return (safe_norm(_matrix(J)) * (1 + lost) if lost < 0.1 else math.inf), 1.0
    with warnings.catch_warnings():
        # where scores are so large that products contradict each other it is infinite, and the other terms bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(local_lipschitz(f, X, confidence=CONFIDENCE, generator=_start(f, X)).upper), CONFIDENCE


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


def _bounds(unit: Unit, t: Float[Tensor, " steps"], per_token: bool) -> Float[Tensor, "steps 2"]:
    """Bound the second and the first derivative on every ball: head by head, and by the whole layer."""
    alone = views(unit.attention, unit.X)
    mixed = [view.mixed() for view in alone]
    before, after = ([Centre.of(view) for view in seen] for seen in (alone, mixed))
    balls = [_balls(before, after, float(s), per_token) for s in t]
    mixing = None if unit.attention.output is None else output_norm(tuple(view.head for view in alone))
    apart = torch.stack([_by_heads(ball, mixing, per_token) for ball in balls])
    heads, n = len(alone), len(unit.X)
    if n * (heads * n) ** 2 > NUMBERS:
        return apart
    try:
        whole = _by_layer(alone, balls, t, per_token)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # numbers beyond the range of floats
        return apart
    return torch.fmin(apart, whole)


def _balls(alone: list[Centre], mixed: list[Centre], t: float, per_token: bool) -> tuple[list[Region], list[Region]]:
    """Return what the ball allows every head, before and after the output projection; weights are the same for both."""
    first = [centre.within(t, per_token) for centre in alone]
    return first, [centre.within(t, per_token, like=r) for centre, r in zip(mixed, first, strict=True)]


def _by_heads(ball: tuple[list[Region], list[Region]], mixing: float | None, per_token: bool) -> Float[Tensor, " 2"]:
    """Combine heads in the better of two ways; ``mixing`` is the norm of the output projection."""
    alone, mixed = (torch.tensor([derivatives(r, per_token) for r in side], dtype=torch.float64) for side in ball)
    stacked = alone.square().sum(0).sqrt()
    return stacked if mixing is None else torch.minimum(stacked * mixing, mixed.sum(0))


def _by_layer(
    seen: list[View], balls: list[tuple[list[Region], list[Region]]], t: Tensor, per_token: bool
) -> Float[Tensor, "steps 2"]:
    """Bound both derivatives for all heads at once; a movement of every token by one is √n long."""
    curvature = Curvature.of(seen)
    slope = Slope.of(seen, curvature.centre)
    length = math.sqrt(len(seen[0].P)) if per_token else 1.0
    found = [
        (length * curvature.within(alone, float(s), per_token), slope.within(alone, mixed, float(s), per_token))
        for s, (alone, mixed) in zip(t, balls, strict=True)
    ]
    return torch.tensor(found, dtype=torch.float64)
