r"""Second-order Taylor models of a network on a box: Theorem 15, in floats whose rounding errors are remainders too.

Inputs are :math:`x_0 + e\circ\xi` with :math:`\xi\in[-1,1]^m`. The symbols :math:`s = (y, \eta)` are the coordinates
:math:`y = U\xi` of the first tokens that the box moves, and one :math:`\eta_c\in[-g_c, g_c]` for each ReLU that may
bend. Behind every step the tokens are :math:`c + Ls` and a remainder, of which every linear function is bounded: it is
pulled back through all steps before, and at each of them meets what this step adds to the remainder. The arrays c and
L are floats, and by how much these were rounded is among what a step adds. Letters are those of the page (docs,
:ref:`theorem-15`); formulas in numbers that are not negative are raised above their rounding errors.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from howsmooth.check.balls import Array, BallArray, ball, raised
from howsmooth.check.box_steps import STAGES, AttentionOnBox, ReLUsOnBox
from howsmooth.check.box_symbols import Pair, Symbols
from howsmooth.check.counterexamples import in_tokens
from howsmooth.check.outcomes import CannotCheck

CHUNK = 256  # functionals that are pulled back together


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
        units: Hidden units that have symbols in any case: the number of a layer of ReLUs, and a place.
        level: What forms are used for: margins, also scores and bent units, or also queries, keys and values.
    """

    def __init__(self, steps: list[Any], lower: Array, upper: Array, units: list[tuple[int, int]], level: int) -> None:
        self.units, self.level, steps = units, level, written_out(steps)
        first, shape, lower, upper = steps[0], lower.shape, lower.ravel(), upper.ravel()
        middle = lower + (upper - lower) / 2
        half = raised(np.maximum(upper - middle, middle - lower), 2)
        if first.kind == "affine" and not first.settings.get("residual"):
            matrix, bias, steps = ball(first.arrays["weight"].reshape(-1, len(lower))), first.arrays["bias"], steps[1:]
            value = (matrix @ middle[:, None]).reshape(*bias.shape) + bias
        else:
            matrix, value = ball(np.eye(len(lower))), ball(in_tokens(middle, first, shape))
        n, d = value.shape
        U = matrix * half
        rows = np.flatnonzero(U.mid.any(1))
        self.symbols = Symbols(U.mid[rows], rows // d)
        self.stages, self.back = list[Any](), list[int]()
        self.centres, self.slopes = [value.mid], [np.eye(n * d)[rows].reshape(-1, n, d)]
        self.rests = [raised(value.rad + U.rad.sum(1).reshape(n, d), len(lower))]
        self.remainders = [self.rests[0]]
        for step in steps:
            self._add(step)
        if any(mlp >= sum(isinstance(stage, ReLUsOnBox) for stage in self.stages) for mlp, _place in units):
            raise CannotCheck("the file names units of more layers of ReLUs than there are")

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
        if isinstance(stage, ReLUsOnBox) and not back:  # which act on every number alone
            found = raised(stage.sigmas * self.remainders[-1] + self.rests[-1], 2)
        else:
            found = self.by_ranges(ball(np.eye(n * d).reshape(-1, n, d))).reshape(n, d)
        self.remainders.append(found)

    def named(self, count: int) -> list[int]:
        """Return the numbers that enter the next ReLUs which a file names."""
        number = sum(isinstance(stage, ReLUsOnBox) for stage in self.stages)
        found = [place for mlp, place in self.units if mlp == number]
        if any(place >= count for place in found):
            raise CannotCheck(f"layer {number} of ReLUs has {count} units, and the file names others")
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


def written_out(steps: list[Any]) -> list[Any]:
    """Return steps with every MLP as a dense layer, an activation and another one."""
    found, ends = list[Any](), [0]  # how many steps there are before and behind each of the given ones
    for step in steps:
        parts = [step]
        if step.kind == "mlp":
            x = step.arrays
            up, down = (
                {name: x[key] for name, key in (("weight", part), ("bias", f"{part}_bias")) if key in x}
                for part in ("up", "down")
            )
            parts = [
                replace(step, kind="dense", settings={}, arrays=up),
                replace(step, kind="pointwise", arrays={}),
                replace(step, kind="dense", settings={}, arrays=down),
            ]
        ends.append(ends[-1] + len(parts))
        back = step.settings.get("residual", 0)
        if type(back) is not int or not 0 <= back < len(ends):
            raise CannotCheck(f"no step has the input that a residual connection over {back} steps adds")
        span = ends[-1] - ends[-1 - back]
        found += [replace(part, settings={**part.settings, "residual": 0}) for part in parts[:-1]]
        found.append(replace(parts[-1], settings={**parts[-1].settings, "residual": span}))
    return found
