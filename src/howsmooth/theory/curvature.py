"""The second derivative of a whole layer on a ball: Gram matrices at its centre, norms for what may be added."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.doubt import outputs
from howsmooth.theory.region import Region, softened
from howsmooth.theory.rounding import safe_norm
from howsmooth.theory.rows import Rows
from howsmooth.theory.scales import Scales
from howsmooth.theory.traces import largest_eigenvalues, largest_norms
from howsmooth.theory.views import View

# Power steps of Collatz and Wielandt's bound.
STEPS = 4
# Rows that answer less than this share of the largest answer count as much.
FLOOR = 0.1
# What sums of so many products may lose; the matrices have at most a few thousand rows.
ROUNDING = 1 + 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Centre:
    r"""All heads at X: vectors, their lengths, and how far rounding may have moved them.

    Attributes:
        P: Weights.
        alpha: :math:`\alpha^h_{ij} = P^h_{ij}W_hV_h(x_j-m^h_i)`.
        pull: :math:`g^h_i = A_hx_i + K_h^\top b_h`.
        keys: :math:`A_h^\top x_j`, up to a shift.
        B: :math:`W_hV_h`.
        A: Forms with the singular values and right singular vectors of :math:`A_h`, and of :math:`A_h^\top`.
        far: :math:`|W_hV_h(x_j-m^h_i)|`.
        far_alone: :math:`|V_h(x_j-m^h_i)|`.
        key_far: :math:`|A_h^\top(x_j-m^h_i)|`.
        near: Distances between values, values alone and keys.
        deviations: Their largest standard deviations under each row of weights.
        steep: :math:`|g^h_i|`.
        wrong: What rounding may have done to values, to values alone, to keys and to pulls.
        norms: :math:`\|W_hV_h\|, \|V_h\|, \|A_h\|, \|W_h\|`.
        beside: :math:`\|[W_h/\|W_h\|]_h\|`.
    """

    P: Float[Tensor, "heads n n"]
    alpha: Float[Tensor, "heads n n out"]
    pull: Float[Tensor, "heads n d"]
    keys: Float[Tensor, "heads n d"]
    B: Float[Tensor, "heads out d"]
    A: tuple[Float[Tensor, "heads r d"], Float[Tensor, "heads s d"]]
    far: Float[Tensor, "heads n n"]
    far_alone: Float[Tensor, "heads n n"]
    key_far: Float[Tensor, "heads n n"]
    near: tuple[Tensor, Tensor, Tensor]
    deviations: tuple[Tensor, Tensor, Tensor]
    steep: Float[Tensor, "heads n"]
    wrong: tuple[Tensor, Tensor, Tensor, Float[Tensor, "heads n"]]
    norms: tuple[Tensor, Tensor, Tensor, Tensor]
    beside: float

    @classmethod
    def of(cls, views: list[View]) -> "Centre":
        """Gather the heads."""
        rows, W = Rows.of(views), outputs(views)
        y, P, doubt = rows.y, rows.P, rows.doubt
        apart = y[:, None] - (P @ y)[:, :, None]
        keys = torch.stack([(view.k - view.k.mean(0)) @ view.head.Q for view in views])
        alone = torch.stack([view.y - view.y.mean(0) for view in views])
        heads = [view.head for view in views]
        stretch = _numbers(safe_norm(w) for w in W)
        units = [w / (size if size > 0 else 1.0) for w, size in zip(W, stretch.tolist(), strict=True)]
        return cls(
            P=P,
            alpha=P[..., None] * apart,
            pull=rows.g,
            keys=keys,
            B=rows.B,
            A=(
                torch.stack([head.short_K.mT @ head.Q for head in heads]),
                torch.stack([head.short_Q.mT @ head.K for head in heads]),
            ),
            far=apart.norm(dim=-1),
            far_alone=_distances(P @ alone, alone),
            key_far=_distances(P @ keys, keys),
            near=(_distances(y, y), _distances(alone, alone), _distances(keys, keys)),
            deviations=(_deviations(P, y), _deviations(P, alone), _deviations(P, keys)),
            steep=rows.g.norm(dim=-1),
            wrong=(
                4 * doubt.wrong,
                _numbers(4 * view.rounding.value for view in views),
                4 * doubt.wrong_keys,
                2 * doubt.wrong_pull,
            ),
            norms=(
                doubt.values,
                _numbers(head.norm_V * (1 + 1e-12) for head in heads),
                _numbers(head.norm_A for head in heads),
                stretch,
            ),
            beside=safe_norm(torch.cat(units, dim=1)),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Moved:
    r"""How far vectors may have moved, on a ball; lengths at X, and the largest there.

    Attributes:
        P: The largest weights.
        change: How far weights move.
        alpha: By how much :math:`\alpha` changes; ``alone`` the same before the output projection.
        alone: See ``alpha``.
        keys: The largest :math:`|A^\top(x_j-m_i)|`.
        pull: By how much pulls change.
        slope: Bounds on the norm of the derivative of the softmax.
        spread: Diagonal matrices that the derivative of the softmax is below.
    """

    P: Float[Tensor, "heads n n"]
    change: Float[Tensor, "heads n n"]
    alpha: Float[Tensor, "heads n n"]
    alone: Float[Tensor, "heads n n"]
    keys: Float[Tensor, "heads n n"]
    pull: Float[Tensor, "heads n"]
    slope: Float[Tensor, "heads n"]
    spread: Float[Tensor, "heads n n"]

    @classmethod
    def of(cls, c: Centre, regions: list[Region], t: float, per_token: bool) -> "Moved":
        """Bound the movements on the ball of radius t, from what it does to the weights of each head."""
        up, down, drift, spread_of_scores = (
            torch.stack([getattr(r, name) for r in regions]) for name in ("P", "low", "drift", "spread")
        )
        change = torch.maximum(up - c.P, c.P - down).clamp_min(0)
        apart = 2.0 if per_token else math.sqrt(2)  # how far two tokens move from each other
        B, V, A = (x[:, None, None] for x in c.norms[:3])
        value, alone, key = (x[:, None, None] for x in c.wrong[:3])

        # the weight of all other tokens of a row
        rest = torch.minimum(1 - down, up.sum(-1, keepdim=True) - up).clamp(0, 1)

        def moved(far: Tensor, near: Tensor, deviation: Tensor, slope: Tensor, wrong: Tensor) -> Tensor:
            by_weights = torch.minimum((change * (far + wrong)).sum(-1), spread_of_scores * (deviation + wrong[..., 0]))
            by_mean = by_weights[..., None] + slope * (t + drift[..., None])
            # x_j − m_i is the mean of x_j − x_k over the others: where their weight is small, it moves little
            by_pairs = change @ (near + wrong) + rest * apart * slope * t
            return torch.minimum(by_mean, by_pairs) + wrong

        slope, spread = softened(up, down)
        return cls(
            P=up,
            change=change,
            alpha=change * c.far + up * moved(c.far, c.near[0], c.deviations[0], B, value),
            alone=change * c.far_alone + up * moved(c.far_alone, c.near[1], c.deviations[1], V, alone),
            keys=c.key_far + moved(c.key_far, c.near[2], c.deviations[2], A, key),
            pull=c.norms[2][:, None] * t + c.wrong[3],
            slope=slope,
            spread=spread,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Curvature:
    r"""A bound on :math:`\|D^2f\|` at X by the exact vectors, and on the ball of radius t around it.

    With E, F unit, :math:`\bar e_i = \sum_jP_{ij}e_j`, row i of :math:`D^2f(E,F)` is the sum over heads of

    .. math:: \sum_j\alpha_{ij}\langle g_i,e_j\rangle\langle g_i,f_j\rangle
              - [\langle g_i,\bar e_i\rangle\textstyle\sum_j\alpha_{ij}\langle g_i,f_j\rangle]
              + [\sum_j\alpha_{ij}\langle\kappa_{ij},e_i\rangle\langle g_i,f_j-\bar f_i\rangle]
              + \sum_j\alpha_{ij}\langle\kappa_{ij},e_i\rangle\langle\kappa_{ij},f_i\rangle
              + [\sum_jP_{ij}Be_j\langle\kappa_{ij},f_i\rangle]
              + [\sum_jP_{ij}B(e_j-\bar e_i)\langle g_i,f_j\rangle]
              + [\sum_j\alpha_{ij}\langle Af_i,e_j\rangle],

    brackets with E and F exchanged added, :math:`\kappa_{ij} = A^\top(x_j-m_i)`.

    Attributes:
        centre: The vectors.
        squares: The squared Gram matrix of all pulls, and the absolute one.
        absolute: See ``squares``.
        row_keys: The absolute Gram matrix of :math:`\kappa_{ij}` for every row i.
        row_pulls: The absolute Gram matrix of :math:`g^h_i` for every row i.
        scales: Scales under which heads are put beside each other.
        tokens: The first term at X.
        mean: The largest :math:`\langle g_i,\bar e_i\rangle`, in the scales ``even``.
        answer: How large the sum beside it is, for the worst row.
        even: Scales for the second term, for each head and row.
        own: The fourth term, row by row.
        mixed: The third term, row by row.
        key: The fifth term, row by row, without its factor.
        seen: The sixth term.
        seen_weights: Weights of the pulls in it.
        cross: The seventh term, row by row, without its factor.
    """

    centre: Centre
    squares: Float[Tensor, "m m"]
    absolute: Float[Tensor, "m m"]
    row_keys: Float[Tensor, "n m m"]
    row_pulls: Float[Tensor, "n heads heads"]
    scales: Scales
    tokens: float
    mean: float
    answer: float
    even: Float[Tensor, "heads n"]
    own: Float[Tensor, " n"]
    mixed: Float[Tensor, " n"]
    key: Float[Tensor, " n"]
    seen: float
    seen_weights: Float[Tensor, "heads n n"]
    cross: Float[Tensor, " n"]

    @classmethod
    def of(cls, views: list[View]) -> "Curvature":
        """Look at X."""
        c = Centre.of(views)
        flat = c.pull.flatten(0, 1)
        gram = flat @ flat.mT
        slope, spread = softened(c.P, c.P)
        weights = slope[..., None] * spread
        scales = Scales.of(c.B, c.A, gram, weights, c.norms[0], c.norms[2], c.P, c.keys)
        even = _even(c)
        rows = [_row(c, i, even[:, i], scales) for i in range(c.P.shape[1])]
        own, mixed, key, cross, answers = (_numbers(x) for x in zip(*rows, strict=True))
        return cls(
            centre=c,
            squares=gram.square(),
            absolute=gram.abs(),
            row_keys=torch.stack([_keys(c, i) for i in range(c.P.shape[1])]),
            row_pulls=torch.einsum("hid,kid->ihk", c.pull, c.pull).abs(),
            scales=scales,
            tokens=_tokens(c, gram),
            mean=_mean(c, gram, even),
            answer=float(answers.max()),
            even=even,
            own=own,
            mixed=mixed,
            key=key,
            cross=cross,
            seen=weighted_norm(gram, scales.seen.square()[:, None, None] * weights),
            seen_weights=weights,
        )

    def within(self, regions: list[Region], t: float, per_token: bool = False) -> float:
        """Bound the second derivative on the ball of radius t: every term at X, and what its factors may add."""
        m = Moved.of(self.centre, regions, t, per_token)
        among = self._tokens(m) + 2 * self._means(m) + 2 * self._seen(m)
        own, mixed, key, cross = self._rows(m)
        row = (self.mixed + mixed) + self.scales.key_factor * (self.key + key)
        row = row + self.scales.cross_factor * (self.cross + cross)
        total = ROUNDING * (among + float((self.own + own).max()) + 2 * float(row.max()))
        return total if math.isfinite(total) else math.inf

    def _tokens(self, m: Moved) -> float:
        """Bound the first term: other vectors between the same pulls, then other pulls."""
        c = self.centre
        beside, size = c.beside * c.norms[3][:, None, None], c.steep[..., None]
        apart = _aligned(self.squares, m.alpha)
        together = _perron(self.squares, (beside * m.alone).square()).sqrt()
        largest, pull = c.P * c.far + m.alpha, m.pull[..., None]
        more = (largest * (2 * size * pull + pull.square())).sum(0).norm(dim=0)
        return self.tokens + float((torch.minimum(apart, together) + more).max())

    def _means(self, m: Moved) -> float:
        """Bound the second term: a product of two norms, each with what it may gain."""
        c, even = self.centre, self.even[..., None]
        change = (m.change / even).flatten(0, 1)
        gram = (change @ change.mT) * self.absolute
        more = float(_collatz(lambda z: gram @ z, torch.ones_like(gram[:, :1])).sqrt())
        mean = self.mean + more + float((m.P * m.pull[..., None] / even).norm())
        # what heads answer, one output for each: the matrix of the norms of the blocks of its Gram matrix
        answer = (even * m.alpha).transpose(0, 1)
        blocks = (answer @ answer.mT) * self.row_pulls
        gained = _collatz(lambda z: blocks @ z, torch.ones_like(blocks[..., :1])).sqrt()[:, 0]
        steeper = (even * (c.P * c.far + m.alpha) * m.pull[..., None]).square().sum((0, 2)).sqrt()
        return mean * (self.answer + float((gained + steeper).max()))

    def _seen(self, m: Moved) -> float:
        """Bound the sixth term."""
        s = self.scales.seen[:, None, None]
        weights = m.slope[..., None] * m.spread
        gained = (weights.sqrt() - self.seen_weights.sqrt()).clamp_min(0)
        steeper = (s * weights.sqrt() * m.pull[..., None]).square().sum((0, 1)).sqrt()
        more = (_perron(self.absolute, (s * gained).square()).sqrt() + steeper).max()
        return self.scales.seen_factor * (self.seen + float(more))

    def _rows(self, m: Moved) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bound what the terms with the row's own token gain."""
        c = self.centre
        s_key, s_cross = self.scales.key[:, None, None], self.scales.cross[:, None, None]
        own, mixed = zip(
            *(
                _gains(c.P * far, alpha, c.key_far, m.keys, c.steep, c.steep + m.pull, c.P, m.P)
                for far, alpha in ((c.far, m.alpha), (c.far_alone, m.alone))
            ),
            strict=True,
        )
        near, seen = self._directed(m)
        key = (s_key * (m.P * m.keys - c.P * c.key_far)).square().sum((0, 2)).sqrt()
        cross = (m.alpha / s_cross).square().sum((0, 2)).sqrt()
        return torch.minimum(self._joined(*own), near), torch.minimum(self._joined(*mixed), seen), key, cross

    def _directed(self, m: Moved) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        r"""Bound what the fourth and the third term gain, by the directions of keys and pulls.

        For vectors of lengths :math:`a_m`, whatever their directions,
        :math:`|\sum_ma_m\langle b_m,e\rangle\langle c_m,f\rangle| \le (\sum_ma_m\langle b_m,e\rangle^2)^{1/2}
        (\sum_ma_m\langle c_m,f\rangle^2)^{1/2}`, and both factors are eigenvalues.
        """
        c = self.centre
        before, more = c.P * c.far, m.alpha
        after, longer = before + more, m.keys - c.key_far
        gained, all_of_it, at_first = (self._by_keys(x) for x in (more, after, before))
        b = (after * longer.square()).sum((0, 2)).sqrt()
        own = gained.square() + 2 * all_of_it * b + b.square()
        most, change = m.P.square().sum(-1).sqrt(), m.change.square().sum(-1).sqrt()
        seen = gained * (self._by_pulls(more) + self._by_means(more, most)) + at_first * self._by_means(before, change)
        seen = seen + b * (self._by_pulls(after) + self._by_means(after, most))
        steeper = (after * m.pull[..., None].square()).sum(0).amax(-1).sqrt()
        steeper = steeper + (after.sum(-1) * (m.pull * most).square()).sum(0).sqrt()
        return own, seen + (all_of_it + b) * steeper

    def _by_keys(self, a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle\kappa_{hij},e\rangle^2)^{1/2}` for every row i."""
        root = a.transpose(0, 1).flatten(1).sqrt()[..., None]
        return _collatz(lambda z: root * (self.row_keys @ (root * z)), torch.ones_like(root)).sqrt()[:, 0]

    def _by_pulls(self, a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle g_{hi},f_j\rangle^2)^{1/2}` for every row i."""
        root = a.transpose(0, 1).sqrt()  # i, h, j
        found = _collatz(lambda z: root * (self.row_pulls @ (root * z)), torch.ones_like(root))
        return found.amax(-1).sqrt()

    def _by_means(self, a: Float[Tensor, "heads n n"], size: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle g_{hi},\sum_kp_{hik}f_k\rangle^2)^{1/2}`, the lengths of p given."""
        root = (a.sum(-1).sqrt() * size).mT[..., None]
        return _collatz(lambda z: root * (self.row_pulls @ (root * z)), torch.ones_like(root)).sqrt()[:, 0]

    def _joined(self, mixed: Float[Tensor, "heads n"], alone: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        """Add heads up, or put them beside each other, whichever is less."""
        stretch = self.centre.norms[3][:, None]
        return torch.minimum(mixed.sum(0), self.centre.beside * (stretch * alone).square().sum(0).sqrt())


def _gains(
    a: Tensor, more: Tensor, key: Tensor, keys: Tensor, pull: Tensor, pulls: Tensor, P: Tensor, most: Tensor
) -> tuple[Float[Tensor, "heads n"], Float[Tensor, "heads n"]]:
    """Return, for each head and row, what the fourth and the third term gain when all lengths grow."""
    own = ((a + more) * keys.square() - a * key.square()).sum(-1)
    before, after = a * key, (a + more) * keys
    seen = (after * pulls[..., None] - before * pull[..., None]).square().sum(-1).sqrt()
    mean = after.sum(-1) * pulls * most.square().sum(-1).sqrt() - before.sum(-1) * pull * P.square().sum(-1).sqrt()
    return own, seen + mean


def _keys(c: Centre, i: int) -> Float[Tensor, "m m"]:
    key = (c.keys - (c.P[:, i, None] @ c.keys)).flatten(0, 1)
    return (key @ key.mT).abs()


def _row(c: Centre, i: int, even: Tensor, scales: Scales) -> tuple[float, float, float, float, float]:
    r"""Return the terms of one row that hold its own token, and the answer of the second term.

    A sum :math:`\sum_ma_m\langle b_m,e\rangle\langle c_m,f\rangle` is at most
    :math:`\lambda_{\max}(\sum_{ml}\langle b_m,b_l\rangle\langle c_m,c_l\rangle\,a_ma_l^\top)^{1/2}` for unit e, f.
    """
    heads, n = c.P.shape[:2]
    P, g = c.P[:, i], c.pull[:, i]
    a = c.alpha[:, i].flatten(0, 1)
    key = (c.keys - (P[:, None] @ c.keys)).flatten(0, 1)
    keys, pulls = key @ key.mT, g @ g.mT
    centred = torch.eye(n, dtype=P.dtype) - P[:, None]  # rows u_j − P, for every head
    centred = centred.flatten(0, 1)
    about = (centred @ centred.mT) * _spread_out(pulls, n)
    own, mixed = (float(largest_eigenvalues(a.mT @ (m * keys) @ a).sqrt()) for m in (keys, about))
    weights = (scales.key[:, None] * P).flatten()
    split = a / scales.cross.repeat_interleave(n)[:, None]
    # the second term keeps heads apart: one output for each
    sides = torch.eye(heads, dtype=P.dtype) * even.square()
    separate = (a @ a.mT) * _spread_out(sides, n)
    root = _root(pulls).repeat_interleave(n, 0)  # how each head's pull lies in a basis of all
    answer = torch.einsum("mp,ml,lq->mlpq", root, separate, root)
    answer = answer.reshape(heads, n, heads, n, heads, heads).sum((0, 2)).transpose(1, 2).flatten(2).flatten(0, 1)
    return (
        own,
        mixed,
        float(largest_norms(weights[:, None] * key)),
        float(largest_norms(split)),
        float(largest_eigenvalues(answer).sqrt()),
    )


def _tokens(c: Centre, gram: Float[Tensor, "m m"]) -> float:
    r"""Bound the first term at X.

    For every j it is :math:`(e,f)\mapsto(\sum_h\alpha^h_{ij}\langle g^h_i,e\rangle\langle g^h_i,f\rangle)_i`.
    """
    heads, n = c.P.shape[:2]
    squares = gram.square().reshape(heads, n, heads, n)
    best = 0.0
    for j in range(n):
        a = c.alpha[:, :, j]
        root = _root(torch.einsum("hio,kio->ihk", a, a))
        M = torch.einsum("ihp,hikl->ipkl", root, squares)
        M = torch.einsum("ipkl,lkq->iplq", M, root).reshape(heads * n, heads * n)
        best = max(best, float(largest_eigenvalues(M)))
    return math.sqrt(best)


def _mean(c: Centre, gram: Tensor, even: Float[Tensor, "heads n"]) -> float:
    r"""Return the norm of :math:`E\mapsto(\langle g^h_i,\bar e^h_i\rangle/c^h_i)_{hi}`."""
    P = (c.P / even[..., None]).flatten(0, 1)
    return float(largest_eigenvalues((P @ P.mT) * gram).sqrt())


def _even(c: Centre) -> Float[Tensor, "heads n"]:
    """Return scales that make both factors of the second term of one size; any positive numbers would do."""
    given = c.P.square().sum(-1).sqrt()
    answer = (c.P * c.far).square().sum(-1).sqrt()
    # a row that is saturated here may not be so further away
    return (given / (answer + FLOOR * answer.amax()).clamp_min(1e-100)).sqrt().clamp(1e-8, 1e8)


def weighted_norm(gram: Float[Tensor, "m m"], w: Float[Tensor, "heads n n"]) -> float:
    r"""Bound :math:`\max_j\lambda_{\max}(\sum_{hi}w_{hij}\,g_{hi}g_{hi}^\top)^{1/2}` from the Gram matrix of the g."""
    best = 0.0
    for column in w.flatten(0, 1).mT.sqrt():
        best = max(best, float(largest_eigenvalues(column[:, None] * gram * column)))
    return math.sqrt(best)


def _perron(G: Float[Tensor, "m m"], w: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
    r"""Bound the largest eigenvalue of :math:`\sqrt{w_j}\,G\sqrt{w_j}` for every j; no entry of G is negative."""
    root = w.flatten(0, 1).sqrt()
    return _collatz(lambda z: root * (G @ (root * z)), torch.ones_like(root))


def _aligned(G: Float[Tensor, "m m"], a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
    """Bound the first term for vectors of these lengths, whatever their directions: at worst they are all one."""
    heads, n = a.shape[:2]

    def times(z: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        return (a * (G @ (a * z).flatten(0, 1)).reshape(heads, n, n)).sum(0)

    return _collatz(times, torch.ones_like(a[0])).sqrt()


def _collatz(times: Callable[[Tensor], Tensor], z: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch n"]:
    r"""Bound spectral radii of matrices without negative entries: :math:`\max_i(Mz)_i/z_i` for any positive z."""
    best = torch.full_like(z[..., 0, :], torch.inf)
    for _ in range(STEPS):
        moved = times(z)
        best = torch.minimum(best, (moved / z).amax(-2))
        z = (moved / moved.amax(-2, keepdim=True).clamp_min(1e-300)).clamp_min(1e-3)
    return best


def _spread_out(x: Float[Tensor, "heads heads"], n: int) -> Float[Tensor, "m m"]:
    """Repeat every entry for all pairs of tokens."""
    return x.repeat_interleave(n, 0).repeat_interleave(n, 1)


def _root(gram: Float[Tensor, "*batch m m"]) -> Float[Tensor, "*batch m m"]:
    """Return R with RRᵀ the Gram matrix, and a little more than it for rounding."""
    values, vectors = torch.linalg.eigh(gram)
    safe = values + 1e-13 * values.abs().amax(-1, keepdim=True)
    return vectors * safe.clamp_min(0).sqrt()[..., None, :]


def _deviations(P: Float[Tensor, "heads n n"], x: Float[Tensor, "heads n r"]) -> Float[Tensor, "heads n"]:
    centred = x[:, None] - (P @ x)[:, :, None]
    return largest_norms(P.sqrt()[..., None] * centred)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _numbers(x: Iterable[float]) -> Tensor:
    return torch.tensor(list(x), dtype=torch.float64)
