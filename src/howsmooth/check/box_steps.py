"""Steps of a network on a box: values and linear parts, functionals pulled back, and what is beyond first order."""

from typing import TYPE_CHECKING, Any

import numpy as np

from howsmooth.check.attention import AttentionAt
from howsmooth.check.balls import Array, BallArray, at_tokens, ball, concatenated, contracted, raised
from howsmooth.check.box_symbols import Pair
from howsmooth.check.outcomes import CannotCheck

if TYPE_CHECKING:
    from howsmooth.check.box_models import BoxModel


class LinearOnBox:
    """Affine maps, which mix tokens, dense layers, which do the same to each, and pooling."""

    def __init__(self, step: Any, model: "BoxModel") -> None:
        c, L, x = ball(model.centres[-1]), ball(model.slopes[-1]), step.arrays
        self.before, self.dense = c.shape, step.kind == "dense"
        n, d = self.before
        if self.dense:
            self.matrix, shape = ball(x["weight"]), (n, x["weight"].shape[0])
        elif step.kind == "affine":
            self.matrix, shape = ball(x["weight"].reshape(-1, n * d)), x["weight"].shape[:2]
        else:
            self.matrix, shape = ball(np.kron(x["weights"].reshape(1, n), np.eye(d))), (1, d)
        value, slope = (y if self.dense else y.reshape(-1, 1, n * d) for y in (c.reshape(1, n, d), L))
        self.value = (value @ self.matrix.T).reshape(*shape) + x.get("bias", 0.0)
        self.slope = (slope @ self.matrix.T).reshape(-1, *shape)

    def pull(self, functionals: BallArray) -> tuple[BallArray, None]:
        """Return functionals of what enters."""
        count = len(functionals.mid)
        flat = functionals if self.dense else functionals.reshape(count, -1)
        return (flat @ self.matrix).reshape(count, *self.before), None


class ReLUsOnBox:
    r"""ReLUs of all numbers: :math:`\mathrm{relu}(y) = \sigma y + g + \eta` with :math:`|\eta|\le g` on [l, u].

    Attributes:
        places: The numbers that have a symbol, tokens first.
        symbols: The places of their symbols among all.
        sigma: The slope σ of each of them.
        half: Its g.
        middle: The value of each of them at the centre.
        rows: Its linear part, symbols first.
        beyond: Bounds on what is beyond both.
        size: Bounds on them.
    """

    def __init__(self, step: Any, model: "BoxModel") -> None:
        if step.settings["activation"] != "relu":
            raise CannotCheck(f"the activation {step.settings['activation']!r} is not known here, only relu")
        c, L = model.centres[-1], model.slopes[-1]
        low, high, beyond = self._ends(c.ravel(), L.reshape(len(L), -1), model)
        sigma, half = relu_chords(low, high)
        self.places = np.union1d(np.flatnonzero(half != 0), np.array(model.named(c.size), dtype=int))
        self.symbols = len(L) + np.arange(len(self.places))
        self.sigma, self.half, self.middle = sigma[self.places], half[self.places], c.ravel()[self.places]
        self.rows, self.beyond = L.reshape(len(L), -1)[:, self.places], beyond[self.places]
        self.size = np.maximum(np.abs(low), np.abs(high))[self.places]
        model.symbols.add(self.half)

        self.sigmas = sigma.reshape(c.shape)
        own = np.zeros((len(self.places), c.size))
        own[np.arange(len(self.places)), self.places] = 1
        self.value = ball(c) * self.sigmas + half.reshape(c.shape)
        self.slope = concatenated([ball(L) * self.sigmas, ball(own.reshape(-1, *c.shape))], 0)

    def _ends(self, c: Array, L: Array, model: "BoxModel") -> tuple[Array, Array, Array]:
        """Bound every number from below and above, by forms too if it may bend; and what is beyond first order."""
        linear, beyond = model.symbols.ranges(ball(L)), model.remainders[-1].ravel()
        around = BallArray(c, raised(linear + beyond, 2))
        bent = np.flatnonzero(~((around.lower >= 0) | (around.upper <= 0)))
        if model.level >= 1 and len(bent):
            functionals = np.eye(c.size)[bent].reshape(-1, *model.centres[-1].shape)
            beyond = beyond.copy()
            beyond[bent] = np.minimum(beyond[bent], model.by_forms(ball(functionals)).max(0))
            around = BallArray(c, raised(linear + beyond, 2))
        return around.lower, around.upper, beyond

    def pull(self, functionals: BallArray) -> tuple[BallArray, None]:
        """Return functionals of what enters."""
        return functionals * self.sigmas, None


