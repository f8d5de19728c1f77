"""Theorem 1, heads together: a whole layer in a ball, its heads side by side under the scales that suit them best."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.maps.attention import Attention
from howsmooth.theory.ball.rotary_forms import RotaryDistances, gram_factor
from howsmooth.theory.heads import Head
from howsmooth.theory.linalg.matrix_norms import UNIT, norm_upper, triangular_factor
from howsmooth.theory.linalg.stacked_norms import StackedMatrices, Stacks, balance_scales, largest_norm, products_norm

# τ is R times the share of biases in the scores, to one of these powers. With one half a bias never costs more than if
# it were added up; the other is often better.
LENGTHS = (0.5, 0.62)
# With a sink, the square of the extra coordinate of a token is at most this multiple of R².
LONGEST = 1e12


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBound:
    r"""The matrices of the value, query and key terms of the derivative, for all heads.

    A token has one more coordinate, :math:`x^+ = (x, \tau)`, so that :math:`A_hx + K_h^\top b_h = A_h^+x^+` with
    :math:`A_h^+ = K_h^\top[Q_h, b_h/\tau]`.

    Attributes:
        n: The number of tokens.
        radius: The radius R of their ball.
        length: :math:`(R^2+\tau^2)^{1/2}`.
        values: :math:`(W_hV_h)^\top`, up to an isometry.
        value_differences: The same in the query and key terms, where differences between values count: with a sink,
            of :math:`W_hV_h^+`, see :func:`with_sink`.
        query_forms: :math:`RA_h` up to an isometry, what a token's movement does to its own row of scores; the
            smallest norm counts.
        key_forms: :math:`A_h^+`, one under the other; and :math:`{A_h^+}^\top`, so that the norm is that of
            :math:`[A_1^+\cdots A_H^+]`. The smallest norm counts; of stacks for several distances, the largest.
        key_factors: The factors :math:`Q_h^+` and :math:`K_h` of the same; none under rotary positions.
        sums_rows: Whether the key term has all rows at once, as under rotary positions.
        ones: The number one for every head: the norm is that of the scales.
        heads_apart: :math:`\sum_h\|W_hV_h\|`.
    """

    n: int
    radius: float
    length: float
    values: StackedMatrices
    value_differences: StackedMatrices
    query_forms: tuple[StackedMatrices, ...]
    key_forms: tuple[Stacks, ...]
    key_factors: list[tuple[Tensor, Tensor]]
    sums_rows: bool
    ones: StackedMatrices
    heads_apart: float

    def bound(self, start: Float[Tensor, " heads"]) -> float:
        """Return the theorem's value; each term has the scales that suit it, and the search for them a start."""
        values = self.value_differences
        # Why one search for each term: the scales that suit the values of a term need not suit the scores of another.
        value_term, _scales = balance_scales(self.values, (self.ones,), start)
        query_term = min(balance_scales(values, (stack,), start)[0] for stack in self.query_forms)
        key_terms = [balance_scales(values, stacks, start) for stacks in self.key_forms]
        key_term, scales = min(key_terms, key=lambda found: found[0])
        if self.sums_rows:
            return self.with_all_rows(value_term, query_term, key_term)
        return self.with_single_rows(value_term, query_term, min(key_term, self.joint_key_norm(scales)))

    def joint_key_norm(self, s: Float[Tensor, " heads"]) -> float:
        r"""Return :math:`\beta\,\sup_{|c|=1}\|\sum_hc_hs_hA_h^+\|`, often below both stacks of the key term."""
        if not self.key_factors:
            return math.inf
        scaled = [(t * Q, K) for t, (Q, K) in zip(s, self.key_factors, strict=True)]
        return self.value_differences.norm(1 / s) * products_norm(scaled)

    def with_all_rows(self, value: float, query: float, key: float) -> float:
        """Add up the three terms, given the norms that they are made of, where the key term has all rows."""
        # Under rotary positions forms differ by distance, and the key term was summed over the rows that see a token.
        query_and_key = self.radius * (query + key * self.length / math.sqrt(2))
        return (math.sqrt(self.n) * min(value, self.heads_apart) + query_and_key) * (1 + 64 * UNIT)

    def with_single_rows(self, value: float, query: float, key: float) -> float:
        r"""Add up the three terms, where the key term is that of one row, the same for all n.

        A row's key term can be large on m tokens only, :math:`m = \min(2H, n)`: those that have half of its weight in
        some head. With a the query term and b the key term of a row, query and key term together are at most the root
        of the largest eigenvalue of a form in the norms of the movements of these tokens and of all others,

        .. math:: \begin{pmatrix}nb^2 + 2\sqrt m\,ab + a^2 & \sqrt{n-m}\,ab\\ \sqrt{n-m}\,ab & a^2\end{pmatrix}.
        """
        n, R = self.n, self.radius
        a, b = query * R, key * R * self.length / math.sqrt(2)
        scale = max(a, b)
        value_term = math.sqrt(n) * min(value, self.heads_apart)
        if not 0 < scale < math.inf:
            return value_term + scale
        a, b = a / scale, b / scale  # squares stay in the range of the numbers
        # At most two tokens can have half of a row's weight in one head: 2H tokens in all heads.
        m = min(2 * len(self.values.blocks), n)
        attended, others, across = n * b**2 + 2 * math.sqrt(m) * a * b + a**2, a**2, math.sqrt(n - m) * a * b
        # the largest eigenvalue of [[attended, across], [across, others]]
        largest = (attended + others) / 2 + math.hypot((attended - others) / 2, across)
        return (value_term + scale * math.sqrt(largest)) * (1 + 64 * UNIT)


