"""The second derivative of a whole layer on a ball: Gram matrices at its centre, norms for what may be added."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.theory.moved import Centre, Moved, numbers
from howsmooth.theory.positive import collatz
from howsmooth.theory.region import Region, softened
from howsmooth.theory.scales import Scales
from howsmooth.theory.terms import even_scales, keys_at, mean_at, row_at, tokens_at, weighted_norm
from howsmooth.theory.traces import largest_eigenvalues
from howsmooth.theory.views import View

# What sums of so many products may lose; the matrices have at most a few thousand rows.
ROUNDING = 1 + 1e-9


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
        gram: The Gram matrix of all pulls.
        squares: The squared one, and the absolute one.
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
    gram: Float[Tensor, "m m"]
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
        even = even_scales(c)
        rows = [row_at(c, i, even[:, i], scales) for i in range(c.P.shape[1])]
        own, mixed, key, cross, answers = (numbers(x) for x in zip(*rows, strict=True))
        return cls(
            centre=c,
            gram=gram,
            squares=gram.square(),
            absolute=gram.abs(),
            row_keys=torch.stack([keys_at(c, i) for i in range(c.P.shape[1])]),
            row_pulls=torch.einsum("hid,kid->ihk", c.pull, c.pull).abs(),
            scales=scales,
            tokens=tokens_at(c, gram),
            mean=mean_at(c, gram, even),
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
        among = min(self._tokens(m) + 2 * self._means(m), self._moments(m)) + 2 * self._seen(m)
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
        more = float(collatz(lambda z: gram @ z, torch.ones_like(gram[:, :1])).sqrt())
        mean = self.mean + more + float((m.P * m.pull[..., None] / even).norm())
        # what heads answer, one output for each: the matrix of the norms of the blocks of its Gram matrix
        answer = (even * m.alpha).transpose(0, 1)
        blocks = (answer @ answer.mT) * self.row_pulls
        gained = collatz(lambda z: blocks @ z, torch.ones_like(blocks[..., :1])).sqrt()[:, 0]
        steeper = (even * (c.P * c.far + m.alpha) * m.pull[..., None]).square().sum((0, 2)).sqrt()
        return mean * (self.answer + float((gained + steeper).max()))

    def _moments(self, m: Moved) -> float:
        r"""Bound the first two terms together, wherever vectors and weights are: they are one third moment.

        :math:`|\sum_{hj}\alpha_{ij}\langle g_i,e_j-\bar e_i\rangle\langle g_i,f_j-\bar f_i\rangle| \le
        \sum_hu_{hi}(E)u_{hi}(F)` with :math:`u_{hi}(E)^2 = \sum_j|\alpha_{ij}|\langle g_i,e_j-\bar e_i\rangle^2`. It is
        at most :math:`\sum_jw_{hij}\langle g_i,e_j\rangle^2`: for the largest :math:`|B(x_j-m_i)|` times a diagonal
        matrix above the derivative of the softmax, or for :math:`|\alpha_{ij}|` and what :meth:`_apart` adds. By Cauchy
        and Schwarz the squares of all rows add up to at most the sum of :math:`u(E)^2` over h and i, times the largest
        sum of :math:`u(F)^2` over h.
        """
        c = self.centre
        weights, lengths = m.far[..., None] * m.spread, c.P * c.far + m.alpha
        own = lengths + (lengths.sum(-1) * self._apart(lengths, m.change.norm(dim=-1)).square())[..., None]
        weights = torch.where((own.amax(-1) < weights.amax(-1))[..., None], own, weights)
        steeper = weights * m.pull[..., None].square()
        whole = weighted_norm(self.gram, weights) + float(steeper.sum((0, 1)).max().sqrt())
        pulls = torch.einsum("hid,kid->ihk", c.pull, c.pull)
        roots = weights.permute(1, 2, 0).sqrt()  # i, j, h
        rows = largest_eigenvalues(roots[..., None] * pulls[:, None] * roots[..., None, :]).sqrt()
        return whole * float((rows + steeper.sum(0).sqrt()).max())

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
        seen = gained * self._about_means(more, most, change) + at_first * self._by_means(before, change)
        seen = seen + b * self._about_means(after, most, change)
        steeper = (after * m.pull[..., None].square()).sum(0).amax(-1).sqrt()
        steeper = steeper + (after.sum(-1) * (m.pull * most).square()).sum(0).sqrt()
        return own, seen + (all_of_it + b) * steeper

    def _by_keys(self, a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle\kappa_{hij},e\rangle^2)^{1/2}` for every row i."""
        root = a.transpose(0, 1).flatten(1).sqrt()[..., None]
        return collatz(lambda z: root * (self.row_keys @ (root * z)), torch.ones_like(root)).sqrt()[:, 0]

    def _by_pulls(self, a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle g_{hi},f_j\rangle^2)^{1/2}` for every row i."""
        root = a.transpose(0, 1).sqrt()  # i, h, j
        found = collatz(lambda z: root * (self.row_pulls @ (root * z)), torch.ones_like(root))
        return found.amax(-1).sqrt()

    def _by_means(self, a: Float[Tensor, "heads n n"], size: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle g_{hi},\sum_kp_{hik}f_k\rangle^2)^{1/2}`, the lengths of p given."""
        root = (a.sum(-1).sqrt() * size).mT[..., None]
        return collatz(lambda z: root * (self.row_pulls @ (root * z)), torch.ones_like(root)).sqrt()[:, 0]

    def _about_means(self, a: Tensor, most: Tensor, change: Tensor) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle g_{hi},f_j-\sum_kp_{hik}f_k\rangle^2)^{1/2}` for weights p there."""
        pulls = self._by_pulls(a)
        about_own = torch.hypot(pulls, self._by_means(a, self._apart(a, change)))
        return torch.minimum(pulls + self._by_means(a, most), about_own)

    def _apart(self, a: Float[Tensor, "heads n n"], change: Float[Tensor, "heads n"]) -> Float[Tensor, "heads n"]:
        r"""Bound :math:`|a/s - p|` for weights p of the ball, s the sum of a.

        Squares add up to the least about the mean under a itself:
        :math:`\sum_ja_j(b_j-\sum_kp_kb_k)^2 \le \sum_ja_jb_j^2 + s\bigl(\sum_k(a_k/s-p_k)b_k\bigr)^2`.
        """
        return (a / a.sum(-1, keepdim=True).clamp_min(1e-300) - self.centre.P).norm(dim=-1) + change

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


def _perron(G: Float[Tensor, "m m"], w: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
    r"""Bound the largest eigenvalue of :math:`\sqrt{w_j}\,G\sqrt{w_j}` for every j; no entry of G is negative."""
    root = w.flatten(0, 1).sqrt()
    return collatz(lambda z: root * (G @ (root * z)), torch.ones_like(root))


def _aligned(G: Float[Tensor, "m m"], a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
    """Bound the first term for vectors of these lengths, whatever their directions: at worst they are all one."""
    heads, n = a.shape[:2]

    def times(z: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        return (a * (G @ (a * z).flatten(0, 1)).reshape(heads, n, n)).sum(0)

    return collatz(times, torch.ones_like(a[0])).sqrt()
