r"""Certificates of a classifier, checked: the chain of remainders of Theorem 11 in ball arithmetic.

A word moves by :math:`|e|\le\epsilon`. With :math:`G_k`, :math:`T_{k\leftarrow l}` the derivatives at the centre from
the word and from the output of stage l to the input of stage k, and :math:`R_l = \sum_cB_{lc}\xi_{lc}`,
:math:`|\xi_{lc}|\le b_{lc}`, the remainders, every functional and every matrix obey

.. math:: |f\delta_k|\le|fG_k|\epsilon + \sum|fT_{k\leftarrow l}B_{lc}|b_{lc},\qquad
          |M\delta_k|\le\|MG_k\|\epsilon + \sum\|MT_{k\leftarrow l}B_{lc}\|b_{lc}.

A file claims the numbers b of every stage. They are right if what the formulas of a stage make of the numbers before
it is at most the numbers of this stage (docs, :ref:`theorem-11`). Of the order 2, what the word itself does to second
order, :math:`H_k(e,e)`, is propagated exactly, and remainders are those beyond it (docs, :ref:`second-order`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from howsmooth.check.attention import AttentionAt, side_by_side
from howsmooth.check.balls import BallArray, ball, concatenated, length, norms_upper
from howsmooth.check.float32 import pooling_errors, rounding_errors
from howsmooth.check.outcomes import CannotCheck, Refuted, listed, number, numbers

Array = Any  # arrays of numpy, and its scalars


# Numbers of forms whose eigenvalues are bounded at once.
AT_ONCE = 2**22


class LinearImages:
    """Linear images of the unit ball."""

    def scalars(self, columns: BallArray) -> Array:
        """Bound functionals: columns ``(groups, r, …)``, coefficients along r."""
        return length(columns, 1).upper

    def vectors(self, columns: BallArray) -> Array:
        """Bound the norms of matrices, rows along the last axis of ``(groups, r, …, m)`` and columns along r."""
        return norms_upper(columns.moved(1, -1))


FIRST = LinearImages()


class QuadraticImages(LinearImages):
    r"""Quadratic images :math:`H(\xi,\xi)` of the unit ball of r numbers; columns are H(a, b), :math:`a\le b`."""

    def __init__(self, r: int) -> None:
        self.a, self.b = np.triu_indices(r)
        self.place = np.empty((r, r), dtype=int)
        self.place[self.a, self.b] = self.place[self.b, self.a] = np.arange(len(self.a))

    def product(self, x: BallArray, y: BallArray) -> BallArray:
        """Return the symmetric form of a product of two linear images, ``(r, …)`` each."""
        return (x[self.a] * y[self.b] + x[self.b] * y[self.a]) * 0.5

    def scalars(self, columns: BallArray) -> Array:
        """Bound forms by their largest absolute eigenvalue."""
        return self._bounded(columns.reshape(*columns.shape, 1)).reshape(1, *columns.shape[2:])

    def vectors(self, columns: BallArray) -> Array:
        r"""Bound forms with values in m dimensions, unfolded: :math:`|\xi\otimes\xi| = 1`, and :math:`\sum_mH_m^2`."""
        return self._bounded(columns).reshape(1, *columns.shape[2:-1])

    def _bounded(self, columns: BallArray) -> Array:
        pairs, m = columns.shape[1], columns.shape[-1]
        flat, found, r = columns.reshape(pairs, -1, m), list[Array](), len(self.place)
        at_once = max(1, AT_ONCE // (r * r * m))
        for begun in range(0, flat.shape[1], at_once):
            H = flat[:, begun : begun + at_once][self.place].moved(2, 0)  # forms, r, r, m
            bound = norms_upper(H.reshape(-1, r, r * m))
            if m > 1:
                bound = np.minimum(bound, norms_upper(H.reshape(-1, r * r, m)))
            found.append(bound)
        return np.concatenate(found)


def at_tokens(blocks: BallArray) -> BallArray:
    """Return directions ``(n, r, d)`` of every token as columns ``(n, r, n, d)``."""
    n, r, d = blocks.shape
    mid, rad = np.zeros((n, r, n, d)), np.zeros((n, r, n, d))
    every = np.arange(n)
    mid[every, :, every], rad[every, :, every] = blocks.mid, blocks.rad
    return BallArray(mid, rad)


@dataclass(frozen=True, eq=False)
class Word:
    """What a stage knows of the word itself.

    Attributes:
        columns: The first-order change of its input, ``(1, r, n, d)``.
        norms: The norms of its images, for a radius of one.
        eps: The radius.
    """

    columns: BallArray
    norms: Array
    eps: float


class RemainderBound(ABC):
    """A map at the centre: its derivative, the images that its remainder depends on, and the directions of it."""

    value: BallArray  # the output tokens

    @abstractmethod
    def images(self, E: BallArray, over: LinearImages = FIRST) -> tuple[Array, BallArray]:
        """Return the norms of images of columns ``(groups, r, n, d)``, and the derivative in their directions."""

    @abstractmethod
    def directions(self) -> list[BallArray]:
        """Return the directions B of the remainder at every token, as columns."""

    @abstractmethod
    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound the remainder along every group of directions, from bounds on the images of all that enters."""

    @abstractmethod
    def second_order(self, E: BallArray, over: QuadraticImages) -> BallArray:
        """Return half of the second derivative in columns ``(1, r, n, d)``, as columns of pairs."""

    @abstractmethod
    def third_order(self, first: Array, later: Array, forms: Array) -> Array:
        """Bound what is beyond the second order of the word, from bounds on its own images and on all others."""

    def forms(self, E: BallArray, over: QuadraticImages) -> Array:
        """Return the norms of forms of the word inside the map that its remainder depends on."""
        return np.zeros(0)


