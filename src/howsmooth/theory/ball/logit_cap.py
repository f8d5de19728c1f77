"""Attention whose logits stay below a cap (:ref:`logit-cap`), for any number of tokens in a ball."""

import dataclasses
import math

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.theory.assumptions import refuse_norms, require_causal_or_none, require_size
from howsmooth.theory.ball.softmax import log_enclosing_radius, score_gradient_bounds
from howsmooth.theory.heads import combine_heads, heads_of, log, log_sum
from howsmooth.theory.results import Bound, upper_bound

# Caps above this one bound nothing: the exponential of twice it is no float.
LARGEST_CAP = 350.0


def logit_cap(attention: Attention, cap: float, *, radius: float, n: int | None = None) -> Bound:
    r"""Bound the local constant at inputs whose logits stay within a cap, :math:`|S_{ij}|\le\tau`.

    .. math:: \mathrm{Lip}_X(f) \le \|V\|\,\bigl(\sqrt c + \|A\|R^2\,(1 + \sqrt c)\bigr),\qquad
              c = \frac{n}{1 + (n-1)e^{-2\tau}} \le \min\bigl(n, e^{2\tau}\bigr)

    for n tokens in the ball of radius R: c bounds the sums of columns of P, so that capped attention has no
    :math:`\sqrt n`. Under a causal mask :math:`c = \min(n, 1 + e^{2\tau}\log(1 + (n-1)e^{-2\tau}))`. Query biases,
    sinks, rotary positions and heads count as in :func:`~howsmooth.theory.bounds.token_upper`. The cap is one of what
    the softmax is taken of: a soft cap keeps it everywhere, QK-clip and a probe (:func:`howsmooth.probe`) at the
    inputs that were seen.

    Args:
        attention: The map.
        cap: The largest absolute value τ of a logit.
        radius: The radius R of a ball that holds every token.
        n: The number of tokens; any number by default.

    Raises:
        AssumptionError: If the cap is negative, there are query or key norms, a mask other than the causal one, or a
            causal mask without ``n``.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> logit_cap(Attention.single_head(A=identity, V=identity), 0.0, radius=1.0).digits
        '3.0001'
    """
    require_size(1 if n is None else n, radius)
    # norms of heads are those of the map without its sink, which theorems on other bounds refuse
    sink = isinstance(attention, Attention) and attention.sink is not None
    plain = dataclasses.replace(attention, sink=None) if sink else attention
    require_causal_or_none(plain, "logit_cap", "sharp_upper")
    if isinstance(cap, bool) or not (isinstance(cap, int | float) and cap >= 0):
        raise AssumptionError(f"cap must be a number, zero or more, got {cap!r}.", field="cap")
    refuse_norms(plain, "logit_cap")
    if attention.positions.causal and n is None:
        raise AssumptionError("under a causal mask the bound grows with log n: give n, too.", field="n")
    heads = heads_of(plain)
    root = 0.5 * _log_column_sum(cap, n, causal=attention.positions.causal)
    gradients = [score_gradient_bounds(attention, head, radius) for head in heads]

    def bound(norm: float, bias: float, query: float, key: float) -> float:
        spread = log_enclosing_radius(log(norm) + log(radius), bias if sink else 0.0)
        return log_sum((log(norm) + root, spread + log_sum((log(query), log(key) + root))))

    mixed = [bound(head.norm_WV, head.norm_Wb, *each) for head, each in zip(heads, gradients, strict=True)]
    alone = [
        bound(head.norm_V, float(head.value_bias.norm()), *each) for head, each in zip(heads, gradients, strict=True)
    ]
    tokens = "any number of tokens" if n is None else f"{n} tokens"
    domain = f"{tokens} in the ball of radius {radius:g} whose logits are at most {cap:g}"
    return upper_bound(
        combine_heads(heads, mixed, alone), "logit_cap", domain, "ours: sums of columns of capped weights"
    )


def largest_logit_cap(attention: Attention, constant: float, *, radius: float, n: int | None = None) -> float:
    r"""Return the largest cap τ for which :func:`logit_cap` is at most a wanted constant; infinity if all are.

    By bisection from below, so that the bound at the returned cap holds.

    Args:
        attention: The map.
        constant: The largest local constant that is wanted.
        radius: The radius of a ball that holds every token.
        n: The number of tokens; any number by default.

    Raises:
        AssumptionError: If equal weights, which are those of a cap of zero, have more than that already.
    """
    least = logit_cap(attention, 0.0, radius=radius, n=n).value
    if not constant >= least:
        raise AssumptionError(
            f"no cap keeps the constant below {constant:g}: equal weights are bounded by {least:.4g}; ask for more, or "
            "for a smaller radius.",
            field="constant",
        )
    low, high = 0.0, LARGEST_CAP
    if logit_cap(attention, high, radius=radius, n=n).value <= constant:
        return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (
            (middle, high) if logit_cap(attention, middle, radius=radius, n=n).value <= constant else (low, middle)
        )
    return low


def _log_column_sum(cap: float, n: int | None, *, causal: bool) -> float:
    """Return the logarithm of the largest sum of a column of weights whose logits are at most ``cap``."""
    if n is None:
        return 2.0 * cap
    if not causal:
        return log(n) - math.log1p((n - 1) * math.exp(-2 * cap))
    if cap > LARGEST_CAP:
        return log(n)
    return min(log(n), math.log1p(math.exp(2 * cap) * math.log1p((n - 1) * math.exp(-2 * cap))))
