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
from howsmooth.theory.linalg.combination_norm import products_norm
from howsmooth.theory.linalg.matrix_norms import UNIT, norm_upper, triangular_factor
from howsmooth.theory.linalg.stacked_norms import LargestStack, StackedMatrices, balance_scales

# Exponents of the extra coordinate that carries query biases: never worse than adding them up, and usually better.
LENGTHS = (0.5, 0.62)
# The extra coordinate of a token beside a sink is at most this number of times longer than the others, squared.
LONGEST = 1e12


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBound:
    r"""What the three terms of the derivative are made of, for all heads.

    A token has one more coordinate, :math:`x^+ = (x, \tau)`, so that :math:`A_hx + K_h^\top b_h = A_h^+x^+` with
    :math:`A_h^+ = K_h^\top[Q_h, b_h/\tau]`.

    Attributes:
        n: How many tokens.
        radius: The radius of their ball.
        length: :math:`(R^2+\tau^2)^{1/2}`.
        values: :math:`(W_hV_h)^\top`, up to an isometry.
        spreads: The same where differences between values count: with a sink, of :math:`W_hV_h^+`, see
            :func:`with_sink`.
        own: What a token's own movement does to its scores: :math:`RA_h`, up to an isometry; the least counts.
        third: :math:`A_h^+`, one under the other; and :math:`{A_h^+}^\top`, so that the norm is that of
            :math:`[A_1^+\cdots A_H^+]`. The least counts.
        forms: The factors :math:`Q_h^+` and :math:`K_h` of the same, where there are no rotary positions.
        summed: Whether the third term has all rows at once, as under rotary positions.
        ones: The number one for every head: the norm is that of the scales.
        apart: :math:`\sum_h\|W_hV_h\|`.
    """

    n: int
    radius: float
    length: float
    values: StackedMatrices
    spreads: StackedMatrices
    own: tuple[StackedMatrices, ...]
    third: tuple[StackedMatrices | LargestStack, ...]
    forms: list[tuple[Tensor, Tensor]]
    summed: bool
    ones: StackedMatrices
    apart: float

    def bound(self, start: Float[Tensor, " heads"]) -> float:
        """Return the theorem's value; each term has the scales that suit it, and the search for them a start."""
        first, _scales = balance_scales(self.values, self.ones, start)
        second = min(balance_scales(self.spreads, stack, start)[0] for stack in self.own)
        third, scales = min(
            (balance_scales(self.spreads, stack, start) for stack in self.third), key=lambda found: found[0]
        )
        if self.summed:
            return self.all_rows(first, second, third)
        return self.added(first, second, min(third, self._closer(scales)))

    def _closer(self, s: Float[Tensor, " heads"]) -> float:
        r"""Return :math:`\beta\,\sup_{|c|=1}\|\sum_hc_hs_hA_h^+\|`, often below both forms of the third term."""
        if not self.forms:
            return math.inf
        scaled = [(t * Q, K) for t, (Q, K) in zip(s, self.forms, strict=True)]
        return self.spreads.norm(1 / s) * products_norm(scaled)

    def all_rows(self, first: float, second: float, third: float) -> float:
        """Put the three terms together where the third has all rows."""
        both = self.radius * (second + third * self.length / math.sqrt(2))
        return (math.sqrt(self.n) * min(first, self.apart) + both) * (1 + 64 * UNIT)

    def added(self, first: float, second: float, third: float) -> float:
        """Put the three terms together, given the norms that they are made of."""
        n, R = self.n, self.radius
        second, row = second * R, third * R * self.length / math.sqrt(2)
        unit = max(second, row)  # squares stay in the range of the numbers
        if not 0 < unit < math.inf:
            return math.sqrt(n) * min(first, self.apart) + unit
        second, row = second / unit, row / unit
        few = min(2 * len(self.values.blocks), n)  # the tokens that a row's third term can see with half its weight
        # the largest eigenvalue of a form in the norms of those tokens' movements and of all others'
        seen, both = n * row**2 + 2 * math.sqrt(few) * second * row + second**2, math.sqrt(n - few) * second * row
        middle, half = (seen + second**2) / 2, (seen - second**2) / 2
        both_terms = unit * math.sqrt(middle + math.hypot(half, both))
        return (math.sqrt(n) * min(first, self.apart) + both_terms) * (1 + 64 * UNIT)


