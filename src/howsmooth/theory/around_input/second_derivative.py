r"""Theorem 5, the second derivative of a whole layer on a ball: one method for each of its six terms.

Row i of :math:`D^2f(E,F)` is the sum over heads of

.. math:: &\textstyle\text{(i)}\;\sum_j\alpha_{ij}\langle g_i,e_j-\bar e_i\rangle\langle g_i,f_j-\bar f_i\rangle,\quad
          \text{(ii)}\;[\sum_jP_{ij}B(e_j-\bar e_i)\langle g_i,f_j\rangle],\quad
          \text{(iii)}\;\sum_j\alpha_{ij}\langle\kappa_{ij},e_i\rangle\langle\kappa_{ij},f_i\rangle,\\
          &\textstyle\text{(iv)}\;[\sum_j\alpha_{ij}\langle\kappa_{ij},e_i\rangle\langle g_i,f_j-\bar f_i\rangle],\quad
          \text{(v)}\;[\sum_jP_{ij}Be_j\langle\kappa_{ij},f_i\rangle],\quad
          \text{(vi)}\;[\sum_j\alpha_{ij}\langle Af_i,e_j\rangle],

brackets with E and F exchanged added, :math:`\bar e_i = \sum_jP_{ij}e_j`. A term is bounded at X by an eigenvalue, for
all heads at once, and on the ball by that and what its factors gain.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.rounding import PRODUCT, SCALED, TERM
from howsmooth.theory.around_input.head_on_ball import TINY, softmax_jacobian_bounds
from howsmooth.theory.around_input.layer_on_ball import LayerAtCentre, LayerOnBall, Scaled, row_norm, stack_norm
from howsmooth.theory.linalg.eigenvalue_bounds import collatz_wielandt, largest_eigenvalues, largest_norms

# So often scales of heads are improved, and they stay in this range: heads that do nothing would have infinite ones.
ROUNDS, RANGE = 2, 1e8
# More than the sum of all numbers whose squares are too small for a float, of a million.
VANISHING = 1e-150


@dataclass(frozen=True, kw_only=True, eq=False)
class SecondDerivative:
    """The second derivative of all heads around ``centre``; values at X are computed once, for all balls."""

    centre: LayerAtCentre

    def upper(self, ball: LayerOnBall) -> float:
        r"""Bound :math:`\|D^2f\|` on the ball; of (iii) to (vi) the largest row counts, as :math:`\sum|e_i|^2\le1`."""
        # Terms with brackets occur twice, with E and F exchanged; (i) and (iii) are symmetric already.
        every_row = self.key_key(ball) + 2 * self.value_key(ball)
        # These contain e_i or f_i, the movement of the row's own token: a sum over rows of |e_i|·c_i·‖F‖ is at most max
        # c_i.
        own_row = self.query_key(ball) + self.value_query(ball) + self.score_form(ball)
        total = (1 + TERM) * (every_row + float(self.query_query(ball).max()) + 2 * float(own_row.max()))
        return total if math.isfinite(total) else math.inf

    def key_key(self, ball: LayerOnBall) -> float:
        r"""Bound (i), a third moment: for all rows, wherever vectors and weights of the ball are.

        It is at most :math:`\sum_hu_{hi}(E)u_{hi}(F)`, and
        :math:`u^2 = \sum_j|\alpha_{ij}|\langle g_i,e_j-\bar e_i\rangle^2\le\sum_jw_{hij}\langle g_i,e_j\rangle^2`
        for :math:`w_{hij} = a_j + s\,|a/s-p|^2`, a the lengths of :math:`\alpha_{ij}`, s their sum (:meth:`_offset`);
        for :math:`w_{hij} = \max_k|B(x_k-m_i)|\,D_{ij}`, D diagonal and above the derivative of the softmax. By Cauchy
        and Schwarz over h and over i all rows are at most

        .. math:: \max_j\lambda_{\max}\Bigl(\sum_{hi}w_{hij}g^h_i{g^h_i}^\top\Bigr)^{1/2}
                  \max_{ij}\lambda_{\max}\Bigl(\sum_hw_{hij}g^h_i{g^h_i}^\top\Bigr)^{1/2}.
        """
        lengths = self._alpha_length + ball.alpha_change
        # Two weights w for which Σ_j a_j⟨g, e_j − ē⟩² ≤ Σ_j w_j⟨g, e_j⟩²; every row takes the one whose largest is
        # smaller.
        about_mean = lengths + (lengths.sum(-1) * self._offset(lengths, ball).square())[..., None]
        by_softmax = ball.output_distance[..., None] * ball.softmax_diagonal
        w = torch.where((about_mean.amax(-1) < by_softmax.amax(-1))[..., None], about_mean, by_softmax)
        # g moves by at most g_change in any direction: (Σ w⟨g + δ, e⟩²)^½ is at most the root at X plus (Σ w|δ|²)^½.
        g_gain = w * ball.g_change[..., None].square()
        every_row = _weighted_norm(self.g_gram, w) + float(g_gain.sum((0, 1)).max().sqrt())
        # The second factor: for one row and one token, all heads; a Gram matrix of H vectors for each pair (i, j).
        root = w.permute(1, 2, 0).sqrt()  # i, j, h
        one_row = largest_eigenvalues(root[..., None] * self.row_g_gram[:, None] * root[..., None, :]).sqrt()
        return every_row * float((one_row + g_gain.sum(0).sqrt()).max())

    def value_key(self, ball: LayerOnBall) -> float:
        r"""Bound (ii), :math:`\sum_hB_hE^\top S^h_iFg^h_i` with the derivative S of the softmax, for all rows.

        :math:`|E^\top SFg| \le \|S\|^{1/2}|S^{1/2}Fg|` and :math:`S \le D`, so for any scales it is at most

        .. math:: \|[B_h/s_h]_h\|\max_j\lambda_{\max}\Bigl(\sum_{hi}s_h^2\|S^h_i\|D^h_{ij}g^h_i{g^h_i}^\top\Bigr)^{1/2}.
        """
        s = self._value_key_scales.scales[:, None, None]
        root = (ball.softmax_norm[..., None] * ball.softmax_diagonal).sqrt()
        # Weights that grow: the norm under larger weights is at most that at X plus the norm under the difference of
        # roots,
        # whose sign patterns are unknown, so the Gram matrix enters by its absolute values (Perron).
        gained = (root - self._value_key_weights.sqrt()).clamp_min(0)
        g_gain = (s * root * ball.g_change[..., None]).square().sum((0, 1)).sqrt()
        gain = (_perron_root(self.g_gram.abs(), (s * gained).flatten(0, 1)) + g_gain).max()
        return self._value_key_scales.norm * (self._value_key + float(gain))

    def query_query(self, ball: LayerOnBall) -> Float[Tensor, " n"]:
        r"""Bound (iii) in every row.

        At X by :math:`\lambda_{\max}(\sum\langle\kappa_{ij},\kappa_{il}\rangle^2\alpha_{ij}\alpha_{il}^\top)^{1/2}`:
        :math:`e\otimes f` is a unit vector. It gains by lengths :math:`\sum_j(a+a')(|\kappa|+k)^2-a|\kappa|^2`, where
        :math:`\alpha` of length a changes by a' and κ by k; or by directions :math:`c(a')^2 + 2c(a+a')b + b^2` with
        :math:`c(a)^2 = \max_e\sum_ja_j\langle\kappa_{ij},e\rangle^2` and :math:`b^2 = \sum_j(a+a')k^2`.
        """
        c = self.centre
        # By lengths: nothing is known of directions, so products of norms are added up, before and after W.
        gains = (
            ((a + more) * ball.kappa.square() - a * c.keys.from_mean.square()).sum(-1)
            for a, more in self._alpha_lengths(ball)
        )
        # By directions: |c + δ|² ≤ c² + 2cb + b² for the quadratic form of κ(Z) = κ + δ, |δ| at most the gain of κ.
        lengths, b = self._alpha_length + ball.alpha_change, self._kappa_gain(ball)
        by_directions = self._by_kappa(ball.alpha_change).square() + 2 * self._by_kappa(lengths) * b + b.square()
        return self._query_query + torch.minimum(c.combined(*gains), by_directions)

    def query_key(self, ball: LayerOnBall) -> Float[Tensor, " n"]:
        r"""Bound (iv) in every row.

        At X as (iii), with :math:`g_i\otimes(u_j-p_i)`, unit vectors :math:`u_j` less weights, for one κ. By lengths
        it gains what :math:`(\sum_j(a|\kappa||g|)^2)^{1/2} + \sum_ja|\kappa||g||p_i|` does; by directions, where
        :math:`m(a)^2 = \max_F\sum_ja_j\langle g_i,f_j-\bar f_i\rangle^2`, the changes of α, :math:`\bar f`, κ and g add
        :math:`c(a')m(a') + c(a)\bar m + b\,m(a+a') + (c(a+a')+b)\,m_g`.
        """
        c = self.centre

        def gain(a: Tensor, more: Tensor) -> Float[Tensor, "heads n"]:
            # The pair (u_j − p_i) has two parts: tokens are orthogonal, so squares add up; the mean is one vector of
            # length |p|.
            before, after = a * c.keys.from_mean, (a + more) * ball.kappa
            g, longest = c.g_length, c.g_length + ball.g_change
            tokens = (after * longest[..., None] - before * g[..., None]).square().sum(-1).sqrt()
            return tokens + (after.sum(-1) * longest * _length(ball.P) - before.sum(-1) * g * _length(c.P))

        # Four changes, one factor after the other: α, the mean f̄, κ, and g; what was changed already counts at its
        # largest.
        a, more, b = self._alpha_length, ball.alpha_change, self._kappa_gain(ball)
        by_directions = self._by_kappa(more) * self._about_mean(more, ball)
        by_directions = by_directions + self._by_kappa(a) * self._by_mean(a, _length(ball.P_change))
        by_directions = by_directions + b * self._about_mean(a + more, ball)
        g_gain = ((a + more) * ball.g_change[..., None].square()).sum(0).amax(-1).sqrt()
        g_gain = g_gain + ((a + more).sum(-1) * (ball.g_change * _length(ball.P)).square()).sum(0).sqrt()
        by_directions = by_directions + (self._by_kappa(a + more) + b) * g_gain
        by_lengths = c.combined(*(gain(*lengths) for lengths in self._alpha_lengths(ball)))
        return self._query_key + torch.minimum(by_lengths, by_directions)

    def value_query(self, ball: LayerOnBall) -> Float[Tensor, " n"]:
        r"""Bound (v) in every row by :math:`\|[B_h/s_h]_h\|\,\|(s_hP_{ij}\kappa_{ij})_{hj}\|`.

        Or with the blocks :math:`B_h/s_h` under each other: then Cauchy and Schwarz are applied to heads before tokens.
        """
        c, (scales, norm) = self.centre, self._value_query_scales
        gain = (scales[:, None, None] * (ball.P * ball.kappa - c.P * c.keys.from_mean)).square().sum((0, 2)).sqrt()
        return norm * (self._value_query + gain)

    def score_form(self, ball: LayerOnBall) -> Float[Tensor, " n"]:
        r"""Bound (vi) in every row by :math:`\|(\alpha_{ij}/s_h)_{hj}\|\,\min(\|(s_hA_h)_h\|,\|(s_hA_h^\top)_h\|)`."""
        scales, norm = self._score_form_scales
        return norm * (self._score_form + (ball.alpha_change / scales[:, None, None]).square().sum((0, 2)).sqrt())

    # What stands at X.

    @functools.cached_property
    def g_gram(self) -> Float[Tensor, "m m"]:
        """The Gram matrix of the score gradients g of all heads and rows."""
        g = self.centre.g.flatten(0, 1)
        return g @ g.mT

    @functools.cached_property
    def row_g_gram(self) -> Float[Tensor, "n heads heads"]:
        """That of all heads, for every row."""
        return torch.stack([g @ g.mT for g in self.centre.g.unbind(1)])

    @functools.cached_property
    def row_kappa_gram(self) -> Float[Tensor, "n m m"]:
        """The absolute Gram matrix of the score gradients κ of all heads and tokens, for every row."""
        return torch.stack([(kappa @ kappa.mT).abs() for kappa in self._kappas()])

    @functools.cached_property
    def _alpha_length(self) -> Float[Tensor, "heads n n"]:
        return self.centre.P * self.centre.outputs.from_mean

    @functools.cached_property
    def _value_key_weights(self) -> Float[Tensor, "heads n n"]:
        norm, diagonal = softmax_jacobian_bounds(self.centre.P, self.centre.P)
        return norm[..., None] * diagonal

    @functools.cached_property
    def _value_key(self) -> float:
        s = self._value_key_scales.scales
        return _weighted_norm(self.g_gram, s.square()[:, None, None] * self._value_key_weights)

    @functools.cached_property
    def _query_query(self) -> Float[Tensor, " n"]:
        vectors = zip(self._alphas(), self._kappas(), strict=True)
        return torch.stack([_form_norm(a, (kappa @ kappa.mT).square()) for a, kappa in vectors])

    @functools.cached_property
    def _query_key(self) -> Float[Tensor, " n"]:
        n, found = self.centre.P.shape[1], []
        vectors = zip(self._alphas(), self._kappas(), self.centre.P.unbind(1), self.row_g_gram, strict=True)
        for a, kappa, P, g in vectors:
            # f_j − f̄ = Σ_k(u_j − p)_k f_k: the vectors g ⊗ (u_j − p) have the Gram matrix ⟨u_j − p, u_l − p⟩⟨g, g'⟩.
            centred = (torch.eye(n, dtype=P.dtype) - P[:, None]).flatten(0, 1)  # rows u_j − p, for every head
            about_mean = (centred @ centred.mT) * g.repeat_interleave(n, 0).repeat_interleave(n, 1)
            found.append(_form_norm(a, about_mean * (kappa @ kappa.mT)))
        return torch.stack(found)

    @functools.cached_property
    def _value_query(self) -> Float[Tensor, " n"]:
        weights = (self._value_query_scales.scales[:, None, None] * self.centre.P).unbind(1)
        found = [largest_norms(w.flatten()[:, None] * k) for w, k in zip(weights, self._kappas(), strict=True)]
        return torch.stack(found)

    @functools.cached_property
    def _score_form(self) -> Float[Tensor, " n"]:
        scales = self._score_form_scales.scales.repeat_interleave(self.centre.P.shape[1])[:, None]
        return torch.stack([largest_norms(a / scales) for a in self._alphas()])

    def _alphas(self) -> list[Float[Tensor, "m out"]]:
        """Return the vectors α of all heads and tokens, for every row."""
        return [a.flatten(0, 1) for a in self.centre.alpha.unbind(1)]

    def _kappas(self) -> Iterator[Float[Tensor, "m d"]]:
        """Yield the vectors κ of all heads and tokens, for every row."""
        y = self.centre.y_keys
        return ((y - P[:, None] @ y).flatten(0, 1) for P in self.centre.P.unbind(1))

    # Lemmas: for vectors of lengths a_m, whatever their directions,
    # |Σ_m a_m⟨b_m,e⟩⟨c_m,f⟩| ≤ (Σ_m a_m⟨b_m,e⟩²)^½ (Σ_m a_m⟨c_m,f⟩²)^½, and both factors are eigenvalues.

    def _alpha_lengths(self, ball: LayerOnBall) -> list[tuple[Tensor, Tensor]]:
        """Return lengths of α and bounds on their change, after and before the output projection."""
        values = self.centre.P * self.centre.values.from_mean
        return [(self._alpha_length, ball.alpha_change), (values, ball.value_alpha_change)]

    def _kappa_gain(self, ball: LayerOnBall) -> Float[Tensor, " n"]:
        r"""Bound :math:`b = (\sum_{hj}a_{hij}|\kappa_{hij}(Z)-\kappa_{hij}|^2)^{1/2}` for the largest lengths a."""
        gain = ball.kappa - self.centre.keys.from_mean
        return ((self._alpha_length + ball.alpha_change) * gain.square()).sum((0, 2)).sqrt()

    def _by_kappa(self, a: Float[Tensor, "heads n n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`c(a) = (\sum_{hj}a_{hij}\langle\kappa_{hij},e\rangle^2)^{1/2}` for every row i."""
        return _perron_root(self.row_kappa_gram, a.transpose(0, 1).flatten(1).sqrt()[..., None])[:, 0]

    def _by_mean(self, a: Float[Tensor, "heads n n"], length: Float[Tensor, "heads n"]) -> Float[Tensor, " n"]:
        r"""Bound :math:`(\sum_{hj}a_{hij}\langle g_{hi},\sum_kp_{hik}f_k\rangle^2)^{1/2}` for p of these lengths."""
        return _perron_root(self.row_g_gram.abs(), (a.sum(-1).sqrt() * length).mT[..., None])[:, 0]

    def _about_mean(self, a: Float[Tensor, "heads n n"], ball: LayerOnBall) -> Float[Tensor, " n"]:
        r"""Bound :math:`m(a) = (\sum_{hj}a_{hij}\langle g_{hi},f_j-\bar f_{hi}\rangle^2)^{1/2}`, weights of the ball.

        Tokens and means apart; or by :meth:`_offset`, where both squares add up.
        """
        tokens = _perron_root(self.row_g_gram.abs(), a.transpose(0, 1).sqrt()).amax(-1)
        apart = tokens + self._by_mean(a, _length(ball.P))
        return torch.minimum(apart, torch.hypot(tokens, self._by_mean(a, self._offset(a, ball))))

    def _offset(self, a: Float[Tensor, "heads n n"], ball: LayerOnBall) -> Float[Tensor, "heads n"]:
        r"""Bound :math:`|a/s-p|` for weights p of the ball, s the sum of a.

        About the mean under a itself squares add up to the least:
        :math:`\sum_ja_j(b_j-\sum_kp_kb_k)^2 \le \sum_ja_jb_j^2 + s\bigl(\sum_k(a_k/s-p_k)b_k\bigr)^2`.
        """
        return (a / a.sum(-1, keepdim=True).clamp_min(TINY) - self.centre.P).norm(dim=-1) + ball.P_change.norm(dim=-1)

    # Scales: any positive ones give a bound, these a good one.

    @functools.cached_property
    def _value_key_scales(self) -> Scaled:
        s = self._balanced_scales()
        return Scaled(s, row_norm(self.centre.B / s[:, None, None]) * (1 + SCALED))

    def _balanced_scales(self) -> Float[Tensor, " heads"]:
        """Make every head count as much on both sides of (ii).

        At the minimum of a product of two largest eigenvalues each head has the same share of both eigenvectors.
        """
        B, w = self.centre.B, self._value_key_weights
        heads, n = w.shape[:2]
        w = w[:, :, w.sum((0, 1)).argmax()]  # of the token that is seen most
        size = (self.g_gram.diagonal().reshape(heads, n) * w).sum(1).sqrt()
        s = _ratio(B.flatten(1).norm(dim=1), size)
        best, least = s, math.inf
        for _ in range(ROUNDS):
            over = (B / s[:, None, None]).transpose(0, 1).flatten(1)
            values, vectors = torch.linalg.eigh(over @ over.mT)
            weight = (s[:, None] * w.sqrt()).flatten()
            g_values, g_vectors = torch.linalg.eigh(weight[:, None] * self.g_gram * weight)
            if float(values[-1] * g_values[-1]) < least:
                best, least = s, float(values[-1] * g_values[-1])
            left = (vectors[:, -1] @ over).reshape(heads, -1).square().sum(1) / values[-1].clamp_min(TINY)
            right = g_vectors[:, -1].reshape(heads, n).square().sum(1)
            s = (s * ((left + 1e-3) / (right + 1e-3)) ** 0.25).clamp(1 / RANGE, RANGE)
        return best

    @functools.cached_property
    def _value_query_scales(self) -> Scaled:
        c = self.centre
        spread = (c.y_keys - c.y_keys.mean(1, keepdim=True)).norm(dim=-1).amax(1)
        s = _ratio(c.outputs.norm, spread * _length(c.P).amax(1))
        # Both orders of Cauchy and Schwarz give a bound: blocks side by side, or under each other.
        over = c.B / s[:, None, None]
        return Scaled(s, min(row_norm(over), stack_norm(over)) * (1 + SCALED))

    @functools.cached_property
    def _score_form_scales(self) -> Scaled:
        c = self.centre
        s = _ratio(c.outputs.norm, c.keys.norm)
        norm = min(stack_norm(s[:, None, None] * A) for A in (c.A, c.A_transposed))
        return Scaled(s, norm + PRODUCT * float((c.keys.norm * s).sum()))


def _ratio(a: Float[Tensor, " heads"], b: Float[Tensor, " heads"]) -> Float[Tensor, " heads"]:
    """Return the square root of a quotient, of ordinary size whatever the two are."""
    a, b = a / a.max().clamp_min(TINY), b / b.max().clamp_min(TINY)
    return (a.clamp_min(1e-12) / b.clamp_min(1e-12)).sqrt().clamp(1 / RANGE, RANGE)


def _weighted_norm(gram: Float[Tensor, "m m"], w: Float[Tensor, "heads n n"]) -> float:
    r"""Bound :math:`\max_j\lambda_{\max}(\sum_{hi}w_{hij}\,g_{hi}g_{hi}^\top)^{1/2}` from the Gram matrix of the g."""
    w = w.flatten(0, 1)
    size, most = float(gram.abs().amax()), float(w.amax())
    if not math.isfinite(size * most) or size * most == 0:
        return math.inf if size * most != 0 else 0.0
    # The norms of Frobenius of all of them take one product, and no bound is larger: where one is less than what is
    # found already, the eigenvalue is not looked at. Numbers whose squares vanish count as VANISHING.
    unit = w / most
    frobenius = (((gram / size).square() @ unit) * unit).sum(0).sqrt()
    at_most = size * most * (1 + TERM) * (frobenius + VANISHING)
    largest = 0.0
    for j in at_most.argsort(descending=True).tolist():
        if float(at_most[j]) < largest:
            break
        root = w[:, j].sqrt()
        largest = max(largest, float(largest_eigenvalues(root[:, None] * gram * root)))
    return math.sqrt(largest)


def _perron_root(G: Float[Tensor, "*rows m m"], root: Float[Tensor, "*rows m c"]) -> Float[Tensor, "*rows c"]:
    r"""Bound :math:`\lambda_{\max}(\mathrm{diag}(r)\,G\,\mathrm{diag}(r))^{1/2}` for each column r; entries are ≥ 0."""
    return collatz_wielandt(lambda z: root * (G @ (root * z)), torch.ones_like(root)).sqrt()


def _form_norm(a: Float[Tensor, "m out"], M: Float[Tensor, "m m"]) -> Float[Tensor, ""]:
    r"""Bound :math:`\lambda_{\max}(\sum_{ml}M_{ml}\,a_ma_l^\top)^{1/2}`."""
    return largest_eigenvalues(a.mT @ M @ a).sqrt()


def _length(x: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows"]:
    return x.square().sum(-1).sqrt()
