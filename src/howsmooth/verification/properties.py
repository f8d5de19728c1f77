"""Properties to verify: a box of inputs, and the outputs that none of them may have. VNN-LIB files are read."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from howsmooth.errors import AssumptionError, DtypeError, FieldError, FileError, ShapeError
from howsmooth.validation import require_dense, require_finite, require_numbers, tensor_of

# Σ coefficient · variable ≥ constant, or > where it is strict.
Atom = tuple[dict[tuple[str, int], float], float, bool]
# Conditions are multiplied out into sets of inequalities, and read by recursion.
MOST_SETS, DEEPEST = 10_000, 100
# What other solvers are told, and says nothing about the network.
SILENT = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
VARIABLE = re.compile(r"([XY])_(0|[1-9]\d{0,8})")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, eq=False)
class Property:
    r"""No input of a box has an unsafe output.

    Attributes:
        lower: The least value of every input, one number each, in the shape of the inputs; for a map on tokens (n, d).
        upper: The largest.
        unsafe: Sets of outputs, each a pair (A, b) for :math:`\{y: Ay\ge b\}`; their union is unsafe.
        strict: Of every set, which of its inequalities are strict, :math:`>` in place of :math:`\ge`; none by default.
            Proofs exclude the boundary too; an output on it violates nothing.

    Example:
        >>> robust = Property.robust(torch.zeros(2), eps=0.1, label=0, classes=3)
        >>> len(robust.unsafe), robust.unsafe[0][0].tolist()
        (2, [[-1.0, 1.0, 0.0]])
    """

    lower: Float[Tensor, "*inputs"]
    upper: Float[Tensor, "*inputs"]
    unsafe: tuple[tuple[Float[Tensor, "_ outputs"], Float[Tensor, " _"]], ...]
    strict: tuple[Bool[Tensor, " _"], ...] | None = None

    def __post_init__(self) -> None:
        """Take all numbers in float64, and refuse what is none, an empty box, and sets of no outputs."""
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _numbers(getattr(self, name), name))
        pairs = all(isinstance(each, tuple | list) and len(each) == 2 for each in self.unsafe)
        unsafe = tuple(tuple(_numbers(x, "unsafe") for x in each) for each in self.unsafe) if pairs else ()
        object.__setattr__(self, "unsafe", unsafe)
        if self.lower.shape != self.upper.shape or not self.lower.ndim:
            raise ShapeError(
                f"lower and upper must be one number for each input, got {tuple(self.lower.shape)} and "
                f"{tuple(self.upper.shape)}."
            )
        if not pairs:
            raise ShapeError("unsafe must be pairs ((A, b), …) of A (rows, outputs) and b (rows,).", field="unsafe")
        if not bool((self.lower <= self.upper).all()):
            raise FieldError("every lower bound of an input must be a number below its upper bound.", field="lower")
        if not self.unsafe:
            raise FieldError("a property says which outputs are unsafe; this one names none.", field="unsafe")
        shapes = [(tuple(A.shape), tuple(b.shape)) for A, b in self.unsafe]
        if any(len(A) != 2 or 0 in A or b != A[:1] or A[1] != shapes[0][0][-1] for A, b in shapes):
            raise ShapeError(
                "an unsafe set is a matrix A with a column for each output and a row for each inequality, and as many "
                f"numbers b; got {shapes}.",
                field="unsafe",
            )
        if self.strict is not None and [x.shape for x in self.strict] != [b.shape for _A, b in self.unsafe]:
            raise ShapeError("strict has one truth value for every inequality of every unsafe set.", field="strict")

    @classmethod
    def robust(cls, x: Tensor, *, eps: float | Tensor, label: int, classes: int) -> "Property":
        """Say that no input within eps of x, entry by entry, is put into another class than this one.

        Args:
            x: The inputs, in their own shape, without a batch axis.
            eps: How far each number may move; or for each number, so that some tokens may stay.
            label: The class.
            classes: How many classes there are.
        """
        if not (classes >= 2 and 0 <= label < classes):
            raise FieldError(
                f"label must be one of at least two classes, 0 to classes - 1; got label {label} of {classes}.",
                field="label",
            )
        x = _numbers(x, "x")
        rows = torch.eye(classes, dtype=torch.float64) - torch.eye(classes, dtype=torch.float64)[label]
        rivals = [k for k in range(classes) if k != label]
        return cls(x - eps, x + eps, tuple((rows[k : k + 1], x.new_zeros(1)) for k in rivals))

    def violated_by(self, y: Float[Tensor, " outputs"]) -> bool:
        """Tell whether an output is unsafe."""
        strict = self.strict or [torch.zeros_like(b, dtype=torch.bool) for _A, b in self.unsafe]
        return any(
            bool(torch.where(more, A @ y > b, A @ y >= b).all())
            for (A, b), more in zip(self.unsafe, strict, strict=True)
        )


def _numbers(x: Any, name: str) -> Tensor:
    """Return finite numbers of any kind in float64, which holds every one of them but the largest whole ones."""
    x = tensor_of(x, name)
    require_dense(x, name)
    require_numbers(x, name)
    if x.is_complex() or x.dtype == torch.bool:
        raise DtypeError(f"{name} must hold real numbers, got {x.dtype}.", field=name)
    require_finite(x, name)
    with torch.inference_mode(False):  # a copy: autograd does not record what was made in inference mode
        return x.detach().double().clone()


def read_vnnlib(path: str | Path) -> Property:
    """Read a property in VNN-LIB, versions 1 and 2: bounds of inputs, and conditions on outputs that are unsafe."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is no text, as a property in VNN-LIB is; unpack it if it is packed.") from error
    if not re.search(r"\(\s*(assert|declare-network)", text):
        raise FileError(f"{path} is no property in VNN-LIB: it holds no (assert …), so that it bounds no input.")
    conditions, sizes = (_second_version if "(declare-network" in text else _first_version)(path, text)
    bounds: tuple[dict[int, float], dict[int, float]] = ({}, {})
    unsafe, said = [list[Atom]()], False
    for either in conditions:
        if len(either) == 1:  # conditions that hold together: some may be bounds
            of_inputs = [
                atom for atom in either[0] if [name for name, _k in atom[0]] == ["X"] and all(atom[0].values())
            ]
            for atom in of_inputs:
                _tighten(path, bounds, atom)
            others = [[atom for atom in either[0] if atom not in of_inputs]]
            said = said or bool(others[0]) or not either[0]
        else:
            others, said = either, True
        if any(name == "X" for terms in others for atom in terms for name, _k in atom[0]):
            raise FileError(f"{path} has a condition on inputs that is no bound of one of them: a box is needed.")
        unsafe = _all_of(path, [unsafe, others])
    size = max(sizes["X"], max(bounds[0], default=-1) + 1, max(bounds[1], default=-1) + 1)
    missing = next((k for k in range(size) if k not in bounds[0] or k not in bounds[1]), None)
    if missing is not None or not size:
        raise FileError(f"{path} does not bound X_{missing or 0} on both sides.")
    if not said:
        raise FieldError(f"a property says which outputs are unsafe; {path} names none.", field="unsafe")
    if not unsafe:
        raise FieldError(f"no output is unsafe by {path}: its conditions on outputs never hold.", field="unsafe")
    lower, upper = (torch.tensor([side[k] for k in range(size)], dtype=torch.float64) for side in bounds)
    sets = [_rows(part, sizes["Y"]) for part in unsafe]
    strict = tuple(strict for _A, _b, strict in sets)
    return Property(lower, upper, tuple((A, b) for A, b, _strict in sets), strict)