def layer_bound(
    attention: Attention, heads: tuple[Head, ...], rotary: RotaryDistances | None, n: int, radius: float
) -> float:
    r"""Bound the Lipschitz constant of a whole layer in a ball, heads side by side; see ``sharp_upper``.

    Every choice of scales gives a bound, so the search for good ones needs no guarantee: the best bound found is
    returned, and infinity where numbers leave the range of floats.
    """
    # Heads without values do nothing, but for a sink, beside which a value bias alone moves the output.
    sink = attention.sink is not None
    heads = tuple(head for head in heads if head.norm_WV > 0 or (sink and head.norm_Wb > 0))
    gradients = [head.norm_Q * (head.norm_K * radius) + float((head.query_bias @ head.K).norm()) for head in heads]
    if len(heads) < 2 or not 0 < max(gradients) < 1e100:
        return math.inf
    extended = _heads_with_sink(attention, heads, radius)
    if not max(head.norm_WV for head in extended) < 1e100:
        return math.inf
    # where no better scales are known, every head has as much of the values as of the scores
    smallest = 1e-9 * max(gradients)
    gradient = torch.tensor([max(_key_gradient(head, radius), smallest) for head in heads], dtype=torch.float64)
    s = (torch.tensor([head.norm_WV for head in extended], dtype=torch.float64) / gradient).sqrt()
    problems = (_problem(attention, heads, rotary, n, radius, tau) for tau in _bias_lengths(heads, s, radius))
    return min(problems, key=_key_term_at(s)).bound(s)


