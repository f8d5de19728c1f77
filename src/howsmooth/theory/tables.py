"""Theorems 1, 2, 7, 8 and 12 in one table: every one that applies to a map."""

import dataclasses
import math
from collections.abc import Callable

import torch

from howsmooth.domains.domain import in_ball
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.metrics import Euclidean, LargestToken, Metric, as_metrics
from howsmooth.rounding import FORMULA_UNITS
from howsmooth.theory.assumptions import has_bias_beside_sink, require_size
from howsmooth.theory.ball.largest_token import token_upper
from howsmooth.theory.ball.softmax import discrete_lower, discrete_upper, kim_lower, sharp_lower, sharp_upper
from howsmooth.theory.heads import heads_of
from howsmooth.theory.linalg.matrix_norms import norm_upper
from howsmooth.theory.mean_field import masked_mean_field_upper, mean_field_upper, sharp_mean_field_upper
from howsmooth.theory.mechanisms.softmax_scores import kim_l2_upper, lipsformer_upper
from howsmooth.theory.results import Bound, BoundsTable, NotApplicable, Side

Theorem = Callable[..., Bound]
# The version of what `table` says: runs keep tables, and of another version they are computed anew. It is raised with
# every change of a value, which tests/theory/test_version.py notices. Why no hash of the sources: runs are read for
# years, without their models, and a renamed function is no reason to take a proven bound off their pages.
VERSION = 1
UPPER: tuple[Theorem, ...] = (sharp_upper, discrete_upper)
# These bound measures, hence sequences of every length.
MEASURES: tuple[Theorem, ...] = (sharp_mean_field_upper, mean_field_upper)
# As published, to compare; about other mechanisms.
PUBLISHED: tuple[Theorem, ...] = (kim_l2_upper, lipsformer_upper)
MASKED_MEASURES: tuple[Theorem, ...] = (masked_mean_field_upper,)


def table(
    attention: MultiHead, *, n: int, radius: float, heads: int | None = None, metric: str | Metric = "total"
) -> BoundsTable:
    r"""Apply every theorem about ``n`` tokens in a ball, from the lowest lower bound to the highest upper one.

    Lower bounds on measures are left out: they hold for some number of tokens, not for ``n``. With ``heads``,
    tied pairs are looked for at so many heads only, see :func:`sharp_lower`.

    Between largest tokens (``token``), :func:`token_upper` is the theorem. In a Euclidean metric :math:`|ER|` attention
    is another attention of the tokens :math:`XR`, which lie in the ball of radius :math:`\|R\|` times the given one:
    upper bounds are those of that one. In the other metrics there is no theorem.

    Raises:
        AssumptionError: If no theorem is about the metric.
    """
    uppers = _uppers(attention, n, radius, metric)
    n, radius = int(n), float(radius)
    outcomes, total = uppers, as_metrics(metric).name == "total"
    if total and isinstance(attention, Attention):  # explicit inputs are known for the softmax alone
        lowers = [
            _outcome(discrete_lower, attention, n=n, radius=radius),
            _outcome(kim_lower, attention, n=n, radius=radius),
            _outcome(sharp_lower, attention, n=n, radius=radius, heads=heads),
        ]
        # whatever else their theorems are about, here they are bounds on the ball
        where = in_ball(n, radius)
        outcomes = [dataclasses.replace(x, domain=where) if isinstance(x, Bound) else x for x in (*lowers, *uppers)]
    elif total:
        # a published bound is about one mechanism: that it does not apply to another goes without saying
        published = (_outcome(theorem, attention, n=n) for theorem in PUBLISHED)
        outcomes = [*uppers, *(x for x in published if isinstance(x, Bound))]
    found = [x for x in outcomes if isinstance(x, Bound)]
    found.sort(key=lambda bound: (bound.side is Side.UPPER, bound.log_value))
    return BoundsTable(bounds=tuple(found), refused=tuple(x for x in outcomes if isinstance(x, NotApplicable)))


def smallest_upper(attention: MultiHead, *, n: int, radius: float, metric: str | Metric = "total") -> Bound:
    """Return the smallest upper bound that applies to ``n`` tokens in a ball, without looking for lower ones.

    The arguments are those of :func:`table`.

    Raises:
        AssumptionError: If none applies.
    """
    outcomes = _uppers(attention, n, radius, metric)
    found = [x for x in outcomes if isinstance(x, Bound)]
    if not found:
        raise AssumptionError(next(x.reason for x in outcomes if isinstance(x, NotApplicable)))
    return min(found, key=lambda bound: bound.log_value)


