r"""Verdicts on a box, checked: second-order Taylor models in balls, and the leaves of a tree of sides of ReLUs.

The box is :math:`x = x_0+e\circ\xi`, :math:`|\xi_a|\le1`; the first tokens are its image, in coordinates
:math:`y = U\xi`. Behind every step tokens are :math:`c + L(y,\eta)` and what is beyond: a functional of them pulls that
back to one quadratic form and a sum of products of ranges (docs, :ref:`theorem-15`). A margin is then a function of
the box and of bent ReLUs, and a leaf bounds it by the lines and multipliers of a file (docs, :ref:`theorem-16`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from howsmooth.check.attention import AttentionAt
from howsmooth.check.balls import BallArray, ball, concatenated, product_by_lengths, semidefinite
from howsmooth.check.outcomes import CannotCheck, Refuted, listed, numbers

Array = Any  # arrays of numpy, and its scalars
# Functionals that are pulled back at once: those whose forms are built, and others.
WITH_FORMS, WITHOUT_FORMS = 8, 512


class Symbols:
    """The box: coordinates of the first tokens as images of its symbols, in blocks that share none.

    Attributes:
        U: ``(blocks, c, s)``.
        size: How many coordinates there are.
    """

    def __init__(self, weight: Array, half: Array) -> None:
        n, d, m = weight.shape
        reads = (weight != 0).any(1)
        if (reads.sum(0) <= 1).all():  # tokens that read no common input have a block each
            width = max(1, int(reads.sum(1).max()))
            mid = np.zeros((n, d, width))
            for i, mine in enumerate(reads):
                mid[i, :, : mine.sum()] = weight[i][:, mine]
            widths = np.zeros((n, 1, width))
            for i, mine in enumerate(reads):
                widths[i, 0, : mine.sum()] = half[mine]
            self.U = ball(mid) * widths
        else:
            self.U = (ball(weight.reshape(1, n * d, m))) * half
        self.size = n * d

    def on_symbols(self, f: BallArray) -> BallArray:
        """Return linear functions ``(k, r)`` of y as functions of the symbols of the box, ``(k, s)``."""
        blocks, c, _s = self.U.shape
        found = f[:, : self.size].reshape(-1, blocks, c).moved(1, 0) @ self.U
        return found.moved(0, 1).reshape(len(f.mid), -1)

    def linear_range(self, f: BallArray) -> Array:
        """Bound linear functions ``(…, r)`` of y and of symbols behind it."""
        flat, found = f.reshape(-1, f.shape[-1]), [np.zeros(0)]
        for begun in range(0, len(flat.mid), WITHOUT_FORMS):
            part = flat[begun : begun + WITHOUT_FORMS]
            found.append((ball(self.on_symbols(part).size).sum() + ball(part[:, self.size :].size).sum()).upper)
        return np.concatenate(found).reshape(f.shape[:-1])

    def reach(self, count: int) -> Array:
        """Bound every coordinate of y, and the symbols behind them."""
        return self.linear_range(ball(np.eye(count)))

    def form_below(self, H: BallArray) -> float:
        r"""Return a with :math:`(y,\eta)^\top H(y,\eta)\ge-a` on the box, H symmetric; infinity if none is proven.

        For any weights w of symbols, and any C with :math:`CC^\top\succeq U\,\mathrm{diag}(w)^{-1}U^\top`, a is the
        sum of all weights times the least eigenvalue of :math:`C^\top HC`, up to its sign.
        """
        U, base, largest = self.U, self.size, float(H.size.max(initial=0.0))
        if not largest < np.inf:
            return np.inf
        if largest < 1e-200 or float(np.abs(H.mid).max()) < 1e3 * float(H.rad.max()):  # hardly more than radii
            reach = ball(self.reach(len(H.mid))).sum()
            return float((reach * reach * largest).upper)
        unit = float(2.0 ** -np.floor(np.log2(largest)))
        H = H * unit
        blocks, c, _s = U.shape
        w, v = self._weights(H.mid)
        S = (U * ball(w[:, None, :]).inverse()) @ U.T
        delta = 1e-11 * float(S.mid.max())
        C, scale = np.linalg.cholesky(S.mid + delta * np.eye(c)), 1 / np.sqrt(v)
        error = ball((ball(C) @ np.swapaxes(C, -1, -2) - S - delta * np.eye(c)).size).reshape(blocks, c * c)
        if not ((error * error).sum().sqrt().upper <= delta).all():
            return np.inf  # CCᵀ is not proven to be at least S

        def half(H: BallArray) -> BallArray:
            first = (ball(np.swapaxes(C, -1, -2)) @ H[:base].reshape(blocks, c, -1)).reshape(base, -1)
            return concatenated([first, H[base:] * scale[:, None]], 0)

        X = half(half(H).T)
        total = ball(w.ravel()).sum() + (ball(scale) * scale).inverse().sum()
        least = -float(np.linalg.eigvalsh(X.mid)[0])  # a guess, which a factor proves
        radii = 4 * float(np.sqrt((X.rad**2).sum()))
        root = np.sqrt(max(least, 0.0) * (1 + 1e-6) + 1e-9 * float(np.abs(X.mid).max()) + radii)
        if not semidefinite(X, float(root)):
            return np.inf
        return float((ball(root) * ball(root) * total * ball(unit).inverse()).upper)

    def _weights(self, H: Array) -> tuple[Array, Array]:
        """Return positive weights of the symbols of the box and of those behind: about the row norms of the form."""
        U, base = self.U.mid, self.size
        blocks, c, _s = U.shape
        GH = np.concatenate(
            [((U @ np.swapaxes(U, -1, -2)) @ H[:base].reshape(blocks, c, -1)).reshape(base, -1), H[base:]]
        )
        w = np.zeros(U.shape[::2])
        for k in range(blocks):
            own = slice(k * c, (k + 1) * c)
            w[k] = (U[k] * ((H[:, own].T @ GH[:, own]) @ U[k])).sum(0)
        v = (H[:, base:] * GH[:, base:]).sum(0)
        w, v = (np.sqrt(np.maximum(x, 0)) for x in (w, v))
        least = 1e-9 * max(w.max(), v.max(initial=0.0)) + 1e-150  # where there is nothing but the radii of balls
        return w + 1e-3 * w.max() + least, v + 1e-3 * v.max(initial=0.0) + least


class Beyond:
    """What functionals do beyond their linear parts: forms, or products of ranges in their place, and remainders."""

    def __init__(self, symbols: Symbols, count: int, r: int | None) -> None:
        self.symbols, self.remainder, self.products = symbols, ball(np.zeros(count)), ball(np.zeros(count))
        self.H = None if r is None else ball(np.zeros((count, r, r)))

    def add(self, left: BallArray, right: Callable[[], BallArray], ranges: BallArray) -> None:
        """Add sums of products of linear forms, ``(t, r)`` and ``(f, t, r)``, which ``ranges`` bounds too."""
        if self.H is None:
            self.products = self.products + ranges
            return
        r = left.shape[-1]
        grown = self.H[:, :r, :r] + product_by_lengths(left.T, right())
        self.H.mid[:, :r, :r], self.H.rad[:, :r, :r] = grown.mid, grown.rad

    def bounds(self, sides: tuple[int, ...]) -> tuple[Array, ...]:
        """Return how far functionals go below (1) or above (−1) their linear parts."""
        found = [self.products.upper for _ in sides]
        if self.H is not None:
            H = (self.H + self.H.T) * 0.5
            found = [np.array([self.symbols.form_below(H[k] * sign) for k in range(len(H.mid))]) for sign in sides]
        return tuple((ball(x) + self.remainder).upper for x in found)


class BoxModel:
    """The tokens behind some steps, on a box.

    Attributes:
        symbols: The box.
        centre: c.
        linear: L, ``(n, d, r)``.
        stages: What pulls functionals back.
        bent: The ReLUs that may bend, layer by layer.
        level: Which quantities are bounded by forms; see the docs.
    """

    def __init__(self, steps: list[Any], lower: Array, upper: Array, level: int) -> None:
        middle = lower / 2 + upper / 2
        half = np.nextafter(np.maximum(upper - middle, middle - lower), np.inf)
        if steps[0].kind == "affine":
            first, steps = steps[0].arrays, steps[1:]
            n, d = first["bias"].shape
            weight, bias = first["weight"].reshape(n, d, -1), first["bias"]
        elif lower.ndim == 2:
            (n, d), weight, bias = lower.shape, np.eye(lower.size).reshape(*lower.shape, -1), np.zeros(lower.shape)
        else:
            raise CannotCheck("a box is about tokens, one row each, unless the first step is affine")
        self.symbols, self.level = Symbols(weight, half.ravel()), level
        self.centre = (ball(weight) @ middle.reshape(-1, 1)).reshape(n, d) + bias
        self.linear = ball(np.eye(n * d).reshape(n, d, -1))
        self.stages, self.bent = list[Callable[[BallArray, Beyond], BallArray]](), list[BentLayer]()
        for step in steps:
            self._go(step)

    def _go(self, step: Any) -> None:
        """Go on behind one step."""
        residual = step.settings.get("residual", 0)
        if step.kind not in STEPS or residual not in (0, 1):
            raise CannotCheck(f"boxes know attention, MLPs with ReLUs and affine steps, got {step.kind}")
        value, linear, pull = STEPS[step.kind](self, step)
        if residual:
            n, d, r = self.linear.shape
            more = ball(np.zeros((n, d, linear.shape[-1] - r)))
            value, linear = value + self.centre, linear + concatenated([self.linear, more], -1)
        # Why not keep the radii: they would grow a thousandfold with every layer. Tokens are as well the middles and a
        # rest, of which functionals are pulled back along the true derivatives.
        reach = self.symbols.reach(linear.shape[-1]).reshape(-1, 1)
        rest = ball((ball(value.rad) + (ball(linear.rad) @ reach).reshape(*value.shape)).upper)
        self.centre, self.linear = ball(value.mid), ball(linear.mid)

        def stage(x: BallArray, beyond: Beyond) -> BallArray:
            beyond.remainder = beyond.remainder + (ball(x.size) * rest).reshape(len(x.mid), -1).sum()
            return x + pull(x, beyond) if residual else pull(x, beyond)

        self.stages.append(stage)

    def beyond_linear(
        self,
        functionals: BallArray,
        forms: bool,
        start: Callable[[slice, Beyond], None] | None = None,
        sides: tuple[int, ...] = (1, -1),
    ) -> tuple[Array, ...]:
        """Bound what functionals ``(f, n, d)`` do beyond their linear parts, below and above."""
        found, at_once = [tuple(np.zeros(0) for _ in sides)], WITH_FORMS if forms else WITHOUT_FORMS
        for begun in range(0, len(functionals.mid), at_once):
            part = slice(begun, begun + at_once)
            pulled = functionals[part]
            beyond = Beyond(self.symbols, len(pulled.mid), self.linear.shape[-1] if forms else None)
            if start is not None:
                start(part, beyond)
            for stage in reversed(self.stages):
                pulled = stage(pulled, beyond)
            found.append(beyond.bounds(sides))
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

    def size_beyond(self, functionals: BallArray, forms: bool) -> Array:
        """Bound the absolute value of what functionals do beyond their linear parts."""
        below, above = self.beyond_linear(functionals, forms)
        return np.maximum(below, above)


Behind = tuple[BallArray, BallArray, Callable[[BallArray, Beyond], BallArray]]


def _linear_step(model: BoxModel, step: Any) -> Behind:
    """Return what is behind a map that is affine: of all tokens, or of every one."""
    n, d, r = model.linear.shape
    weight, bias = step.arrays["weight"], step.arrays.get("bias", 0.0)
    if step.kind == "dense":
        weight = np.einsum("nm,od->nomd", np.eye(n), weight)
    m, out = weight.shape[:2]
    matrix = ball(weight.reshape(m * out, n * d))
    value = (matrix @ model.centre.reshape(-1, 1)).reshape(m, out) + bias
    linear = (matrix @ model.linear.reshape(n * d, r)).reshape(m, out, r)
    return value, linear, lambda x, _beyond: (x.reshape(-1, m * out) @ matrix).reshape(-1, n, d)


@dataclass(frozen=True, eq=False)
class BentLayer:
    """The ReLUs of one layer that may bend: values and linear parts, what is beyond, their lines and places."""

    centre: BallArray
    linear: BallArray
    beyond: Array
    slope: Array
    gap: Array
    places: Array


def _mlp_step(model: BoxModel, step: Any) -> Behind:
    r"""Return what is behind an MLP: a unit on [l, u] ∋ 0 is :math:`\sigma y+g(1+\eta)`."""
    if step.settings["activation"] != "relu":
        raise CannotCheck("boxes know MLPs with ReLUs")
    x, (n, d, r) = step.arrays, model.linear.shape
    up, down = ball(x["up"]), ball(x["down"])
    centre = model.centre @ up.T + x.get("up_bias", 0.0)
    linear = up @ model.linear  # (n, h, r)
    h = up.shape[0]
    every = ball(np.einsum("nm,hd->nhmd", np.eye(n), x["up"]).reshape(-1, n, d))
    reach = model.symbols.linear_range(linear).ravel()
    below, above = model.beyond_linear(every, False)
    y = centre.reshape(-1)

    def interval() -> tuple[Array, Array]:
        return (y - (ball(reach) + ball(below))).lower, (y + (ball(reach) + ball(above))).upper

    low, high = interval()
    if model.level > 0 and (may := np.flatnonzero(~(low >= 0) & ~(high <= 0))).size:
        for side, closer in zip((below, above), model.beyond_linear(every[may], True), strict=True):
            side[may] = np.minimum(side[may], closer)
        low, high = interval()
    bent = ~(low >= 0) & ~(high <= 0)  # what is no number bends
    slope = np.where(bent, high / (high - low), low >= 0)
    gap = np.where(
        bent, np.maximum((ball(high) * (ball(1.0) - ball(slope))).upper, (ball(slope) * -low).upper) / 2, 0.0
    )
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise Refuted(len(model.stages), "a unit has no range")
    places = np.flatnonzero(bent)
    flat = linear.reshape(n * h, r)
    model.bent.append(
        BentLayer(y[places], flat[places], np.maximum(below, above)[places], slope[places], gap[places], places)
    )
    symbols = np.zeros((n * h, len(places)))
    symbols[places, np.arange(len(places))] = gap[places]
    hidden = concatenated([linear * slope.reshape(n, h, 1), ball(symbols.reshape(n, h, -1))], -1)
    value = (centre * slope.reshape(n, h) + gap.reshape(n, h)) @ down.T + x.get("down_bias", 0.0)
    return value, down @ hidden, lambda f, _beyond: ((f @ down) * slope.reshape(n, h)) @ up


class AttentionOnBox:
    """Attention around the centre of what enters it: ranges of first order have a 1, what is beyond a 2."""

    def __init__(self, model: BoxModel, step: Any) -> None:
        at = self.at = AttentionAt.of(step, model.centre)
        self.heads, self.n, _e = at.q.shape
        self.o = at.P @ at.v
        columns = model.linear.moved(-1, 0)[:, None]  # r, 1, n, d
        moved = [(columns @ matrix).moved(0, -1) for matrix in at.projections]  # h, n, e, r
        self.dq, self.dk, self.dv = moved
        r = columns.shape[0]
        a = (at.k.reshape(self.heads, 1, self.n, -1) @ self.dq).reshape(self.heads, self.n, self.n, r)
        keys = self.dk.moved(1, -1).reshape(self.heads, self.dk.shape[2], -1)  # h, e, r·n
        a = a + (at.q @ keys).reshape(self.heads, self.n, r, self.n).moved(-1, 2)
        mean = at.P.reshape(self.heads, self.n, 1, self.n) @ a
        self.db = a - mean
        range_of = model.symbols.linear_range
        self.q1, self.k1, self.v1 = (range_of(x) for x in moved)
        self.q2, self.k2, self.v2 = (self._own(model, matrix) for matrix in at.projections)
        hidden = ~np.broadcast_to(
            np.tril(np.ones((self.n, self.n), bool)) if step.settings["causal"] else True, at.P.shape
        )
        self.alpha1 = np.where(hidden, 0.0, range_of(self.db))
        q1, k1, q2, k2 = (ball(x) for x in (self.q1, self.k1, self.q2, self.k2))
        self.products = (q1 @ k1.T).upper
        self.products_beyond = (q1 @ k2.T + q2 @ (k1 + k2).T).upper
        alpha2 = np.where(hidden, 0.0, self._scores_beyond(model))
        self._remainders(model, alpha2)
        value = at.value()
        weighted = (at.P.reshape(self.heads, self.n, self.n, 1) * self.db).moved(-1, 0)  # r, h, n, n
        mixed = weighted @ at.v + at.P @ self.dv.moved(-1, 0)
        side = mixed.moved(1, 2).reshape(r, self.n, -1)
        self.behind = value, (side @ at.output).moved(0, -1)

    def _own(self, model: BoxModel, matrix: BallArray) -> Array:
        """Bound what queries, keys or values do beyond their linear parts."""
        h, d, e = matrix.shape
        mid, rad = (
            np.einsum("nm,hde->hnemd", np.eye(self.n), x).reshape(-1, self.n, d) for x in (matrix.mid, matrix.rad)
        )
        return model.size_beyond(BallArray(mid, rad), model.level > 1).reshape(h, self.n, e)

    def _scores_beyond(self, model: BoxModel) -> Array:
        """Bound what centred scores do beyond their linear parts."""
        h, n = self.heads, self.n
        every = ball(np.zeros((h, n, n, h, n, n)))
        centring = ball(np.eye(n)) - self.at.P.reshape(h, n, 1, n)  # h, i, j, l
        for head in range(h):
            for i in range(n):
                for part, x in ((every.mid, centring.mid), (every.rad, centring.rad)):
                    part[head, i, :, head, i] = x[head, i]
        every = every.reshape(-1, h, n, n)

        def start(part: slice, beyond: Beyond) -> None:
            self._score_products(every[part], beyond)
            beyond.remainder = beyond.remainder + self._summed(ball(every[part].size) * self.products_beyond)

        below, above = model.beyond_linear(self._pull_scores(every), model.level > 0, start)
        return np.maximum(below, above).reshape(h, n, n)

    def _remainders(self, model: BoxModel, alpha2: Array) -> None:
        """Keep what multiplies a functional of v − o, and the range of one of dv, in the remainder."""
        a1, a2 = ball(self.alpha1), ball(alpha2)
        alpha, P = ball((a1 + a2).upper), ball(self.at.P.upper)
        e2 = ball(alpha.map(lambda x: x.exp() - 1 - x).size)
        e3 = ball(alpha.map(lambda x: x.exp() - 1 - x - x * x / 2).size)
        zeta = (P * e2).sum().upper  # Z − 1
        if model.level > 0:  # e₂(b)/b² grows with b, and the mean of squares is a form
            steepest = alpha.map(lambda x: (x.exp() - 1 - x) / x**2 if x > 1e-3 else x.exp() / 2).upper.max(-1)
            rows = (self.at.P.sqrt().reshape(*self.at.P.shape, 1) * self.db).reshape(-1, *self.db.shape[2:])
            every = (rows[k] for k in range(len(rows.mid)))
            squares = [model.symbols.form_below(-product_by_lengths(x.T, x)) for x in every]
            spread = ball(np.array(squares).reshape(zeta.shape)).sqrt() + (P * a2 * a2).sum().sqrt()
            zeta = np.fmin(zeta, (ball(steepest) * spread * spread).upper)
        self.share = (ball(zeta) * (ball(zeta) + 1.0).inverse()).upper  # 1 − 1/Z
        share, square = ball(self.share[..., None]), alpha * alpha * 0.5
        self.on_values = ball(self.products_beyond) + a2 * (a1 + a1 + a2) * 0.5 + e3 + share * (a2 + square)
        self.on_changes = a2 + e2 + share * alpha

    def pull(self, functionals: BallArray, beyond: Beyond) -> BallArray:
        """Pull functionals ``(f, n, out)`` back; add their second orders and remainders."""
        at, (h, n, v) = self.at, self.at.v.shape
        on_heads = (functionals @ at.output.T).reshape(-1, n, h, v).moved(2, 1)  # f, h, n, v
        W = at.P * (on_heads @ at.v.T - (on_heads * self.o).sum(keepdims=True))
        size_W, size_heads, P = ball(W.size), ball(on_heads.size), ball(at.P.upper)
        first, later = (size_heads @ ball(np.swapaxes(x, -1, -2)) for x in (self.v1, self.v2))  # of ⟨λ, dv⟩
        ranges = size_W * ball(self.alpha1) * ball(self.alpha1) * 0.5 + P * self.alpha1 * first

        scores, values = (size_W * self.alpha1).sum(), (P * first).sum()  # what 1 − 1/Z is multiplied by
        weighted = ball(np.zeros(1))
        if beyond.H is not None:  # each is one function of the symbols
            changes = self._of_values(on_heads)
            weighted = at.P.reshape(h, n, n, 1) * changes
            mean = (W.reshape(-1, h, n, 1, n) @ self.db).reshape(-1, h, n, self.db.shape[-1])
            closer = (beyond.symbols.linear_range(x) for x in (changes, mean, weighted.sum(3)))
            first, scores, values = (
                ball(np.fmin(x.upper, y)) for x, y in zip((first, scores, values), closer, strict=True)
            )

        def partners() -> BallArray:
            return (W.reshape(*W.shape, 1) * self.db * 0.5 + weighted).reshape(len(W.mid), h * n * n, -1)

        beyond.add(self.db.reshape(h * n * n, -1), partners, self._summed(ranges))
        self._score_products(W, beyond)
        rest = size_W * self.on_values + P * (ball(self.alpha1) * later + self.on_changes * (first + later))
        means = (scores + values + (P * later).sum()) * self.share
        beyond.remainder = beyond.remainder + self._summed(rest) + self._summed(means)
        on_values = (at.P.T @ on_heads) @ at.projections[2].T
        return self._pull_scores(W) + on_values.sum(1)

    def _of_values(self, on_heads: BallArray) -> BallArray:
        r"""Return :math:`\langle\lambda_i,dv_j\rangle`, ``(f, h, n, n, r)``."""
        h, n, v, r = self.dv.shape
        flat = self.dv.moved(2, 1).reshape(h, v, n * r)
        return (on_heads @ flat).reshape(-1, h, n, n, r)

    def _score_products(self, W: BallArray, beyond: Beyond) -> None:
        """Add the products of queries with keys under weights ``(f, h, n, n)``."""
        h, n, e, r = self.dk.shape

        def partners() -> BallArray:
            return (W @ self.dk.reshape(h, n, e * r)).reshape(len(W.mid), h * n * e, r)

        beyond.add(self.dq.reshape(h * n * e, r), partners, self._summed(ball(W.size) * self.products))

    def _pull_scores(self, W: BallArray) -> BallArray:
        """Pull functions of scores, to first order in queries and keys, back to the tokens."""
        query, key, _value = self.at.projections
        return ((W @ self.at.k) @ query.T + (W.T @ self.at.q) @ key.T).sum(1)

    @staticmethod
    def _summed(x: BallArray) -> BallArray:
        return x.reshape(len(x.mid), -1).sum()


def _attention_step(model: BoxModel, step: Any) -> Behind:
    found = AttentionOnBox(model, step)
    return *found.behind, found.pull


STEPS: dict[str, Callable[[BoxModel, Any], Behind]] = {
    "attention": _attention_step,
    "mlp": _mlp_step,
    "affine": _linear_step,
    "dense": _linear_step,
}


class CheckedBentUnits:
    """All bent ReLUs, as functions of the box and of the symbols of earlier ones."""

    def __init__(self, model: BoxModel) -> None:
        r, base, layers = model.linear.shape[-1], model.symbols.size, model.bent
        padded = [concatenated([x.linear, ball(np.zeros((len(x.places), r - x.linear.shape[-1])))], 1) for x in layers]
        linear = concatenated(padded, 0)
        self.pixels, self.earlier = model.symbols.on_symbols(linear), linear[:, base:]
        self.centre = concatenated([x.centre for x in layers], 0)
        self.beyond, self.slope, self.gap = (
            np.concatenate([getattr(x, name) for x in layers]) for name in ("beyond", "slope", "gap")
        )
        self.layer = np.concatenate([np.full(len(x.places), k) for k, x in enumerate(layers)])
        self.index = {(k, int(place)): 0 for k, x in enumerate(layers) for place in x.places}
        self.index = {unit: c for c, unit in enumerate(self.index)}

    def least(self, m0: BallArray, pixels: BallArray, units: BallArray, leaves: "Leaves") -> Array:
        """Bound a margin from below at every leaf: m₀ plus linear functions of the box and of the units' symbols."""
        count = len(leaves.side)
        lower = ball(np.full(count, 1.0)) * m0
        pixels, on_symbols = ball(np.zeros((count, 1))) + pixels, ball(np.zeros((count, 1))) + units
        for layer in np.unique(self.layer)[::-1]:
            own = self.layer == layer
            a, side, slope, gap = on_symbols.mid[:, own], leaves.side[:, own], self.slope[own], ball(self.gap[own])
            chord = (side == 0) & (a < 0)  # η ≤ 1; elsewhere a line in the unit is below it
            line = np.where(side == 0, np.where(chord, slope, leaves.alpha[:, own]), (side + 1) / 2)
            on_units = ball(a) * (ball(line) - slope) * gap.inverse() - side * leaves.beta[:, own]
            lower = lower + ball(np.where(chord, a, -a)).sum() - ball(on_symbols.rad[:, own]).sum()
            lower = lower + (on_units * self.centre[own]).sum() - (ball(on_units.size) * self.beyond[own]).sum()
            pixels = pixels + on_units @ self.pixels[own]
            on_symbols = on_symbols + on_units @ self.earlier[own]
        return (lower - ball(pixels.size).sum()).lower