def _first_version(path: str | Path, text: str) -> tuple[list[list[list[Atom]]], dict[str, int]]:
    """Return every condition as alternatives, and how many inputs and outputs there are."""
    forms = list(_forms(path, text))
    declared: dict[str, set[int]] = {"X": set(), "Y": set()}
    for form in forms:
        if form[:1] in (["declare-const"], ["declare-fun"]):
            named = VARIABLE.fullmatch(form[1]) if len(form) > 1 and isinstance(form[1], str) else None
            if named is None:
                raise FileError(f"{path} declares something other than inputs X_0, … and outputs Y_0, ….")
            declared[named[1]].add(int(named[2]))
        elif not (form[:1] == ["assert"] and len(form) == 2) and (not form or form[0] not in SILENT):
            raise FileError(f"{path} has a form that is neither a declaration nor (assert CONDITION): {_short(form)}.")
    for name, numbers in declared.items():
        if numbers and max(numbers) >= len(numbers):
            raise FileError(f"{path} declares {name}_{max(numbers)}, but not all of {name}_0 to {name}_{max(numbers)}.")
    conditions = [_either(path, form[1]) for form in forms if form[0] == "assert"]
    sizes = {name: len(numbers) for name, numbers in declared.items()}
    for either in conditions:
        for name, k in (key for terms in either for atom in terms for key in atom[0]):
            if k >= sizes[name] and (name == "Y" or sizes["X"]):
                raise FileError(f"{path} speaks of {name}_{k}, which it does not declare.")
    return conditions, sizes


