r"""The effect of words that move: exact first order, exact second order, and the remainders that follow from both.

Theorem 11 with :ref:`exact second orders <second-order>`: with H the second order of all stages so far,

.. math:: \delta_k = G_ke + H_k(e,e) + \sum_{l<k}T_{k\leftarrow l}R'_l,

where :math:`R'_l` is the remainder of stage l without :math:`\tfrac12D^2g_l(G_le,G_le)`, which enters H exactly, with
all of its directions together.
"""

import copy
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.certificates.image_norms import SquaredBall, UnitBall, packed_pairs
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.propagation import propagate, propagate_stack
from howsmooth.certificates.relu_stage import ReLUStage
from howsmooth.certificates.remainder_table import RemainderTable
from howsmooth.certificates.stages import FirstOrder, SmoothStage, Stage
from howsmooth.rounding import CHAIN_FACTOR, CHAIN_FLOOR

# The square of a larger radius is not a float.
LARGEST_SQUARED = 1e154


class WordPerturbation:
    """A perturbation of some tokens of the input, propagated to the end.

    Args:
        table: The network.
        tokens: The tokens that move.
        ball: The ball in which they move.
        second_order: Whether second orders are exact. They take about :math:`(kd)^2/2` columns for k tokens, where
            first orders take kd.
    """

    def __init__(self, table: RemainderTable, tokens: Int[Tensor, " k"], ball: UnitBall, *, second_order: bool) -> None:
        self._table, self._tokens, self._ball = table, tokens, ball
        self._squares = SquaredBall(ball.p)
        self._columns: dict[int, Tensor] = {}
        self._first: dict[int, Tensor] = {}
        self._second: dict[int, Tensor] = {}
        self._forms: dict[int, Tensor] = {}
        self._turns = ball.p == 2.0 and isinstance(table.links[0].stage, NormStage)
        self._place, columns, self._turning = self._entering()
        self._output = propagate(table.links, self._place, columns, ball, self._visit_first)
        self._pairs = self._propagate_second(self._place, self._turning) if second_order else None

    def with_second_order(self) -> "WordPerturbation":
        """Return the same perturbation with exact second orders; first orders are shared."""
        found = copy.copy(self)
        found._second, found._forms = {}, {}
        found._pairs = found._propagate_second(self._place, self._turning)
        return found

    def at_output(self, functionals: Float[Tensor, "f out"]) -> tuple[Tensor, Tensor]:
        """Return how far functionals of the output move by first and by second order, for a radius of one."""
        first = self._ball.scalar_norms(self._output.flatten(2) @ functionals.mT)[0]
        if self._pairs is None:
            return CHAIN_FACTOR * first, torch.zeros_like(first)
        return CHAIN_FACTOR * first, CHAIN_FACTOR * self._squares.scalar_norms(self._pairs.flatten(2) @ functionals.mT)[
            0
        ]

    def remainders(self, eps: float) -> Float[Tensor, " groups"]:
        """Bound all remainders, stage after stage, while the input moves by at most ``eps``."""
        found = self._table.X.new_zeros(0)
        for place, stage in self._table.stages.items():
            # Causality: the remainder of a stage depends on those of earlier stages alone.
            found = torch.cat((found, CHAIN_FACTOR * self._remainder(place, stage, eps, found)))
        return found

    def chain(self, eps: float, room: float) -> list[Float[Tensor, " groups"]]:
        """Return what :meth:`remainders` does, stage by stage, each raised by a share before the next one follows.

        The first stage follows from the radius alone and needs hardly any: it ties the chain to the radius.
        """
        found: list[Tensor] = []
        for place, stage in self._table.stages.items():
            before = torch.cat(found) if found else self._table.X.new_zeros(0)
            bounds = self._remainder(place, stage, eps, before)
            # where there is no remainder, rounding leaves one
            share = room if found else room**2
            found.append((1 + share) * bounds + share**2 * bounds.max().clamp_min(1e-3))
        return found

    def unit_ranges(self, eps: float) -> dict[int, Tensor]:
        """Return how far ReLU units may move at a radius, by the places of their stages."""
        bounds, begun, found = self.remainders(eps), 0, {}
        for place, stage in self._table.stages.items():
            if isinstance(stage, ReLUStage):
                first, later = self._entering_norms(place, eps, bounds[:begun])
                found[place] = stage.unit_ranges(first + later)
            begun += len(stage.tokens)
        return found

    def _remainder(self, place: int, stage: Stage, eps: float, before: Tensor) -> Float[Tensor, " groups"]:
        if place not in self._first:
            assert isinstance(stage, NormStage)
            return stage.turning_remainder(eps, self._tokens, second_order=self._pairs is not None)
        first, later = self._entering_norms(place, eps, before)
        # A stage without a known second order bounds its whole remainder, of which second orders then are a part.
        if self._pairs is not None and isinstance(stage, SmoothStage):
            forms = self._forms.get(place)
            forms = None if forms is None else _outward(times_square(eps, forms))
            return stage.third_order_remainder(first, later, forms)
        own = FirstOrder(self._first[place], self._columns[place], eps, self._ball)
        return stage.remainder(first + later, own)

    def _entering_norms(self, place: int, eps: float, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return norms of what enters a stage: of its first order, and of its second order and earlier remainders."""
        first = eps * self._first[place]
        later = before @ self._table.transfer[place] if len(before) else torch.zeros_like(first)
        if place in self._second:
            later = later + times_square(eps, self._second[place])
        return _outward(first), _outward(later)

    def _entering(self) -> tuple[int, Float[Tensor, "1 r n d"], Float[Tensor, "1 k n d"] | None]:
        """Return the place behind which columns enter, the columns, and the second order of tokens that turn."""
        if self._turns:
            stage = self._table.links[0].stage
            assert isinstance(stage, NormStage)
            return 0, *stage.turning(self._tokens)
        n, d = self._table.X.shape
        eye = torch.eye(n * d, dtype=self._table.X.dtype).view(n, d, n, d)
        return -1, eye[self._tokens].flatten(0, 1)[None], None

    def _visit_first(self, place: int, entering: Tensor, norms: Tensor) -> None:
        self._columns[place], self._first[place] = entering, norms[0]

    def _propagate_second(self, place: int, turns: Tensor | None) -> Tensor | None:
        """Propagate second orders: of what enters, and of every smooth stage; none if there is no such stage."""
        # Two walks instead of one that carries both: columns of first order are kept at every stage anyway.
        smooth = {i: s for i, s in self._table.stages.items() if isinstance(s, SmoothStage) and i in self._columns}
        for later, stage in smooth.items():
            forms = stage.score_forms(self._columns[later], self._squares)
            if forms is not None:
                self._forms[later] = forms
        # Nothing else has a second order before the first smooth stage.
        first = next(iter(smooth), None)
        if first is None:
            return None if turns is None else self._unfolded(self._propagate_turns(place, turns, None)[-1])
        own, waiting = smooth.pop(first).second_order(self._columns[first]), None
        if turns is not None:
            *waiting, leaving = map(self._unfolded, self._propagate_turns(place, turns, first))
            own = own + leaving

        def visit(later: int, _entering: Tensor, norms: Tensor) -> Tensor | None:
            self._second[later] = norms[0]
            return smooth[later].second_order(self._columns[later]) if later in smooth else None

        return propagate(self._table.links, first, own, self._squares, visit, waiting)

    def _propagate_turns(self, place: int, turns: Float[Tensor, "1 k n d"], last: int | None) -> list[Tensor]:
        r"""Propagate second orders of turning alone up to a stage, and return all signals behind it.

        They are :math:`\sum_kt_kz_k` with :math:`t_k = |w_k|^2\ge0`: of the :math:`t_k` the sum is at most one, so that
        norms are those of one column for each token.
        """

        def visit(later: int, _entering: Tensor, norms: Tensor) -> None:
            self._second[later] = norms[0]

        links = self._table.links if last is None else self._table.links[: last + 1]
        return propagate_stack(links, place, [turns], UnitBall(1.0), visit)

    def _unfolded(self, turns: Float[Tensor, "1 k n d"]) -> Float[Tensor, "1 pairs n d"]:
        """Return second orders of turning as packed pairs: multiples of the identity in the columns of every token."""
        k = len(self._tokens)
        r = self._output.shape[1]
        a, b, _factors = packed_pairs(r)
        pairs = turns.new_zeros(*turns.shape[2:], len(a))
        pairs[..., a == b] = turns[0].repeat_interleave(r // k, 0).movedim(0, -1)
        return pairs.movedim(-1, 0)[None]


def times_square(eps: float, norms: Tensor) -> Tensor:
    """Return ε² times norms, infinite where ε² is too large for a float."""
    return eps**2 * norms if eps < LARGEST_SQUARED else torch.where(norms == 0, 0.0, math.inf)


def _outward(norms: Tensor) -> Tensor:
    """Widen norms by the allowance for rounding."""
    # A norm that is nearly zero may be a difference of large numbers: the largest of its stage counts for it too.
    return CHAIN_FACTOR * norms + CHAIN_FLOOR * norms.max()