@dataclass(frozen=True, eq=False)
class Leaves:
    """Parts of the box: slopes of lines, multipliers, and the sides of units, 0 where both."""

    alpha: Array
    beta: Array
    side: Array

    @classmethod
    def of(cls, given: list[dict[str, Any]], units: list[Any], known: CheckedBentUnits) -> "Leaves":
        """Read the leaves of a file, whose units have numbers of its own."""
        count, c = len(given), len(known.layer)
        alpha, beta, side = np.tile(known.slope, (count, 1)), np.zeros((count, c)), np.zeros((count, c))
        places = [known.index.get(unit) for unit in units]
        here, there = [k for k in places if k is not None], [j for j, k in enumerate(places) if k is not None]
        for row, leaf in enumerate(given):
            if "alpha" in leaf:
                slopes = numbers(leaf, "alpha")
                if slopes.shape != (len(units),) or not ((slopes >= 0) & (slopes <= 1)).all():
                    raise Refuted(row, "slopes of lines lie between 0 and 1, one for each unit")
                alpha[row, here] = slopes[there]
            for j, sign, multiplier in _sides(leaf, len(units)):
                if places[j] is not None:
                    side[row, places[j]], beta[row, places[j]] = sign, multiplier
        return cls(alpha, beta, side)


def _sides(leaf: dict[str, Any], count: int) -> list[tuple[int, float, float]]:
    """Return the units of a leaf that are on one side, with the side and the multiplier."""
    sides = leaf.get("sides", [])
    if not isinstance(sides, list):
        raise CannotCheck("sides must be a list")
    found = []
    for each in sides:
        unit, sign, multiplier = each if isinstance(each, list) and len(each) == 3 else (None, 0, 0)
        if type(unit) is not int or not 0 <= unit < count or sign not in (-1, 1) or type(sign) is not int:
            raise CannotCheck("sides are units with 1 or −1 and a multiplier")
        if type(multiplier) not in (int, float) or not 0 <= multiplier < np.inf:
            raise CannotCheck("multipliers are finite and not negative")
        found.append((unit, float(sign), float(multiplier)))
    return found


