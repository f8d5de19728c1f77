r"""Mutation testing of the bounds: change one expression at a time, and a test of that part of the library must fail.

``python tools/mutants.py`` judges every mutant of ``theory/``, ``certificates/``, ``verification/``, ``metrics.py`` and
three files of ``spectral/``, or of the files that are named. Mutations are made on the syntax tree: a summand is
dropped or halved, a product or a returned value halved, a maximum replaced by one of its arguments, a comparison
negated or relaxed, an allowance for rounding errors left out, a square, a root or an absolute value left out.

One process collects the tests. A fork of it runs each of them once and records the lines that it executes; then every
mutant has a fork of its own, in which the code of live functions is exchanged and the tests run that reach the changed
lines, quickest first, until one fails. Results are kept in ``.mutants/``: a killed mutant is judged anew once its
function or the test that killed it has changed, a survivor is given the tests that it has not met.

Survivors that are accepted are listed in ``tests/mutants_accepted.toml`` with a reason each; any other is an error.
"""

import argparse
import ast
import contextlib
import fnmatch
import functools
import gc
import hashlib
import importlib
import inspect
import itertools
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "howsmooth"
KEPT = ROOT / ".mutants"
ACCEPTED = ROOT / "tests" / "mutants_accepted.toml"
SAMPLE = ROOT / "tests" / "mutants_sample.json"
REPORT = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- written by tools/mutants.py -->", "<!-- end -->"
# The tests that judge a part of the package, and what they judge.
METRICS = ("tests/spectral/test_metric_definitions.py", "tests/spectral/test_metric_norms.py")
BRACKETS = ("tests/spectral/test_lanczos_upper_bound.py", *METRICS)
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "theory": (("tests/theory",), ("src/howsmooth/theory",)),
    "certificates": (("tests/certificates",), ("src/howsmooth/certificates",)),
    "verification": (("tests/verification", "tests/check/test_verdicts.py"), ("src/howsmooth/verification",)),
    "spectral": (
        BRACKETS,
        tuple(f"src/howsmooth/spectral/{name}.py" for name in ("lanczos_upper_bound", "metric_norms", "token_norm")),
    ),
    "metrics.py": (METRICS, ("src/howsmooth/metrics.py",)),
}
# Type checks and captured output cost time and kill no wrong bound.
PYTEST = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "console_output_style=none", "-o"]
PYTEST += ["addopts=--doctest-modules --strict-markers --import-mode=importlib"]

# ---------------------------------------------------------------------------------------------------- mutations

# Whose arguments are shapes or messages, not numbers.
SHAPES = re.compile(
    "range|arange|linspace|reshape|view|expand|zeros|ones|eye|empty|new_zeros|new_ones|new_empty|split|narrow|chunk|pad|"
    "flatten|unflatten|transpose|movedim|permute|unsqueeze|squeeze|isinstance|getattr|zip|enumerate|len"
)
SILENT = {"__repr__", "__str__", "_repr_html_", "__post_init__"}
LARGEST = {"max", "min", "amax", "amin"}
NEGATED = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
RELAXED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
# Functions that add an allowance for rounding errors, and what they would be without.
WIDENING = {
    "norm_upper": "__import__('howsmooth.theory.linalg.matrix_norms', fromlist=['matrix_norms']).matrix_norm",
    "coarse_norm": "__import__('howsmooth.theory.linalg.matrix_norms', fromlist=['matrix_norms']).matrix_norm",
}
ROUNDING_ERRORS = ("_product_error", "_rotation_error", "_lost", "lost")
NUMBERS = ("float", "Float[", "Tensor", "Array", "ndarray")


@dataclass(frozen=True, eq=False)
class Mutant:
    """One change: ``holder.field`` (``[index]`` of it, if a list) becomes ``new``."""

    identity: str
    file: str
    function: str
    source: str
    lines: range
    statement: ast.stmt
    holder: ast.AST
    field: str
    index: int | None
    new: ast.AST

    def put(self, node: ast.AST) -> ast.AST:
        """Put a node into the tree, and return what stood there."""
        old = getattr(self.holder, self.field)
        if self.index is None:
            setattr(self.holder, self.field, node)
            return old
        old[self.index], old = node, old[self.index]
        return old

    def texts(self) -> tuple[str, str]:
        """Return the statement as it is and as it would be."""
        before = ast.unparse(self.statement)
        old = self.put(self.new)
        after = ast.unparse(self.new if self.statement is old else self.statement)
        self.put(old)
        pairs = zip(before.splitlines(), after.splitlines(), strict=False)
        return next((pair for pair in pairs if pair[0] != pair[1]), (before, after))


