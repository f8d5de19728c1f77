r"""Second-order Taylor models of a network on a box: Theorem 15, in floats whose rounding errors are remainders too.

Inputs are :math:`x_0 + e\circ\xi` with :math:`\xi\in[-1,1]^m`. The symbols :math:`s = (y, \eta)` are the coordinates
:math:`y = U\xi` of the first tokens that the box moves, and one :math:`\eta_c\in[-g_c, g_c]` for each ReLU that may
bend. Behind every step the tokens are :math:`c + Ls` and a remainder, of which every linear function is bounded: it is
pulled back through all steps before, and at each of them meets what this step adds to the remainder. The arrays c and
L are floats, and by how much these were rounded is among what a step adds. Letters are those of the page (docs,
:ref:`theorem-15`); formulas in numbers that are not negative are raised above their rounding errors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from howsmooth.check.attention import AttentionAt
from howsmooth.check.balls import (
    UNIT,
    Array,
    BallArray,
    ball,
    concatenated,
    contracted,
    largest_eigenvalue,
    product_by_lengths,
    raised,
)
from howsmooth.check.certificates import at_tokens
from howsmooth.check.counterexamples import token_width
from howsmooth.check.outcomes import CannotCheck

Pair = tuple[Array, Array]  # F and G, symbols first, of a quadratic form Σ_r⟨F_r, s⟩⟨G_r, s⟩
CHUNK = 256  # functionals that are pulled back together
FLOOR = 1e-8  # the least weight of a symbol, of the mean of all


class Symbols:
    """Where symbols lie: y = Uξ, in blocks of rows that share no ξ, and η within half-widths.

    Attributes:
        blocks: Rows of U, what they are in these columns that they read, and its products with itself.
        moved: How many symbols y there are.
        half: The half-widths of η.
        reach: The largest absolute value of every symbol.
    """

    def __init__(self, U: Array, tokens: Array) -> None:
        """Take U, and the token that each row belongs to: rows of one token are a block if tokens read no common ξ."""
        read = np.array([(U[tokens == i] != 0).any(0) for i in np.unique(tokens)]).reshape(-1, U.shape[1])
        parts = np.split(U, np.flatnonzero(np.diff(tokens)) + 1) if (read.sum(0) <= 1).all() else [U]
        parts = [part[:, (part != 0).any(0)] for part in parts]
        ends = np.cumsum([0, *map(len, parts)])
        self.blocks = [(slice(a, b), part, part @ part.T) for a, b, part in zip(ends, ends[1:], parts, strict=False)]
        self.moved, self.inputs, self.half = len(U), U.shape[1], np.zeros(0)
        self.reach = raised(np.abs(U).sum(-1), self.inputs)

    def add(self, half: Array) -> None:
        """Append symbols of the given half-widths."""
        self.half, self.reach = np.concatenate([self.half, half]), np.concatenate([self.reach, half])

    def sums(self, sizes: Array) -> Array:
        """Bound linear functions of the symbols by the absolute values of their coefficients, symbols first."""
        return raised(np.tensordot(self.reach[: len(sizes)], sizes, 1), len(sizes))

    def ranges(self, x: BallArray) -> Array:
        """Bound linear functions of the symbols, symbols first."""
        flat = x.mid.reshape(len(x.mid), -1)
        found = self.half[: len(flat) - self.moved] @ np.abs(flat[self.moved :])
        for rows, U, _gram in self.blocks:
            found = found + np.abs(U.T @ flat[rows]).sum(0)
        found = raised(found, self.inputs + len(flat)).reshape(x.shape[1:])
        return raised(found + self.sums(x.rad + 2 * len(flat) * UNIT * np.abs(x.mid)), 2)

    def form_ranges(self, pairs: list[Pair]) -> tuple[float, float]:
        r"""Bound a quadratic form H of the symbols from above, and -H.

        Any weights w will do, and any C with :math:`CC^\top\succeq U\,\mathrm{diag}(w)^{-1}U^\top`: every s of the box
        is Cv with :math:`|v|^2\le\sum w`, and the form at most :math:`\lambda_{\max}(C^\top HC)\sum w` (docs,
        :ref:`box-forms`). Of what H does not see nothing needs to be known.
        """
        size, rows = max(len(F) for F, _G in pairs), sum(F.shape[1] for F, _G in pairs)
        H, most = np.zeros((size, size)), 0.0
        for F, G in pairs:
            H[: len(F), : len(F)] += F @ G.T
            most += float(self.sums(np.abs(F)) @ self.sums(np.abs(G)))
        H, most = (H + H.T) / 2, float(raised(np.float64(most), rows))
        lost = 4 * (rows + len(pairs) + 2) * UNIT * most  # rounding errors of H
        seen = [(part, U, gram) for part, U, gram in self.blocks if H[part].any()]
        bent = self.moved + np.flatnonzero(H[self.moved :].any(1))
        half = self.half[bent - self.moved]
        # weights are guesses: the row norms of the form in ξ and η/g
        changed = np.zeros((size, size))
        for part, _U, gram in seen:
            changed[part] = gram @ H[part]
        changed[bent] = half[:, None] ** 2 * H[bent]
        squares = [(U * (H[part] @ changed[:, part] @ U)).sum(0) for part, U, _gram in seen]
        squares.append(half**2 * (H[bent] * changed[:, bent].T).sum(1))
        weights = [np.sqrt(np.maximum(x, 0)) for x in squares]
        mean = float(np.mean(np.concatenate(weights))) if seen or len(bent) else 0.0
        if not 0 < mean < np.inf:
            return most, most
        weights = [np.maximum(w / mean, FLOOR) for w in weights]
        C = np.zeros((size, size))
        for (part, U, _gram), w in zip(seen, weights, strict=False):
            scaled = U / np.sqrt(w)
            S = scaled @ scaled.T
            if not 2.0**-900 < (trace := np.trace(S)) < np.inf:
                return most, most
            # by more than S, a sum of products, and its factor are off; both by shares of the trace
            room = 4 * (U.shape[1] + 2 * len(S) + 16) * UNIT * trace
            C[part, part] = np.linalg.cholesky(S + room * np.eye(len(S)))
        C[bent, bent] = half / np.sqrt(weights[-1]) * (1 + 8 * UNIT)
        N = product_by_lengths(product_by_lengths(ball(C.T), ball(H)), ball(C))
        total = float(raised(np.concatenate(weights).sum(), size + self.inputs))
        above, below = (float(raised(np.float64(largest_eigenvalue(x) * total + lost), 4)) for x in (N, -N))
        return above, below


class LinearOnBox:
    """Affine maps, dense layers and pooling, as one matrix for all tokens."""

    def __init__(self, step: Any, model: "BoxModel") -> None:
        self.before, x = model.centres[-1].shape, step.arrays
        n, d = self.before
        if step.kind == "affine":
            self.matrix, shape = x["weight"].reshape(-1, n * d), x["weight"].shape[:2]
        elif step.kind == "dense":
            self.matrix, shape = np.kron(np.eye(n), x["weight"]), (n, len(x["weight"]))
        else:
            self.matrix, shape = np.kron(x["weights"].reshape(1, n), np.eye(d)), (1, d)
        self.value = (ball(model.centres[-1].reshape(1, -1)) @ self.matrix.T).reshape(*shape) + x.get("bias", 0.0)
        self.slope = (ball(model.slopes[-1].reshape(-1, n * d)) @ self.matrix.T).reshape(-1, *shape)

    def pull(self, functionals: BallArray) -> tuple[BallArray, None]:
        """Return functionals of what enters."""
        count = len(functionals.mid)
        return (functionals.reshape(count, -1) @ self.matrix).reshape(count, *self.before), None


class ReLUsOnBox:
    r"""An MLP with ReLUs: :math:`\mathrm{relu}(y) = \sigma y + g + \eta` with :math:`|\eta|\le g` on [l, u].

    Attributes:
        places: The hidden units that have a symbol, tokens first.
        symbols: The places of their symbols among all.
        sigma: The slope σ of each of them.
        half: Its g.
        middle: The value of each of them at the centre.
        rows: Its linear part, symbols first.
        beyond: Bounds on what is beyond both.
        size: Bounds on them.
    """

    def __init__(self, step: Any, model: "BoxModel") -> None:
        x = step.arrays
        if step.settings["activation"] != "relu":
            raise CannotCheck(f"the activation {step.settings['activation']!r} is not known here, only relu")
        self.up, self.down = x["up"], x["down"]
        c, L = ball(model.centres[-1]), ball(model.slopes[-1])
        y, row = (c @ self.up.T + x.get("up_bias", 0.0)).reshape(-1), (L @ self.up.T).reshape(len(L.mid), -1)
        functionals = at_tokens(ball(np.broadcast_to(self.up, (len(c.mid), *self.up.shape)))).reshape(-1, *c.shape)
        linear, rounding = model.symbols.ranges(ball(row.mid)), y.rad + model.symbols.sums(row.rad)

        def ends() -> tuple[Array, Array]:
            around = BallArray(y.mid, raised(linear + beyond, 2))
            return around.lower, around.upper

        beyond = model.by_ranges(functionals) + rounding
        low, high = ends()
        bent = np.flatnonzero(~((low >= 0) | (high <= 0)))
        if model.level >= 1 and len(bent):
            beyond[bent] = np.minimum(beyond[bent], model.by_forms(functionals[bent]).max(0) + rounding[bent])
            low, high = ends()
        sigma = np.where(low >= 0, 1.0, np.where(high <= 0, 0.0, np.clip(high / (high - low), 0, 1)))
        half = raised(np.maximum(np.maximum(-sigma * low, (1 - sigma) * high), 0) / 2, 4)
        half = np.where((low >= 0) | (high <= 0), 0.0, half)
        self.places = np.union1d(np.flatnonzero(half != 0), np.array(model.named(len(y.mid)), dtype=int))
        self.symbols = len(L.mid) + np.arange(len(self.places))
        self.sigma, self.half, self.middle = sigma[self.places], half[self.places], y.mid[self.places]
        self.rows, self.beyond = row.mid[:, self.places], beyond[self.places]
        self.size = np.maximum(np.abs(low), np.abs(high))[self.places]
        model.symbols.add(self.half)

        shape = (len(c.mid), -1)
        self.sigmas = sigma.reshape(shape)
        value = (y * sigma + half).reshape(*shape) @ self.down.T
        own = np.zeros((len(self.places), *value.shape))
        tokens, hidden = np.divmod(self.places, len(self.up))
        own[np.arange(len(self.places)), tokens] = self.down.T[hidden]
        self.value = value + x.get("down_bias", 0.0)
        self.slope = concatenated([(row * sigma).reshape(-1, *self.sigmas.shape) @ self.down.T, ball(own)], 0)

    def pull(self, functionals: BallArray) -> tuple[BallArray, None]:
        """Return functionals of what enters."""
        return ((functionals @ self.down) * self.sigmas) @ self.up, None


class AttentionOnBox:
    r"""Softmax attention: scores change by a, centred by :math:`b = b_1 + b_2`, and so queries, keys and values.

    What has the index 1 is a linear function of the symbols, and what has the index 2 the rest; both have ranges.
    """

    def __init__(self, step: Any, model: "BoxModel") -> None:
        c, symbols = model.centres[-1], model.symbols
        self.at = at = AttentionAt.of(step, ball(c))
        self.symbols, (n, d) = symbols, c.shape
        self.o, self.P = at.P @ at.v, at.P.upper * at.seen
        linear = ball(model.slopes[-1])
        self.value, self.slope, moved = at.value(), at.jvp(linear), at.moved(linear)

        # queries, keys and values: heads before tokens
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
        self.range_q, self.v2 = q1, v2

        # scores
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
        beta = raised(self.beta1 + self.beta2, 2)

        # |e^b/Z - 1 - b| and, up to a constant, |e^b/Z - 1 - b - ½b²|
        e2, e3 = (ball(beta).map(f).upper for f in (lambda x: x.expm1() - x, lambda x: x.expm1() - x - x * x / 2))
        excess = raised((self.P * e2).sum(-1, keepdims=True), n)  # Z - 1
        self.second = np.maximum(e2, ball(excess).map(lambda x: (1 + x).log()).upper)
        self.third = np.maximum(e3, raised(excess / (1 + excess) * (beta + e2), 8))
        self.by_score = raised(products + beta**2 / 2 + self.third, 8)
        self.by_value = raised((self.P * (beta + self.second)) @ v, n + 8)

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
    "mlp": ReLUsOnBox,
}


class BoxModel:
    """A network on the box between two inputs.

    Attributes:
        symbols: Where all symbols lie.
        centres: c at every place, from before the first step to behind the last one.
        slopes: L at every place, symbols first.
        rests: By how much both were rounded, for every number of the tokens.
        remainders: Bounds on all that is beyond them.
        stages: One for each step.
        back: The number of steps that the residual connection behind each goes around, or 0.
        units: Hidden units that have symbols in any case: the number of an MLP, and a place.
        level: What forms are used for: margins, also scores and bent units, or also queries, keys and values.
    """

    def __init__(self, steps: list[Any], lower: Array, upper: Array, units: list[tuple[int, int]], level: int) -> None:
        self.units, self.level = units, level
        first, d = steps[0], token_width(steps[0].arrays)
        middle = lower + (upper - lower) / 2
        half = raised(np.maximum(upper - middle, middle - lower), 2)
        if first.kind == "affine" and not first.settings.get("residual"):
            matrix, shape, steps = first.arrays["weight"].reshape(-1, len(lower)), first.arrays["bias"].shape, steps[1:]
            value = (ball(matrix) @ middle[:, None]).reshape(*shape) + first.arrays["bias"]
        else:
            matrix, value = np.eye(len(lower)), ball(middle.reshape(-1, d))
        n, d = value.shape
        U = ball(matrix) * half
        rows = np.flatnonzero(U.mid.any(1))
        self.symbols = Symbols(U.mid[rows], rows // d)
        self.stages, self.back = list[Any](), list[int]()
        self.centres, self.slopes = [value.mid], [np.eye(n * d)[rows].reshape(-1, n, d)]
        self.rests = [raised(value.rad + U.rad.sum(1).reshape(n, d), len(lower))]
        self.remainders = [self.rests[0]]
        for step in steps:
            self._add(step)
        if any(mlp >= sum(isinstance(stage, ReLUsOnBox) for stage in self.stages) for mlp, _place in units):
            raise CannotCheck("the file names units of more MLPs than there are")

    def _add(self, step: Any) -> None:
        if step.kind not in STAGES:
            raise CannotCheck(f"steps of the kind {step.kind!r} are not known here")
        back = step.settings.get("residual", 0)
        if type(back) is not int or not 0 <= back <= len(self.centres):
            raise CannotCheck(f"no step has the input that a residual connection over {back} steps adds")
        stage = STAGES[step.kind](step, self)
        value, slope = stage.value, stage.slope
        if back:
            if value.shape != self.centres[-back].shape:
                raise CannotCheck("a residual connection adds tokens of another shape")
            earlier = self.slopes[-back]
            value = value + self.centres[-back]
            slope = slope + np.pad(earlier, ((0, len(slope.mid) - len(earlier)), (0, 0), (0, 0)))
        self.back.append(back)
        self.stages.append(stage)
        self.centres.append(value.mid)
        self.slopes.append(slope.mid)
        self.rests.append(raised(value.rad + self.symbols.sums(slope.rad), 2))
        n, d = value.shape
        self.remainders.append(self.by_ranges(ball(np.eye(n * d).reshape(-1, n, d))).reshape(n, d))

    def named(self, count: int) -> list[int]:
        """Return the hidden units of the MLP that comes next which a file names."""
        number = sum(isinstance(stage, ReLUsOnBox) for stage in self.stages)
        found = [place for mlp, place in self.units if mlp == number]
        if any(place >= count for place in found):
            raise CannotCheck(f"MLP {number} has {count} hidden units, and the file names others")
        return found

    def _pulled(self, functionals: BallArray) -> tuple[Array, list[tuple[AttentionOnBox, BallArray, BallArray]]]:
        """Pull functionals of the last tokens back through all steps: rounding errors, and what attention they meet."""
        arriving: list[BallArray] = [ball(0.0)] * len(self.stages) + [functionals]
        lost, met = np.zeros(len(functionals.mid)), []
        for t in range(len(self.stages), -1, -1):
            lam = arriving[t]
            lost = lost + np.tensordot(np.abs(lam.mid), self.rests[t], 2)
            if lam.rad.any():
                lost = lost + np.tensordot(lam.rad, self.remainders[t], 2)
            if t:
                lam, back = ball(lam.mid), self.back[t - 1]
                entering, found = self.stages[t - 1].pull(lam)
                arriving[t - 1] = arriving[t - 1] + entering
                if back:
                    arriving[t - back] = arriving[t - back] + lam
                if found:
                    met.append((self.stages[t - 1], *found))
        return raised(lost, 2 * len(self.centres) * max(rest.size for rest in self.rests)), met

    def by_ranges(self, functionals: BallArray) -> Array:
        """Bound what is beyond the linear part of functionals of the last tokens, by products of ranges."""
        found = []
        for begin in range(0, len(functionals.mid), CHUNK):
            lost, met = self._pulled(functionals[begin : begin + CHUNK])
            found.append(raised(lost + sum(stage.by_ranges(kappa, lam) for stage, kappa, lam in met), len(met)))
        return np.concatenate(found)

    def by_forms(self, functionals: BallArray, local: Callable[[int], tuple[list[Pair], float]] | None = None) -> Array:
        """Bound the same by quadratic forms, from above and its negative; ``local`` has more of each functional."""
        found = []
        for begin in range(0, len(functionals.mid), CHUNK):
            lost, met = self._pulled(functionals[begin : begin + CHUNK])
            for f in range(len(lost)):
                pairs, rest = local(begin + f) if local else ([], 0.0)
                for stage, kappa, lam in met:
                    more, beyond = stage.by_forms(kappa[f], lam[f])
                    pairs, rest = pairs + more, rest + beyond
                ends = np.array(self.symbols.form_ranges(pairs)) if pairs else np.zeros(2)
                found.append(raised(ends + rest + lost[f], len(met) + 4))
        return np.array(found).T