def layer_bound(
    attention: Attention, heads: tuple[Head, ...], turns: RotaryDistances | None, n: int, radius: float
) -> float:
    r"""Bound the Lipschitz constant of a whole layer in a ball, heads side by side; see ``sharp_upper``.

    Every choice of scales gives a bound, so the search for good ones needs no guarantee: the best bound met is
    returned, and infinity where numbers leave the range of floats.
    """
    sink = attention.sink is not None
    heads = tuple(head for head in heads if head.norm_WV > 0 or (sink and head.norm_Wb > 0))
    pulls = [head.norm_Q * (head.norm_K * radius) + float((head.query_bias @ head.K).norm()) for head in heads]
    if len(heads) < 2 or not 0 < max(pulls) < 1e100:
        return math.inf
    seen = _seen(attention, heads, radius)
    if not max(head.norm_WV for head in seen) < 1e100:
        return math.inf
    steep = torch.tensor([max(_pull(head, radius), 1e-9 * max(pulls)) for head in heads], dtype=torch.float64)
    s = (torch.tensor([head.norm_WV for head in seen], dtype=torch.float64) / steep).sqrt()
    problems = (_problem(attention, heads, turns, n, radius, t) for t in _extra(heads, s, radius))
    return min(problems, key=_third_at(s)).bound(s)


def _pull(head: Head, radius: float) -> float:
    return head.norm_A * radius + float((head.query_bias @ head.K).norm())


def _extra(heads: tuple[Head, ...], s: Float[Tensor, " heads"], radius: float) -> list[float]:
    """Return lengths of the extra coordinate that are worth a try; any will do, and none is needed without biases."""
    bias = math.hypot(*(float(t) * float((head.query_bias @ head.K).norm()) for t, head in zip(s, heads, strict=True)))
    form = math.hypot(*(float(t) * head.norm_A * radius for t, head in zip(s, heads, strict=True)))
    if bias == 0:
        return [0.0]
    share = min(max(bias / max(form, 1e-300), 1e-12), 1e12)
    return [radius * share**e for e in LENGTHS]


def _third_at(s: Float[Tensor, " heads"]) -> Callable[[LayerBound], float]:
    return lambda problem: problem.length * min(stack.norm(s) for stack in problem.third)


def _seen(attention: Attention, heads: tuple[Head, ...], radius: float) -> tuple[Head, ...]:
    """Return heads for the terms where differences between values or keys count."""
    return heads if attention.sink is None else tuple(with_sink(head, radius) for head in heads)


def _problem(
    attention: Attention, heads: tuple[Head, ...], turns: RotaryDistances | None, n: int, radius: float, extra: float
) -> LayerBound:
    """Gather the blocks; rotary positions and soft caps have norms of queries or keys in place of some forms."""
    seen = _seen(attention, heads, radius)
    rotary = attention.positions.rotary is not None
    longer = [torch.cat((head.Q, head.query_bias[:, None] / extra), 1) if extra > 0 else head.Q for head in heads]
    both = list(zip(longer, heads, strict=True))
    return LayerBound(
        n=n,
        radius=radius,
        length=math.hypot(radius, extra) * (1 + 8 * UNIT),
        values=_values(heads),
        spreads=_values(seen),
        own=_own(attention, heads, seen, turns, radius),
        third=_third(both, turns, by_norms=rotary),
        forms=[] if rotary else [(Q, head.K) for Q, head in both],
        summed=turns is not None,
        ones=StackedMatrices.of([torch.ones(1, 1, dtype=torch.float64) for _head in heads]),
        apart=sum(head.norm_WV for head in heads),
    )


def _third(
    both: list[tuple[Tensor, Head]], turns: RotaryDistances | None, *, by_norms: bool
) -> tuple[StackedMatrices | LargestStack, ...]:
    """Gather what rows make of the others' movements: by forms, by norms, or for all distances that columns meet."""
    if turns is not None:
        return (LargestStack(stacks=tuple(_summed(both, turns, reach) for reach in turns.groups)),)
    across = [head.norm_K * Q if by_norms else head.reduced_K.mT @ Q for Q, head in both]
    beside = [norm_upper(Q) * head.K if by_norms else triangular_factor(Q).mT @ head.K for Q, head in both]
    lost = [_lost(Q, head.K) for Q, head in both]
    return StackedMatrices.of(across, lost), StackedMatrices.of(beside, lost)