class Finder(ast.NodeVisitor):
    """Find all mutants of a file."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(PACKAGE).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.found: list[Mutant] = []
        self._names: list[str] = []
        self._source = self._function = ""
        self._statement: ast.stmt = ast.Pass()
        self._times: Counter[str] = Counter()
        self._numbers = False
        self._roundings: set[str] = {"UNIT", "EPS"}
        self._place: tuple[ast.AST, str, int | None] = (self.tree, "body", 0)
        self.visit(self.tree)

    # where a node stands

    def generic_visit(self, node: ast.AST) -> None:
        """Visit all children, and remember where each stands."""
        for field, value in ast.iter_fields(node):
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    self._visit_at(child, node, field, index)

    def _visit_at(self, child: ast.AST, holder: ast.AST, field: str, index: int | None) -> None:
        self._place = (holder, field, index)
        outer = self._statement
        if isinstance(child, ast.stmt):
            self._statement = child
        self.visit(child)
        self._statement = outer

    def _add(self, kind: str, text: ast.AST | str, place: tuple[ast.AST, str, int | None], new: ast.AST) -> None:
        if not self._function:
            return
        said = text if isinstance(text, str) else ast.unparse(text)
        name = f"{self.file.removesuffix('.py').replace('/', '.')}.{self._function}: {kind}: {said}"
        self._times[name] += 1
        identity = name if self._times[name] == 1 else f"{name} #{self._times[name]}"
        holder, field, index = place
        old = getattr(holder, field) if index is None else getattr(holder, field)[index]
        lines = range(old.lineno, (old.end_lineno or old.lineno) + 1)
        ast.copy_location(new, old)
        ast.fix_missing_locations(new)
        self.found.append(
            Mutant(identity, self.file, self._function, self._source, lines, self._statement, *place, new)
        )

    # what is skipped

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for index, child in enumerate(node.body):
            self._visit_at(child, node, "body", index)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in SILENT or (node.returns is not None and ast.unparse(node.returns) == "str"):
            return
        outside = not self._function
        kept = self._function, self._source, self._numbers, self._roundings
        self._names.append(node.name)
        if outside:
            self._function, self._source = ".".join(self._names), _without_docstring(node)
        returns = "" if node.returns is None else ast.unparse(node.returns)
        self._numbers = returns.startswith(NUMBERS)
        self._roundings = self._roundings | _roundings(node, self._roundings)
        for index, child in enumerate(node.body):
            self._visit_at(child, node, "body", index)
        self._names.pop()
        self._function, self._source, self._numbers, self._roundings = kept

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self._function:
            self._visit_at(node.value, node, "value", None)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._visit_at(node.value, node, "value", None)

    def visit_If(self, node: ast.If) -> None:
        refuses = all(isinstance(child, ast.Raise) for child in node.body)
        if not refuses:
            self._visit_at(node.test, node, "test", None)
        for field in ("body", "orelse"):
            for index, child in enumerate(getattr(node, field)):
                self._visit_at(child, node, field, index)

    # mutations

    def visit_BinOp(self, node: ast.BinOp) -> None:
        place = self._place
        if isinstance(node.op, (ast.Add, ast.Sub)) and not _is_text(node):
            self._sum(node, place)
        elif isinstance(node.op, (ast.Mult, ast.Div, ast.MatMult)):
            inside_sum_or_product = isinstance(place[0], ast.BinOp) and isinstance(
                place[0].op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)
            )
            if self._is_rounding(node):
                if not inside_sum_or_product:
                    self._add("no rounding", node, place, _times(0.0, node))
                return
            if not inside_sum_or_product and not isinstance(place[0], ast.Return):
                self._add("halve", node, place, _times(0.5, node))
            if isinstance(node.op, ast.Mult):
                for side, other in ((node.left, node.right), (node.right, node.left)):
                    if isinstance(side, ast.Constant) and side.value not in (0.5, 1, 2):
                        self._add("drop factor", node, place, other)
        elif isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            self._add("drop condition", node.right, place, node.left)
            if not (isinstance(node.left, ast.BinOp) and type(node.left.op) is type(node.op)):
                self._add("drop condition", node.left, place, node.right)
        elif isinstance(node.op, ast.Pow):
            kind = "root" if isinstance(node.right, ast.Constant) and node.right.value in (0.5, -0.5) else "power"
            self._add(f"no {kind}", node, place, node.left)
        self.generic_visit(node)

    def _sum(self, node: ast.BinOp, place: tuple[ast.AST, str, int | None]) -> None:
        minus = isinstance(node.op, ast.Sub)
        if self._is_rounding(node.right):
            self._add("no rounding", node.right, place, node.left)
        else:
            self._add("drop", node.right, place, node.left)
            if not _is_number(node.right):
                self._add("halve", node.right, (node, "right", None), _times(0.5, node.right))
        if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, (ast.Add, ast.Sub)):
            return
        if self._is_rounding(node.left):
            self._add("no rounding", node.left, place, node.right)
        elif not self._is_rounding(node.right):
            self._add("drop", node.left, place, ast.UnaryOp(ast.USub(), node.right) if minus else node.right)
            if not _is_number(node.left):
                self._add("halve", node.left, (node, "left", None), _times(0.5, node.left))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            rounding = self._is_rounding(node.value)
            self._add("no rounding" if rounding else "drop", node, self._place, ast.Pass())
            if not rounding and not isinstance(node.value, ast.BinOp):  # of a product or a sum, parts are halved
                self._add("halve", node.value, (node, "value", None), _times(0.5, node.value))
        self._visit_at(node.value, node, "value", None)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value is None:
            return
        dull = isinstance(value, (ast.Constant, ast.Tuple, ast.Compare, ast.BoolOp, ast.ListComp, ast.UnaryOp))
        dull = dull or ast.unparse(value) in ("math.inf", "math.nan")
        if self._numbers and not dull and not self._is_rounding(value):
            self._add("halve result", value, (node, "value", None), _times(0.5, value))
        self._visit_at(value, node, "value", None)

    def visit_Compare(self, node: ast.Compare) -> None:
        place, sides = self._place, [node.left, *node.comparators]
        for i, op in enumerate(node.ops):
            if type(op) not in NEGATED or any(_is_string(side) for side in sides):
                continue
            text = ast.unparse(ast.Compare(sides[i], [op], [sides[i + 1]]))
            changes = {"negate": NEGATED[type(op)]}
            # two numbers that were computed are hardly ever equal
            if type(op) in RELAXED and any(_is_number(side) and _whole(side) for side in sides[i : i + 2]):
                changes["relax"] = RELAXED[type(op)]
            for kind, other in changes.items():
                ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                self._add(kind, text, place, ast.Compare(node.left, ops, node.comparators))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        place, called = self._place, node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if SHAPES.fullmatch(name) or name.endswith(("Error", "Warning")):
            if name in ("zip", "enumerate", "len"):
                self.generic_visit(node)
            return
        plain = isinstance(called, ast.Name) or (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id in ("torch", "math", "np")
        )
        args = node.args
        if plain and name in ("max", "min", "maximum", "minimum", "hypot", "fmax", "fmin") and len(args) > 1:
            for i, arg in enumerate(args):
                if not isinstance(arg, ast.Starred):
                    kind = "only" if len(args) == 2 else "without"
                    rest = [a for j, a in enumerate(args) if j != i]
                    new = arg if len(args) == 2 else ast.Call(called, rest, node.keywords)
                    self._add(f"{kind} {ast.unparse(arg)}", node, place, new)
        elif plain and name == "where" and len(args) == 3:
            self._add(f"only {ast.unparse(args[1])}", node, place, args[1])
            self._add(f"only {ast.unparse(args[2])}", node, place, args[2])
        elif plain and name in ("sqrt", "square", "abs", "cbrt", "nextafter") and args:
            self._add(f"no {name}", node, place, args[0])
        elif plain and name in WIDENING:
            self._add("no rounding", node, (node, "func", None), ast.parse(WIDENING[name], mode="eval").body)
        elif isinstance(called, ast.Attribute) and not plain:
            object_ = called.value
            if name in ("sqrt", "square", "abs", "clamp", "clamp_min", "clamp_max", "clip") and len(args) < 3:
                self._add(f"no {name}", node, place, object_)
            elif name in LARGEST and not node.keywords and len(args) < 2:
                first = "flatten()[0]" if not args else f"select({ast.unparse(args[0])}, 0)"
                if not args or isinstance(args[0], (ast.Constant, ast.UnaryOp)):
                    new = ast.parse(f"({ast.unparse(object_)}).{first}", mode="eval").body
                    self._add("first for", node, place, new)
        elif plain and self._is_rounding(node) and name in ROUNDING_ERRORS:
            self._add("no rounding", node, place, _times(0.0, node))
        for index, arg in enumerate(args):
            self._visit_at(arg, node, "args", index)
        self._visit_at(called, node, "func", None)
        for keyword in node.keywords:
            if keyword.arg not in ("dim", "keepdim", "dtype", "axis", "generator"):
                self._visit_at(keyword.value, keyword, "value", None)

    def _is_rounding(self, node: ast.expr) -> bool:
        return _is_rounding(node, self._roundings)


def _times(factor: float, node: ast.expr) -> ast.BinOp:
    return ast.BinOp(ast.Constant(factor), ast.Mult(), node)


def _is_number(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _whole(node: ast.expr) -> bool:
    return float(ast.literal_eval(node)).is_integer() and abs(ast.literal_eval(node)) < 1000


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _is_text(node: ast.expr) -> bool:
    return any(_is_string(x) for x in ast.walk(node) if isinstance(x, ast.expr))


def _is_rounding(node: ast.expr, names: set[str]) -> bool:
    """Say whether an expression is a multiple of the rounding unit."""

    def small(x: ast.expr) -> bool:
        return _is_rounding(x, names)

    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr == "eps" or node.attr in ("UNIT",)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Mult, ast.MatMult)):
            return small(node.left) or small(node.right)
        if isinstance(node.op, (ast.Div, ast.Pow)):
            return small(node.left)
        return isinstance(node.op, (ast.Add, ast.Sub)) and small(node.left) and small(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ROUNDING_ERRORS:
            return True
        return node.func.id == "float" and bool(node.args) and small(node.args[0])
    return False


def _roundings(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """Return the names in a function that are multiples of the rounding unit."""
    found = set(names)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            targets, values = [node.targets[0]], [node.value]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                targets, values = node.targets[0].elts, node.value.elts
            for target, value in zip(targets, values, strict=False):
                if isinstance(target, ast.Name) and _is_rounding(value, found):
                    found.add(target.id)
    return found


# -------------------------------------------------------------------------------------------------- live functions


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _key(code: CodeType) -> tuple[str, int, int]:
    first = next((p[2] or 0 for p in code.co_positions() if p[2] is not None), 0)
    return code.co_qualname, code.co_firstlineno, first if code.co_name == "<lambda>" else 0


def live_functions(files: Iterable[str]) -> dict[str, dict[tuple[str, int, int], list[FunctionType]]]:
    """Return all functions that exist, by file and by where their code begins."""
    paths = {str(PACKAGE / file): file for file in files}
    found: dict[str, dict[tuple[str, int, int], list[FunctionType]]] = defaultdict(lambda: defaultdict(list))
    for x in gc.get_objects():
        if type(x) is FunctionType and x.__code__.co_filename in paths:
            found[paths[x.__code__.co_filename]][_key(x.__code__)].append(x)
    return found


def exchange(mutant: Mutant, tree: ast.Module, live: dict[tuple[str, int, int], list[FunctionType]]) -> None:
    """Give live functions the code of a mutant."""
    mutant.put(mutant.new)
    exchanged = 0
    for code in _codes(compile(tree, str(PACKAGE / mutant.file), "exec", dont_inherit=True)):
        if code.co_qualname == mutant.function or code.co_qualname.startswith(mutant.function + "."):
            for function in live.get(_key(code), ()):
                function.__code__ = code
                exchanged += 1
    if not exchanged:
        raise LookupError("no live function has this code")


def _ours(cache: Any) -> bool:
    return str(getattr(cache, "__module__", "")).startswith("howsmooth")


# ---------------------------------------------------------------------------------------------------- judgement


def _hash(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


@functools.cache
def _file_hash(path: Path) -> str:
    return _hash(path.read_text(encoding="utf-8")) if path.exists() else ""


@functools.cache
def _item_hash(item: Any) -> str:
    """Name a test by what it is: its identity and its source."""
    function: Any = getattr(item, "function", None) or getattr(item, "obj", None)
    if hasattr(item, "dtest") and item.dtest is not None:
        return _hash(item.nodeid, item.dtest.docstring or "")
    with contextlib.suppress(OSError, TypeError):
        return _hash(item.nodeid, inspect.getsource(inspect.unwrap(function)))
    return _hash(item.nodeid, _file_hash(item.path))


def _run(item: Any, following: Any) -> bool:
    """Run one test, its marks about warnings obeyed; say whether it passes."""
    from _pytest.runner import runtestprotocol
    from _pytest.warnings import catch_warnings_for_item

    with catch_warnings_for_item(item.config, item.ihook, when="runtest", item=item):
        return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def _fork(task: Callable[[], Any], seconds: float) -> tuple[int, int]:
    """Run a task in a fork that may use so much processor time; its answer comes as JSON through a pipe."""
    reads, writes = os.pipe()
    child = os.fork()
    if child:
        os.close(writes)
        return child, reads
    try:
        os.close(reads)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.alarm(int(20 * seconds) + 60)  # what sleeps
        answer = json.dumps(task()).encode()
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(writes, json.dumps({"error": repr(error)[:300]}).encode())
        os._exit(1)


def in_parallel(
    tasks: Iterator[tuple[Any, Callable[[], Any], float]], jobs: int
) -> Iterator[tuple[Any, dict[str, Any] | list | None]]:
    """Run tasks in forks, so many at once; yield each with its answer, None where it came to no end."""
    running: dict[int, tuple[Any, int, bytearray]] = {}
    more = True
    while more or running:
        while more and len(running) < jobs:
            try:
                what, task, seconds = next(tasks)
            except StopIteration:
                more = False
                break
            child, pipe = _fork(task, seconds)
            running[pipe] = (what, child, bytearray())
        for pipe in select.select(list(running), [], [])[0] if running else []:
            what, child, answer = running[pipe]
            part = os.read(pipe, 1 << 16)
            answer += part
            if not part:
                os.close(pipe)
                _pid, _status, used = os.wait4(child, 0)
                del running[pipe]
                found = json.loads(answer) if answer else None
                if isinstance(found, dict) and "killer" in found:
                    found["seconds"] = round(used.ru_utime + used.ru_stime, 3)
                yield what, found


class Judge:
    """A plugin of pytest that runs mutants in place of the tests that were collected."""

    def __init__(self, options: argparse.Namespace, finders: dict[str, Finder], mutants: list[Mutant]) -> None:
        self.options, self.finders, self.mutants = options, finders, mutants
        self.results = {} if options.replay else _read_results()
        self.coverage: dict[str, dict[str, Any]] = {}
        self.items: list[Any] = []
        self.live: dict[str, dict[tuple[str, int, int], list[FunctionType]]] = {}
        self.caches: list[Any] = []

    def pytest_configure(self, config: Any) -> None:
        """Let hypothesis look for examples, but not for small ones."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants", settings.default, phases=phases, derandomize=True, deadline=None, report_multiple_bugs=False
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: Any) -> bool:
        """Judge all mutants."""
        self.items = session.items
        for name in self.finders:
            importlib.import_module(f"howsmooth.{name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}")
        gc.unfreeze()  # the tests freeze what they collected, and frozen objects are not seen
        gc.collect()
        self.live = live_functions(self.finders)
        # what was computed before is not taken for what a mutant computes
        self.caches = [x for x in gc.get_objects() if type(x) is functools._lru_cache_wrapper and _ours(x)]
        gc.freeze()  # the forks share these pages; from here on gc.get_objects does not see them
        if self.options.replay:
            self._judge(self._replayed())
            return True
        self._cover()
        self._judge(self._tasks())
        return True

    # lines

    def _cover(self) -> None:
        """Find the lines that every test executes, and its processor time; what is known already is not run again."""
        KEPT.mkdir(exist_ok=True)
        kept = KEPT / "coverage.json"
        known = json.loads(kept.read_text()) if kept.exists() and not self.options.fresh else {}
        new: dict[str, list[int]] = defaultdict(list)
        for i, item in enumerate(self.items):
            entry = known.get(item.nodeid)
            if entry and entry["test"] == _item_hash(item):
                self.coverage[item.nodeid] = entry
            else:
                new[str(item.path)].append(i)
        groups = list(new.values())
        if groups:
            _say(f"{sum(map(len, groups))} tests are run once to see which lines they execute")
        tasks = ((group, functools.partial(self._covered, group), 3600.0) for group in groups)
        for group, found in in_parallel(tasks, self.options.jobs):
            if not isinstance(found, dict) or "error" in found:
                _say(f"no lines known for {self.items[group[0]].path}: {found}")
                continue
            for nodeid, entry in found.items():
                if not entry["passed"]:
                    _say(f"left out, as it fails without a change: {nodeid}")
            self.coverage |= found
            _write(kept, json.dumps(known | self.coverage))

    def _covered(self, group: list[int]) -> dict[str, dict[str, Any]]:
        paths = {str(PACKAGE / file): file for file in _target_files()}
        lines: dict[str, set[int]] = defaultdict(set)

        def local(frame: FrameType, event: str, _arg: object) -> Any:
            if event == "line":
                lines[paths[frame.f_code.co_filename]].add(frame.f_lineno)
            return local

        def calls(frame: FrameType, _event: str, _arg: object) -> Any:
            return local if frame.f_code.co_filename in paths else None

        found = {}
        for i, following in itertools.zip_longest(group, group[1:]):
            item = self.items[i]
            lines.clear()
            sys.settrace(calls)
            begin = time.process_time()
            passed = _run(item, None if following is None else self.items[following])
            seconds = time.process_time() - begin
            sys.settrace(None)
            found[item.nodeid] = {
                "test": _item_hash(item),
                "passed": passed,
                "seconds": round(seconds, 3),
                "lines": {file: _by_function(file, each) for file, each in lines.items()},
            }
        return found

    # mutants

    def _tasks(self) -> Iterator[tuple[Mutant, list[int]]]:
        """Yield every mutant with the tests that it has to meet."""
        reach: dict[tuple[str, int], set[int]] = defaultdict(set)
        place = {item.nodeid: i for i, item in enumerate(self.items)}
        for nodeid, entry in self.coverage.items():
            if entry["passed"] and nodeid in place:
                for file, functions in entry["lines"].items():
                    for line in _lines_now(file, functions):
                        reach[file, line].add(place[nodeid])
        self.killers: dict[str, Counter[int]] = defaultdict(Counter)
        for mutant in self.mutants:
            killer = place.get(self.results.get(mutant.identity, {}).get("killer") or "")
            if killer is not None:
                self.killers[mutant.file + mutant.function][killer] += 1
                self.killers[mutant.file][killer] += 1
        listed = accepted()
        for mutant in self.mutants:
            meets = set().union(*(reach[mutant.file, line] for line in mutant.lines))
            if not meets:
                span = range(mutant.statement.lineno, (mutant.statement.end_lineno or 0) + 1)
                meets = set().union(*(reach[mutant.file, line] for line in span))
            earlier = self.results.get(mutant.identity, {})
            if earlier.get("function") != _hash(mutant.source) or self.options.fresh:
                earlier = {}
            killer = place.get(earlier.get("killer") or "")
            if earlier.get("killer"):
                elsewhere = killer is None and self.options.tests  # by a test that is not asked for now
                if elsewhere or (killer is not None and _item_hash(self.items[killer]) == earlier["test"]):
                    continue
                earlier = {}
            if earlier and _reason(mutant.identity, listed) is not None:
                continue
            met = set(earlier.get("met", ()))
            left = [i for i in meets if _item_hash(self.items[i]) not in met]
            by_function, by_file = self.killers[mutant.file + mutant.function], self.killers[mutant.file]
            # quick tests that are about little else come first, the same test with other parameters later
            cost = {i: self._seconds(i) * (5 + self._breadth(i)) / (1 + by_file[i]) for i in left}
            turn: Counter[str] = Counter()
            for i in sorted(left, key=cost.__getitem__):
                name = self.items[i].nodeid.split("[")[0]
                turn[name] += 1
                cost[i] *= turn[name]
            order = sorted(left, key=lambda i: (-by_function[i], cost[i]))
            chosen: list[int] = []
            total = 0.0
            for i in order:
                total += self._seconds(i)
                if chosen and total > self.options.seconds:
                    break
                chosen.append(i)
            if earlier and not chosen:
                continue
            yield mutant, chosen

    def _seconds(self, i: int) -> float:
        entry = self.coverage.get(self.items[i].nodeid)
        return 1.0 if entry is None else entry["seconds"] + 0.002

    def _breadth(self, i: int) -> int:
        """Say how many functions a test executes."""
        entry = self.coverage.get(self.items[i].nodeid)
        return 0 if entry is None else sum(len(functions) for functions in entry["lines"].values())

    def _replayed(self) -> Iterator[tuple[Mutant, list[int]]]:
        known = json.loads(SAMPLE.read_text(encoding="utf-8"))
        place = {item.nodeid: i for i, item in enumerate(self.items)}
        for mutant in self.mutants:
            if mutant.identity in known and known[mutant.identity] in place:
                yield mutant, [place[known[mutant.identity]]]

    def _judge(self, tasks: Iterator[tuple[Mutant, list[int]]]) -> None:
        def task(mutant: Mutant, tests: list[int]) -> dict[str, Any]:
            for cache in self.caches:
                cache.cache_clear()
            exchange(mutant, self.finders[mutant.file].tree, self.live[mutant.file])
            for i, following in itertools.zip_longest(tests, tests[1:]):  # none at all where no test executes it
                if not _run(self.items[i], None if following is None else self.items[following]):
                    return {"killer": i}
            return {"killer": None}

        def each() -> Iterator[tuple[Any, Callable[[], Any], float]]:
            for mutant, tests in tasks:
                seconds = 3 + 3 * sum(self._seconds(i) for i in tests)
                yield (mutant, tests), functools.partial(task, mutant, tests), seconds

        count, begin = 0, time.time()
        KEPT.mkdir(exist_ok=True)
        keeps = os.devnull if self.options.replay else KEPT / "results.jsonl"
        with open(keeps, "a", encoding="utf-8") as kept:
            for (mutant, tests), answer in in_parallel(each(), self.options.jobs):
                result = self._result(mutant, tests, answer)
                self.results[mutant.identity] = result
                kept.write(json.dumps(result) + "\n")
                kept.flush()
                count += 1
                if count % 100 == 0:
                    _say(f"{count} mutants judged in {time.time() - begin:.0f} s")

    def _result(self, mutant: Mutant, tests: list[int], answer: Any) -> dict[str, Any]:
        result = {"identity": mutant.identity, "function": _hash(mutant.source)}
        if answer is not None and "seconds" in answer:
            result["seconds"] = answer["seconds"]
        if answer is not None and "error" in answer:
            return result | {"error": answer["error"], "met": []}
        if answer is None or answer["killer"] is not None:
            # without an answer: it took too long, or the process died
            i = tests[0] if answer is None else answer["killer"]
            if not self.options.replay:
                self.killers[mutant.file + mutant.function][i] += 1
                self.killers[mutant.file][i] += 1
            return result | {"killer": self.items[i].nodeid, "test": _item_hash(self.items[i])}
        earlier = self.results.get(mutant.identity, {})
        met = earlier.get("met", []) if earlier.get("function") == result["function"] else []
        return result | {"met": [*met, *(_item_hash(self.items[i]) for i in tests)]}