def _second_version(path: str | Path, text: str) -> tuple[list[list[list[Atom]]], dict[str, int]]:
    """Likewise, by the parser of the standard."""
    try:
        import vnnlib
    except ImportError as error:
        raise AssumptionError("VNN-LIB 2.0 needs the package vnnlib: pip install 'howsmooth[onnx]'.") from error
    _forms(path, text)  # its parentheses match, and are not too deep for a parser that recurs
    try:
        query = vnnlib.parse_query_string(text)
    except (vnnlib.VNNLibException, UnicodeDecodeError) as error:  # its messages may be broken, or many lines
        raise FileError(f"{path} is no VNN-LIB that can be read: {' '.join(str(error).split())[:300]}") from error
    if [(len(net.inputs), len(net.outputs), len(net.hidden)) for net in query.networks] != [(1, 1, 0)]:
        raise FileError(f"{path} must speak of one network with one input and one output tensor.")
    net = query.networks[0]
    conditions = [_multiplied(path, assertion.expr) for assertion in query.assertions]
    return conditions, {"X": math.prod(net.inputs[0].shape), "Y": math.prod(net.outputs[0].shape)}


def _multiplied(path: str | Path, expression: Any) -> list[list[Atom]]:
    """Return a condition as alternatives; the parser's own way has no limit."""
    kind = type(expression).__name__
    if kind == "Or":
        return [terms for part in expression.args for terms in _multiplied(path, part)]
    if kind == "And":
        return _all_of(path, [_multiplied(path, part) for part in expression.args])
    return [[_atom(path, expression)]]


def _atom(path: str | Path, comparison: Any) -> Atom:
    kind = type(comparison).__name__
    sign = {"GreaterEqual": 1, "GreaterThan": 1, "LessEqual": -1, "LessThan": -1}.get(kind)
    if sign is None:
        raise FileError(f"{path} has a condition that is not read: {comparison}.")
    terms: dict[tuple[str, int], float] = {}
    constant = 0.0
    for side, part in ((sign, comparison.lhs.to_linear_expr()), (-sign, comparison.rhs.to_linear_expr())):
        constant -= side * part.constant
        for term in part.terms:
            place = 0
            for index, size in zip(term.var.indices, term.var.shape, strict=True):
                place = place * size + index
            name = ("X" if term.var.kind.name == "Input" else "Y", place)
            terms[name] = terms.get(name, 0.0) + side * term.coeff
    return terms, constant, "Than" in kind


def _forms(path: str | Path, text: str) -> list[list[Any]]:
    """Return the lists of words and lists at the top of a text."""
    stack: list[list[Any]] = [[]]
    for word in re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text)):
        if word == "(":
            stack.append([])
            if len(stack) > DEEPEST:
                raise FileError(f"{path} has more than {DEEPEST} parentheses inside each other.")
        elif word == ")":
            if len(stack) == 1:
                raise FileError(f"{path} closes more parentheses than it opens.")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(word)
    if len(stack) > 1:
        raise FileError(f"{path} does not close all its parentheses.")
    if words := [form for form in stack[0] if isinstance(form, str)]:
        raise FileError(f"{path} has words outside all parentheses: {_short(words[0])}.")
    return stack[0]


