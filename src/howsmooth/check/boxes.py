r"""Verdicts, checked: no input of a box has an unsafe output, by the lines and leaves of Theorem 16."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from howsmooth.check.balls import Array, BallArray, ball, raised
from howsmooth.check.box_models import BoxModel
from howsmooth.check.box_steps import ReLUsOnBox
from howsmooth.check.counterexamples import forward
from howsmooth.check.graph import Graph, runtime
from howsmooth.check.graph_steps import steps_of_graph
from howsmooth.check.outcomes import CannotCheck, Refuted, listed, number, numbers

# How many corners a reading is compared at, and by what share of the margin onnxruntime's rounding may change it.
CORNERS, SHARE = 4, 0.1


def check_verdict(steps: list[Any], claim: dict[str, Any]) -> None:
    r"""Check that of every unsafe set :math:`Ay\ge b` one inequality fails at every input of the box.

    Raises:
        Refuted: With the number of an unsafe set whose leaves are not all of the box, or not proven.
        CannotCheck: If shapes do not fit, or a step is not known here.
    """
    lower, upper, level, units = numbers(claim, "lower"), numbers(claim, "upper"), claim.get("level"), _units(claim)
    if lower.shape != upper.shape or type(level) is not int or level not in (0, 1, 2):
        raise CannotCheck("a verdict has two ends of a box, one number for each input, and the level 0, 1 or 2")
    if not (lower <= upper).all():
        raise CannotCheck("the box is empty: a lower end exceeds the upper one")
    wanted = [_unsafe(outputs, len(units)) for outputs in listed(claim, "unsafe")]
    model = BoxModel(steps, lower, upper, units, level)
    if any(A.shape[1] != model.centres[-1].size for A, _b, _leaves in wanted):
        raise CannotCheck("A has a column for every output")
    functionals = -np.concatenate([A for A, _b, _leaves in wanted]).reshape(len(wanted), *model.centres[-1].shape)
    _above, beyond = model.by_forms(ball(functionals))
    for k, (A, b, leaves) in enumerate(wanted):
        if not covers([leaf.sides for leaf in leaves]):
            raise Refuted(k, "the leaves are not all of the box")
        constant = (ball(-A) @ model.centres[-1].reshape(-1, 1)).reshape(1) + b - ball(beyond[k])
        slope = ball(model.slopes[-1].reshape(-1, A.size)) @ -A[0]
        found = lower_bounds(model, slope, constant, leaves)
        if not (found > 0).all():
            raise Refuted(k, f"unsafe outputs are not excluded: a leaf has a margin of {float(np.min(found))}")


def check_graph_verdict(graph: Graph, claim: dict[str, Any]) -> bool:
    """Check a verdict on a network in a file; and at the centre of the box and at corners of it, how the file was read.

    There the steps that were read, the nodes of the file in ball arithmetic and, if it runs there, onnxruntime put out
    the same, and nothing that is unsafe.

    Returns:
        Whether onnxruntime ran.

    Raises:
        Refuted: As :func:`check_verdict` does, or with an unsafe set which an output is not proven to stay out of.
        CannotCheck: If a node is not read, or the three do not agree.
    """
    steps, (lower, upper) = steps_of_graph(graph), (numbers(claim, name).ravel() for name in ("lower", "upper"))
    A, b = (np.concatenate(parts) for parts in zip(*map(_row, listed(claim, "unsafe")), strict=True))
    sides = np.random.default_rng(0).integers(0, 2, (CORNERS, len(lower))).astype(bool)
    run, room = runtime(graph.path), None
    for x in (lower + (upper - lower) / 2, *np.where(sides, upper, lower)):
        read, raw = forward(steps, ball(x)).reshape(-1), graph.evaluate(x)
        if not (np.abs(read.mid - raw.mid) <= raised(read.rad + raw.rad)).all():
            raise CannotCheck("the steps that were read put out something else than the nodes of the file")
        margins = ball(b) - (ball(A) @ raw.reshape(-1, 1)).reshape(-1)
        left = np.minimum(margins.lower, (ball(b) - (ball(A) @ read.reshape(-1, 1)).reshape(-1)).lower)
        if not (left > 0).all():
            k = int(np.argmax(~(left > 0)))
            raise Refuted(k, f"at a point of the box the output is not proven to be safe: {left[k]:.6g} is left")
        room = margins.mid if room is None else room
        if run is not None and not ((apart := np.abs(A @ (run(x) - raw.mid))) <= SHARE * room).all():
            k = int(np.argmax(apart / room))
            raise CannotCheck(
                f"onnxruntime puts out something else than the nodes in real arithmetic: {apart[k]:.3g} of a margin of "
                f"{room[k]:.3g} at the centre"
            )
    check_verdict(steps, claim)
    return run is not None


@dataclass(frozen=True)
class Leaf:
    """A part of the box, by the sides of units, 1 or -1, with multipliers; and slopes of lines below ReLUs."""

    sides: dict[int, int]
    multipliers: dict[int, float]
    slopes: Array | None

    @classmethod
    def of(cls, fields: dict[str, Any], count: int) -> "Leaf":
        """Read what a file has, for so many units."""
        sides, multipliers = dict[int, int](), dict[int, float]()
        given = fields.get("sides", [])
        for side in given if isinstance(given, list) else [given]:
            unit, sign, multiplier = side if isinstance(side, list) and len(side) == 3 else (None, None, None)
            if type(unit) is not int or not 0 <= unit < count or unit in sides or sign not in (1, -1):
                raise CannotCheck("a side is a unit, each once, 1 or -1, and a multiplier")
            sides[unit], multipliers[unit] = int(sign), number({"multiplier": multiplier}, "multiplier")
        slopes = numbers(fields, "alpha") if "alpha" in fields else None
        if slopes is not None and (slopes.shape != (count,) or not ((slopes >= 0) & (slopes <= 1)).all()):
            raise CannotCheck("alpha has a slope between 0 and 1 for every unit")
        if not all(x >= 0 for x in multipliers.values()):
            raise CannotCheck("multipliers are not negative")
        return cls(sides, multipliers, slopes)


def covers(parts: list[dict[int, int]]) -> bool:
    """Tell whether parts, each where some units have the given signs, are everything, as the leaves of a tree are."""
    left = [parts]
    while left:
        together = left.pop()
        if together and not all(together):  # one has no condition left
            continue
        shared = set.intersection(*map(set, together)) if together else set()
        if not shared:
            return False
        unit = min(shared)  # of the root, if this is a tree; any other one that all have divides it as well
        for sign in (1, -1):
            left.append([{u: s for u, s in part.items() if u != unit} for part in together if part[unit] == sign])
    return True


def lower_bounds(model: BoxModel, slope: BallArray, constant: BallArray, leaves: list[Leaf]) -> Array:
    """Bound a constant and a linear function of the symbols from below on every leaf, one MLP after the other."""
    symbols, count = model.symbols, len(leaves)
    coefficients = np.tile(slope.mid, (count, 1))
    lost = np.full(count, symbols.sums(slope.rad))
    for mlp, stage in reversed(list(enumerate(x for x in model.stages if isinstance(x, ReLUsOnBox)))):
        own = [(k, int(np.searchsorted(stage.places, place))) for k, (m, place) in enumerate(model.units) if m == mlp]
        lines = np.tile(stage.sigma, (count, 1))
        sides, multipliers = np.zeros((2, *lines.shape))
        for row, leaf in enumerate(leaves):
            for k, place in own:
                if leaf.slopes is not None and stage.half[place] > 0:
                    lines[row, place] = leaf.slopes[k]
                if k in leaf.sides:
                    sides[row, place], multipliers[row, place] = leaf.sides[k], leaf.multipliers[k]
                    lines[row, place] = sides[row, place] > 0
        a, free = coefficients[:, stage.symbols], sides == 0
        # η + g is relu(y) - σy: at least that of the line, at most 2g, and on its side that of the line
        theta = ball(a * ~(free & (a <= 0))) * (ball(lines) - stage.sigma) - sides * multipliers
        lost = lost + theta.rad @ stage.size
        t = ball(theta.mid)
        constant = constant - (ball(np.where(free, np.abs(a), a)) * stage.half).sum()
        constant = constant + (t * stage.middle).sum() - (ball(np.abs(t.mid)) * stage.beyond).sum()
        moved = t @ stage.rows.T + coefficients[:, : len(stage.rows)]
        coefficients, lost = moved.mid, lost + symbols.sums(moved.rad.T)
    linear = raised(symbols.ranges(ball(coefficients.T)) + lost, 4 * len(model.stages))
    return (constant - linear).lower


def _row(outputs: dict[str, Any]) -> tuple[Array, Array]:
    """Return the inequality that fails, as a matrix of one row and a number."""
    A, b, row = numbers(outputs, "A"), numbers(outputs, "b"), outputs.get("row")
    if A.ndim != 2 or b.shape != A.shape[:1] or type(row) is not int or not 0 <= row < len(b):
        raise CannotCheck("of an unsafe set, A has a row for every number of b, and row is one of them")
    return A[[row]], b[[row]]


def _unsafe(outputs: dict[str, Any], count: int) -> tuple[Array, Array, list[Leaf]]:
    """Return the inequality that fails, and the leaves."""
    return *_row(outputs), [Leaf.of(leaf, count) for leaf in listed(outputs, "leaves")]


def _units(claim: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the units that leaves name, each the number of an MLP and a place."""
    found = claim.get("units")
    if not isinstance(found, list):
        raise CannotCheck("units must be a list of pairs")
    for unit in found:
        if not isinstance(unit, list) or len(unit) != 2 or not all(type(x) is int and x >= 0 for x in unit):
            raise CannotCheck("a unit is the number of an MLP and a place")
    units = [(mlp, place) for mlp, place in found]
    if len(set(units)) < len(units):
        raise CannotCheck("units must differ")
    return units