@functools.cache
def _functions(file: str) -> dict[str, tuple[str, range]]:
    """Return the functions and methods of a file: what names their source, and their lines."""
    found = {}

    def look(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                look(child, (*names, child.name))
            elif isinstance(child, ast.FunctionDef):
                name = ".".join((*names, child.name))
                found[name] = _hash(_without_docstring(child)), range(child.lineno, (child.end_lineno or 0) + 1)

    path = PACKAGE / file
    if path.exists():
        look(ast.parse(path.read_text(encoding="utf-8")), ())
    return found


def _by_function(file: str, lines: set[int]) -> dict[str, list[int]]:
    """Say lines by the function that they are in, so that the record outlives changes elsewhere in the file."""
    found = {}
    for name, (source, span) in _functions(file).items():
        inside = sorted(line - span.start for line in lines if line in span)
        if inside:
            found[f"{name} {source}"] = inside
    return found


def _lines_now(file: str, functions: dict[str, list[int]]) -> Iterator[int]:
    """Return where recorded lines are now; of a function that has changed since, all of them."""
    for key, offsets in functions.items():
        name, source = key.split(" ")
        now, span = _functions(file).get(name, ("", range(0)))
        yield from (span.start + offset for offset in offsets) if now == source else span


def _without_docstring(function: ast.FunctionDef) -> str:
    described = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if described else function.body
    return ast.unparse(function.args) + "\n".join(ast.unparse(statement) for statement in body)


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _read_results() -> dict[str, dict[str, Any]]:
    path = KEPT / "results.jsonl"
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            result = json.loads(line)
            found[result["identity"]] = result
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------- report


def accepted() -> dict[str, str]:
    """Return the patterns of survivors that are accepted, with the reason of each."""
    if not ACCEPTED.exists():
        return {}
    return tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))


