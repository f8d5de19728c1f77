r"""Softmax attention at given tokens, in balls: its value and its derivative, from the definition.

.. math:: dS = s(dq\,k^\top + q\,dk^\top),\quad dP = P\circ(dS - \textstyle\sum_jP\circ dS),\quad dO = dP\,v + P\,dv
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from howsmooth.check.balls import Array, BallArray, ball, length, raised
from howsmooth.check.outcomes import CannotCheck, Refuted, number, numbers


@dataclass(frozen=True, eq=False)
class AttentionAt:
    """A layer at tokens: heads come before tokens.

    Attributes:
        projections: The matrices of queries, scaled, of keys, and of values, ``(h, d, k)``.
        q: Queries, scaled.
        k: Keys.
        v: Values.
        P: Weights.
        output: The output projection of all heads side by side, ``(h·v, out)``.
        output_bias: Its bias.
        seen: One where a row sees a token, else zero.
    """

    projections: tuple[BallArray, BallArray, BallArray]
    q: BallArray
    k: BallArray
    v: BallArray
    P: BallArray
    output: BallArray
    output_bias: BallArray
    seen: Array

    @classmethod
    def of(cls, step: Any, X: BallArray) -> "AttentionAt":
        """Evaluate an attention step."""
        x, scale = {name: ball(a) for name, a in step.arrays.items()}, step.settings["scale"]
        count, n = x["query"].shape[0], X.shape[0]
        group = np.arange(count) // (count // x["key"].shape[0])  # keys and values may be shared
        x |= {name: a[group] for name, a in x.items() if name.startswith(("key", "value"))}
        q, k, v = (
            part if bias is None else part + bias[:, None, :]
            for part, bias in ((X @ x[name].T, x.get(f"{name}_bias")) for name in ("query", "key", "value"))
        )
        q = q * scale
        scores = q @ k.T
        seen = np.tril(np.ones((n, n))) if step.settings["causal"] else np.ones((n, n))
        if "mask" in x:  # what is added to scores, minus infinity where nothing is seen
            hidden = x["mask"].mid == -np.inf
            scores, seen = scores + BallArray(np.where(hidden, 0.0, x["mask"].mid), x["mask"].rad), seen * ~hidden
        width = v.shape[-1]
        output = x.get("output", ball(np.eye(count * width).reshape(-1, count, width).transpose(1, 0, 2)))
        return cls(
            (x["query"].T * scale, x["key"].T, x["value"].T),
            q,
            k,
            v,
            softmax(scores, seen > 0),
            output.T.reshape(count * width, -1),
            x.get("output_bias", ball(np.zeros(output.shape[1]))),
            seen,
        )

    def value(self) -> BallArray:
        """Return the output tokens."""
        return side_by_side(self.P @ self.v) @ self.output + self.output_bias

    def score_change(self, dq: BallArray, dk: BallArray) -> BallArray:
        """Return the first-order change of scores, of weighted mean zero in every row."""
        dS = dq @ self.k.T + self.q @ dk.T
        return dS - (self.P * dS).sum(keepdims=True)

    def jvp(self, E: BallArray) -> BallArray:
        """Return the derivative in directions ``(…, n, d)``."""
        dq, dk, dv = self.moved(E)
        return side_by_side((self.P * self.score_change(dq, dk)) @ self.v + self.P @ dv) @ self.output

    def centred_sizes(self, x: Array) -> Array:
        """Bound numbers less their weighted mean in every row, of which the absolute values are bounded."""
        mean = raised((self.P.upper * x).sum(-1, keepdims=True), x.shape[-1])
        low = self.P.lower
        return raised(mean - low * x + (1 - low) * x, 8) * self.seen

    def moved(self, E: BallArray) -> tuple[BallArray, BallArray, BallArray]:
        """Return how queries, keys and values move, heads before tokens."""
        E = BallArray(E.mid[..., None, :, :], E.rad[..., None, :, :])
        dq, dk, dv = (E @ matrix for matrix in self.projections)
        return dq, dk, dv


def softmax(S: BallArray, seen: Array) -> BallArray:
    """Return the weights of every row, zero for tokens that are not seen."""
    top = np.where(seen, S.mid, -np.inf).max(-1, keepdims=True)
    shown = np.broadcast_to(seen, S.shape)
    mid, rad = np.zeros(S.shape), np.zeros(S.shape)
    found = (S - top)[shown].map(arb.exp)
    mid[shown], rad[shown] = found.mid, found.rad
    grown = BallArray(mid, rad)
    return grown * grown.sum(keepdims=True).inverse()


def side_by_side(heads: BallArray) -> BallArray:
    """Put the heads of every token side by side."""
    mid, rad = (np.swapaxes(x, -3, -2).reshape(*x.shape[:-3], x.shape[-2], -1) for x in (heads.mid, heads.rad))
    return BallArray(mid, rad)


def check_lower(step: Any, claim: dict[str, Any]) -> None:
    r"""Check that a direction E at tokens X of the ball, if there is one, has :math:`|J_XE|\ge\text{value}\,|E|`.

    Raises:
        Refuted: If tokens leave the ball, or the direction is stretched by less.
        CannotCheck: If shapes do not fit.
    """
    X, E = tokens_of(step, claim), numbers(claim, "direction")
    if X.shape != E.shape:
        raise CannotCheck("the direction has another shape than the tokens")
    if "radius" in claim:
        square = Fraction(number(claim, "radius")) ** 2
        for i, token in enumerate(X.tolist()):
            if sum(Fraction(x) ** 2 for x in token) > square:
                raise Refuted(0, f"token {i} lies outside of the ball")
    moved = AttentionAt.of(step, ball(X)).jvp(ball(E))
    response, size = length(moved.reshape(-1)), length(ball(E.ravel()))
    attained = arb(float(response.lower)) / arb(float(size.upper))
    if not attained >= arb(number(claim, "value")):
        raise Refuted(1, f"the direction is stretched by {attained.str(12)}, less than {claim['value']!r}")


def tokens_of(step: Any, claim: dict[str, Any]) -> Array:
    """Return the tokens of a claim, one row each."""
    X = numbers(claim, "tokens")
    if X.ndim != 2 or X.shape[1] != step.arrays["query"].shape[2]:
        raise CannotCheck("tokens must be one row each, as wide as the map takes them")
    return X