def covers(leaves: list[dict[int, float]]) -> bool:
    """Tell whether some parts, each given by the sides of some units, are the leaves of a tree: all of the box."""
    left = [leaves]
    while left:
        part = left.pop()
        if any(not sides for sides in part):
            continue
        common = set.intersection(*map(set, part)) if part else set()
        if not common:
            return False
        unit = min(common)
        for sign in (-1.0, 1.0):
            left.append([{k: s for k, s in x.items() if k != unit} for x in part if x[unit] == sign])
    return True


def check_verdict(steps: list[Any], claim: dict[str, Any]) -> None:
    """Check that no input between ``lower`` and ``upper`` has an unsafe output: one inequality of every set fails.

    Raises:
        Refuted: With the number of the unsafe set that is not excluded.
        CannotCheck: If a step is not known here, or shapes do not fit.
    """
    lower, upper, level = numbers(claim, "lower"), numbers(claim, "upper"), claim.get("level")
    if lower.shape != upper.shape or not (lower <= upper).all() or level not in (0, 1, 2):
        raise CannotCheck("a box has a lower and an upper end of one shape, and a level from 0 to 2")
    unsafe = listed(claim, "unsafe")
    model = BoxModel(steps, lower, upper, level)
    units = CheckedBentUnits(model) if any(x.places.size for x in model.bent) else None
    named = claim.get("units", [])
    if not isinstance(named, list) or not all(
        isinstance(x, list) and len(x) == 2 and all(type(k) is int for k in x) for x in named
    ):
        raise CannotCheck("units are pairs of a layer and a place")
    for k, each in enumerate(unsafe):
        A, b, row = numbers(each, "A"), numbers(each, "b"), each.get("row")
        if A.ndim != 2 or b.shape != A.shape[:1] or A.shape[1] != model.centre.mid.size:
            raise CannotCheck("A has as many columns as there are outputs, and as many rows as b")
        if type(row) is not int or not 0 <= row < len(b):
            raise CannotCheck("the row must be one of A")
        functional = ball(-A[row].reshape(1, *model.centre.shape))
        (below,) = model.beyond_linear(functional, True, sides=(1,))
        m0 = (functional * model.centre).reshape(-1).sum() + b[row] - ball(below[0])
        linear = functional.reshape(1, -1) @ model.linear.reshape(model.centre.mid.size, -1)
        pixels, on_units = model.symbols.on_symbols(linear), linear[:, model.symbols.size :]
        leaves = listed(each, "leaves")
        if units is None:
            left = (m0 - ball(pixels.size).sum()).lower
        else:
            if not covers([{j: sign for j, sign, _beta in _sides(leaf, len(named))} for leaf in leaves]):
                raise Refuted(k, "the leaves are not all parts of the box")
            left = units.least(m0, pixels, on_units, Leaves.of(leaves, [tuple(x) for x in named], units))
        if not (left > 0).all():
            raise Refuted(
                k, f"the set may be reached: {float(np.min(left))} is left at the worst of {len(leaves)} leaves"
            )