def _reason(identity: str, listed: dict[str, str]) -> str | None:
    """Return why a survivor is accepted; a pattern ends with ``*`` or is the identity itself."""
    if identity in listed:
        return listed[identity]
    for pattern, reason in listed.items():
        if pattern.endswith("*") and fnmatch.fnmatchcase(identity, pattern.replace("[", "[[]")):
            return reason
    return None


COLUMNS = ("mutants", "killed", "survivors", "accepted", "not judged")


def count(
    mutants: list[Mutant], results: dict[str, dict[str, Any]], listed: dict[str, str]
) -> tuple[dict[str, Counter[str]], list[Mutant]]:
    """Count mutants by file, and return the survivors that are not accepted."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for mutant in mutants:
        row, result = rows[mutant.file], results.get(mutant.identity)
        row["mutants"] += 1
        if result is None or result["function"] != _hash(mutant.source):
            row["not judged"] += 1
        elif result.get("killer"):
            row["killed"] += 1
        else:
            row["survivors"] += 1
            if _reason(mutant.identity, listed) is not None:
                row["accepted"] += 1
            else:
                survivors.append(mutant)
    return rows, survivors


def table(rows: dict[str, Counter[str]]) -> str:
    """Return the counts as a table, with a row for all files together."""
    total: Counter[str] = Counter()
    for row in rows.values():
        total.update(row)
    lines = [f"| file | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for file, row in [*sorted(rows.items()), ("all", total)]:
        lines.append(f"| {file} | {' | '.join(str(row[c]) for c in COLUMNS)} |")
    return "\n".join(lines)


def _target_files() -> list[str]:
    places = [ROOT / place for _tests, judged in ROOMS.values() for place in judged]
    paths = (path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place]))
    return sorted(path.relative_to(PACKAGE).as_posix() for path in paths)


def _asked_files(names: list[str]) -> list[str]:
    files = _target_files()
    if not names:
        return files
    found = [file for name in names for file in files if name in (file, Path(file).name, Path(file).stem, file[:-3])
             or (ROOT / name).resolve() == PACKAGE / file or file.startswith(name.rstrip("/") + "/")]  # fmt: skip
    if not found:
        raise SystemExit(
            f"no file of {', '.join(ROOMS)} is named {', '.join(names)}: give one such as theory/heads.py."
        )
    return list(dict.fromkeys(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", help="files or folders, such as theory/ball/layer.py; all without")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="processor time of tests that a survivor must meet")
    parser.add_argument("--tests", nargs="+", default=[], help="the tests that judge, in place of those of the room")
    parser.add_argument("--quick", action="store_true", help="leave out tests that are marked slow")
    parser.add_argument("--sample", type=int, help="judge so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", default="", help="judge mutants whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--show", "--survivors", action="store_true", help="judge nothing, show what is known")
    parser.add_argument("--list", action="store_true", help="show all mutants and judge nothing")
    parser.add_argument("--write-sample", action="store_true", help="keep a sample of killed mutants for `make test`")
    parser.add_argument("--write-docs", action="store_true", help="write the table into the documentation")
    parser.add_argument("--replay", action="store_true", help="judge the kept sample, each by the test that killed it")
    return parser


def main() -> None:
    """Judge mutants and print a report."""
    options = _parser().parse_args()
    files = _asked_files(options.files)
    finders = {file: Finder(PACKAGE / file) for file in files}
    mutants = [mutant for finder in finders.values() for mutant in finder.found if options.only in mutant.identity]
    if options.list:
        for mutant in mutants:
            print(mutant.identity)
        print(f"{len(mutants)} mutants")
        return
    results = _read_results()
    if options.write_sample:
        write_sample(mutants, results, options.sample or 30, options.seed)
        return
    if options.sample and not options.replay:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    if not options.show:
        sample = json.loads(SAMPLE.read_text(encoding="utf-8")) if options.replay else {}
        if options.replay:
            mutants = [mutant for mutant in mutants if mutant.identity in sample]
        results = run(options, finders, mutants, sorted(set(sample.values())))
    listed = accepted()
    if options.replay:
        replayed(mutants, results)
        return
    rows, survivors = count(mutants, results, listed)
    for mutant in survivors:
        before, after = mutant.texts()
        result = results[mutant.identity]
        told = "" if result.get("met") else "  " + result.get("error", "(no test executes it)")
        print(f"{mutant.identity}{told}\n  - {before.strip()}\n  + {after.strip()}")
    print(table(rows))
    if options.write_docs:
        write_docs(rows)
    raise SystemExit(1 if survivors else 0)


def run(
    options: argparse.Namespace, finders: dict[str, Finder], mutants: list[Mutant], tests: list[str]
) -> dict[str, dict[str, Any]]:
    """Collect the tests and let the mutants meet them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    import pytest
    import torch

    torch.set_num_threads(1)  # a fork has no other threads
    import howsmooth

    if Path(howsmooth.__file__).parent != PACKAGE:
        raise SystemExit(f"howsmooth comes from {howsmooth.__file__}, not from {PACKAGE}.")
    # what torch prepares at its first use would be prepared in every fork
    torch.func.vmap(torch.func.jacrev(torch.sin))(torch.ones(2, 2))
    torch.func.jvp(torch.sin, (torch.ones(2),), (torch.ones(2),))
    torch.autograd.functional.jacobian(torch.sin, torch.ones(2))
    rooms = dict.fromkeys(path for file in finders for paths in ROOMS[file.split("/")[0]] for path in paths)
    judge = Judge(options, finders, mutants)
    marks = ["-m", "not slow"] if options.quick else []
    code = pytest.main([*PYTEST, *marks, *(tests or options.tests or rooms)], plugins=[judge])
    if code not in (0, 5):
        raise SystemExit(f"the tests could not be collected: pytest ended with {code}.")
    return judge.results