class NormRemainder(RemainderBound):
    """LayerNorm or RMSNorm at tokens: with c the token and a constant coordinate, its direction, up to the gain.

    Images are u at every token, then w: a change along c and across it, over its length.
    """

    def __init__(self, step: Any, X: BallArray) -> None:
        n, d = X.shape
        eps, self.centred = step.settings["eps"], step.settings["centred"]
        c = self._centre(X)
        self.length = ((c * c).sum() + ball(np.array(eps)) * d).sqrt()
        self.inverse = self.length.inverse()
        self.unit = c * self.inverse[:, None]
        self.constant = (ball(np.array(eps)) * d).sqrt() * self.inverse
        self.gain = ball(np.array(float(d))).sqrt() * step.arrays["gain"]
        self.value = self.unit * self.gain + step.arrays.get("bias", np.zeros(d))
        self.n, self.d = n, d

    def _centre(self, X: BallArray) -> BallArray:
        return X - X.sum(keepdims=True) * ball(np.array(float(X.shape[-1]))).inverse() if self.centred else X

    def _split(self, E: BallArray) -> tuple[BallArray, BallArray]:
        """Return u, and the first d coordinates of w; the last one is minus the constant times u."""
        scaled = self._centre(E) * self.inverse[:, None]
        u = (scaled * self.unit).sum()
        return u, scaled - self.unit * u.reshape(*u.shape, 1)

    def images(self, E: BallArray, over: LinearImages = FIRST) -> tuple[Array, BallArray]:
        """Return norms of u and w, and what leaves."""
        u, w = self._split(E)
        return np.concatenate((over.scalars(u), over.vectors(self._whole(u, w))), -1), w * self.gain

    def _whole(self, u: BallArray, w: BallArray) -> BallArray:
        """Return all coordinates of w."""
        return concatenated([w, (-(u * self.constant)).reshape(*u.shape, 1)], -1)

    def plane(self) -> BallArray:
        """Return, for every token, the projection onto all changes across it, ``(n, d + 1, d + 1)``."""
        n, d = self.n, self.d
        unit, constant = self.unit.reshape(n, d, 1), self.constant.reshape(n, 1, 1)
        plane = self._centre(ball(np.broadcast_to(np.eye(d), (n, d, d)))) - unit @ unit.T
        last = concatenated([-(unit * constant), -(constant * constant) + 1.0], 1)
        return concatenated([concatenated([plane, last[:, :d].T], 1), last], 2)

    def directions(self) -> list[BallArray]:
        """Return the direction of every token, and all directions across it."""
        across = self.plane()[..., : self.d] * self.gain
        return [at_tokens((self.unit * self.gain).reshape(self.n, 1, self.d)), at_tokens(across)]

    def second_order(self, E: BallArray, over: QuadraticImages) -> BallArray:
        r"""Return :math:`-\frac12|w|^2` along and :math:`-uw` across."""
        u, w = self._split(E[0])
        along = (over.product(whole := self._whole(u, w), whole).sum(keepdims=True) * 0.5) * self.unit
        return (-(along + over.product(u.reshape(*u.shape, 1), w)) * self.gain)[None]

    def third_order(self, first: Array, later: Array, forms: Array) -> Array:
        """Bound both parts, or the whole remainder and the second order."""
        n, small = self.n, (ball(first[: self.n]) + ball(later[: self.n])).upper < 1
        u1, w1, u2, w2 = (ball(x) for x in (first[:n], first[n:], later[:n], later[n:]))
        u, w = ball((u1 + u2).upper), ball((w1 + w2).upper)
        room = (ball(np.ones(n)) - ball(np.where(small, u.mid, 0.0))).inverse()
        slope, square = w * room, w * w
        grown = square * u * (-u + 2.0) * room * room
        along = (w2 * (w + w1) + grown) * 0.5 + slope * slope * slope * slope * 0.375
        longest = ball(np.maximum((u * u * room).upper, (square * room * room * room * 0.5).upper))
        across = u2 * w + u1 * w2 + w * longest
        own = concatenated([w1 * w1 * 0.5, u1 * w1], 0)
        both = (ball(self._remainder(u.mid, w.mid)) + own).upper
        return np.where(np.tile(small, 2), np.minimum(concatenated([along, across], 0).upper, both), both)

    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound both parts."""
        return self._remainder(norms[: self.n], norms[self.n :])

    def _remainder(self, u_most: Array, w_most: Array) -> Array:
        """Bound both parts; a unit vector differs from another by at most 2, and across by at most 1 + w."""
        u, w, small = ball(u_most), ball(w_most), u_most < 1
        room = (ball(np.ones(self.n)) - ball(np.where(small, u.mid, 0.0))).inverse()
        slope = w * room
        along = ball(np.ones(self.n)) - (slope * slope + 1.0).sqrt().inverse()
        longest = ((u + 1.0) * (u + 1.0) + w * w).sqrt()
        grows = np.maximum((u * room).upper, (ball(np.ones(self.n)) - longest.inverse()).upper)
        across = np.minimum((ball(grows) * w).upper, (w + 1.0).upper)
        return np.concatenate((np.where(small, along.upper, 2.0), np.where(small, across, (w + 1.0).upper)))

    def turned(self, tokens: list[int]) -> BallArray:
        """Return the columns of words that turn: every direction across them, over their lengths."""
        columns = at_tokens(self.plane()[..., : self.d] * self.gain * self.inverse.reshape(self.n, 1, 1))[tokens]
        return columns.reshape(1, len(tokens) * (self.d + 1), self.n, self.d)

    def turned_twice(self, tokens: list[int], over: QuadraticImages) -> BallArray:
        r"""Return the second order of words that turn, :math:`-\frac12|w|^2` along each."""
        n, d = self.n, self.d
        form = self.plane() * (self.inverse * self.inverse * 0.5).reshape(n, 1, 1)  # of every token, in its own columns
        found = ball(np.zeros((len(over.a), n, d)))
        for k, i in enumerate(tokens):
            own = np.flatnonzero((over.a // (d + 1) == k) & (over.b // (d + 1) == k))
            values = form[i][over.a[own] % (d + 1), over.b[own] % (d + 1)].reshape(-1, 1) * -(self.unit[i] * self.gain)
            found.mid[own, i], found.rad[own, i] = values.mid, values.rad
        return found[None]

    def moved_by(self, tokens: list[int], eps: float) -> Array:
        """Bound u, w and whole tokens while some of them move by a radius."""
        moves = np.zeros(self.n)
        moves[tokens] = eps
        change = (self.inverse * moves).upper
        return np.concatenate([change, change, moves])

    def turning_remainder(self, tokens: list[int], eps: float, order: int) -> Array:
        """Bound the remainder of words that turn: nothing across; along, what the cosine of the angle has beyond."""
        sine = self.inverse[tokens] * eps
        if not (sine.upper < 1).all():
            raise Refuted(0, "a word that may turn by a right angle has no bound")
        found = np.zeros(2 * self.n)
        cosine = (ball(np.ones(len(tokens))) - sine * sine).sqrt()
        along = sine * sine * (cosine + 1.0).inverse()  # 1 − cos φ, without the difference
        found[tokens] = (along * along * 0.5 if order == 2 else along).upper  # 1 − ½sin²φ − cos φ = ½(1 − cos φ)²
        return found


def _normal(x: arb) -> arb:
    return (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def _gelu_slope(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2 + x * _normal(x)


def _both_signs(*x: arb) -> tuple[arb, ...]:
    return (*x, *(-each for each in x))


# Value and first three derivatives of an activation, and where the second and the third have their extrema.
ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "gelu": (
        lambda x: x * (-x / arb(2).sqrt()).erfc() / 2,
        _gelu_slope,
        lambda x: _normal(x) * (2 - x * x),
        lambda x: _normal(x) * (x * x - 4) * x,
        (arb(-2), arb(0), arb(2)),
        _both_signs(*(((7 + sign * arb(33).sqrt()) / 2).sqrt() for sign in (-1, 1))),
    ),
    "tanh": (
        arb.tanh,
        lambda x: 1 - x.tanh() ** 2,
        lambda x: -2 * x.tanh() * (1 - x.tanh() ** 2),
        lambda x: (6 * x.tanh() ** 2 - 2) * (1 - x.tanh() ** 2),
        _both_signs((arb(1) / arb(3).sqrt()).atanh()),
        (arb(0), *_both_signs((arb(2) / 3).sqrt().atanh())),
    ),
}


class MLPRemainder(RemainderBound):
    """An MLP at tokens: the remainder is that of its hidden units, behind the second matrix; images are the units."""

    def __init__(self, step: Any, X: BallArray) -> None:
        x, name = step.arrays, step.settings["activation"]
        if name not in ACTIVATIONS:
            raise CannotCheck(f"the activation {name!r} is not known here")
        value, slope, *self.derivatives = ACTIVATIONS[name]
        self.up, self.down = ball(x["up"]).T, ball(x["down"]).T
        self.hidden = X @ self.up + x.get("up_bias", np.zeros(len(x["up"])))
        self.slope = self.hidden.map(slope)
        self.value = self.hidden.map(value) @ self.down + x.get("down_bias", np.zeros(len(x["down"])))
        self.n = len(X.mid)

    def images(self, E: BallArray, over: LinearImages = FIRST) -> tuple[Array, BallArray]:
        """Return how far hidden units move, and what leaves."""
        hidden = E @ self.up
        return over.scalars(hidden).reshape(len(E.mid), -1), (hidden * self.slope) @ self.down

    def directions(self) -> list[BallArray]:
        """Return the columns of the second matrix at every token."""
        blocks = np.broadcast_to(self.down.mid, (self.n, *self.down.shape))
        return [at_tokens(ball(blocks))]

    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound the length of the remainders of all units of a token, one by one or together."""
        s = norms.reshape(self.hidden.shape)
        curvature = self._largest(s)
        each = length(ball(curvature) * ball(s) * ball(s)).upper / 2
        # |√c∘t| of the word itself is the norm of a matrix; what comes from remainders is added up by neurons
        root = ball(curvature).sqrt()
        own = ball(word.norms.reshape(s.shape)) * word.eps
        later = np.maximum((ball(s) - own).upper, 0)
        weighted = (word.columns @ self.up) * root.upper
        together = ball(FIRST.vectors(weighted)[0]) * word.eps + length(root * ball(later))
        largest = (root * ball(s)).upper.max(-1)
        return np.minimum(each, ((ball(largest) * together).upper) / 2)

    def second_order(self, E: BallArray, over: QuadraticImages) -> BallArray:
        r"""Return :math:`\frac12\varphi''t^2` behind the second matrix."""
        t = (E @ self.up)[0]
        return ((over.product(t, t) * (self.hidden.map(self.derivatives[0]) * 0.5)) @ self.down)[None]

    def third_order(self, first: Array, later: Array, forms: Array) -> Array:
        """Bound every unit beyond its second order, or all of it and the second order."""
        s1, s2 = (ball(x.reshape(self.hidden.shape)) for x in (first, later))
        s, c = ball((s1 + s2).upper), ball(self.hidden.map(self.derivatives[0]).size)
        cube = ball(self._largest(s.mid, 1)) * s * s * s * ball(np.array(6.0)).inverse()
        beyond = c * s2 * (s1 + s) * 0.5 + cube
        whole = (ball(self._largest(s.mid)) * s * s + c * s1 * s1) * 0.5
        return length(ball(np.minimum(beyond.upper, whole.upper))).upper

    def _largest(self, s: Array, order: int = 0) -> Array:
        """Bound the second or third derivative of every unit on its interval: at an end, or at an extremum inside."""
        found, derivative, peaks = [], self.derivatives[order], self.derivatives[2 + order]
        for y, rad, reach in zip(self.hidden.mid.ravel(), self.hidden.rad.ravel(), s.ravel(), strict=True):
            if not np.isfinite(reach):
                found.append(np.inf)
                continue
            low, high = (arb(float(y), float(rad)) + sign * arb(float(reach)) for sign in (-1, 1))
            values = [derivative(low), derivative(high)]
            values += [derivative(peak) for peak in peaks if not (peak < low or peak > high)]
            found.append(max(float(x.abs_upper()) for x in values) * (1 + 2.0**-40))
        return np.array(found).reshape(s.shape)