def _either(path: str | Path, form: Any) -> list[list[Atom]]:
    """Return a condition as alternatives, each a list of inequalities that hold together."""
    head, *parts = form if isinstance(form, list) and form else [form or "()"]
    if head == "or":  # of nothing: never
        return [terms for part in parts for terms in _either(path, part)]
    if head == "and":  # of nothing: always
        return _all_of(path, [_either(path, part) for part in parts])
    if head in ("<=", ">=", "<", ">") and len(parts) == 2:
        left, right = (_linear(path, part) for part in parts)
        sign = 1 if head in (">=", ">") else -1
        names = {*left[0], *right[0]}
        terms = {name: sign * (left[0].get(name, 0.0) - right[0].get(name, 0.0)) for name in names}
        return [[(terms, sign * (right[1] - left[1]), head in ("<", ">"))]]
    raise FileError(f"{path} has a condition that is not read: {_short(head)}.")


def _all_of(path: str | Path, conditions: list[list[list[Atom]]]) -> list[list[Atom]]:
    """Return conditions that hold together as one, multiplied out."""
    found: list[list[Atom]] = [[]]
    for either in conditions:
        if len(found) * len(either) > MOST_SETS:
            raise FileError(f"{path} has more than {MOST_SETS:,} unsafe sets, when its conditions are multiplied out.")
        found = [[*old, *new] for old in found for new in either]
    return found


def _short(form: Any) -> str:
    return str(form)[:40]


def _linear(path: str | Path, form: Any) -> tuple[dict[tuple[str, int], float], float]:
    if isinstance(form, str):
        if named := VARIABLE.fullmatch(form):
            return {(named[1], int(named[2])): 1.0}, 0.0
        if not NUMBER.fullmatch(form) or math.isinf(float(form)):
            raise FileError(f"{path} has a term that is not read: {_short(form)}.")
        return {}, float(form)
    head, *parts = form or ["()"]
    terms = [_linear(path, part) for part in parts]
    if head == "*" and len(terms) == 2 and (not terms[0][0] or not terms[1][0]):
        (names, constant), factor = (terms[1], terms[0][1]) if not terms[0][0] else (terms[0], terms[1][1])
        return {name: factor * c for name, c in names.items()}, factor * constant
    if head not in ("+", "-") or not terms:
        raise FileError(f"{path} has a term that is not read: {_short(head)}.")
    signs = [1.0] * len(terms) if head == "+" else [1.0 if k == 0 < len(terms) - 1 else -1.0 for k in range(len(terms))]
    total: dict[tuple[str, int], float] = {}
    for sign, (names, _constant) in zip(signs, terms, strict=True):
        for name, c in names.items():
            total[name] = total.get(name, 0.0) + sign * c
    return total, sum(sign * constant for sign, (_names, constant) in zip(signs, terms, strict=True))


def _tighten(path: str | Path, bounds: tuple[dict[int, float], dict[int, float]], atom: Atom) -> None:
    ((_name, k), c), constant, strict = next(iter(atom[0].items())), atom[1], atom[2]
    if strict:
        raise FileError(f"{path} bounds X_{k} by a strict inequality; a box has its ends: write <= or >=.")
    side, pick = (bounds[0], max) if c > 0 else (bounds[1], min)
    side[k] = pick(side.get(k, constant / c), constant / c)


def _rows(part: list[Atom], width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a set of outputs as a matrix, constants, and which inequalities are strict; all of them is 0 ≥ 0."""
    part = part or [({}, 0.0, False)]
    A = torch.zeros(len(part), width, dtype=torch.float64)
    for row, (terms, _constant, _strict) in enumerate(part):
        for (_name, k), c in terms.items():
            A[row, k] = c
    b = torch.tensor([constant for _terms, constant, _strict in part], dtype=torch.float64)
    return A, b, torch.tensor([strict for _terms, _constant, strict in part])
