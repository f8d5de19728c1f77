r"""How a network sees words that move: exact first order, exact second order, and remainders that follow from both.

With H the second order of what has happened so far,

.. math:: \delta_k = G_ke + H_k(e,e) + \sum_{l<k}T_{k\leftarrow l}R'_l,

where :math:`R'_l` is what is left of the remainder of stage l when :math:`\tfrac12D^2g_l(G_le,G_le)` is taken out: that
goes into H exactly, in all of its directions at once.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from howsmooth.certificates.kinked_stage import KinkedStage
from howsmooth.certificates.norm_stage import NormStage
from howsmooth.certificates.pushing import advance
from howsmooth.certificates.sizes import Ball, Squares
from howsmooth.certificates.stages import Bent, First, Stage
from howsmooth.certificates.table import Table

# What sums of products may lose: a share of themselves, and of the largest number among them.
SAFETY, ROUNDING = 1 + 1e-9, 1e-12


class Entrance:
    """A perturbation of some tokens of the input, pushed to the end.

    Args:
        table: The network.
        tokens: Which tokens move.
        ball: How far.
        curved: Whether second orders are exact. This takes about :math:`(kd)^2/2` columns for k tokens, where first
            orders take kd.
    """

    def __init__(self, table: Table, tokens: Int[Tensor, " k"], ball: Ball, *, curved: bool) -> None:
        self._table, self._tokens, self._ball = table, tokens, ball
        self._squares = Squares(ball.p)
        self._first: dict[int, Tensor] = {}
        self._second: dict[int, Tensor] = {}
        self._inside: dict[int, Tensor] = {}
        self._bundles: dict[int, Tensor] = {}
        self._turns = ball.p == 2.0 and isinstance(table.links[0].stage, NormStage)
        self._walk(curved)

    def at_output(self, functionals: Float[Tensor, "f out"]) -> tuple[Tensor, Tensor]:
        """Return how far functionals of the output move by first and by second order, for a radius of one."""
        first = self._ball.numbers(self._output.flatten(2) @ functionals.mT)[0]
        if self._pairs is None:
            return SAFETY * first, torch.zeros_like(first)
        return SAFETY * first, SAFETY * self._squares.numbers(self._pairs.flatten(2) @ functionals.mT)[0]

    def remainders(self, eps: float) -> Float[Tensor, " groups"]:
        """Bound all remainders, stage after stage, while the input moves by at most ``eps``."""
        found = self._table.X.new_zeros(0)
        for place, stage in self._table.stages.items():
            found = torch.cat((found, SAFETY * self._bounds(place, stage, eps, found)))
        return found

    def reach(self, eps: float) -> dict[int, Tensor]:
        """Return how far rectified hidden units may move at a radius, by the places of their stages."""
        bounds, begun, found = self.remainders(eps), 0, {}
        for place, stage in self._table.stages.items():
            if isinstance(stage, KinkedStage):
                one, rest = self._sizes(place, eps, bounds[:begun])
                found[place] = stage.reach(one + rest)
            begun += len(stage.tokens)
        return found

    def _bounds(self, place: int, stage: Stage, eps: float, before: Tensor) -> Float[Tensor, " groups"]:
        if place not in self._first:
            assert isinstance(stage, NormStage)
            return stage.turned(eps, self._tokens, exact=self._pairs is not None)
        one, rest = self._sizes(place, eps, before)
        if self._pairs is not None and isinstance(stage, Bent):
            inside = self._inside.get(place)
            return stage.beyond(one, rest, None if inside is None else _outward(eps**2 * inside))
        return stage.bounds(one + rest, First(self._first[place], self._bundles[place], eps, self._ball))

    def _sizes(self, place: int, eps: float, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sizes of what enters a stage: of first order, and of all that follows from remainders before."""
        one = eps * self._first[place]
        rest = before @ self._table.arriving[place] if len(before) else torch.zeros_like(one)
        if place in self._second:
            rest = rest + eps**2 * self._second[place]
        return _outward(one), _outward(rest)

    def _walk(self, curved: bool) -> None:
        """Push columns of first order, and pairs of them, from stage to stage."""
        bundle, pairs, start = self._begin(curved)
        stack, curves = [bundle], None if pairs is None else [pairs]
        for place in range(start, len(self._table.links)):
            stage, second = self._table.links[place].stage, None
            if stage is not None:
                self._bundles[place] = stack[-1]
            if curved and isinstance(stage, Bent):
                second, inside = stage.second(stack[-1]), stage.inside(stack[-1], self._squares)
                if inside is not None:
                    self._inside[place] = inside
            self._push(place, stack, self._ball, self._first)
            if curves is not None:
                self._push(place, curves, self._squares, self._second)
            if second is not None:
                # where nothing has bent before, the pairs that wait below are zero
                curves = [torch.zeros_like(second) for _ in stack] if curves is None else curves
                curves[-1] = curves[-1] + second
        self._output, self._pairs = stack[-1], None if curves is None else curves[-1]

    def _push(self, place: int, stack: list[Tensor], ball: Ball, found: dict[int, Tensor]) -> None:
        """Push columns through one step, and keep what its stage sees of them."""
        link = self._table.links[place]
        if link.stage is None:
            advance(stack, link)
        else:
            sizes, stack[-1] = link.stage.through(stack[-1], ball)
            found[place] = sizes[0]

    def _begin(self, curved: bool) -> tuple[Tensor, Tensor | None, int]:
        """Return the columns that enter, their pairs if they bend already, and where they are."""
        if self._turns:
            stage = self._table.links[0].stage
            assert isinstance(stage, NormStage)
            bundle, pairs = stage.turning(self._tokens)
            return bundle, pairs if curved else None, 1
        n, d = self._table.X.shape
        eye = torch.eye(n * d, dtype=self._table.X.dtype).view(n, d, n, d)
        return eye[self._tokens].flatten(0, 1)[None], None, 0


def _outward(sizes: Tensor) -> Tensor:
    """Widen sizes by what rounding may have taken."""
    return SAFETY * sizes + ROUNDING * sizes.max()
