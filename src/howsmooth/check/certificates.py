r"""Certificates of a classifier, checked: the chain of remainders of Theorem 11 in ball arithmetic.

A word moves by :math:`|e|\le\epsilon`. With :math:`G_k`, :math:`T_{k\leftarrow l}` the derivatives at the centre from
the word and from the output of stage l to the input of stage k, and :math:`R_l = \sum_cB_{lc}\xi_{lc}`,
:math:`|\xi_{lc}|\le b_{lc}`, the remainders, every functional and every matrix obey

.. math:: |f\delta_k|\le|fG_k|\epsilon + \sum|fT_{k\leftarrow l}B_{lc}|b_{lc},\qquad
          |M\delta_k|\le\|MG_k\|\epsilon + \sum\|MT_{k\leftarrow l}B_{lc}\|b_{lc}.

A file claims the numbers b of every stage. They are right if what the formulas of a stage make of the numbers before
it is at most the numbers of this stage (docs, :ref:`theorem-11`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from howsmooth.check.attention import AttentionAt, side_by_side
from howsmooth.check.balls import BallArray, ball, concatenated, length, norms_upper
from howsmooth.check.outcomes import CannotCheck, Refuted, listed, number, numbers

Array = Any  # arrays of numpy, and its scalars


def scalar_norms(columns: BallArray) -> Array:
    """Bound the sup of linear functionals on the unit ball: columns ``(groups, r, …)``, coefficients along r."""
    return length(columns, 1).upper


def vector_norms(columns: BallArray) -> Array:
    """Bound the norms of matrices, rows along the last axis of ``(groups, r, …, m)`` and columns along r."""
    return norms_upper(BallArray(np.moveaxis(columns.mid, 1, -1), np.moveaxis(columns.rad, 1, -1)))


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
    def images(self, E: BallArray) -> tuple[Array, BallArray]:
        """Return the norms of images of columns ``(groups, r, n, d)``, and the derivative in their directions."""

    @abstractmethod
    def directions(self) -> list[BallArray]:
        """Return the directions B of the remainder at every token, as columns."""

    @abstractmethod
    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound the remainder along every group of directions, from bounds on the images of all that enters."""


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

    def images(self, E: BallArray) -> tuple[Array, BallArray]:
        """Return norms of u and w, and what leaves."""
        u, w = self._split(E)
        last = (-(u * self.constant)).reshape(*u.shape, 1)
        norms = np.concatenate((scalar_norms(u), vector_norms(concatenated([w, last], -1))), -1)
        return norms, w * self.gain

    def across(self) -> BallArray:
        """Return, for every token, the directions that a change across it has at the output, ``(n, d + 1, d)``."""
        n, d = self.n, self.d
        unit = self.unit.reshape(n, d, 1)
        plane = self._centre(ball(np.broadcast_to(np.eye(d), (n, d, d)))) - unit @ unit.T
        rows = concatenated([plane, -(unit * self.constant.reshape(n, 1, 1)).T], 1)
        return rows * self.gain

    def directions(self) -> list[BallArray]:
        """Return the direction of every token, and all directions across it."""
        return [at_tokens((self.unit * self.gain).reshape(self.n, 1, self.d)), at_tokens(self.across())]

    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound both parts; a unit vector differs from another by at most 2, and across by at most 1 + w."""
        u, w = ball(norms[: self.n]), ball(norms[self.n :])
        small = norms[: self.n] < 1
        room = (ball(np.ones(self.n)) - ball(np.where(small, u.mid, 0.0))).inverse()
        slope = w * room
        along = ball(np.ones(self.n)) - (slope * slope + 1.0).sqrt().inverse()
        longest = ((u + 1.0) * (u + 1.0) + w * w).sqrt()
        grows = np.maximum((u * room).upper, (ball(np.ones(self.n)) - longest.inverse()).upper)
        across = np.minimum((ball(grows) * w).upper, (w + 1.0).upper)
        return np.concatenate((np.where(small, along.upper, 2.0), np.where(small, across, (w + 1.0).upper)))

    def turned(self, tokens: list[int]) -> BallArray:
        """Return the columns of words that turn: every direction across them, over their lengths."""
        blocks = self.across() * self.inverse.reshape(self.n, 1, 1)
        columns = at_tokens(blocks)[tokens]
        return columns.reshape(1, len(tokens) * (self.d + 1), self.n, self.d)

    def turning_remainder(self, tokens: list[int], eps: float) -> Array:
        """Bound the remainder of words that turn: nothing across; along, one minus the cosine of the angle."""
        sine = self.inverse[tokens] * eps
        if not (sine.upper < 1).all():
            raise Refuted(0, "a word that may turn by a right angle has no bound")
        found = np.zeros(2 * self.n)
        cosine = (ball(np.ones(len(tokens))) - sine * sine).sqrt()
        found[tokens] = (sine * sine * (cosine + 1.0).inverse()).upper  # 1 − cos φ, without the difference
        return found


def _normal(x: arb) -> arb:
    return (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def _gelu_slope(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2 + x * _normal(x)


# Value, slope and second derivative of an activation, and where the second derivative has its extrema.
ACTIVATIONS = {
    "gelu": (
        lambda x: x * (-x / arb(2).sqrt()).erfc() / 2,
        _gelu_slope,
        lambda x: _normal(x) * (2 - x * x),
        (arb(-2), arb(0), arb(2)),
    ),
    "tanh": (
        arb.tanh,
        lambda x: 1 - x.tanh() ** 2,
        lambda x: -2 * x.tanh() * (1 - x.tanh() ** 2),
        (-(arb(1) / arb(3).sqrt()).atanh(), (arb(1) / arb(3).sqrt()).atanh()),
    ),
}


class MLPRemainder(RemainderBound):
    """An MLP at tokens: the remainder is that of its hidden units, behind the second matrix; images are the units."""

    def __init__(self, step: Any, X: BallArray) -> None:
        x, name = step.arrays, step.settings["activation"]
        if name not in ACTIVATIONS:
            raise CannotCheck(f"the activation {name!r} is not known here")
        value, slope, self.second, self.peaks = ACTIVATIONS[name]
        self.up, self.down = ball(x["up"]).T, ball(x["down"]).T
        self.hidden = X @ self.up + x.get("up_bias", np.zeros(len(x["up"])))
        self.slope = self.hidden.map(slope)
        self.value = self.hidden.map(value) @ self.down + x.get("down_bias", np.zeros(len(x["down"])))
        self.n = len(X.mid)

    def images(self, E: BallArray) -> tuple[Array, BallArray]:
        """Return how far hidden units move, and what leaves."""
        hidden = E @ self.up
        return scalar_norms(hidden).reshape(len(E.mid), -1), (hidden * self.slope) @ self.down

    def directions(self) -> list[BallArray]:
        """Return the columns of the second matrix at every token."""
        blocks = np.broadcast_to(self.down.mid, (self.n, *self.down.shape))
        return [at_tokens(ball(blocks))]

    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound the length of the remainders of all units of a token, one by one or together."""
        s = norms.reshape(self.hidden.shape)
        curvature = self._curvature(s)
        each = length(ball(curvature) * ball(s) * ball(s)).upper / 2
        # |√c∘t| of the word itself is the norm of a matrix; what comes from remainders is added up by neurons
        root = ball(curvature).sqrt()
        own = ball(word.norms.reshape(s.shape)) * word.eps
        later = np.maximum((ball(s) - own).upper, 0)
        weighted = (word.columns @ self.up) * root.upper
        together = ball(vector_norms(weighted)[0]) * word.eps + length(root * ball(later))
        largest = (root * ball(s)).upper.max(-1)
        return np.minimum(each, ((ball(largest) * together).upper) / 2)

    def _curvature(self, s: Array) -> Array:
        """Bound the second derivative of every unit on its interval: at an end, or at an extremum inside."""
        found = []
        for y, rad, reach in zip(self.hidden.mid.ravel(), self.hidden.rad.ravel(), s.ravel(), strict=True):
            if not np.isfinite(reach):
                found.append(np.inf)
                continue
            low, high = (arb(float(y), float(rad)) + sign * arb(float(reach)) for sign in (-1, 1))
            values = [self.second(low), self.second(high)]
            values += [self.second(peak) for peak in self.peaks if not (peak < low or peak > high)]
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

    def images(self, E: BallArray) -> tuple[Array, BallArray]:
        """Return the norms of all seven kinds, and what leaves."""
        at = self.at
        dq, dk, dv = at.moved(E)
        ell = at.score_change(dq, dk)
        heads = (at.P * ell) @ at.v + at.P @ dv
        parts = [vector_norms(x) for x in (dq, dk, dv, ell * self.root_P, ell * self.root_Pf, heads)]
        parts.append(scalar_norms(ell) * self.seen)
        norms = np.concatenate([part.reshape(len(part), -1) for part in parts], -1)
        return norms, side_by_side(heads) @ at.output

    def directions(self) -> list[BallArray]:
        """Return the columns of the output projection at every token."""
        return [at_tokens(ball(np.broadcast_to(self.at.output.mid, (self.n, *self.at.output.shape))))]

    def remainder(self, norms: Array, word: Word) -> Array:
        """Bound the remainder of every row, all heads together."""
        heads, n = self.f.shape[:2]
        rows = heads * n
        query, key, w, s, lam, linear = (x.reshape(heads, n) for x in np.split(norms[: 6 * rows], 6))
        ell = norms[6 * rows :].reshape(heads, n, n)
        P, seen = ball(self.P), np.broadcast_to(self.seen, ell.shape)
        c = ball(query[:, :, None]) * ball(key[:, None, :])
        centred = c + (P * c).sum(keepdims=True)
        alpha = np.where(seen, (ball(ell) + centred).upper, 0.0)
        most = alpha.max(-1)
        hull = (ball(np.where(seen, (ball(self.f) + ball(w[:, None, :])).upper, 0.0).max(-1)) + ball(linear)).upper
        near = most < 20  # beyond, exponentials prove less than the hull
        alpha = np.where(near[..., None], alpha, 0.0)
        kappa = (ball(alpha.max(-1)).map(arb.exp) + 2.0) * ball(np.array(3.0)).inverse()
        a2 = ball(alpha) * ball(alpha)
        r = (ball(alpha).map(arb.exp) + 2.0) * a2 * ball(np.array(6.0)).inverse()
        f, square = ball(self.f), centred * centred
        s = np.minimum((ball(s) + (P * square).sum().sqrt()).upper, (P * a2).sum().sqrt().upper)
        lam = np.minimum((ball(lam) + (P * f * square).sum().sqrt()).upper, (P * f * a2).sum().sqrt().upper)
        excess = (kappa * ball(s) * ball(s)).upper / 2  # Z − 1
        mean = np.minimum((P * f * ball(alpha)).sum().upper, (ball(self.D) * ball(s)).upper)
        moved = (P * ball(w[:, None, :])).sum()
        mean = np.minimum(mean, (ball(linear) + moved + ball(self._moment(c))).upper)
        old = ball(np.minimum((kappa * ball(lam) * ball(lam)).upper / 2, self._moment(r)))
        weights = P * (ball(alpha) + ball(np.maximum(r.upper, excess[..., None])))
        new = (weights * ball(w[:, None, :])).sum()
        found = (ball(self._moment(c)) + old + ball(excess) * ball(mean) + new).upper
        return length(ball(np.where(near, np.minimum(found, hull), hull)), 0).upper

    def _moment(self, x: BallArray) -> Array:
        """Bound the sum of P(v − o)y over all y of at most these sizes, by lengths or by the covariance."""
        lengths = (ball(self.P) * ball(self.f) * x).sum().upper
        return np.minimum(lengths, (ball(self.D) * (ball(self.P) * x * x).sum().sqrt()).upper)


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

    def __init__(self, steps: list[Any], X: Array) -> None:
        self.links, x, self.n = list[CentreStep](), ball(X), len(X)
        for step in steps:
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
        self.sources = [self._propagated(place) for place in self.stages]

    def _propagated(self, place: int) -> tuple[dict[int, Array], BallArray]:
        """Return the norms of the remainder of one stage at every later one, and its columns at the output."""
        norms: dict[int, list[Array]] = {}
        outputs = []
        for columns in self.stages[place].directions():
            for later in range(place + 1, len(self.links)):
                columns = self.step(later, columns, norms.setdefault(later, []))
            outputs.append(columns)
        wide = max(x.shape[1] for x in outputs)
        padded = [_filled(x, wide) for x in outputs]
        return {later: np.concatenate(parts) for later, parts in norms.items() if parts}, concatenated(padded, 0)

    def step(self, place: int, columns: BallArray, norms: list[Array]) -> BallArray:
        """Propagate columns through one link, and keep the norms of their images."""
        link = self.links[place]
        if link.stage is None:
            return link.leave(columns)
        found, image = link.stage.images(columns)
        norms.append(found)
        return link.leave(columns, image)

    def check(self, claim: dict[str, Any]) -> None:
        """Check that a class stays ahead while words move; see :func:`check_certificate`."""
        eps, stages, moving = number(claim, "radius"), listed(claim, "stages"), _places(claim, "moved", self.n)
        classes = self.logits.shape[1]
        (predicted,), rivals = (
            _places({"predicted": [claim.get("predicted")]}, "predicted", classes),
            _places(claim, "rivals", classes),
        )
        if not eps > 0 or predicted in rivals or self.logits.shape[0] != 1:
            raise CannotCheck("a certificate has a positive radius, one row of logits, and rivals of the class")
        first = self.links[0].stage
        if not isinstance(first, NormRemainder) or self.links[0].residual:
            raise CannotCheck("the first step must be a norm")
        tables = list(self.stages)
        if len(stages) != len(tables):
            raise Refuted(0, f"there are {len(tables)} stages, and the file has {len(stages)}")
        columns, bounds = first.turned(moving), list[Array]()
        for k, place in enumerate(tables):
            stage, claimed = self.stages[place], numbers(stages[k], "remainders")
            if k == 0:
                found = first.turning_remainder(moving, eps)
            else:
                norms: list[Array] = []
                entering, columns = columns, self.step(place, columns, norms)
                later = sum((ball(b) @ self.sources[j][0][place] for j, b in enumerate(bounds)), ball(np.zeros(1)))
                total = (ball(norms[0][0]) * eps + later).upper
                found = stage.remainder(total, Word(entering, norms[0][0], eps))
            if found.shape != claimed.shape or not (found <= claimed).all():
                worst = float(np.max(found - claimed)) if found.shape == claimed.shape else "another shape"
                raise Refuted(k, f"remainders are not proven to be that small, by {worst}")
            bounds.append(claimed)
            for between in range(place + 1, tables[k + 1] if k + 1 < len(tables) else len(self.links)):
                columns = self.links[between].leave(columns)
        for rival in rivals:
            functional = np.zeros((classes, 1))
            functional[predicted], functional[rival] = 1, -1
            margin = (self.logits @ functional).reshape(-1)
            taken = ball(scalar_norms((columns @ functional).reshape(*columns.shape[:2]))) * eps
            for (_norms, output), b in zip(self.sources, bounds, strict=True):
                taken = taken + ball(b) @ scalar_norms((output @ functional).reshape(*output.shape[:2]))[:, None]
            left = (margin - taken).lower
            if not (left > 0).all():
                raise Refuted(len(stages), f"the margin over class {rival} may be used up: {float(left[0])} is left")


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


def check_certificate(steps: list[Any], claim: dict[str, Any], networks: dict[bytes, Network]) -> None:
    """Check that one class stays ahead of others while the embeddings of some words move, together by a radius.

    Args:
        steps: The classifier, from embeddings to logits.
        claim: The claim.
        networks: What was computed at the embeddings of other claims.

    Raises:
        Refuted: With the stage whose remainders are larger than claimed, or whose sum uses the margin up.
        CannotCheck: If there is a step that is not known here.
    """
    X = numbers(claim, "tokens")
    if X.ndim != 2 or any(step.kind not in (*STAGES, "pooling") for step in steps):
        raise CannotCheck("a certificate is about embeddings, one row for each token, and known steps")
    if X.tobytes() not in networks:
        networks[X.tobytes()] = Network(steps, X)
    networks[X.tobytes()].check(claim)