def _summed(both: list[tuple[Tensor, Head]], turns: RotaryDistances, reach: range) -> StackedMatrices:
    """Gather what columns that meet these distances are to all rows."""
    blocks = [gram_factor(Q, head.K, turns.rotary, reach) for Q, head in both]
    return StackedMatrices.of([factor for factor, _lost in blocks], [lost for _factor, lost in blocks])


def _own(
    attention: Attention, heads: tuple[Head, ...], seen: tuple[Head, ...], turns: RotaryDistances | None, radius: float
) -> tuple[StackedMatrices, ...]:
    """Gather what a token's own movement does: by forms, by norms of keys, or by the steepest of all distances."""
    lost = [radius * _lost(head.Q, head.K) for head in seen]
    if attention.positions.rotary is None and attention.softcap is None:
        return (StackedMatrices.of([radius * (head.reduced_K.mT @ head.Q) for head in seen], lost),)
    reach = [head.norm_K * radius + float(head.key_bias.norm()) for head in heads]
    by_norms = StackedMatrices.of([r * head.Q for r, head in zip(reach, heads, strict=True)], lost)
    if turns is None:
        return (by_norms,)
    most = [turns.query_gradient(head, radius) for head in heads]
    return by_norms, StackedMatrices.of([torch.full((1, 1), pull, dtype=torch.float64) for pull in most])


def _lost(a: Float[Tensor, "k m"], b: Float[Tensor, "k d"]) -> float:
    """Return what the product of two matrices, one of them by its triangular factor, may have lost in the norm."""
    return 4 * (len(b) + b.shape[1]) * UNIT * float(a.norm()) * float(b.norm())


def _values(heads: tuple[Head, ...]) -> StackedMatrices:
    if heads[0].W is not None:
        blocks = [(head.W @ triangular_factor(head.V)).mT for head in heads if head.W is not None]
        return StackedMatrices.of(blocks, [_lost(head.W.mT, head.V) for head in heads if head.W is not None])
    # concatenated heads do not meet: one coordinate for each
    return StackedMatrices.of(
        [head.norm_V * row[None] for head, row in zip(heads, torch.eye(len(heads)).double(), strict=True)]
    )


def with_sink(head: Head, radius: float) -> Head:
    r"""Return a head whose values and keys :math:`V^+y`, :math:`K^+y` on some ball of radius R are those of the map.

    Tokens and the sink are :math:`(x,\tau)` and the origin. These lie in a ball of radius
    :math:`\rho = (R^2+\tau^2)/(2\tau)`, if :math:`\tau\ge R`, and
    :math:`V^+ = \tfrac\rho R[V, b_v/\tau]` has the values :math:`Vx+b_v` and zero there, in units of :math:`\rho/R`.
    Likewise for keys. Any :math:`\tau\ge R` will do; that of :func:`with_bias_column` is near the best.
    """
    V = with_bias_column(head.V, head.value_bias, radius, head.norm_Wb, head.norm_WV * radius)
    K = with_bias_column(head.K, head.key_bias, radius, head.norm_Qb, head.norm_A * radius)
    return dataclasses.replace(head, V=V, K=K, Q=torch.nn.functional.pad(head.Q, (0, 1)))


def with_bias_column(
    M: Float[Tensor, "k d"], bias: Float[Tensor, " k"], radius: float, shift: float, reach: float
) -> Float[Tensor, "k d1"]:
    r"""Return :math:`\tfrac\rho R[M, b/\tau]` with :math:`\tau = R\,(\text{shift}/\text{reach})^{1/2}`, at least R."""
    longer = math.sqrt(min(max(shift, reach, 1e-300) / max(reach, 1e-300), LONGEST))  # τ over R
    spread = (1 / longer + longer) / 2 * (1 + 8 * UNIT)
    return spread * torch.cat((M, bias[:, None] / (longer * radius)), 1)