class AttentionRemainder(RemainderBound):
    """Attention at tokens: every row of every head, as in the theorem; heads of a row side by side.

    Images are queries, keys, values, scores under the weights P and Pf, outputs of heads, and single scores.
    """

    def __init__(self, step: Any, X: BallArray) -> None:
        self.at = AttentionAt.of(step, X)
        self.value = self.at.value()
        P, v = self.at.P, self.at.v
        heads, self.n, width = v.shape
        off = v.reshape(heads, 1, self.n, width) - (P @ v).reshape(heads, self.n, 1, width)
        self.f = length(off).upper  # |v_j − o_i|
        self.P = P.upper
        root = P.sqrt()
        self.root_P, self.root_Pf = root, root * ball(self.f).sqrt()
        self.D = norms_upper((off * root.reshape(*root.shape, 1)).T)
        self.seen = np.tril(np.ones((self.n, self.n), bool)) if step.settings["causal"] else np.ones((1, 1), bool)

    def images(self, E: BallArray, over: LinearImages = FIRST) -> tuple[Array, BallArray]:
        """Return the norms of all seven kinds, and what leaves."""
        at = self.at
        dq, dk, dv = at.moved(E)
        ell = at.score_change(dq, dk)
        heads = (at.P * ell) @ at.v + at.P @ dv
        parts = [over.vectors(x) for x in (dq, dk, dv, ell * self.root_P, ell * self.root_Pf, heads)]
        parts.append(over.scalars(ell) * self.seen)
        norms = np.concatenate([part.reshape(len(part), -1) for part in parts], -1)
        return norms, side_by_side(heads) @ at.output

    def directions(self) -> list[BallArray]:
        """Return the columns of the output projection at every token."""
        return [at_tokens(ball(np.broadcast_to(self.at.output.mid, (self.n, *self.at.output.shape))))]

    def second_order(self, E: BallArray, over: QuadraticImages) -> BallArray:
        r"""Return :math:`\sum P(v-o)(c+\frac12\ell^2)+\sum P\ell\,V\delta`, behind the output projection."""
        at = self.at
        dq, dk, dv = (x[0] for x in at.moved(E))
        ell = at.score_change(dq, dk)
        scores = self._bilinear(dq, dk, over) + over.product(ell, ell) * 0.5
        scores = scores - (at.P * scores).sum(keepdims=True)  # which stands for v − o in place of v
        weighted = at.P * ell
        mixed = (weighted[over.a] @ dv[over.b] + weighted[over.b] @ dv[over.a]) * 0.5
        return (side_by_side((at.P * scores) @ at.v + mixed) @ at.output)[None]

    def _bilinear(self, dq: BallArray, dk: BallArray, over: QuadraticImages) -> BallArray:
        return (dq[over.a] @ dk[over.b].T + dq[over.b] @ dk[over.a].T) * 0.5

    def forms(self, E: BallArray, over: QuadraticImages) -> Array:
        r"""Return the norms of :math:`c_1-\sum Pc_1` for every pair of tokens."""
        dq, dk, _dv = (x[0] for x in self.at.moved(E))
        c = self._bilinear(dq, dk, over)
        return over.scalars((c - (self.at.P * c).sum(keepdims=True))[None])[0]

    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound the remainder of every row, all heads together."""
        return length(ball(self._whole(self._parts(norms))), 0).upper

    def _parts(self, norms: Array) -> "RowBounds":
        """Return bounds by their kinds, ``(h, n)`` each and ``(h, n, n)`` for scores."""
        heads, n = self.f.shape[:2]
        rows = (x.reshape(heads, n) for x in np.split(norms[: 6 * heads * n], 6))
        ell = norms[6 * heads * n :].reshape(heads, n, n)
        return RowBounds(*(ball(x) for x in (*rows, ell)))

    def _whole(self, x: "RowBounds") -> Array:
        """Bound the whole remainder of every row of every head."""
        P, f = ball(self.P), ball(self.f)
        c = x.bilinear(x)
        centred = c + (P * c).sum(keepdims=True)
        a = self._change(x, centred, self._seen(x.ell + centred))
        hull = (ball(self._seen(f + x.w_of_keys).max(-1)) + x.linear).upper
        mean = self._mean(x, a, c)
        old = ball(np.minimum((a.kappa * a.lam * a.lam).upper / 2, self._moment(a.r)))
        excess = (a.kappa * a.s * a.s).upper / 2  # Z − 1
        weights = P * (a.alpha + ball(np.maximum(a.r.upper, excess[..., None])))
        found = ball(self._moment(c)) + old + ball(excess) * ball(mean) + (weights * x.w_of_keys).sum()
        return np.where(a.near, np.minimum(found.upper, hull), hull)

    def third_order(self, first: Array, later: Array, forms: Array) -> Array:
        """Bound every row beyond its second order, or the whole remainder and the second order; heads together."""
        P, f, one, rest = ball(self.P), ball(self.f), self._parts(first), self._parts(later)
        x = self._parts((ball(first) + ball(later)).upper)
        c1, c2 = one.bilinear(one), rest.bilinear(x) + one.bilinear(rest)  # c₁, and c − c₁
        c = ball(forms) + c2 + (P * c2).sum(keepdims=True)
        rho = ball(self._seen(rest.ell + c))
        a = self._change(x, c, self._seen(one.ell + rho))
        beside = self._change(rest, c, rho.upper)
        excess = ball(np.minimum((a.kappa * a.s * a.s).upper / 2, (P * a.r).sum().upper))
        share = ball((excess * (excess + 1.0).inverse()).upper).reshape(*self.f.shape[:2], 1)  # 1 − 1/Z
        squares = np.minimum(
            self._moment(rho * (one.ell + rho * 0.5)), (one.lam * beside.lam + beside.lam * beside.lam * 0.5).upper
        )
        mean = ball(self._mean(x, a, c))
        mean = mean + ball(np.minimum((a.kappa * a.lam * a.lam).upper / 2, self._moment(a.r)))
        cube = (a.growth + 3.0) * ball(np.array(24.0)).inverse() * a.alpha  # q over α²
        q, top = cube * a.alpha * a.alpha, ball(cube.upper.max(-1))
        thirds = ball(np.minimum(self._moment(q), (top * a.lam * a.lam).upper)) + share[..., 0] * mean
        longer = np.maximum(q.upper, (share * (a.alpha + a.r)).upper)
        thirds = ball(np.minimum(thirds.upper, self._moment(ball(longer))))
        h = ball(np.maximum(a.r.upper, (share * a.growth).upper))
        new = (P * ((rho + h) * x.w_of_keys + one.ell * rest.w_of_keys)).sum()
        found = (ball(self._moment(c2)) + ball(squares) + thirds + new).upper
        second = (P * (f * c1 + one.ell * one.w_of_keys)).sum() + one.lam * one.lam * 0.5
        both = (ball(self._whole(x)) + second).upper
        return length(ball(np.where(a.near, np.minimum(found, both), both)), 0).upper

    def _seen(self, x: BallArray) -> Array:
        return np.where(np.broadcast_to(self.seen, x.shape), x.upper, 0.0)

    def _change(self, x: "RowBounds", c: BallArray, alpha: Array) -> "ScoreBounds":
        """Return what follows from how far scores move, for rows where no score moves by 20 or more."""
        near = alpha.max(-1) < 20  # beyond, exponentials prove less than the hull
        P, f, a = ball(self.P), ball(self.f), ball(np.where(near[..., None], alpha, 0.0))
        growth, square = a.map(arb.exp), a * a
        s = np.minimum((x.s + (P * c * c).sum().sqrt()).upper, (P * square).sum().sqrt().upper)
        lam = np.minimum((x.lam + (P * f * c * c).sum().sqrt()).upper, (P * f * square).sum().sqrt().upper)
        kappa = (ball(growth.upper.max(-1)) + 2.0) * ball(np.array(3.0)).inverse()
        r = (growth + 2.0) * square * ball(np.array(6.0)).inverse()
        return ScoreBounds(near, a, growth, kappa, r, ball(s), ball(lam))

    def _mean(self, x: "RowBounds", a: "ScoreBounds", c: BallArray) -> Array:
        r"""Bound :math:`|\sum P(v-o)a|`: by lengths, by the covariance, or by its linear part and c."""
        P = ball(self.P)
        mean = np.minimum((P * ball(self.f) * a.alpha).sum().upper, (ball(self.D) * a.s).upper)
        return np.minimum(mean, (x.linear + (P * x.w_of_keys).sum() + ball(self._moment(c))).upper)

    def _moment(self, x: BallArray) -> Array:
        """Bound the sum of P(v − o)y over all y of at most these sizes, by lengths or by the covariance."""
        lengths = (ball(self.P) * ball(self.f) * x).sum().upper
        return np.minimum(lengths, (ball(self.D) * (ball(self.P) * x * x).sum().sqrt()).upper)


@dataclass(frozen=True, eq=False)
class RowBounds:
    """How far queries, keys, values, scores under P and under Pf, outputs and single scores move at most."""

    query: BallArray
    key: BallArray
    w: BallArray
    s: BallArray
    lam: BallArray
    linear: BallArray
    ell: BallArray

    @property
    def w_of_keys(self) -> BallArray:
        """Values, for every row anew."""
        return self.w[:, None, :]

    def bilinear(self, other: "RowBounds") -> BallArray:
        """Bound products of queries with keys."""
        return self.query[:, :, None] * other.key[:, None, :]


@dataclass(frozen=True, eq=False)
class ScoreBounds:
    r"""How scores change: α, :math:`e^\alpha`, κ, r, s and λ of the theorem; ``near`` where they are used."""

    near: Array
    alpha: BallArray
    growth: BallArray
    kappa: BallArray
    r: BallArray
    s: BallArray
    lam: BallArray


STAGES: dict[str, Callable[[Any, BallArray], RemainderBound]] = {
    "norm": NormRemainder,
    "attention": AttentionRemainder,
    "mlp": MLPRemainder,
}


@dataclass(frozen=True, eq=False)
class CentreStep:
    """One step at the centre: a stage, or a pooling of tokens.

    Attributes:
        stage: What has a remainder; none for pooling.
        residual: Whether its input is added.
        pooling: The weights of tokens.
    """

    stage: RemainderBound | None
    residual: bool = False
    pooling: Array = None

    def leave(self, E: BallArray, image: BallArray | None = None) -> BallArray:
        """Return what leaves for columns that enter, given the derivative of the stage in their directions."""
        if image is None:
            return (E.T @ self.pooling[:, None]).T
        return E + image if self.residual else image


class Network:
    """A classifier at the embeddings of a sentence, with the norms of all that remainders do later on.

    Attributes:
        logits: What it puts out there.
        links: Its steps.
    """

    def __init__(self, steps: list[Any], X: Array, deployed: bool = False) -> None:
        self.links, x, self.n, self.steps, self.deployed = list[CentreStep](), ball(X), len(X), steps, deployed
        self.tokens = list[BallArray]()
        for step in steps:
            self.tokens.append(x)
            if step.kind == "pooling":
                self.links.append(CentreStep(None, pooling=step.arrays["weights"]))
                x = self.links[-1].leave(x)
                continue
            stage, residual = STAGES[step.kind](step, x), bool(step.settings.get("residual"))
            if step.settings.get("residual", 1) != 1:
                raise CannotCheck("residual connections around several steps are not known here")
            self.links.append(CentreStep(stage, residual))
            x = x + stage.value if residual else stage.value
        self.logits = x
        self.stages = {place: link.stage for place, link in enumerate(self.links) if link.stage is not None}
        self.sources = {place: self._propagated(place, stage.directions()) for place, stage in self.stages.items()}
        # rounding errors of a forward pass have all directions
        behind = [*self.tokens[1:], x] if deployed else []
        every = [at_tokens(ball(np.tile(np.eye(y.shape[1]), (y.shape[0], 1, 1)))) for y in behind]
        self.rounded = {place: self._propagated(place, [columns]) for place, columns in enumerate(every)}

    def _propagated(self, place: int, directions: list[BallArray]) -> tuple[dict[int, Array], BallArray]:
        """Return the norms of what enters behind a step at every later one, and its columns at the output."""
        norms: dict[int, list[Array]] = {}
        outputs = []
        for columns in directions:
            for later in range(place + 1, len(self.links)):
                columns = self.step(later, columns, norms.setdefault(later, []))
            outputs.append(columns)
        wide = max(x.shape[1] for x in outputs)
        padded = [_filled(x, wide) for x in outputs]
        return {later: np.concatenate(parts) for later, parts in norms.items() if parts}, concatenated(padded, 0)

    def step(self, place: int, columns: BallArray, norms: list[Array], over: LinearImages = FIRST) -> BallArray:
        """Propagate columns through one link, and keep the norms of their images."""
        link = self.links[place]
        lengths = [over.vectors(columns)] if self.deployed else []
        if link.stage is None:
            norms += lengths
            return link.leave(columns)
        found, image = link.stage.images(columns, over)
        norms.append(np.concatenate([found, *lengths], -1))
        return link.leave(columns, image)

    def check(self, claim: dict[str, Any]) -> None:
        """Check that a class stays ahead while words move; see :func:`check_certificate`."""
        eps, stages, moving = number(claim, "radius"), listed(claim, "stages"), _places(claim, "moved", self.n)
        classes = self.logits.shape[1]
        (predicted,), rivals = (
            _places({"predicted": [claim.get("predicted")]}, "predicted", classes),
            _places(claim, "rivals", classes),
        )
        order = claim.get("order")
        if not eps > 0 or predicted in rivals or self.logits.shape[0] != 1 or order not in (1, 2):
            raise CannotCheck("a certificate has a radius, an order, one row of logits, and rivals of the class")
        first = self.links[0].stage
        if not isinstance(first, NormRemainder) or self.links[0].residual:
            raise CannotCheck("the first step must be a norm")
        if len(stages) != len(self.stages):
            raise Refuted(0, f"there are {len(self.stages)} stages, and the file has {len(stages)}")
        columns, square = first.turned(moving), ball(np.array(eps)) * eps
        over = QuadraticImages(columns.shape[1] if order == 2 else 0)
        pairs = first.turned_twice(moving, over) if order == 2 else None
        arrived = Arrived(self)
        for place, link in enumerate(self.links):
            norms: list[Array] = []
            if place == 0:
                change = first.moved_by(moving, eps)
                found = first.turning_remainder(moving, eps, order)
            else:
                entering, columns = columns, self.step(place, columns, norms)
                if pairs is not None:
                    pairs = self.step(place, pairs, norms, over)
                if not norms:  # pooling, of which nothing is measured
                    continue
                own, later = ball(norms[0][0]) * eps, arrived.at(place)
                if order == 2:
                    later = later + ball(norms[1][0]) * square
                change = (own + later).upper
                stage, images = link.stage, len(change) - len(self.tokens[place].mid) * self.deployed
                if stage is not None and pairs is None:
                    found = stage.remainder(change[:images], Word(entering, norms[0][0][:images], eps))
                elif stage is not None and pairs is not None:
                    pairs = pairs + stage.second_order(entering, over)
                    forms = (ball(stage.forms(entering, over)) * square).upper
                    found = stage.third_order(own.upper[:images], later.upper[:images], forms)
            if link.stage is not None:
                claimed = _claimed(stages, list(self.stages).index(place), found, self.deployed)
                arrived.add(place, claimed)
            if self.deployed:
                arrived.add_rounding(place, change)
        for rival in rivals:
            functional = np.zeros((classes, 1))
            functional[predicted], functional[rival] = 1, -1
            margin = (self.logits @ functional).reshape(-1)
            taken = ball(FIRST.scalars((columns @ functional).reshape(*columns.shape[:2]))) * eps
            if pairs is not None:
                taken = taken + ball(over.scalars((pairs @ functional).reshape(*pairs.shape[:2], 1))[:, 0]) * square
            left = (margin - taken - arrived.of(functional)).lower
            if not (left > 0).all():
                raise Refuted(len(stages), f"the margin over class {rival} may be used up: {float(left[0])} is left")


def _claimed(stages: list[dict[str, Any]], k: int, found: Array, deployed: bool) -> Array:
    """Return the remainders of a stage that a file claims, if they are at least those found.

    Files know nothing of rounding errors: what is found with them may be larger, and the margin decides.
    """
    claimed = numbers(stages[k], "remainders")
    if deployed and found.shape == claimed.shape:
        return np.maximum(found, claimed)
    if found.shape != claimed.shape or not (found <= claimed).all():
        worst = float(np.max(found - claimed)) if found.shape == claimed.shape else "another shape"
        raise Refuted(k, f"remainders are not proven to be that small, by {worst}")
    return claimed


class Arrived:
    """Remainders of the stages so far, and rounding errors of a forward pass: how much of them arrives later."""

    def __init__(self, network: Network) -> None:
        self.network, self.parts = network, list[tuple[Array, tuple[dict[int, Array], BallArray]]]()

    def add(self, place: int, bounds: Array) -> None:
        """Add the remainders of a stage."""
        self.parts.append((bounds, self.network.sources[place]))

    def add_rounding(self, place: int, change: Array) -> None:
        """Add the rounding errors of a step, whose images and tokens move by at most ``change``."""
        step, stage, x = self.network.steps[place], self.network.links[place].stage, self.network.tokens[place]
        T = (length(x) + ball(change[-len(x.mid) :])).upper
        images = change[: -len(x.mid)]
        errors = pooling_errors(step, T) if stage is None else rounding_errors(stage, step, T, images)
        if not np.isfinite(errors).all():
            raise Refuted(place, "the rounding errors of a forward pass have no bound")
        self.parts.append((errors, self.network.rounded[place]))

    def at(self, place: int) -> BallArray:
        """Return how far all of them move the images of a step."""
        return sum((ball(b) @ norms[place] for b, (norms, _output) in self.parts), ball(np.zeros(1)))

    def of(self, functional: Array) -> BallArray:
        """Return how far all of them move a functional of the output."""
        found = ball(np.zeros(1))
        for b, (_norms, output) in self.parts:
            found = found + ball(b) @ FIRST.scalars((output @ functional).reshape(*output.shape[:2]))[:, None]
        return found


def _filled(x: BallArray, width: int) -> BallArray:
    """Fill up the columns of groups with zeros."""
    more = [(0, 0)] * len(x.shape)
    more[1] = (0, width - x.shape[1])
    return BallArray(np.pad(x.mid, more), np.pad(x.rad, more))


def _places(claim: dict[str, Any], name: str, count: int) -> list[int]:
    """Return a list of different whole numbers from 0 on, below ``count``."""
    found = claim.get(name)
    if not isinstance(found, list) or not found or not all(type(k) is int and 0 <= k < count for k in found):
        raise CannotCheck(f"{name} must be whole numbers from 0 to {count - 1}")
    if len(set(found)) < len(found):
        raise CannotCheck(f"{name} must be different numbers")
    return found


def check_certificate(
    steps: list[Any], claim: dict[str, Any], networks: dict[bytes, Network], deployed: bool = False
) -> None:
    """Check that one class stays ahead of others while the embeddings of some words move, together by a radius.

    Args:
        steps: The classifier, from embeddings to logits.
        claim: The claim.
        networks: What was computed at the embeddings of other claims.
        deployed: Whether the margin also covers the rounding errors of a forward pass in single precision.

    Raises:
        Refuted: With the stage whose remainders are larger than claimed, or whose sum uses the margin up.
        CannotCheck: If there is a step that is not known here.
    """
    X = numbers(claim, "tokens")
    if X.ndim != 2 or any(step.kind not in (*STAGES, "pooling") for step in steps):
        raise CannotCheck("a certificate is about embeddings, one row for each token, and known steps")
    if X.tobytes() not in networks:
        networks[X.tobytes()] = Network(steps, X, deployed)
    networks[X.tobytes()].check(claim)
