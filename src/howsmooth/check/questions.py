r"""Properties, read by the checker itself, and whether a claim is about them.

A file in VNN-LIB, version 1 or 2, is multiplied out into cases, each a list of rows :math:`\sum_ka_kX_k+\sum_kc_kY_k+b`
that are at least zero together, or above it where a row is strict. Its numbers are the nearest floats, and what is
computed with them is exact. A claim that :math:`\sum_kA_kY_k\ge B` holds nowhere on a box excludes a case whose box
lies in this one and of which a row is :math:`\sum_kc_kY_k\ge b` with :math:`c=tA`, :math:`t>0` and :math:`tB\le b`.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from howsmooth.check.balls import BallArray
from howsmooth.check.outcomes import CannotCheck, listed, numbers

MOST_CASES, DEEPEST = 10_000, 100
Sum = dict[tuple[str, int], Fraction]  # the coefficients of X_k and Y_k, and of ("", 0) what has no name
ONE = ("", 0)
SIGNS = {">=": (1, False), ">": (1, True), "<=": (-1, False), "<": (-1, True)}
# What other solvers are told, and says nothing about the network.
SILENT = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit", "vnnlib-version", "declare-network")


@dataclass(frozen=True)
class Row:
    """A sum that is at least zero, or above it."""

    terms: Sum
    strict: bool = False

    def of(self, name: str) -> dict[int, Fraction]:
        """Return the coefficients of the variables of one name that count."""
        return {k: c for (kind, k), c in self.terms.items() if kind == name and c}

    def holds(self, x: list[float], low: list[float], high: list[float]) -> bool:
        """Tell whether it holds at inputs, for all outputs between two."""
        ends = [(c, (low if c > 0 else high)[k]) for k, c in self.of("Y").items()]
        ends += [(c, x[k]) for k, c in self.of("X").items()]
        if not all(math.isfinite(end) for _c, end in ends):
            return False
        found = self.terms.get(ONE, Fraction(0)) + sum(c * Fraction(end) for c, end in ends)
        return found > 0 or (found == 0 and not self.strict)


def cases_of(asked: Any) -> tuple[list[Row], list[list[Row]]]:
    """Return the rows of all cases of a property, and of each case what comes to them.

    Args:
        asked: A file in VNN-LIB; or a box with ends ``lower`` and ``upper``, with ``unsafe`` pairs of A and b and
            truth values ``strict``, or none of these.
    """
    if isinstance(asked, str | Path):
        return _of_text(Path(asked))
    sides = ((sign, side.flatten().tolist()) for sign, side in ((1, asked.lower), (-1, asked.upper)))
    box = [Row({("X", k): Fraction(s), ONE: -s * Fraction(x)}) for s, side in sides for k, x in enumerate(side)]
    strict = asked.strict or [[False] * len(b) for _A, b in asked.unsafe]
    cases = []
    for (A, b), which in zip(asked.unsafe, strict, strict=True):
        rows = zip(A.tolist(), b.tolist(), which, strict=True)
        terms = (({("Y", k): Fraction(c) for k, c in enumerate(a)} | {ONE: -Fraction(x)}, more) for a, x, more in rows)
        cases.append([Row(sums, bool(more)) for sums, more in terms])
    return box, cases


def _of_text(path: Path) -> tuple[list[Row], list[list[Row]]]:
    try:
        forms = _forms(re.sub(r";[^\n]*", "", path.read_text(encoding="utf-8")))
        shapes: dict[str, tuple[str, list[int]]] = {}
        shared, cases, said = list[Row](), [list[Row]()], False
        for form in forms:
            if form[0] == "assert" and len(form) == 2:
                either, said = _either(form[1], shapes), True
                if len(either) == 1:
                    shared += either[0]
                else:
                    cases = _both(cases, either)
            elif form[0] == "declare-network":
                for kind, name, _dtype, shape in form[2:]:
                    shapes[name] = {"declare-input": "X", "declare-output": "Y"}[kind], _places(shape)
            elif form[0] not in (*SILENT, "declare-const", "declare-fun"):
                raise CannotCheck(f"it has the form {str(form)[:40]}")
    except (OSError, LookupError, ValueError, TypeError, ArithmeticError, CannotCheck) as error:
        raise CannotCheck(f"the property {path.name} is not read: {error}") from error
    if not said:
        raise CannotCheck(f"the property {path.name} is not read: it holds no (assert …)")
    return shared, cases


def _forms(text: str) -> list[list[Any]]:
    """Return the lists at the top of a text."""
    stack: list[list[Any]] = [[]]
    for word in re.findall(r"[()]|[^\s()\[\]]*\[[^\]]*\]|[^\s()\[\]]+", text):
        if word == "(":
            stack.append([])
        elif word == ")" and len(stack) > 1:
            stack[-2].append(stack.pop())
        else:
            stack[-1].append(word)
        if len(stack) > DEEPEST:
            raise CannotCheck(f"it has more than {DEEPEST} parentheses inside each other")
    if len(stack) > 1 or not all(isinstance(form, list) and form for form in stack[0]):
        raise CannotCheck("its parentheses do not match, or words stand outside of them")
    return stack[0]


def _places(text: str) -> list[int]:
    return [int(k) for k in text.strip("[]").split(",") if k.strip()]


def _either(form: Any, shapes: dict[str, tuple[str, list[int]]]) -> list[list[Row]]:
    """Return a condition as cases: never of none, always of one without rows."""
    head, *parts = form
    if head == "or":
        return [rows for part in parts for rows in _either(part, shapes)]
    if head == "and":
        found: list[list[Row]] = [[]]
        for part in parts:
            found = _both(found, _either(part, shapes))
        return found
    sign, strict = SIGNS[head]
    left, right = (_sum(part, shapes) for part in parts)
    return [[Row(_added(left, sign, right, -sign), strict)]]


def _both(cases: list[list[Row]], others: list[list[Row]]) -> list[list[Row]]:
    if len(cases) * len(others) > MOST_CASES:
        raise CannotCheck(f"it has more than {MOST_CASES:,} cases")
    return [[*one, *other] for one in cases for other in others]


def _sum(form: Any, shapes: dict[str, tuple[str, list[int]]]) -> Sum:
    if isinstance(form, str):
        if named := re.fullmatch(r"([XY])_(\d{1,9})", form):
            return {(named[1], int(named[2])): Fraction(1)}
        if named := re.fullmatch(r"(\S+)(\[.*\])", form):
            kind, shape = shapes[named[1]]
            place = np.ravel_multi_index(_places(named[2]), shape)
            return {(kind, int(place)): Fraction(1)}
        return {ONE: Fraction(float(form))}
    head, *parts = form
    sums = [_sum(part, shapes) for part in parts]
    if head == "*" and len(sums) == 2:
        factor, other = sums if set(sums[0]) <= {ONE} else sums[::-1]
        if set(factor) <= {ONE}:
            return {key: c * factor[ONE] for key, c in other.items()}
    if head not in ("+", "-") or not sums:
        raise CannotCheck(f"it has the term {str(form)[:40]}")
    first = _added({}, 1, sums[0], 1 if head == "+" or len(sums) > 1 else -1)
    for other in sums[1:]:
        first = _added(first, 1, other, 1 if head == "+" else -1)
    return first


def _added(left: Sum, a: int, right: Sum, b: int) -> Sum:
    return {key: a * left.get(key, Fraction(0)) + b * right.get(key, Fraction(0)) for key in {**left, **right}}


def require_excluded(claim: dict[str, Any], asked: Any) -> None:
    """Check that a verdict excludes every case of a property.

    Raises:
        CannotCheck: With what it does not say.
    """
    ends = [[Fraction(x) for x in numbers(claim, name).ravel().tolist()] for name in ("lower", "upper")]
    proven = [(numbers(u, "A")[u["row"]].tolist(), numbers(u, "b").tolist()[u["row"]]) for u in listed(claim, "unsafe")]
    shared, cases = cases_of(asked)
    box, free = _box(shared), [row for row in shared if not row.of("X")]
    for case in cases:
        rows = [*free, *(row for row in case if not row.of("X"))]
        bounds = box if len(rows) == len(free) + len(case) else _box([*shared, *case])
        if bounds is None or any(not row.of("Y") and not row.holds([], [], []) for row in rows):
            continue  # it never holds
        for side, (name, own) in enumerate(zip((">=", "<="), ends, strict=True)):
            if set(bounds[side]) != set(range(len(own))):
                raise CannotCheck(f"{OTHER}: it has {len(own)} inputs, the property {name} of {len(bounds[side])}")
            outside = [k for k, x in bounds[side].items() if (x < own[k] if side == 0 else x > own[k])]
            if outside:
                k = min(outside)
                raise CannotCheck(
                    f"{OTHER}: it has X_{k} {name} {float(own[k])}, the property {float(bounds[side][k])}"
                )
        if not any(_implies(row, A, b) for row in rows for A, b in proven):
            said = " and ".join(inequality(row.of("Y"), -row.terms.get(ONE, Fraction(0))) for row in rows[:3])
            raise CannotCheck(f"{OTHER}: it does not exclude {said or 'all outputs'}")


OTHER = "the file proves another question"


def _box(rows: list[Row]) -> tuple[dict[int, Fraction], dict[int, Fraction]] | None:
    """Return the ends of all inputs that rows bound one by one; none if there are no such inputs."""
    ends: tuple[dict[int, Fraction], dict[int, Fraction]] = ({}, {})
    for row in rows:
        if len(terms := row.of("X")) == 1 and not row.of("Y"):
            ((k, c),) = terms.items()
            end, side, pick = -row.terms.get(ONE, Fraction(0)) / c, int(c < 0), min if c < 0 else max
            ends[side][k] = pick(ends[side].get(k, end), end)
    return None if any(ends[1].get(k, low) < low for k, low in ends[0].items()) else ends


def _implies(row: Row, A: list[float], b: float) -> bool:
    """Tell whether wherever a row holds, outputs have Ay ≥ b."""
    own, theirs = row.of("Y"), {k: Fraction(a) for k, a in enumerate(A) if a}
    if not theirs or set(own) != set(theirs):
        return False
    t, bound = next(own[k] / theirs[k] for k in theirs), -row.terms.get(ONE, Fraction(0))
    return t > 0 and all(own[k] == t * a for k, a in theirs.items()) and t * Fraction(b) <= bound


def require_case(claim: dict[str, Any], asked: Any, y: BallArray) -> None:
    """Check that an input and its output are a case of a property, or raise CannotCheck."""
    x = numbers(claim, "input").ravel().tolist()
    low, high = y.lower.ravel().tolist(), y.upper.ravel().tolist()
    try:
        shared, cases = cases_of(asked)
        held = any(all(row.holds(x, low, high) for row in [*shared, *case]) for case in cases)
    except IndexError as error:
        raise CannotCheck(f"{OTHER}: the property names inputs or outputs that the file does not have") from error
    if not held:
        raise CannotCheck(f"{OTHER}: its input and the output there are no case of the property")


def asked_of(claim: dict[str, Any]) -> tuple[str, ...]:
    """Return in words what a verdict or a counterexample is about, abbreviated where it is long."""
    lower, upper = (numbers(claim, name).ravel() for name in ("lower", "upper"))
    half = (upper - lower) / 2
    shown = [f"X_{k} in [{a:.6g}, {b:.6g}]" for k, (a, b) in enumerate(zip(lower[:3], upper, strict=False))]
    moved = "all of which move" if (half > 0).all() else f"of which {int((half > 0).sum()):,} move"
    more = f", and {len(lower) - 3:,} more" if len(lower) > 3 else ""
    box = f"{len(lower):,} inputs, {moved}, by {half.max():.6g} at most to either side: {', '.join(shown)}{more}"
    sets = [claim] if claim.get("kind") == "counterexample" else listed(claim, "unsafe")
    words = []
    for each in sets[:3]:
        A, b = numbers(each, "A"), numbers(each, "b")
        rows = [inequality(dict(enumerate(a)), c) for a, c in zip(A.tolist(), b.tolist(), strict=True)]
        words.append(" and ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else ""))
    others = f"; or one of {len(sets) - 3:,} more sets" if len(sets) > 3 else ""
    return box, f"unsafe: {'; or '.join(words)}{others}"


def inequality(coefficients: dict[int, Any], bound: Any) -> str:
    """Return an inequality of outputs in words, those that count for it first."""
    terms = sorted(((k, float(c)) for k, c in coefficients.items() if c), key=lambda term: (term[1] < 0, term[0]))
    parts = [("- " if c < 0 else "+ ") + ("" if abs(c) == 1 else f"{abs(c):.6g} ") + f"Y_{k}" for k, c in terms[:6]]
    left = " ".join(parts + ["+ …"] * (len(terms) > 6)).removeprefix("+ ") or "0"
    return f"{left} ≥ {float(bound):.6g}"
