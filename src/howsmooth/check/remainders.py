r"""Stages of a classifier for its certificate: what each does to changes of its tokens, and what remains beyond that.

Formulas are evaluated in floats that are not negative and raised by ``up`` above their rounding errors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from howsmooth.check.attention import AttentionAt, side_by_side
from howsmooth.check.balls import (
    UNIT,
    Array,
    BallArray,
    at_tokens,
    ball,
    concatenated,
    contracted,
    length,
    norms_upper,
    up,
)
from howsmooth.check.outcomes import CannotCheck, Refuted

Images = dict[str, BallArray]  # vectors in the last axis, columns in the first ones


def triangle(r: int) -> tuple[Array, Array, Array]:
    """Return the pairs a ≤ b of columns for which forms are kept, and the place of every pair among them."""
    a, b = np.triu_indices(r)
    place = np.empty((r, r), dtype=int)
    place[a, b] = place[b, a] = np.arange(len(a))
    return a, b, place


def quadratic_norms(H: BallArray) -> Array:
    r"""Bound :math:`|H(\xi,\xi)|` on the unit ball, for ``(pairs, …, m)``: unfolded, or by :math:`\sum_mH_m^2`."""
    _a, _b, place = triangle(int(np.sqrt(2 * len(H.mid))))
    H = H.moved(0, -1)[..., place]  # …, m, r, r
    *rows, m, r, _r = H.shape
    found = norms_upper(H.moved(-3, -2).reshape(*rows, r, m * r))
    return found if m == 1 else np.minimum(found, norms_upper(H.reshape(*rows, m, r * r)))


def symmetric(spec: str, x: BallArray, y: BallArray) -> BallArray:
    """Return the symmetric form of a product of two linear functions of the words, with the columns a ≤ b."""
    form, (a, b, _place) = contracted(spec, x, y), triangle(len(x.mid))
    return (form[a, b] + form[b, a]) * 0.5


@dataclass(frozen=True, eq=False)
class Sizes:
    """Bounds on images: of the part that is linear in the words, and of the rest."""

    first: dict[str, Array]
    rest: dict[str, Array]
    whole: dict[str, Array]
    words: Images  # the images of G
    eps: float
    order: int


class NormRemainder:
    r"""LayerNorm and RMSNorm, :math:`\sqrt d\gamma\circ\hat c+\beta`: c is the token and a constant coordinate.

    Images are u and all coordinates of w.
    """

    def __init__(self, step: Any, X: BallArray) -> None:
        self.n, self.d = n, d = X.shape
        self.centred, constant = step.settings["centred"], ball(float(d)) * step.settings["eps"]
        c = self._centre(X)
        self.length = ((c * c).sum() + constant).sqrt()
        self.inverse = self.length.inverse()
        self.unit, self.constant = c * self.inverse[:, None], constant.sqrt() * self.inverse
        self.gain = ball(float(d)).sqrt() * step.arrays["gain"]
        self.value = self.unit * self.gain + step.arrays.get("bias", np.zeros(d))
        # the projection onto what is orthogonal to ĉ, all d + 1 coordinates
        whole = concatenated([self.unit, self.constant.reshape(n, 1)], -1)
        centring = self._centre(ball(np.eye(d)))
        mid, rad = np.eye(d + 1), np.zeros((d + 1, d + 1))
        mid[:d, :d], rad[:d, :d] = centring.mid, centring.rad
        self.across = BallArray(mid, rad) - contracted("na,nb->nab", whole, whole)

    def _centre(self, X: BallArray) -> BallArray:
        return X - X.sum(keepdims=True) * ball(float(self.d)).inverse() if self.centred else X

    def images(self, E: BallArray) -> Images:
        """Return ``u`` and ``w``."""
        scaled = self._centre(E) * self.inverse[:, None]
        u = (scaled * self.unit).sum(keepdims=True)
        return {"u": u, "w": concatenated([scaled - self.unit * u, -(u * self.constant[:, None])], -1)}

    def leaving(self, images: Images) -> BallArray:
        """Return the derivative."""
        return images["w"][..., :-1] * self.gain

    def second_order(self, words: Images) -> BallArray:
        r"""Return :math:`-\frac12|w|^2` along and :math:`-uw` across."""
        u, w = words["u"], words["w"]
        along = symmetric("anw,bnw->abn", w, w)[..., None] * self.unit * 0.5
        return -(along + symmetric("an,bnw->abnw", u[..., 0], w[..., :-1])) * self.gain

    def directions(self) -> list[BallArray]:
        """Return the direction of every token, and all directions across it."""
        return [at_tokens((self.unit * self.gain)[:, None]), at_tokens(self.across[..., : self.d] * self.gain)]

    def remainders(self, sizes: Sizes) -> Array:
        """Bound the part along and the part across; directions differ by at most 2, and across by 1 + w."""
        (u1, w1), (u2, w2) = ((x["u"], x["w"]) for x in (sizes.first, sizes.rest))
        u, w = up(u1 + u2), up(w1 + w2)
        small = u < 1
        u = np.where(small, u, 0)
        low = (1 - u) * (1 - 8 * UNIT)
        slope, longest = up(w / low), np.sqrt((1 + u) ** 2 + w**2)
        shortest = np.sqrt(1 + slope**2)
        # both differences without cancellation: 1 - 1/ρ = (ρ² - 1)/(ρ(ρ + 1))
        along = np.minimum(slope**2 / (shortest * (shortest + 1)), 2)
        across = np.minimum(np.maximum(u / low, (2 * u + u**2 + w**2) / (longest * (longest + 1))) * w, 1 + w)
        along, across = np.where(small, along, 2), np.where(small, across, 1 + w)
        if sizes.order == 2:
            third = u2 * w + u1 * w2 + w * np.maximum(u**2 / low, w**2 / (2 * low**3))
            across = np.minimum(np.where(small, third, np.inf), across + u1 * w1)
            third = w2 * (w + w1) / 2 + w**2 / 2 * u * (2 - u) / low**2 + 3 / 8 * slope**4
            along = np.minimum(np.where(small, third, np.inf), along + w1**2 / 2)
        return up(np.concatenate([along, across]))

    def turned(self, words: list[int], eps: float, order: int) -> tuple[BallArray, BallArray | None, Array]:
        r"""Return G, H and remainders of words that turn, :math:`\hat c\sqrt{1-|w|^2}+w`, w a projection of e/N."""
        n, d, r = self.n, self.d, len(words) * (self.d + 1)
        G = at_tokens(self.across[..., : self.d] * self.gain * self.inverse[:, None, None])[words].reshape(r, n, d)
        sine = self.inverse[words] * eps
        if not (sine.upper < 1).all():
            raise Refuted(0, "a word that may turn by a right angle has no bound")
        cosine = (ball(1.0) - sine * sine).sqrt()
        left = sine * sine * (cosine + 1.0).inverse()  # 1 - cos φ, without the difference
        remainders = np.zeros(2 * n)
        remainders[words] = (left * left * 0.5 if order == 2 else left).upper  # 1 - ½sin²φ - cos φ = ½(1 - cos φ)²
        if order == 1:
            return G, None, remainders
        a, b, _place = triangle(r)
        mid, rad = np.zeros((2, len(a), n, d))
        for k, i in enumerate(words):
            own = (a // (d + 1) == k) & (b // (d + 1) == k)
            form = self.across[i][a[own] % (d + 1), b[own] % (d + 1)] * (self.inverse[i] * self.inverse[i] * 0.5)
            block = form[:, None] * -(self.unit[i] * self.gain)
            mid[own, i], rad[own, i] = block.mid, block.rad
        return G, BallArray(mid, rad), remainders


def _normal(x: arb) -> arb:
    return (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def _gelu(x: arb) -> arb:
    return x * (-x / arb(2).sqrt()).erfc() / 2


def _both_signs(*x: arb) -> tuple[arb, ...]:
    return (*x, *(-each for each in x))


# Value and first three derivatives of an activation, and where the second and the third have their extrema.
ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "gelu": (
        _gelu,
        lambda x: (-x / arb(2).sqrt()).erfc() / 2 + x * _normal(x),
        lambda x: (2 - x * x) * _normal(x),
        lambda x: (x * x - 4) * x * _normal(x),
        (arb(0), *_both_signs(arb(2))),
        _both_signs(*(((7 + sign * arb(33).sqrt()) / 2).sqrt() for sign in (-1, 1))),
    ),
    "tanh": (
        arb.tanh,
        lambda x: 1 - x.tanh() ** 2,
        lambda x: -2 * x.tanh() * (1 - x.tanh() ** 2),
        lambda x: (6 * x.tanh() ** 2 - 2) * (1 - x.tanh() ** 2),
        _both_signs((arb(1) / 3).sqrt().atanh()),
        (arb(0), *_both_signs((arb(2) / 3).sqrt().atanh())),
    ),
}


class MLPRemainder:
    """An MLP: the remainder is that of its hidden units, behind the second matrix; images are the hidden units."""

    def __init__(self, step: Any, X: BallArray) -> None:
        x, name = step.arrays, step.settings["activation"]
        if name not in ACTIVATIONS:
            raise CannotCheck(f"the activation {name!r} is not known here")
        value, slope, *self.derivatives = ACTIVATIONS[name]
        self.n, self.up, self.down = len(X.mid), ball(x["up"]).T, ball(x["down"]).T
        self.hidden = X @ self.up + x.get("up_bias", np.zeros(len(x["up"])))
        self.slope, self.bend = self.hidden.map(slope), self.hidden.map(self.derivatives[0])
        self.value = self.hidden.map(value) @ self.down + x.get("down_bias", np.zeros(len(x["down"])))

    def images(self, E: BallArray) -> Images:
        """Return the change of every hidden unit."""
        return {"units": (E @ self.up)[..., None]}

    def leaving(self, images: Images) -> BallArray:
        """Return the derivative."""
        return (images["units"][..., 0] * self.slope) @ self.down

    def second_order(self, words: Images) -> BallArray:
        r"""Return :math:`\frac12\varphi''t^2` behind the second matrix."""
        t = words["units"][..., 0]
        return symmetric("anf,bnf->abnf", t, t * self.bend * 0.5) @ self.down

    def directions(self) -> list[BallArray]:
        """Return the columns of the second matrix at every token."""
        return [at_tokens(ball(np.broadcast_to(self.down.mid, (self.n, *self.down.shape))))]

    def remainders(self, sizes: Sizes) -> Array:
        """Bound the length of the remainders of all units of a token, one by one or together."""
        s1, s2 = sizes.first["units"], sizes.rest["units"]
        s = up(s1 + s2)
        curvature = self._largest(s, 0)
        each = curvature * s**2 / 2
        if sizes.order == 2:
            bend = self.bend.size
            each = np.minimum(bend / 2 * s2 * (s1 + s) + self._largest(s, 1) * s**3 / 6, each + bend / 2 * s1**2)
            return up(np.sqrt((each**2).sum(-1)))
        root = up(np.sqrt(curvature))
        weighted = sizes.words["units"][..., 0] * root
        together = norms_upper(weighted.moved(0, -1)) * sizes.eps + np.sqrt(((root * s2) ** 2).sum(-1))
        return up(np.minimum(np.sqrt((each**2).sum(-1)), (root * s).max(-1) * together / 2))

    def _largest(self, s: Array, order: int) -> Array:
        """Bound the second or third derivative of every unit on its interval: at an end, or at an extremum inside."""
        found, derivative, peaks = [], self.derivatives[order], self.derivatives[2 + order]
        highest = [(peak, abs(derivative(peak))) for peak in peaks]
        for y, rad, reach in zip(self.hidden.mid.ravel(), self.hidden.rad.ravel(), s.ravel(), strict=True):
            if not np.isfinite(reach):
                found.append(np.inf)
                continue
            low, high = (arb(float(y), float(rad)) + sign * arb(float(reach)) for sign in (-1, 1))
            values = [abs(derivative(low)), abs(derivative(high))]
            values += [value for peak, value in highest if not (peak < low or peak > high)]
            found.append(max(float(x.abs_upper()) for x in values) * (1 + 2.0**-40))
        return np.array(found).reshape(s.shape)


class AttentionRemainder:
    """Softmax attention, every row of every head as in the theorem, heads of a row side by side.

    Images are queries, keys, values, centred scores, these under √P and √(Pf), and the outputs of heads.
    """

    def __init__(self, step: Any, X: BallArray) -> None:
        self.at = at = AttentionAt.of(step, X)
        self.value, self.n = at.value(), len(X.mid)
        self.seen = at.seen
        off = at.v[:, None] - (at.P @ at.v)[:, :, None]  # v_j - o_i
        self.P, self.f = at.P.upper * self.seen, length(off).upper * self.seen
        root = at.P.sqrt()
        self.roots = {"s": root, "lam": root * ball(self.f).sqrt()}
        self.D = norms_upper(off * root[..., None])  # DDᵀ is the covariance of the values

    def images(self, E: BallArray) -> Images:
        """Return all of them; scores of tokens that are not seen do not count."""
        dq, dk, dv = self.at.moved(E)
        ell = self.at.score_change(dq, dk)
        heads = (self.at.P * ell) @ self.at.v + self.at.P @ dv
        return {"query": dq, "key": dk, "value": dv, "heads": heads} | self._scores(ell)

    def _scores(self, a: BallArray) -> Images:
        return {"scores": (a * self.seen)[..., None]} | {name: a * root for name, root in self.roots.items()}

    def leaving(self, images: Images) -> BallArray:
        """Return the derivative."""
        return side_by_side(images["heads"]) @ self.at.output

    def _products(self, words: Images) -> BallArray:
        """Return :math:`c_1`, less its mean."""
        c = symmetric("ahik,bhjk->abhij", words["query"], words["key"])
        return c - (self.at.P * c).sum(keepdims=True)

    def with_products(self, images: Images, words: Images) -> Images:
        """Add what queries and keys of the words do together to forms of scores."""
        return images | {name: images[name] + c for name, c in self._scores(self._products(words)).items()}

    def second_heads(self, words: Images) -> BallArray:
        r"""Return :math:`\sum P(v-o)(c+\frac12\ell^2)+\sum P\ell\,V\delta` of every head."""
        ell, P = words["scores"][..., 0], self.at.P
        a = self._products(words) + symmetric("ahij,bhij->abhij", ell, ell * 0.5)
        a = a - (P * a).sum(keepdims=True)  # which stands for v - o in place of v
        return (P * a) @ self.at.v + symmetric("ahij,bhjv->abhiv", ell * P, words["value"])

    def second_order(self, words: Images) -> BallArray:
        """Return the second order of all heads, behind the output projection."""
        return side_by_side(self.second_heads(words)) @ self.at.output

    def directions(self) -> list[BallArray]:
        """Return the columns of the output projection at every token."""
        return [at_tokens(ball(np.broadcast_to(self.at.output.mid, (self.n, *self.at.output.shape))))]

    def _mean(self, x: Array) -> Array:
        return up((self.P * x).sum(-1))

    def _old(self, x: Array) -> Array:
        """Bound ΣP(v - o)x: by lengths, or by the covariance."""
        return np.minimum(self._mean(self.f * x), up(self.D * np.sqrt(self._mean(x**2))))

    def remainders(self, sizes: Sizes) -> Array:
        """Bound every row: as a whole, or beyond second orders; letters are those of the page."""
        P, f, second = self.P, self.f, sizes.order == 2
        q1, q2, q = (x["query"][:, :, None] for x in (sizes.first, sizes.rest, sizes.whole))
        k2, k = (x["key"][:, None] for x in (sizes.rest, sizes.whole))
        w2, w = (x["value"][:, None] * self.seen for x in (sizes.rest, sizes.whole))
        a1, rho = (x["scores"] for x in (sizes.first, sizes.rest))
        c = up(q * k * self.seen)
        later = up((q1 * k2 + q2 * k) * self.seen) if second else c  # c - c₁, or c
        more = self.at.centred_sizes(later)
        rho = up(rho + more)  # |a - ℓ₁|
        alpha = up(a1 + rho)
        near = alpha.max(-1) < 20  # beyond, exponentials prove less than the hull
        alpha = np.where(near[..., None], alpha, 0)
        linear, top = sizes.whole["heads"], alpha.max(-1)
        hull = up((f + w).max(-1) + linear)

        # (ΣPx²)^½ and (ΣPfx²)^½ for the words, ℓ₁, and for all that is beyond, a - ℓ₁
        s1, s2 = self._under("s", P, a1, rho, more, sizes)
        lam1, lam2 = self._under("lam", P * f, a1, rho, more, sizes)
        s, lam = up(s1 + s2), up(lam1 + lam2)
        powers = [ball(x).map(arb.exp).upper for x in (alpha, top)]
        kappa = up((2 + powers[1]) / 3)
        r = np.minimum(up((2 + powers[0]) / 6 * alpha**2), ball(alpha).map(lambda x: x.expm1() - x).upper)
        excess = np.minimum(up(kappa * s**2 / 2), self._mean(r))  # Z - 1
        share = up(excess / (1 + excess))[..., None]  # 1 - 1/Z
        h = up(np.maximum(r, share * powers[0]))  # |e^a/Z - 1 - a|
        mean = np.minimum(np.minimum(self._mean(f * alpha), up(self.D * s)), up(linear + self._mean(w) + self._old(c)))
        squares = np.minimum(up(kappa * lam**2 / 2), self._old(r))
        whole = up(self._old(c) + squares + excess * mean + self._mean((alpha + h) * w))
        whole = np.where(near, np.minimum(whole, hull), hull)
        if second:
            third = up((3 + powers[0]) / 24 * alpha**3)  # e^a - 1 - a - ½a²
            third = np.minimum(third, ball(alpha).map(lambda x: x.expm1() - x - x * x / 2).upper)
            thirds = np.minimum(self._old(third), up((3 + powers[1]) / 24 * top * lam**2))
            thirds = up(thirds + share[..., 0] * (mean + squares))
            thirds = np.minimum(thirds, self._old(np.maximum(third, share * (alpha + r))))
            bent = np.minimum(self._old(up(rho * (a1 + rho / 2))), up(lam1 * lam2 + lam2**2 / 2))
            beyond = up(self._old(later) + bent + thirds + self._mean((rho + h) * w + a1 * w2))
            known = up(quadratic_norms(self.second_heads(sizes.words)) * sizes.eps**2)
            whole = np.minimum(np.where(near, beyond, np.inf), up(whole + known))
        return up(np.sqrt((whole**2).sum(0)))

    def _under(
        self, name: str, weights: Array, a1: Array, rho: Array, more: Array, sizes: Sizes
    ) -> tuple[Array, Array]:
        """Bound the root of a weighted sum of squares of scores, by the norm of a matrix or one by one."""
        one = np.minimum(sizes.first[name], up(np.sqrt((weights * a1**2).sum(-1))))
        rest = up(sizes.rest[name] + np.sqrt((weights * more**2).sum(-1)))
        return one, np.minimum(rest, up(np.sqrt((weights * rho**2).sum(-1))))


class PooledTokens:
    """A weighted mean of tokens: linear, so that nothing is measured and nothing remains."""

    def __init__(self, step: Any, X: BallArray) -> None:
        self.weights = np.atleast_2d(step.arrays["weights"])
        self.value = ball(self.weights) @ X

    def images(self, E: BallArray) -> Images:
        """Return the output alone."""
        return {"mean": ball(self.weights) @ E}

    def leaving(self, images: Images) -> BallArray:
        """Return the mean."""
        return images["mean"]


STAGES: dict[str, Any] = {
    "norm": NormRemainder,
    "attention": AttentionRemainder,
    "mlp": MLPRemainder,
    "pooling": PooledTokens,
}