def smallest_in(ladder: BoundsTable, *, n: int, radius: float) -> Bound:
    """Return the same from a table for so many tokens; published bounds, which are about other inputs, do not count.

    Raises:
        AssumptionError: If none applies.
    """
    where = in_ball(int(n), float(radius))
    found = [bound for bound in ladder.bounds if bound.side is Side.UPPER and bound.domain.startswith(where)]
    if not found:
        raise AssumptionError(ladder.refused[-1].reason)
    return min(found, key=lambda bound: bound.log_value)


def _uppers(attention: MultiHead, n: int, radius: float, metric: str | Metric) -> list[Bound | NotApplicable]:
    """Apply every theorem on upper bounds in a metric."""
    require_size(n, radius)
    n, radius = int(n), float(radius)  # NumPy's float32 overflows where a float does not
    metrics, where = as_metrics(metric), in_ball(n, radius)
    if metrics.input is not metrics.output or not isinstance(metrics.input, Euclidean | LargestToken):
        raise AssumptionError(
            f"theorems on balls are about the metrics total, token and hs.metrics.weighted, got {metrics.name!r}; "
            "hs.local_lipschitz measures in any metric.",
            field="metric",
        )
    if isinstance(metrics.input, LargestToken):
        found = [_outcome(token_upper, attention, radius=radius)]
        where += ", largest token"
    else:
        changed, stretch, rounding = _isometric(attention, metrics.input)
        found = [_raised(x, rounding) for x in _total_uppers(changed, n, stretch * radius)]
        where += "" if metrics.name == "total" else f", metric {metrics.name}"
    return [dataclasses.replace(x, domain=where) if isinstance(x, Bound) else x for x in found]


def _raised(found: Bound | NotApplicable, share: float) -> Bound | NotApplicable:
    """Raise a bound by a share of it."""
    if isinstance(found, NotApplicable) or share == 0:
        return found
    return dataclasses.replace(found, value=found.value * (1 + share), log_value=found.log_value + math.log1p(share))


def _isometric(attention: MultiHead, metric: Euclidean) -> tuple[MultiHead, float, float]:
    r"""Return attention in the coordinates :math:`XR` of a Euclidean metric, :math:`\|R\|`, and the rounding of both.

    With :math:`x = R^{-\top}z` for columns, queries are :math:`QR^{-\top}z`, and outputs :math:`R^\top Wo`.
    """
    if metric.factor is None or metric.inverse is None or not isinstance(attention, MultiHead):
        return attention, 1.0, 0.0
    if attention.d != len(metric.factor) or attention.out != attention.d:
        raise AssumptionError(
            f"the form has {len(metric.factor)} coordinates, and tokens have {attention.d} and {attention.out}; "
            "they must agree.",
            field="metric",
        )
    attention = attention.to(torch.float64)
    back, forth = (x.to(attention.query) for x in (metric.inverse.mT, metric.factor.mT))
    if attention.output is None:
        # a head in place of its output projection: the columns of R that its values meet
        blocks = forth.unflatten(-1, (attention.query.shape[-3], -1)).movedim(-2, -3)
    else:
        blocks = forth @ attention.output
    changed = {name: getattr(attention, name) @ back for name in ("query", "key", "value")}
    bias = None if attention.output_bias is None else attention.output_bias @ forth.mT
    stretch, squeeze = norm_upper(metric.factor), norm_upper(metric.inverse)
    rounding = FORMULA_UNITS * attention.d * torch.finfo(torch.float64).eps * stretch * squeeze
    moved = dataclasses.replace(attention, **changed, output=blocks, output_bias=bias)
    return moved, stretch * (1 + rounding), rounding


def _total_uppers(attention: MultiHead, n: int, radius: float) -> list[Bound | NotApplicable]:
    if isinstance(attention, MultiHead) and not isinstance(attention, Attention):
        return [_outcome(sharp_upper, attention, n=n, radius=radius)]
    sink = isinstance(attention, Attention) and attention.sink is not None
    plain = dataclasses.replace(attention, sink=None) if sink else attention
    heads_of(plain)
    if sink and not has_bias_beside_sink(attention):  # one more token at the origin, which upper bounds allow for
        attention = plain
    about_measures = MASKED_MEASURES if attention.positions.causal else MEASURES
    return [
        *(_outcome(theorem, attention, n=n, radius=radius) for theorem in UPPER),
        *(_outcome(theorem, attention, radius=radius) for theorem in about_measures),
    ]


def _outcome(theorem: Theorem, attention: MultiHead, **arguments: float | None) -> Bound | NotApplicable:
    try:
        return theorem(attention, **arguments)
    except (AssumptionError, DtypeError) as reason:
        return NotApplicable(name=theorem.__name__, reason=str(reason))
