r"""The upper end of a local constant, measured again from a random start of the checker's own.

Golub–Kahan–Lanczos in floats from a start that is uniform on the sphere; with probability ``confidence`` the norm is at
most the point where :math:`\sum_jp_j(\sigma)^2` reaches :math:`1/\delta^2` (docs, :ref:`spectral-bracket`). Whoever
made the file has no part in the start, so that the confidence is that of this program.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import betaincinv

from howsmooth.check.attention import AttentionAt, tokens_of
from howsmooth.check.balls import Array, ball
from howsmooth.check.outcomes import CannotCheck, Refuted, number

# As many steps as a claim may need; each takes a product with the derivative and one with its transpose.
STEPS = 400
# Below this share of the largest coefficient, a coefficient is rounding alone.
ZERO = 1e-14


def check_local_upper(step: Any, claim: dict[str, Any]) -> None:
    """Measure the largest singular value of the derivative at the tokens, and compare.

    Raises:
        Refuted: If larger values are not excluded, at the confidence of the claim.
        CannotCheck: If numbers are missing.
    """
    X, confidence, value = tokens_of(step, claim), number(claim, "confidence"), number(claim, "value")
    if not 0 < confidence < 1 or not value > 0:
        raise CannotCheck("a replayed bound is positive and has a confidence between 0 and 1")
    at = AttentionAt.of(step, ball(X))
    delta2 = 1.0 if X.size == 1 else float(betaincinv(0.5, (X.size - 1) / 2, 1 - confidence))
    jvp, vjp = products(at)
    reached = excluded(jvp, vjp, X.shape, value, delta2)
    if not reached:
        raise Refuted(0, f"values above {value!r} are not excluded after {STEPS} steps")


def products(at: AttentionAt) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return products with the derivative and with its transpose, in floats."""
    q, k, v, P, W = (x.mid for x in (at.q, at.k, at.v, at.P, at.output))
    Q, K, V = (x.mid for x in at.projections)
    heads, n, width = v.shape

    def centred(x: Array) -> Array:
        return P * (x - (P * x).sum(-1, keepdims=True))

    def jvp(E: Array) -> Array:
        dS = (E @ Q) @ k.swapaxes(1, 2) + q @ (E @ K).swapaxes(1, 2)
        return (centred(dS) @ v + P @ (E @ V)).swapaxes(0, 1).reshape(n, heads * width) @ W

    def vjp(G: Array) -> Array:
        dO = (G @ W.T).reshape(n, heads, width).swapaxes(0, 1)
        dS = centred(dO @ v.swapaxes(1, 2))
        parts = ((dS @ k) @ Q.swapaxes(1, 2), (dS.swapaxes(1, 2) @ q) @ K.swapaxes(1, 2))
        return (parts[0] + parts[1] + (P.swapaxes(1, 2) @ dO) @ V.swapaxes(1, 2)).sum(0)

    return jvp, vjp


def excluded(
    jvp: Callable[[Array], Array], vjp: Callable[[Array], Array], shape: tuple[int, ...], value: float, delta2: float
) -> bool:
    """Tell whether the polynomials at ``value`` exceed the threshold, so that the norm is less at the confidence."""
    v = np.random.default_rng().standard_normal(shape)
    v /= np.linalg.norm(v)
    right, left = [v], list[Array]()
    p, w, total, beta, scale = 1.0, 0.0, 1.0, 0.0, 0.0
    steps = min(STEPS, v.size)
    for _step in range(steps):
        u = jvp(right[-1]) - (beta * left[-1] if left else 0.0)
        for other in left + left:  # twice is enough
            u = u - np.vdot(other, u) * other
        alpha = float(np.linalg.norm(u))
        scale = max(scale, alpha)
        if alpha <= ZERO * scale:  # nothing is left that the start could reach
            return largest(jvp, right) <= value
        left.append(u / alpha)
        w = (value * p - beta * w) / alpha
        v = vjp(left[-1]) - alpha * right[-1]
        for other in right + right:
            v = v - np.vdot(other, v) * other
        beta = float(np.linalg.norm(v))
        if not np.isfinite(beta):
            return False
        if beta <= ZERO * scale:
            return largest(jvp, right) <= value
        right.append(v / beta)
        p = (value * w - alpha * p) / beta
        if not (w > 0 and p > 0):  # below a Ritz value: the norm is larger
            return False
        total += p * p
        if total >= 1 / delta2:
            return True
    return False


def largest(jvp: Callable[[Array], Array], basis: list[Array]) -> float:
    """Return the norm on a space that the operator does not leave."""
    return float(np.linalg.norm(np.stack([jvp(v).ravel() for v in basis]), 2))
