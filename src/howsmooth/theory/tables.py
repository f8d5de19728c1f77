"""Theorems 1, 2, 7, 8 and 12 in one table: every one that applies to a map."""

import dataclasses
from collections.abc import Callable

from howsmooth.domains.domain import in_ball
from howsmooth.errors import AssumptionError, DtypeError
from howsmooth.maps.attention import Attention
from howsmooth.maps.heads import MultiHead
from howsmooth.theory.assumptions import has_bias_beside_sink, require_size
from howsmooth.theory.ball.softmax import discrete_lower, discrete_upper, kim_lower, sharp_lower, sharp_upper
from howsmooth.theory.heads import heads_of
from howsmooth.theory.mean_field import masked_mean_field_upper, mean_field_upper, sharp_mean_field_upper
from howsmooth.theory.mechanisms.softmax_scores import kim_l2_upper, lipsformer_upper
from howsmooth.theory.results import Bound, BoundsTable, NotApplicable, Side

Theorem = Callable[..., Bound]
UPPER: tuple[Theorem, ...] = (sharp_upper, discrete_upper)
# These bound measures, hence sequences of every length.
MEASURES: tuple[Theorem, ...] = (sharp_mean_field_upper, mean_field_upper)
# As published, to compare; about other mechanisms.
PUBLISHED: tuple[Theorem, ...] = (kim_l2_upper, lipsformer_upper)
MASKED_MEASURES: tuple[Theorem, ...] = (masked_mean_field_upper,)


def table(attention: MultiHead, *, n: int, radius: float, heads: int | None = None) -> BoundsTable:
    """Apply every theorem about ``n`` tokens in a ball, from the lowest lower bound to the highest upper one.

    Lower bounds on measures are left out: they hold for some number of tokens, not for ``n``. With ``heads``,
    tied pairs are looked for at so many heads only, see :func:`sharp_lower`.
    """
    uppers = _uppers(attention, n, radius)
    n, radius = int(n), float(radius)
    if not isinstance(attention, Attention):  # explicit inputs are known for the softmax alone
        published = [_outcome(theorem, attention, n=n) for theorem in PUBLISHED]
        found = [x for x in (*uppers, *published) if isinstance(x, Bound)]
        found.sort(key=lambda bound: bound.log_value)
        return BoundsTable(bounds=tuple(found), refused=tuple(x for x in uppers if isinstance(x, NotApplicable)))
    lowers = [
        _outcome(discrete_lower, attention, n=n, radius=radius),
        _outcome(kim_lower, attention, n=n, radius=radius),
        _outcome(sharp_lower, attention, n=n, radius=radius, heads=heads),
    ]
    outcomes = [*lowers, *uppers]
    found = [dataclasses.replace(x, domain=in_ball(n, radius)) for x in outcomes if isinstance(x, Bound)]
    found.sort(key=lambda bound: (bound.side is Side.UPPER, bound.log_value))
    return BoundsTable(bounds=tuple(found), refused=tuple(x for x in outcomes if isinstance(x, NotApplicable)))


def smallest_upper(attention: MultiHead, *, n: int, radius: float) -> Bound:
    """Return the smallest upper bound that applies to ``n`` tokens in a ball, without looking for lower ones.

    Raises:
        AssumptionError: If none applies.
    """
    outcomes = _uppers(attention, n, radius)
    found = [x for x in outcomes if isinstance(x, Bound)]
    if not found:
        raise AssumptionError(next(x.reason for x in outcomes if isinstance(x, NotApplicable)))
    return dataclasses.replace(min(found, key=lambda bound: bound.log_value), domain=in_ball(n, radius))


def _uppers(attention: MultiHead, n: int, radius: float) -> list[Bound | NotApplicable]:
    require_size(n, radius)
    n, radius = int(n), float(radius)  # NumPy's float32 overflows where a float does not
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
