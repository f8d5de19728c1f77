"""Attention whose logits stay below a cap (:ref:`logit-cap`), for any number of tokens in a ball."""

import dataclasses
import math

from howsmooth.errors import AssumptionError
from howsmooth.maps.attention import Attention
from howsmooth.maps.positions import Positions
from howsmooth.theory.assumptions import refuse_norms, require_attention, require_size
from howsmooth.theory.ball.softmax import log_enclosing_radius, score_gradient_bounds
from howsmooth.theory.heads import combine_heads, heads_of, log, log_sum
from howsmooth.theory.results import Bound, upper_bound

# Caps above this one bound nothing: the exponential of twice it is no float.
LARGEST_CAP = 350.0


def logit_cap(attention: Attention, cap: float | None = None, *, radius: float, n: int | None = None) -> Bound:
    r"""Bound the local constant at inputs whose logits stay within a cap, :math:`|S_{ij}|\le\tau`.

    .. math:: \mathrm{Lip}_X(f) \le \|V\|\,\bigl(\sqrt c + \|A\|R^2\,(1 + \sqrt c)\bigr),\qquad
              c = \frac{n}{1 + (n-1)e^{-2\tau}} \le \min\bigl(n, e^{2\tau}\bigr)

    for n tokens in the ball of radius R: c bounds the sums of columns of P, so that capped attention has no
    :math:`\sqrt n`. Under a causal mask :math:`c = \min(n, 1 + e^{2\tau}\log(1 + (n-1)e^{-2\tau}))`, with a window of w
    besides the same with :math:`\min(n, w)` for n, and in a window on either side
    :math:`c = \min(n, 2w-1)/(1 + (\min(n, w)-1)e^{-2\tau})`. Query biases, sinks, rotary positions and heads count as
    in :func:`~howsmooth.theory.bounds.token_upper`. The cap is one of what the softmax is taken of: a soft cap keeps
    it everywhere, QK-clip and a probe (:func:`howsmooth.probe`) at the inputs that were seen. QK-norm caps logits,
    too, but is steep at small queries and keys, so that it is refused.

    Args:
        attention: The map.
        cap: The largest absolute value τ of a logit; by default that of the soft cap.
        radius: The radius R of a ball that holds every token.
        n: The number of tokens; any number by default.

    Raises:
        AssumptionError: If the cap is negative, or missing where no soft cap is the last that is done to logits; if
            there are query or key norms, padding or a mask of pairs, or a causal mask with neither ``n`` nor a window.

    Example:
        >>> identity = torch.eye(2, dtype=torch.float64)
        >>> logit_cap(Attention.single_head(A=identity, V=identity), 0.0, radius=1.0).digits
        '3.0001'
    """
    require_size(1 if n is None else n, radius)
    sink = isinstance(attention, Attention) and attention.sink is not None
    plain = dataclasses.replace(attention, sink=None) if sink else attention
    require_attention(plain)
    refuse_norms(plain, "logit_cap")
    cap, positions = _effective_cap(attention, cap), attention.positions
    if positions.padding is not None or positions.mask is not None:
        raise AssumptionError(
            "logit_cap knows causal masks and windows, got another mask; use sharp_upper.", field="attention"
        )
    if positions.causal and n is None and positions.window is None:
        raise AssumptionError("under a causal mask the bound grows with log n: give n, too.", field="n")
    heads = heads_of(plain)
    root = 0.5 * _log_column_sum(cap, n, positions)
    gradients = [score_gradient_bounds(attention, head, radius) for head in heads]

    def bound(norm: float, bias: float, query: float, key: float) -> float:
        # values lie in a ball of this radius; that of a sink, at the origin, is one more of them
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


def _effective_cap(attention: Attention, cap: float | None) -> float:
    """Return the cap that holds: what was asked for, or the soft cap if that is smaller and nothing is added to it."""
    if cap is not None and (isinstance(cap, bool) or not (isinstance(cap, int | float) and cap >= 0)):
        raise AssumptionError(f"cap must be a number, zero or more, got {cap!r}.", field="cap")
    added = attention.positions.relative_bias, attention.positions.position_bias, attention.weights
    soft = attention.softcap if all(x is None for x in added) else None
    if cap is None and soft is None:
        raise AssumptionError(
            "nothing caps the logits of this map: give cap, the largest absolute value of a logit.", field="cap"
        )
    return min(x for x in (cap, soft) if x is not None)


def _log_column_sum(cap: float, n: int | None, positions: Positions) -> float:
    """Return the logarithm of the largest sum of a column of weights whose logits are at most ``cap``."""
    # how many tokens a row sees at least (under a causal mask: at most), and how many rows see a token at most
    sees = min(x for x in (n, positions.window, math.inf) if x is not None)
    # Logits in [−τ, τ] differ by at most 2τ, so no weight of a row is more than e^{2τ} times their mean.
    if sees == math.inf:
        return 2.0 * cap
    if positions.causal:
        if cap > LARGEST_CAP:
            return log(sees)
        # Row i sees i tokens and gives one of them at most 1/(1 + (i − 1)e^{−2τ}); summed by an integral.
        return min(log(sees), math.log1p(math.exp(2 * cap) * math.log1p((sees - 1) * math.exp(-2 * cap))))
    # So many rows see a token, and each gives it at most 1/(1 + (sees − 1)e^{−2τ}).
    seen_by = min(x for x in (n, positions.window and 2 * positions.window - 1) if x is not None)
    return log(seen_by) - math.log1p((sees - 1) * math.exp(-2 * cap))