def write_sample(mutants: list[Mutant], results: dict[str, dict[str, Any]], count: int, seed: int) -> None:
    """Keep a sample of killed mutants with the test that killed each; slow tests are left out."""
    coverage = json.loads((KEPT / "coverage.json").read_text(encoding="utf-8"))
    killed = {}
    for mutant in mutants:
        killer = results.get(mutant.identity, {}).get("killer")
        if killer in coverage and coverage[killer]["seconds"] < 0.5:
            killed[mutant.identity] = killer
    names = random.Random(seed).sample(sorted(killed), min(count, len(killed)))
    _write(SAMPLE, json.dumps({name: killed[name] for name in sorted(names)}, indent=1, ensure_ascii=False) + "\n")


def replayed(mutants: list[Mutant], results: dict[str, dict[str, Any]]) -> None:
    """Say how the kept sample fared; some of its mutants may have gone since, as functions change."""
    kept = len(json.loads(SAMPLE.read_text(encoding="utf-8")))
    survivors = [name for name, result in results.items() if not result.get("killer")]
    print(f"{len(results) - len(survivors)} of {len(results)} mutants are killed, {kept} were kept")
    print(*survivors, sep="\n")
    if survivors:
        raise SystemExit("a bound can be changed without a test that fails.")
    if len(results) < 2 * kept // 3:
        raise SystemExit("the sample is out of date: run `make mutants`, then tools/mutants.py --write-sample.")


def write_docs(rows: dict[str, Counter[str]]) -> None:
    """Write rows into the table of the page; rows of files that were not asked for stay as they are."""
    page = REPORT.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    for line in old.splitlines():
        file, *numbers = (cell.strip() for cell in line.strip("| ").split("|"))
        if file in _target_files() and file not in rows:
            rows[file] = Counter(dict(zip(COLUMNS, map(int, numbers), strict=False)))
    _write(REPORT, f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


if __name__ == "__main__":
    main()