def layer_terms(attention: Attention, heads: tuple[Head, ...], n: int, radius: float) -> "LayerTerms | None":
    """Return what :func:`layer_bound` is made of, for plain scores; none where there is no such bound."""
    gradients, sizes = [_key_gradient(head, radius) for head in heads], [head.norm_WV for head in heads]
    if attention.sink is not None or len(heads) < 2 or not 0 < max(gradients) < 1e100 or not 0 < min(sizes) < 1e100:
        return None
    gradient = torch.tensor(gradients, dtype=torch.float64).clamp_min(1e-9 * max(gradients))
    s = (torch.tensor(sizes, dtype=torch.float64) / gradient).sqrt()
    problems = {tau: _problem(attention, heads, None, n, radius, tau) for tau in _bias_lengths(heads, s, radius)}
    tau = min(problems, key=lambda tau: _key_term_at(s)(problems[tau]))
    matrices, differences = problems[tau], problems[tau].value_differences
    keys = [balance_scales(differences, stacks, s) for stacks in matrices.key_forms]
    return LayerTerms(
        tau=tau,
        matrices=matrices,
        value_scales=balance_scales(matrices.values, (matrices.ones,), s)[1],
        query_scales=balance_scales(differences, matrices.query_forms, s)[1],
        key_scales=min(keys, key=lambda found: found[0])[1],
        stack=min(range(len(keys)), key=lambda k: keys[k][0]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerTerms:
    """The scales of every term of a layer's bound."""

    tau: float  # the additional coordinate of a token
    matrices: LayerBound  # what the scales are for
    value_scales: Float[Tensor, " heads"]  # those of the value term
    query_scales: Float[Tensor, " heads"]  # those of the query term
    key_scales: Float[Tensor, " heads"]  # those of the key term
    stack: int  # which stack of the key forms has the smaller norm under them: under each other, or side by side


def _key_gradient(head: Head, radius: float) -> float:
    return head.norm_A * radius + float((head.query_bias @ head.K).norm())


def _bias_lengths(heads: tuple[Head, ...], s: Float[Tensor, " heads"], radius: float) -> list[float]:
    r"""Return values of :math:`\tau` that are worth a try; any will do, and none is needed without biases."""
    # |A⁺x⁺| counts the bias at length τ: too short a τ makes A⁺ large, too long a one makes x⁺ long.
    bias = math.hypot(*(float(t) * float((head.query_bias @ head.K).norm()) for t, head in zip(s, heads, strict=True)))
    form = math.hypot(*(float(t) * head.norm_A * radius for t, head in zip(s, heads, strict=True)))
    if bias == 0:
        return [0.0]
    share = min(max(bias / max(form, 1e-300), 1e-12), 1e12)
    return [radius * share**e for e in LENGTHS]


def _key_term_at(s: Float[Tensor, " heads"]) -> Callable[[LayerBound], float]:
    return lambda problem: problem.length * min(largest_norm(stacks, s) for stacks in problem.key_forms)


def _heads_with_sink(attention: Attention, heads: tuple[Head, ...], radius: float) -> tuple[Head, ...]:
    """Return heads for the terms where differences between values or keys count."""
    return heads if attention.sink is None else tuple(with_sink(head, radius) for head in heads)


def _problem(
    attention: Attention, heads: tuple[Head, ...], rotary: RotaryDistances | None, n: int, radius: float, tau: float
) -> LayerBound:
    """Gather the blocks; rotary positions and soft caps have norms of queries or keys in place of some forms."""
    # Where differences between values or keys count, the sink is one more point, and biases do not cancel.
    extended = _heads_with_sink(attention, heads, radius)
    has_rotary = attention.positions.rotary is not None
    queries = [torch.cat((head.Q, head.query_bias[:, None] / tau), 1) if tau > 0 else head.Q for head in heads]
    factors = list(zip(queries, heads, strict=True))
    return LayerBound(
        n=n,
        radius=radius,
        length=math.hypot(radius, tau) * (1 + 8 * UNIT),
        values=_values(heads),
        value_differences=_values(extended),
        query_forms=_query_forms(attention, heads, extended, rotary, radius),
        key_forms=_key_forms(factors, rotary, by_norms=has_rotary),
        key_factors=[] if has_rotary else [(Q, head.K) for Q, head in factors],
        sums_rows=rotary is not None,
        ones=StackedMatrices.of([torch.ones(1, 1, dtype=torch.float64) for _head in heads]),
        heads_apart=sum(head.norm_WV for head in heads),
    )


def _key_forms(
    factors: list[tuple[Tensor, Head]], rotary: RotaryDistances | None, *, by_norms: bool
) -> tuple[Stacks, ...]:
    """Gather the key term: by forms, by norms, or summed over all distances from which a token is seen."""
    if rotary is not None:
        return (tuple(_summed_forms(factors, rotary, group) for group in rotary.groups),)
    # Two stacks of the same forms: rows under each other see one direction of tokens, columns side by side another.
    under = [head.norm_K * Q if by_norms else head.reduced_K.mT @ Q for Q, head in factors]
    side_by_side = [norm_upper(Q) * head.K if by_norms else triangular_factor(Q).mT @ head.K for Q, head in factors]
    errors = [_product_error(Q, head.K) for Q, head in factors]
    return (StackedMatrices.of(under, errors),), (StackedMatrices.of(side_by_side, errors),)


def _summed_forms(factors: list[tuple[Tensor, Head]], rotary: RotaryDistances, group: range) -> StackedMatrices:
    """Gather the forms of all distances in a group, summed over the rows that see a token from there."""
    blocks = [gram_factor(Q, head.K, rotary.rotary, group) for Q, head in factors]
    return StackedMatrices.of([factor for factor, _error in blocks], [error for _factor, error in blocks])


def _query_forms(
    attention: Attention,
    heads: tuple[Head, ...],
    extended: tuple[Head, ...],
    rotary: RotaryDistances | None,
    radius: float,
) -> tuple[StackedMatrices, ...]:
    """Gather the query term: by forms, by norms of keys, or by the steepest form of all distances."""
    errors = [radius * _product_error(head.Q, head.K) for head in extended]
    if attention.positions.rotary is None and attention.softcap is None:
        return (StackedMatrices.of([radius * (head.reduced_K.mT @ head.Q) for head in extended], errors),)
    key_lengths = [head.norm_K * radius + float(head.key_bias.norm()) for head in heads]
    by_norms = StackedMatrices.of([k * head.Q for k, head in zip(key_lengths, heads, strict=True)], errors)
    if rotary is None:
        return (by_norms,)
    gradients = [rotary.query_gradient(head, radius) for head in heads]
    return by_norms, StackedMatrices.of([torch.full((1, 1), g, dtype=torch.float64) for g in gradients])


def _product_error(a: Float[Tensor, "k m"], b: Float[Tensor, "k d"]) -> float:
    """Bound the rounding error of a product, one factor by its triangular factor, in the norm."""
    return 4 * (len(b) + b.shape[1]) * UNIT * float(a.norm()) * float(b.norm())


def _values(heads: tuple[Head, ...]) -> StackedMatrices:
    if heads[0].W is not None:
        blocks = [(head.W @ triangular_factor(head.V)).mT for head in heads if head.W is not None]
        return StackedMatrices.of(blocks, [_product_error(head.W.mT, head.V) for head in heads if head.W is not None])
    # concatenated heads have outputs of their own: one coordinate for each
    axes = torch.eye(len(heads)).double()
    return StackedMatrices.of([head.norm_V * axis[None] for head, axis in zip(heads, axes, strict=True)])


def with_sink(head: Head, radius: float) -> Head:
    r"""Return a head whose values and keys :math:`V^+y`, :math:`K^+y` on some ball of radius R are those of the map.

    Tokens and the sink are :math:`(x,\tau)` and the origin. These lie in a ball of radius
    :math:`\rho = (R^2+\tau^2)/(2\tau)`, if :math:`\tau\ge R`, and
    :math:`V^+ = \tfrac\rho R[V, b_v/\tau]` has the values :math:`Vx+b_v` and zero there, in units of :math:`\rho/R`.
    Likewise for keys. Any :math:`\tau\ge R` will do; that of :func:`with_bias_column` is near the best.
    """
    # The smallest ball around the values of tokens and the value zero of the sink has its centre off the origin.
    V = with_bias_column(head.V, head.value_bias, radius, head.norm_Wb, head.norm_WV * radius)
    K = with_bias_column(head.K, head.key_bias, radius, head.norm_Qb, head.norm_A * radius)
    return dataclasses.replace(head, V=V, K=K, Q=torch.nn.functional.pad(head.Q, (0, 1)))


def with_bias_column(
    M: Float[Tensor, "k d"], bias: Float[Tensor, " k"], radius: float, shift: float, form: float
) -> Float[Tensor, "k d1"]:
    r"""Return :math:`\tfrac\rho R[M, b/\tau]` with :math:`\tau = R\,(\text{shift}/\text{form})^{1/2}`, at least R."""
    ratio = math.sqrt(min(max(shift, form, 1e-300) / max(form, 1e-300), LONGEST))  # τ over R
    scale = (1 / ratio + ratio) / 2 * (1 + 8 * UNIT)
    return scale * torch.cat((M, bias[:, None] / (ratio * radius)), 1)