def relu_chords(low: Array, high: Array) -> tuple[Array, Array]:
    r"""Return σ and g of :math:`\mathrm{relu}(y) = \sigma y + g + \eta` with :math:`|\eta|\le g` on [l, u]."""
    sigma = np.where(low >= 0, 1.0, np.where(high <= 0, 0.0, np.clip(high / (high - low), 0, 1)))
    half = raised(np.maximum(np.maximum(-sigma * low, (1 - sigma) * high), 0) / 2, 4)
    return sigma, np.where((low >= 0) | (high <= 0), 0.0, half)


class AttentionOnBox:
    r"""Softmax attention: scores change by a, centred by :math:`b = b_1 + b_2`, and so queries, keys and values.

    What has the index 1 is a linear function of the symbols, and what has the index 2 the rest; both have ranges.
    """

    def __init__(self, step: Any, model: "BoxModel") -> None:
        c = model.centres[-1]
        self.at = at = AttentionAt.of(step, ball(c))
        self.symbols, n = model.symbols, len(c)
        self.o, self.P = at.P @ at.v, at.P.upper * at.seen
        linear = ball(model.slopes[-1])
        self.value, self.slope, moved = at.value(), at.jvp(linear), at.moved(linear)
        q, k, v = self._projections(moved, model)
        products = self._scores(q, k, moved, model)
        beta = raised(self.beta1 + self.beta2, 2)

        # |e^b/Z - 1 - b| and, up to a constant, |e^b/Z - 1 - b - ½b²|
        e2, e3 = (ball(beta).map(f).upper for f in (lambda x: x.expm1() - x, lambda x: x.expm1() - x - x * x / 2))
        excess = raised((self.P * e2).sum(-1, keepdims=True), n)  # Z - 1
        self.second = np.maximum(e2, ball(excess).map(lambda x: (1 + x).log()).upper)
        self.third = np.maximum(e3, raised(excess / (1 + excess) * (beta + e2), 8))
        self.by_score = raised(products + beta**2 / 2 + self.third, 8)
        self.by_value = raised((self.P * (beta + self.second)) @ v, n + 8)

    def _projections(self, moved: Any, model: "BoxModel") -> tuple[Array, Array, Array]:
        """Bound changes of queries, keys and values, heads before tokens: linear parts, what is beyond, and both."""
        at, symbols, (n, d) = self.at, self.symbols, model.centres[-1].shape
        rows = [p.moved(-1, 1).reshape(-1, d) for p in at.projections]
        every = concatenated(rows, 0)
        functionals = at_tokens(BallArray(*(np.broadcast_to(x, (n, *x.shape)) for x in (every.mid, every.rad))))
        functionals = functionals.reshape(-1, n, d)
        beyond = model.by_ranges(functionals)
        if model.level >= 2:
            beyond = np.minimum(beyond, model.by_forms(functionals).max(0))
        beyond = np.split(beyond.reshape(n, -1), np.cumsum([len(x.mid) for x in rows])[:-1], 1)
        heads = len(at.v.mid)
        (self.q1, q1, q2), (self.k1, k1, k2), (self.v1, v1, v2) = (
            (ball(x.mid), symbols.ranges(ball(x.mid)), raised(rest + symbols.sums(x.rad), 2))
            for x, y in zip(moved, beyond, strict=True)
            for rest in [y.reshape(n, heads, -1).transpose(1, 0, 2)]
        )
        q, k, v = (raised(x + y, 2) for x, y in ((q1, q2), (k1, k2), (v1, v2)))
        self.range_q, self.range_q2, self.range_k2, self.v2 = q1, q2, k2, v2
        return q, k, v

    def _scores(self, q: Array, k: Array, moved: Any, model: "BoxModel") -> Array:
        """Bound changes of centred scores, linear parts and what is beyond; return bounds on queries times keys."""
        at, symbols, (n, d) = self.at, self.symbols, model.centres[-1].shape
        q1, q2, k2 = self.range_q, self.range_q2, self.range_k2
        products, mixed = q @ np.swapaxes(k, -1, -2), q1 @ np.swapaxes(k2, -1, -2) + q2 @ np.swapaxes(k, -1, -2)
        products, self.mixed = (raised(x, 2 * q.shape[-1]) for x in (products, mixed))
        b = at.score_change(*moved[:2]) * at.seen
        unit = ball(np.eye(n * d).reshape(-1, n, d))
        functionals = (at.score_change(*at.moved(unit)[:2]) * at.seen).reshape(n * d, -1).T.reshape(-1, n, d)
        keys = contracted("hij,shjk->shik", at.P, self.k1)

        def product(f: int) -> tuple[list[Pair], float]:  # of a query with a key, less the mean over keys
            h, i, j = np.unravel_index(f, products.shape)
            G = self.k1[:, h, j] - keys[:, h, i]
            return [(self.q1.mid[:, h, i], G.mid)], float(q1[h, i] @ symbols.sums(G.rad))

        beyond = model.by_ranges(functionals).reshape(products.shape) + at.centred_sizes(products)
        if model.level >= 1:
            forms = model.by_forms(functionals, product).max(0).reshape(products.shape)
            beyond = np.minimum(beyond, forms + at.centred_sizes(self.mixed))
        self.b1 = ball(b.mid)
        self.beta1, self.beta2 = symbols.ranges(self.b1), raised(beyond + symbols.sums(b.rad), 2) * at.seen
        return products

    def pull(self, functionals: BallArray) -> tuple[BallArray, Pair]:
        r"""Return functionals of what enters, and those of scores, :math:`\kappa`, and of heads, :math:`\lambda`."""
        at, (count, n, _d) = self.at, functionals.shape
        heads, width = at.v.shape[0], at.v.shape[2]
        lam = (functionals @ at.output.T).reshape(count, n, heads, width).moved(2, 1)
        kappa = at.P * (lam @ at.v.T - (lam * self.o).sum(keepdims=True))
        parts = (kappa @ at.k, kappa.T @ at.q, at.P.T @ lam)
        entering = [(x @ p.T).moved(1, 0) for x, p in zip(parts, at.projections, strict=True)]
        total = sum((x[h] for x in entering for h in range(heads)), ball(0.0))
        return total, (kappa, lam)

    def by_ranges(self, kappa: BallArray, lam: BallArray) -> Array:
        """Bound all that is beyond first order, by products of ranges."""
        K, size = kappa.size, lam.size
        found = np.tensordot(K, self.by_score, 3) + np.tensordot(size, self.by_value, 3)
        return raised(found, self.by_score.size + self.by_value.size)

    def by_forms(self, kappa: BallArray, lam: BallArray) -> tuple[list[Pair], float]:
        """Return the second order of one functional, and a bound on what is beyond it."""
        K, P, symbols = kappa.size, self.P, self.symbols
        changes = contracted("hik,shjk->shij", lam, self.v1)  # ⟨λ, dv₁⟩
        bent = self.b1 * (kappa * 0.5) + changes * self.at.P
        crossed = contracted("hij,shjk->shik", kappa, self.k1)
        nu2 = raised(lam.size @ np.swapaxes(self.v2, -1, -2), lam.shape[-1])
        nu = symbols.ranges(changes) + nu2
        rest = K * (self.mixed + self.beta2 * (self.beta1 + self.beta2 / 2) + self.third)
        rest = rest + P * (self.beta1 * nu2 + (self.beta2 + self.second) * nu)
        rest = rest + self.beta1 * symbols.sums(bent.rad)
        total = rest.sum() + (self.range_q * symbols.sums(crossed.rad)).sum()
        products = ((self.b1, bent), (self.q1, crossed))
        pairs = [(x.mid.reshape(len(x.mid), -1), y.mid.reshape(len(y.mid), -1)) for x, y in products]
        return pairs, float(raised(total, 2 * rest.size + 32))


STAGES: dict[str, Any] = {
    "affine": LinearOnBox,
    "dense": LinearOnBox,
    "pooling": LinearOnBox,
    "attention": AttentionOnBox,
    "pointwise": ReLUsOnBox,
}
