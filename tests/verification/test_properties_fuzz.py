"""Random properties in VNN-LIB mean what an evaluator of their own says, or are refused in one sentence."""

import contextlib
import itertools
import os
import random
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import howsmooth as hs
from howsmooth.verification import Property, read_vnnlib, verify

PROPERTIES = int(os.environ.get("HOWSMOOTH_PROPERTIES", "400"))
# Of the second version of the language.
HEAD = """(vnnlib-version <2.0>)
(declare-network N (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
"""
COMPARISONS = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}
CLOSED = {"<": "<=", ">": ">="}


@contextlib.contextmanager
def small_memory():
    """Let whatever needs a gigabyte fail."""
    used = int(re.search(r"VmSize:\s*(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[1]) * 1024
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@dataclass(frozen=True)
class Formula:
    """A term or a condition: its head, and its parts; of variables a name and a number, of constants a number."""

    head: str
    parts: tuple

    def value(self, point, *, closed):
        """Return the truth at inputs and outputs, or the number; closed is with the ends of strict inequalities."""
        if self.head in ("X", "Y"):
            return point[self.head][self.parts[0]]
        if self.head == "constant":
            return self.parts[0]
        found = [part.value(point, closed=closed) for part in self.parts]
        if self.head in COMPARISONS:
            return COMPARISONS[CLOSED.get(self.head, self.head) if closed else self.head](*found)
        if self.head == "and":
            return all(found)
        if self.head == "or":
            return any(found)
        if self.head == "*":
            return found[0] * found[1]
        if self.head == "-":
            return found[0] - sum(found[1:]) if len(found) > 1 else -found[0]
        return sum(found)

    def leaves(self):
        if self.head in ("X", "Y"):
            yield self.head
        elif self.head != "constant":
            for part in self.parts:
                yield from part.leaves()

    def text(self, rng, second):
        """Write it in the first or the second version of the language."""
        if self.head in ("X", "Y"):
            return f"{self.head}[0,{self.parts[0]}]" if second else f"{self.head}_{self.parts[0]}"
        if self.head == "constant":
            c = float(self.parts[0])
            ways = [str(c)] if second else [str(c), f"{c:.2e}", *([str(int(c))] if c == int(c) else []), f"{c:.3f}"]
            return rng.choice(ways)
        space = rng.choice((" ", "  ", "\n", "\t", " ; a comment (\n"))
        return f"({self.head}{space}{space.join(part.text(rng, second) for part in self.parts)})"


def constant(rng):
    return Formula("constant", (rng.randint(-12, 12) / 4,))


def term(rng, names, depth=0):
    """Draw a linear term."""
    kind = rng.random()
    if kind < 0.5 or depth > 2:
        return Formula(rng.choice(names), (rng.randrange(2),))
    if kind < 0.6:
        return constant(rng)
    if kind < 0.75:
        pair = [constant(rng), term(rng, names, depth + 1)]
        rng.shuffle(pair)
        return Formula("*", tuple(pair))
    parts = tuple(term(rng, names, depth + 1) for _ in range(rng.randint(2, 3)))
    return Formula(rng.choice("+-"), parts)


def condition(rng, names, empty, depth=0):
    """Draw a condition; of the empty ones only where they are wanted."""
    if rng.random() < 0.45 + 0.2 * depth:
        sides = [term(rng, names), constant(rng) if rng.random() < 0.6 else term(rng, names)]
        rng.shuffle(sides)
        return Formula(rng.choice(tuple(COMPARISONS)), tuple(sides))
    count = rng.randint(0 if empty else 1, 3)
    return Formula(rng.choice(("and", "or")), tuple(condition(rng, names, empty, depth + 1) for _ in range(count)))


def box(rng):
    """Draw bounds of two inputs, in whatever order and form."""
    bounds = []
    for k in range(2):
        low = rng.randint(-8, 4) / 4
        for head, turned, c in ((">=", "<=", low), ("<=", ">=", low + rng.randint(0, 8) / 4)):
            x, number = Formula("X", (k,)), Formula("constant", (c,))
            if rng.random() < 0.2:
                x, number = Formula("*", (Formula("constant", (2.0,)), x)), Formula("constant", (2 * c,))
            bounds.append(Formula(head, (x, number)) if rng.random() < 0.7 else Formula(turned, (number, x)))
            if rng.random() < 0.1:
                bounds.append(bounds[-1])
    rng.shuffle(bounds)
    return [Formula("and", tuple(bounds))] if rng.random() < 0.2 else bounds


def written(rng, asserted, second=False):
    """Return a file."""
    declared = [f"(declare-const {name}_{k} Real)" for name in "XY" for k in range(2)]
    lines = [f"(assert {each.text(rng, second)})" for each in asserted]
    return (HEAD if second else "\n".join(declared) + "\n") + rng.choice(("\n", " ", "\n; (assert (\n")).join(lines)


def points(rng, lower, upper):
    """Yield inputs inside and outside of a box with outputs, all of them few quarters, so that ends are met."""
    for _ in range(60):
        x = [rng.choice((low, high, (low + high) / 2)) for low, high in zip(lower, upper, strict=True)]
        yield True, {"X": x, "Y": [rng.randint(-16, 16) / 4 for _ in range(2)]}
        k = rng.randrange(2)
        x[k] = rng.choice((lower[k] - 0.25, upper[k] + 0.25))
        yield False, {"X": x, "Y": [rng.randint(-16, 16) / 4 for _ in range(2)]}


def holds(asserted, point, *, closed):
    return all(each.value(point, closed=closed) for each in asserted)


def unsafe(wanted, y):
    """Say whether an output lies in an unsafe set, with its ends."""
    return any(bool((A @ torch.tensor(y, dtype=torch.float64) >= b).all()) for A, b in wanted.unsafe)


def read(tmp_path, text):
    """Return the property, or the refusal; nothing else may happen."""
    path = tmp_path / "p.vnnlib"
    path.write_text(text, encoding="utf-8")
    try:
        with small_memory():
            found = read_vnnlib(path)
    except hs.errors.HowsmoothError as error:
        found = error
    assert isinstance(found, Property) or "\n" not in str(found), text
    assert isinstance(found, Property) or len(str(found)) < 500, text
    return found


def check(asserted, found, text, rng):
    """Compare what was read with the formula; return whether some output is unsafe."""
    if isinstance(found, Exception):
        return False
    lower, upper = found.lower.tolist(), found.upper.tolist()
    met = False
    for inside, point in points(rng, lower, upper):
        truth = holds(asserted, point, closed=True)
        met |= truth
        assert truth == (inside and unsafe(found, point["Y"])), (text, point)
        if hasattr(found, "violated_by") and inside:
            y = torch.tensor(point["Y"], dtype=torch.float64)
            assert found.violated_by(y) == holds(asserted, point, closed=False), (text, point)
    return met


@pytest.mark.parametrize("seed", range(0, PROPERTIES, 50))
def test_a_random_property_means_what_its_formula_says(seed, tmp_path):
    refused = 0
    for number in range(seed, seed + 50):
        rng = random.Random(number)
        second = number % 4 == 3
        if second:
            pytest.importorskip("vnnlib")
        bounds = box(rng)
        asserted = [*bounds, *(condition(rng, ["Y"], not second) for _ in range(rng.randint(1, 3)))]
        rng.shuffle(asserted)
        text = written(rng, asserted, second)
        found = read(tmp_path, text)
        check(asserted, found, text, rng)
        if isinstance(found, Exception):  # there is nothing unsafe
            refused += 1
            for _ in range(200):
                point = {"X": None, "Y": [rng.randint(-16, 16) / 4 for _ in range(2)]}
                of_outputs = [each for each in asserted if each not in bounds]
                assert not holds(of_outputs, point, closed=False), (text, found)
    assert refused < 25


@pytest.mark.parametrize("seed", range(0, PROPERTIES, 50))
def test_conditions_on_inputs_and_outputs_are_read_as_they_are_or_refused(seed, tmp_path):
    for number in range(seed, seed + 50):
        rng = random.Random(f"mixed {number}")
        second = number % 4 == 3
        bounds = [] if rng.random() < 0.1 else box(rng)
        asserted = [*bounds, *(condition(rng, ["X", "Y", "Y"], not second) for _ in range(rng.randint(1, 3)))]
        rng.shuffle(asserted)
        text = written(rng, asserted, second)
        found = read(tmp_path, text)
        if isinstance(found, Exception):
            continue
        check(asserted, found, text, rng)


NASTY = (
    "(",
    ")",
    "()",
    "(assert)",
    "(assert ())",
    "and",
    "or",
    "not",
    "=>",
    "=",
    "<=",
    "Y_7",
    "Y_01",
    "Y_-1",
    "Y_",
    "_0",
    "X_9",
    "Y_99999999999",
    "X_99999999999",
    "1e999",
    "-1e999",
    "nan",
    "inf",
    "1_000",
    "0x10",
    "1/3",
    "--1",
    "+1",
    "٣",
    "Y_٣",
    "(- 1)",
    "(*)",
    "(+)",
    "(-)",
    "(* Y_0 Y_1)",
    "(or)",
    "(and)",
    "(>= Y_0)",
    "(>= Y_0 1 2)",
    "true",
    "(not (>= Y_0 1))",
    "(let ((a 1)) a)",
    "|Y_0|",
    '"Y_0"',
    "\x00",
    "\ufeff",
    "(declare-const Y_5 Real)",
    "(declare-const Y_0 Int)",
    "(declare-const Z_0 Real)",
    "(declare-fun Y_0 () Real)",
    "(declare-const)",
    "(declare-const ())",
    "(check-sat)",
    "(exit)",
    "(set-logic QF_LRA)",
    "(define-fun f () Real 1)",
    "(vnnlib-version <2.0>)",
    "(declare-network N)",
    ";",
)


@pytest.mark.parametrize("seed", range(0, PROPERTIES, 50))
def test_a_damaged_property_is_refused_in_a_sentence_or_still_a_property(seed, tmp_path):
    for number in range(seed, seed + 50):
        rng = random.Random(f"damaged {number}")
        second = number % 4 == 3
        text = written(rng, [*box(rng), condition(rng, ["Y"], not second)], second)
        words = re.findall(r"[()]|[^\s()]+|\s+", text)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(words))
            words[place : place + rng.randint(0, 2)] = [rng.choice(NASTY)] if rng.random() < 0.7 else []
        found = read(tmp_path, "".join(words))
        assert isinstance(found, Property | Exception)


DECLARED = "".join(f"(declare-const {name}_{k} Real)\n" for name in "XY" for k in range(2))
BOX = "".join(f"(assert (>= X_{k} 0))(assert (<= X_{k} 1))\n" for k in range(2))
# What all outputs, and none, are.
ALL = (
    "(or (and) (>= Y_0 5))",
    "(and)",
    "(and (and) (and))",
    "(or (or) (and))",
    "(or (and (>= Y_0 0)) (and (<= Y_0 0)))",
    "(>= 1 0)",
    "(<= (* 0 Y_0) 0)",
    "(and (or (and)) (>= Y_0 Y_0))",
)
NONE = ("(or)", "(and (or) (>= Y_0 5))", "(or (or) (and (or)))", "(>= 0 1)", "(< Y_0 Y_0)", "(and (>= Y_0 1) (or))")


def second_version(text):
    """Write variables and numbers as the second version of the language does."""
    return re.sub(r"([XY])_(\d)", r"\1[0,\2]", re.sub(r" (\d)\)", r" \1.0)", text))


@pytest.mark.parametrize("formula", ALL)
def test_a_condition_that_always_holds_makes_all_outputs_unsafe(formula, tmp_path):
    found = read(tmp_path, DECLARED + BOX + f"(assert {formula})")
    assert isinstance(found, Property)
    assert all(unsafe(found, [a, b]) for a, b in itertools.product((-1e9, -3.0, 0.0, 3.0, 1e9), repeat=2))
    assert verify(identity(), found).status == "falsified"


@pytest.mark.parametrize("formula", NONE)
def test_a_condition_that_never_holds_is_refused_or_never_falsified(formula, tmp_path):
    found = read(tmp_path, DECLARED + BOX + f"(assert {formula})")
    if isinstance(found, Property):
        assert verify(identity(), found).status != "falsified"


def identity():
    """Two inputs that are the outputs."""
    weight = torch.eye(2, dtype=torch.float64)[None, :, None]
    return hs.maps.Chain(
        hs.maps.Affine(weight=weight, bias=torch.zeros(1, 2, dtype=torch.float64)),
        hs.maps.Residual(
            hs.maps.MLP(up=torch.ones(1, 2).double(), down=torch.zeros(2, 1).double(), activation="relu"),
        ),
    )


@pytest.mark.parametrize(
    ("strict", "closed"),
    [
        ("(< Y_0 0)", "(<= Y_0 0)"),
        ("(> Y_1 1)", "(>= Y_1 1)"),
        ("(and (< Y_0 Y_1) (> Y_0 1))", "(and (<= Y_0 Y_1) (>= Y_0 1))"),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_the_end_of_a_strict_inequality_is_safe(strict, closed, second, tmp_path):
    found, statuses = {}, {}
    for name, formula in (("strict", strict), ("closed", closed)):
        text = DECLARED + BOX + f"(assert {formula})"
        if second:
            pytest.importorskip("vnnlib")
            text = HEAD + second_version(BOX + f"(assert {formula})")
        found[name] = read(tmp_path, text)
        assert isinstance(found[name], Property)
        statuses[name] = verify(identity(), found[name]).status
    assert statuses["strict"] in ("proven", "unknown")
    assert statuses["closed"] == "falsified"


REFUSED = (
    "(assert)",
    "(assert ())",
    "(assert (()))",
    "(assert (>= Y_7 1))",
    "(assert (>= Y_2 1))",
    "(assert (>= Y_99999999999 1))",
    "(assert (>= Y_-1 1))",
    "(assert (>= Y_01 1))",
    "(assert (>= Y_ 1))",
    "(assert (>= Z_0 1))",
    "(assert (>= Y_0 X_0))",
    "(assert (or (>= X_0 1) (>= Y_0 1)))",
    "(assert (or (and (<= X_0 0.5) (>= Y_0 1)) (and (>= X_0 0.5) (>= Y_0 2))))",
    "(assert (>= Y_0 1e999))",
    "(assert (>= Y_0 nan))",
    "(assert (= Y_0 1))",
    "(assert (not (>= Y_0 1)))",
    "(assert Y_0)",
    "(assert (>= X_5 0))(assert (>= Y_0 1))",
    "(assert (>= X_99999999999 0))(assert (<= X_99999999999 1))(assert (>= Y_0 1))",
    "(assert (* Y_0 Y_1))",
    "(assert (>= (* Y_0 Y_1) 1))",
    "(assert (>= Y_0 1) (>= Y_1 1))",
    "(assert (>= X_0 2))(assert (>= Y_0 1))",
    "(declare-const Y_9 Real)(assert (>= Y_9 1))",
    "(declare-const X_9 Real)(assert (>= Y_0 1))",
    "",
    "(assert (>= Y_0 1)",
    "(assert (>= Y_0 1)))",
    "(assert (>= (+) 1))",
    "(assert (>= Y_0 one))",
    "(assert (xor (>= Y_0 1) (>= Y_1 1)))",
)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_property_is_refused_in_a_sentence(text, tmp_path):
    assert isinstance(read(tmp_path, DECLARED + BOX + text), Exception)


@pytest.mark.parametrize("depth", [50, 5_000, 200_000])
@pytest.mark.parametrize("inside", ["(and {})", "(or {})", "(or (and) {})", "({})"])
def test_many_parentheses_are_read_or_refused(inside, depth, tmp_path):
    before, after = inside.split("{}")
    formula = before * depth + "(>= Y_0 5)" + after * depth
    found = read(tmp_path, DECLARED + BOX + f"(assert {formula})")
    assert depth > 50 or inside == "({})" or isinstance(found, Property)
    if isinstance(found, Property):
        assert unsafe(found, [0.0, 0.0]) == ("(and)" in inside)
    assert isinstance(read(tmp_path, DECLARED + BOX + "(assert " + "(" * depth), Exception)
    assert isinstance(read(tmp_path, DECLARED + BOX + "(assert " + ")" * depth), Exception)
    terms = "(- " * depth + "Y_0" + ")" * depth
    found = read(tmp_path, DECLARED + BOX + f"(assert (>= {terms} 5))")
    if isinstance(found, Property):
        assert unsafe(found, [5.0, 0.0]) == (depth % 2 == 0)


def multiplied(alternatives):
    return f"(assert (and {' '.join(alternatives * ['(or (>= Y_0 1) (>= Y_1 2))'])}))"


@pytest.mark.parametrize("second", [False, True])
def test_alternatives_that_multiply_are_read(second, tmp_path):
    text = BOX + multiplied(3)
    found = read(tmp_path, HEAD + second_version(text) if second else DECLARED + text)
    assert isinstance(found, Property)
    values = [(0.0, 0.0), (1.0, 0.0), (0.0, 2.0), (0.9, 1.9)]
    assert [unsafe(found, y) for y in values] == [False, True, True, False]


READ = """
import sys
sys.path.insert(0, sys.argv[2])
from verification.test_properties_fuzz import read
print(type(read(__import__("pathlib").Path(sys.argv[1]), sys.stdin.read())).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True])
def test_alternatives_that_multiply_beyond_all_memory_are_refused(second, tmp_path):
    text = BOX + multiplied(40)
    text = HEAD + second_version(text) if second else DECLARED + text
    # a process of its own: one without memory may take others with it
    arguments = [sys.executable, "-c", READ, str(tmp_path), str(Path(__file__).parents[1])]
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() in ("FileError", "Property"), done.stderr[-1000:]
