r"""How far a network that runs in float32 is from its values in real arithmetic, on a whole box (Theorem 17).

Between two nonlinearities a tensor is a sum of terms :math:`c_1\cdots c_kx_j`. In whatever order floats multiply and
add them, with weights folded together or not, they are off by :math:`\sum_tk_t|t|`, in units of roundoff, where a term
t goes through :math:`k_t` operations. What a nonlinearity makes of this, and its own rounding, is the local error of
what it puts out. Errors go on through Jacobians: those at the centre as they are, all others by how far they are from
these, which ranges bound. Ranges are bounded in the same way; there, what moves is the input.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.certificates.mlp_stage import largest_derivative
from howsmooth.errors import UnsupportedModelError
from howsmooth.maps.activations import known_activation
from howsmooth.verification.onnx_network import (
    HIDDEN,
    _Activated,
    _AffineForm,
    _Attended,
    _called,
    _Normalised,
    _Reader,
    _Scores,
    _symbolic,
    _Unfinished,
)
from howsmooth.verification.onnx_operations import Array, NotReadError, options_of
from howsmooth.verification.properties import Property

UNIT = 2.0**-24
# Products of so many factors and so many of them in a sum: k units are less than 1.02 · k · UNIT.
MOST, FACTOR = 2**18, 1.02
# Below 2⁻¹²⁶ floats lose digits or are flushed to zero: an error of UNIT · TINY for every product.
TINY = 2.0**-102
# Where sums of absolute values are larger, floats may overflow on the way.
LARGEST = 2.0**126
# The formulas below are evaluated in double precision.
RAISED = 1 + 1e-6
# What activations add to the error of their argument, in units: erf, tanh and logistic functions, products and sums.
ACTIVATION_UNITS, TANH_UNITS, EXP_UNITS = 12, 8, 16
# Slopes of activations; and of both factors of x Φ(x) together, where each has an error of its own.
STEEPEST, STEEPEST_FACTORS = 1.13, 1.3
# Functionals that are pulled back at once; blocks that a matrix may have.
BATCH, BLOCKS = 512, 64
# Constants that are only moved about stay what they are.
_MOVED = frozenset(
    "Constant ConstantOfShape Identity Reshape Transpose Unsqueeze Squeeze Gather GatherElements Slice Concat Expand "
    "Flatten Tile Where Trilu Abs Neg".split()
)
# What one operation makes of exact numbers is rounded once, or is off by a few units.
_COMPUTED = {"Add": 1, "Sub": 1, "Mul": 1, "Div": 1, "Sqrt": 1, "Reciprocal": 1, "Cast": 1, "Range": 2, "Pow": 8}
_COMPUTED |= dict.fromkeys(("Exp", "Log", "Sin", "Cos", "Tanh", "Erf", "Sigmoid"), 8)
# What multiplies and adds up tensors that are kept.
_SUMS = frozenset(("Conv", "MatMul", "Gemm", "Einsum", "ReduceMean"))
# Types of ONNX: floats, those that are narrower than float32, and the others that hold float32.
_FLOAT, _DOUBLE, _HALF = 1, 11, (10, 16)


def rounding(reader: _Reader, wanted: Property, rows: Float[Tensor, "rows outputs"]) -> Float[Tensor, " rows"]:
    """Bound how far linear functions of the outputs in float32 are from those in real arithmetic, on a box.

    Args:
        reader: The network, read from an ONNX file.
        wanted: The box.
        rows: The functions.

    Returns:
        The bounds; infinite where something may overflow, or a norm may lose all its digits.

    Raises:
        UnsupportedModelError: If rounding cannot be followed through a node.
    """
    with np.errstate(all="ignore"):  # what is no number has no bound
        found = _Execution(reader, wanted).rounding(rows.numpy())
    return torch.from_numpy(np.where(np.isfinite(found), found, np.inf))


@dataclass(frozen=True, eq=False)
class _Terms:
    """The terms that floats add up in a tensor.

    Attributes:
        size: Their absolute values, added up. An array for a constant. For what depends on the inputs it is the value of
            a form of one column, and in the column every term counts as often as it goes through an operation. For
            scores these are two forms; for an unfinished norm or activation that of what entered it.
        k: How many operations a term goes through, at most.
        product: How many products have just been added up: what is added next may be added up with them.
        convolution: Likewise in a convolution: all that is added next may be.
    """

    size: Any
    k: int = 0
    product: int = 0
    convolution: int = 0


@dataclass(frozen=True, eq=False)
class _Moves:
    """How far numbers move: on the box, and from real arithmetic to floats."""

    box: Array
    error: Array

    @property
    def both(self) -> Array:
        """How far floats are from what is at the centre."""
        return self.box + self.error

    def reshape(self, *shape: int) -> "_Moves":
        """Return them in another shape."""
        return _Moves(self.box.reshape(shape), self.error.reshape(shape))

    def of(self, functionals: Array) -> Array:
        """Return how far linear functions of numbers that move so may move."""
        flat = np.abs(functionals.reshape(len(functionals), -1))
        return np.stack([flat @ x.ravel() for x in (self.box, self.error)])


@dataclass(frozen=True, eq=False)
class _Numbers:
    """The numbers of a base.

    Attributes:
        value: What they are at the centre, up to how they move beyond their linear part.
        size: A bound on the absolute values of floats.
        pull_back: Returns how far linear functions of them move beyond first order, on the box and in floats, and what
            they are to first order: functions of forms.
    """

    value: Array
    size: Array
    pull_back: Callable[[Array], tuple[Array, Iterable[tuple[_AffineForm, Array]]]]


class _Columns:
    """The columns of a form as a matrix, in blocks of rows that are zero at the same places."""

    def __init__(self, form: _AffineForm) -> None:
        matrix = form.columns.reshape(len(form.columns), -1)
        self.form, self.rows, self.diagonal = form, len(matrix), None
        _kinds, kind = np.unique(np.packbits(matrix != 0, axis=1), axis=0, return_inverse=True)
        groups = [np.flatnonzero(kind.ravel() == k) for k in range(kind.max() + 1)]
        if len(groups) > BLOCKS:
            groups = [np.arange(self.rows)]
            if matrix.shape[0] == matrix.shape[1] and np.count_nonzero(matrix) == np.count_nonzero(matrix.diagonal()):
                self.diagonal = matrix.diagonal()
        reads = [np.flatnonzero(matrix[rows].any(0)) for rows in groups]
        self.blocks = [(r, c, matrix[np.ix_(r, c)].T) for r, c in zip(groups, reads, strict=True) if len(c)]

    def pull_back(self, functionals: Array) -> Array:
        """Turn linear functions of the form into those of its base."""
        flat = functionals.reshape(len(functionals), -1)
        if self.diagonal is not None:
            return flat * self.diagonal
        found = np.zeros((len(flat), self.rows))
        for rows, columns, block in self.blocks:
            found[:, rows] = flat[:, columns] @ block
        return found


class _Execution:
    """The nodes of a network, run in floats on a box."""

    def __init__(self, reader: _Reader, wanted: Property) -> None:
        self.reader, self.scratch = reader, _Reader(reader.opset)
        self.columns: dict[int, _Columns] = {}
        shape, graph = reader.bases[0][1], reader.graph
        if any(tensor.data_type in _HALF for tensor in graph.initializer):
            raise UnsupportedModelError("the network has weights in half precision, and float32 is followed.")
        lower, upper = (x.numpy().reshape(shape) for x in (wanted.lower, wanted.upper))
        inputs, size = _Moves(RAISED * (upper - lower) / 2, np.zeros(shape)), np.maximum(np.abs(lower), np.abs(upper))
        self.numbers = [_Numbers((upper + lower) / 2, size, lambda functionals: (inputs.of(functionals), ()))]
        constants = [x.name for x in graph.initializer]
        self.terms = {name: _Terms(_sizes(reader.values[name])) for name in constants}
        given = next(x.name for x in graph.input if x.name not in constants)
        # inputs are rounded once
        self.terms[given] = self._tokens(reader.values[given], _Terms(_counted(size, size), 1))
        for node in graph.node:
            try:
                self._run(node)
            except NotReadError as error:
                said = f"rounding is not followed through the node {_called(node)} ({node.op_type}), which {error}"
                raise UnsupportedModelError(f"{said}.") from error

    def rounding(self, rows: Array) -> Array:
        """Bound the errors of linear functions of the outputs."""
        output = self.reader.graph.output[0].name
        form, terms = self.reader.values[output], self.terms[output]
        moves = self._moves(form.base, self._columns(form).pull_back(rows))
        return (moves.error + np.abs(rows) @ _error(terms.size).ravel()) * RAISED

    def _run(self, node: Any) -> None:
        name = node.output[0]
        inputs = [self.terms[x] if x else None for x in node.input]
        values = [self.reader.values[x] if x else None for x in node.input]
        value = self.reader.values[name]
        if isinstance(value, np.ndarray):
            self.terms[name] = _constant(self.reader, node, inputs, values, value)
            return
        if isinstance(value, _Unfinished):
            self.terms[name] = _unfinished(inputs, values)
            return
        new = isinstance(value, _AffineForm) and value.base >= len(self.numbers)
        made_by = self.reader.bases[len(self.numbers)][0] if new else None
        if isinstance(made_by, _Activated | _Normalised):
            entered = _entered(node, made_by.form, inputs, values)
            step: Any = self._activated if isinstance(made_by, _Activated) else self._normalised
            self.numbers.append(step(made_by, entered))
        else:
            terms = self._linear(node, inputs, values)
            if isinstance(made_by, _Attended):
                self.numbers.append(self._attended(made_by, terms.k))
        if made_by is not None:
            form = value if value.base < len(self.numbers) else self.reader.parts[value.base][0]
            size = np.abs(form.offset) + np.tensordot(self.numbers[-1].size.ravel(), np.abs(form.columns), 1)
            terms = _Terms(_counted(size, 4 * size), 4)
        if terms.k > MOST:
            raise NotReadError(f"adds up products that go through {terms.k} operations")
        self.terms[name] = self._tokens(value, terms)

    def _linear(self, node: Any, inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _Terms:
        """Add up the absolute values of what a linear operation adds up; carry on queries, keys, scores and values."""
        kind, options = node.op_type, options_of(node, self.reader.opset)
        if kind == "Cast" and options["to"] not in (_FLOAT, _DOUBLE):
            raise NotReadError("computes in another precision than float32")
        options |= {name: abs(options[name]) for name in ("alpha", "beta") if name in options}
        terms = [_Terms(None) if x is None else x for x in inputs]
        if kind == "Div":
            terms[1] = _inverse(terms[1], values[1])
        if kind in _SUMS:
            terms = [self._kept(x, v) for x, v in zip(terms, values, strict=True)]
        given = [x.size for x in terms]
        if kind == "BatchNormalization":
            given[3], given[4] = -given[3], values[4]  # the mean is taken off, the variance is divided by
        elif kind == "Where":
            given = [x if isinstance(v, _Scores) else v for x, v in zip(given, values, strict=True)]
        found = _symbolic(self.scratch, {"Sub": "Add", "Div": "Mul"}.get(kind, kind), options, given)
        if isinstance(found, _Scores) or any(isinstance(x, _Scores) for x in given):
            k = 1 + sum(x.k for x in terms if not isinstance(x.size, _AffineForm))
            fresh = isinstance(terms[0].size, _AffineForm) and isinstance(terms[1].size, _AffineForm)
            return _Terms(found, found.query.offset.shape[-1] + 2 if fresh else k)
        size, counts = found.offset, found.columns[0]
        if kind in ("Add", "Sub"):
            for x, other in ((terms[0], terms[1]), (terms[1], terms[0])):
                alone = x.size.offset if isinstance(x.size, _AffineForm) else x.size
                constant = 0 if isinstance(x.size, _AffineForm) else x.k
                counts = counts + (1 + other.product + constant) * alone
            k = max(x.k for x in terms) + max(x.product for x in terms) + 1
            convolution = max(x.convolution for x in terms)
            return _Terms(_counted(size, counts), k, convolution, convolution)
        summands = _summands(kind, options, given, found)
        behind = summands + sum(x.k for x in terms if not isinstance(x.size, _AffineForm))
        k = max(x.k for x in terms if isinstance(x.size, _AffineForm)) + behind
        size = size + summands * TINY
        product, convolution = 0, 0
        if kind in ("Mul", "Div", "BatchNormalization"):
            product, convolution = (max(getattr(x, name) for x in terms) for name in ("product", "convolution"))
        elif kind == "Conv":
            product = convolution = summands
        elif kind == "MatMul" or (kind == "Gemm" and len(terms) == 2):
            product = summands
        return _Terms(_counted(size, counts + behind * size), k, product, convolution)

    def _kept(self, terms: _Terms, value: Any) -> _Terms:
        """Return the terms of a tensor that is kept: its numbers are no larger than they are."""
        if not isinstance(value, _AffineForm):
            return terms
        numbers = self.numbers[value.base]
        moved = np.tensordot((numbers.size - np.abs(numbers.value)).ravel(), np.abs(value.columns), 1)
        size = np.abs(self._value(value)) + RAISED * moved + _error(terms.size)
        return replace(terms, size=_counted(np.minimum(size, terms.size.offset), terms.size.columns[0]))

    def _tokens(self, value: Any, terms: _Terms) -> _Terms:
        """Let tensors that are kept be new numbers, with errors of their own."""
        if not isinstance(value, _AffineForm) or value.base < len(self.numbers):
            return terms
        parts, shape = self.reader.parts[value.base], value.offset.shape
        if any(part.offset.shape != shape for part in parts):
            raise NotReadError("adds tensors of two shapes")
        local, centre = _Moves(np.zeros(shape), _error(terms.size)), sum(self._value(part) for part in parts)

        def pull_back(x: Array) -> tuple[Array, Iterable[tuple[_AffineForm, Array]]]:
            return local.of(x), [(part, x) for part in parts]

        self.numbers.append(_Numbers(centre, centre, pull_back))
        size = np.abs(centre) + self._moves(value.base, np.eye(centre.size)).both.reshape(shape)
        self.numbers[-1] = replace(self.numbers[-1], size=size)
        return _Terms(_counted(size, np.zeros(shape)))

    def _activated(self, made_by: _Activated, entered: _AffineForm) -> _Numbers:
        y, moves, local = self._value(made_by.form), self._moves_of(made_by.form), _error(entered)
        low, high = y - moves.both - local, y + moves.both + local
        size, activation = np.maximum(np.abs(low), np.abs(high)), known_activation(made_by.activation)
        if activation.name == "relu":
            bent = (low < 0) & (high > 0)
            slope = np.where(bent, high / (high - low), low >= 0)
            gap = np.where(bent, -slope * low / 2, 0.0)  # half of how far the line is above the kink
            value, size = slope * y + gap, np.maximum(high, 0.0)
            beyond = _Moves(gap, np.where(bent, np.maximum(slope, 1 - slope) * moves.error, 0.0) + local)
        else:
            value, slope = (f(torch.from_numpy(y)).numpy() for f in (activation.value, activation.slope))
            second = largest_derivative(activation, torch.from_numpy(low), torch.from_numpy(high)).numpy()
            if activation.name == "tanh":
                size = np.minimum(size, 1.0)
                local = local + TANH_UNITS * UNIT * size
            else:
                local = STEEPEST_FACTORS * local + ACTIVATION_UNITS * UNIT * size
            box = np.fmin(0.5 * second * moves.box**2, 2 * STEEPEST * moves.box)
            beyond = _Moves(box, np.fmin(second * moves.both, 2 * STEEPEST) * moves.error + local + TINY)
        return _Numbers(value, size + local, lambda x: (beyond.of(x), [(made_by.form, slope * x)]))

    def _normalised(self, made_by: _Normalised, entered: _AffineForm) -> _Numbers:
        r"""Divide by the root of the mean square.

        At :math:`N(\hat c+u\hat c+w)` instead of :math:`N\hat c`, the Jacobian times a change differs by what the length
        and the direction have changed by.
        """
        form, c = made_by.form, self._value(made_by.form)
        d, tokens = c.shape[-1], c.size // c.shape[-1]
        N = np.sqrt((c**2).sum(-1, keepdims=True) + d * made_by.eps)
        unit, last, root = c / N, math.sqrt(d * made_by.eps) / N, math.sqrt(d)  # last: the coordinate that eps adds
        flat = unit.reshape(tokens, d)
        along = np.eye(tokens)[..., None] * (flat / N.reshape(-1, 1))
        across = np.einsum("ts,kl->tksl", np.eye(tokens), np.eye(d)) / N.reshape(-1, 1, 1, 1)
        across = across - np.einsum("tk,tsl->tksl", flat, along)
        columns = self._columns(form)
        u = self._moves(form.base, columns.pull_back(along)).reshape(*N.shape)
        w = self._moves(form.base, columns.pull_back(across.reshape(-1, tokens, d))).reshape(*c.shape)

        def length(u: Array, w: Array) -> Array:
            return np.sqrt((w**2).sum(-1, keepdims=True) + (last * u) ** 2)

        def beyond(U: Array, w: Array, du: Array, dw: Array) -> Array:
            W = length(U, w)
            room = np.where(U < 1, 1 - U, np.nan)  # further away a token may change its sign
            longer, turned = np.maximum(U / room, np.hypot(1 + U, W) - 1), W / room
            return longer * dw + (turned * du + (np.abs(unit) + turned) * turned * np.hypot(du, length(du, dw))) / room

        least = N * np.where(u.both < 1, 1 - u.both, np.nan)
        size = np.minimum(np.abs(unit) + N * length(u.both, w.both) / least, 1.0)
        # the mean square may be computed with or without the mean taken off first
        terms, counts = entered.offset, entered.columns[0]
        square = (2 * terms * counts + (2 * d + 16) * terms**2).sum(-1, keepdims=True)
        r = FACTOR * UNIT * (square + d * TINY) / least**2 + 8 * UNIT
        r = np.where((r < 0.5) & (square < LARGEST), r, np.nan)
        local = root * ((1 + r) * _error(entered) / least + size * (r + 4 * UNIT) + TINY)
        box = 0.5 * root * beyond(u.box, w.box, u.box, w.box)
        moves = _Moves(box, root * beyond(u.both, w.both, u.error, w.error) + local)

        def pull_back(x: Array) -> tuple[Array, Iterable[tuple[_AffineForm, Array]]]:
            return moves.of(x), [(form, root * (x - unit * (unit * x).sum(-1, keepdims=True)) / N)]

        return _Numbers(root * unit, root * size + local, pull_back)

    def _attended(self, made_by: _Attended, k_scores: int) -> _Numbers:
        r"""Average values.

        With centred changes b of scores, weights P become :math:`P_je^{b_j}/Z`, :math:`1\le Z\le1+\zeta`; the Jacobian
        times a change is :math:`\sum_jP_j'\,db_j(v_j'-o')+\sum_jP_j'\,dv_j`, with db by scores' Jacobian there.
        """
        scores, terms = made_by.scores, self.scratch.bases[-1][0]
        forms = scores.query, scores.key, made_by.value
        if len({form.offset.shape[:-2] for form in forms}) > 1:
            raise NotReadError("shares keys or values between heads")
        assert isinstance(terms, _Attended)
        (q, k, v), scale = (self._value(form) for form in forms), abs(scores.scale)
        s = scores.scale * q @ k
        added = np.broadcast_to(0.0 if scores.added is None else scores.added, s.shape)
        hidden = added <= HIDDEN
        s = np.where(hidden, -np.inf, s + added)
        P = np.exp(s - s.max(-1, keepdims=True))
        P = P / P.sum(-1, keepdims=True)
        o = P @ v
        dq, dk, dv = (self._moves_of(form) for form in forms)
        db = self._moves_of_scores(scores, P, q, k)

        def changes(b: Array, dq: Array, dk: Array) -> tuple[Array, Array, Array]:
            """Return bounds of what products change scores by, of all that does, and of what is behind first order."""
            products = scale * dq @ dk
            alpha = np.where(hidden, 0.0, b + products + (P * products).sum(-1, keepdims=True))
            return products, alpha, np.expm1(alpha) - alpha

        # the box: what is left of e^b/Z behind 1 + b, with (Z - 1)/Z ≤ share
        products, alpha, second = changes(db.box, dq.box, dk.box)
        zeta = (P * second).sum(-1, keepdims=True)
        share = np.nan_to_num(zeta / (1 + zeta), nan=1.0)
        on_box = P * (products + second + share * (alpha + 0.5 * alpha**2))
        left_on_box = (P * (alpha + second + share * (1 + alpha))) @ dv.box
        # floats: weights are at most so many times P, and differ from it by such a share
        _products, alpha, second = changes(db.both, dq.both, dk.both)
        more = np.exp(alpha)
        apart = more * (1 + (P * second).sum(-1, keepdims=True)) - 1
        on_scores = np.where(hidden, 0.0, scale * (dq.error @ dk.both + dq.both @ dk.error))
        mean = (P * (apart * db.error + more * on_scores)).sum(-1, keepdims=True)
        on_floats = P * (apart * (db.error + mean) + more * on_scores)
        left_in_floats = (P * more * (db.error + on_scores + mean)) @ dv.both + (P * apart) @ dv.error
        # what floats make of given projections: queries, keys and values; scores; exponentials; sums over the row
        weights, n = np.minimum(P * more, 1.0), s.shape[-1]
        eq, ek, ev = (_error(x) for x in (terms.scores.query, terms.scores.key, terms.value))
        Q, K, V = np.abs(q) + dq.both, np.abs(k) + dk.both + ek, np.abs(v) + dv.both + ev
        besides = 0.0 if scores.added is None else np.where(hidden, 0.0, np.abs(terms.scores.added))
        sizes = scale * (Q + eq) @ K + besides
        e = scale * (eq @ K + Q @ ek) + _error(_counted(sizes, (k_scores + 8) * sizes))
        below = (s + alpha + e).max(-1, keepdims=True) - s + alpha + e
        grow = np.expm1(np.where(hidden, 0.0, e + UNIT * (4 * below + EXP_UNITS)))
        total = (weights * grow).sum(-1, keepdims=True) + FACTOR * UNIT * (2 * n + 16)
        relative = np.where(total < 0.5, (1 + grow) * (1 + 9 * UNIT) / (1 - total) - 1, np.nan)
        wrong = weights * (relative + FACTOR * UNIT * (n + 4) * (1 + relative))
        local = wrong @ V + (weights * (1 + relative)) @ ev + TINY * V.sum(-2, keepdims=True)
        left = _Moves(left_on_box, left_in_floats + local)

        def pull_back(x: Array) -> tuple[Array, Iterable[tuple[_AffineForm, Array]]]:
            around = x @ v.swapaxes(-1, -2) - (x * o).sum(-1, keepdims=True)
            on_scores = scores.scale * P * around
            return left.of(x) + _Moves(on_box, on_floats).of(around), [
                (forms[0], on_scores @ k.swapaxes(-1, -2)),
                (forms[1], q.swapaxes(-1, -2) @ on_scores),
                (forms[2], P.swapaxes(-1, -2) @ x),
            ]

        size = np.abs(o) + np.einsum("...ij,...ijv->...iv", P * apart, np.abs(v[..., None, :, :] - o[..., :, None, :]))
        return _Numbers(o, size + (P * more) @ dv.both + local, pull_back)

    def _moves_of_scores(self, scores: _Scores, P: Array, q: Array, k: Array) -> _Moves:
        """Return how far scores minus their means move, to first order in queries and keys."""
        shape = P.shape
        P, q, k = (x.reshape(-1, *x.shape[-2:]) for x in (P, q, k))
        columns, pulled = (self._columns(scores.query), self._columns(scores.key)), []
        for head, i in np.ndindex(P.shape[:2]):
            centring = scores.scale * (np.eye(P.shape[2]) - P[head, i])  # a functional of the row for each key
            on_query, on_key = np.zeros((len(centring), *q.shape)), np.zeros((len(centring), *k.shape))
            on_query[:, head, i] = centring @ k[head].T
            on_key[:, head] = q[head, i][:, None] * centring[:, None]
            pulled.append(columns[0].pull_back(on_query) + columns[1].pull_back(on_key))
        return self._moves(scores.query.base, np.concatenate(pulled)).reshape(*shape)

    def _value(self, form: _AffineForm) -> Array:
        """Return a form at the centre."""
        return form.offset + np.tensordot(self.numbers[form.base].value.ravel(), form.columns, 1)

    def _moves_of(self, form: _AffineForm) -> _Moves:
        """Return how far each number of a form moves."""
        columns = form.columns.reshape(len(form.columns), -1).T
        return self._moves(form.base, columns).reshape(*form.offset.shape)

    def _moves(self, base: int, functionals: Array) -> _Moves:
        """Return how far linear functions of a base move."""
        found = []
        for first in range(0, len(functionals), BATCH):
            part = functionals[first : first + BATCH]
            waiting, total = {base: part}, np.zeros((2, len(part)))
            for place in range(base, -1, -1):
                if place not in waiting:
                    continue
                numbers = self.numbers[place]
                beyond, on_forms = numbers.pull_back(waiting.pop(place).reshape(-1, *numbers.value.shape))
                total += beyond
                for form, x in on_forms:
                    waiting[form.base] = waiting.get(form.base, 0.0) + self._columns(form).pull_back(x)
            found.append(total)
        return _Moves(*(RAISED * np.concatenate(found, 1)))

    def _columns(self, form: _AffineForm) -> _Columns:
        if id(form) not in self.columns:
            self.columns[id(form)] = _Columns(form)  # which keeps the form alive
        return self.columns[id(form)]


def _counted(size: Array, counts: Array) -> _AffineForm:
    return _AffineForm(0, size, counts[None])


def _error(terms: _AffineForm) -> Array:
    """Return how far floats are from a sum of terms."""
    return np.where(terms.offset < LARGEST, FACTOR * UNIT * (terms.columns[0] + TINY), np.inf)


def _sizes(x: Array) -> Array:
    """Return absolute values; of what floats may flush to zero, what that changes."""
    if x.dtype.kind != "f":
        return x
    size = np.abs(x)
    return np.where((size > 0) & (size < UNIT * TINY), TINY, size)


def _inverse(terms: _Terms, x: Array) -> _Terms:
    """Return the terms of 1 over a constant: itself, and what it is off by."""
    if not terms.k:
        return _Terms(1 / np.abs(x))
    size = np.where(4 * terms.k * UNIT * terms.size < np.abs(x), terms.size / x**2, np.inf)
    return _Terms(size, 2 * terms.k + 2)


def _constant(
    reader: _Reader, node: Any, inputs: Sequence[_Terms | None], values: Sequence[Any], value: Array
) -> _Terms:
    """Return the terms of what does not depend on the inputs."""
    given = [x for x in inputs if x is not None]
    kind, k = node.op_type, max((x.k for x in given), default=0)
    if kind == "Shape":
        return _Terms(value)
    if value.dtype.kind != "f":
        if k:
            raise NotReadError("turns rounded numbers into whole numbers or truth values")
        return _Terms(value)
    options = {option.name: option for option in node.attribute}
    if kind == "Cast" and options["to"].i not in (_FLOAT, _DOUBLE):
        raise NotReadError("computes in another precision than float32")
    if any(option.t.data_type in _HALF for option in options.values()):
        raise NotReadError("holds numbers in half precision")
    if kind in _MOVED:
        if not k:
            return _Terms(_sizes(value))
        return _Terms(np.abs(reader.constant(node, [None if x is None else x.size for x in inputs])), k)
    if kind in _COMPUTED and not k:
        return _Terms(_sizes(value), _COMPUTED[kind])
    if kind in ("Add", "Sub"):
        return _Terms(given[0].size + given[1].size, k + 1)
    if kind in ("Div", "Reciprocal", "Sqrt"):
        given[-1] = _inverse(given[-1], values[-1])
    if kind in ("Mul", "Div"):
        return _Terms(given[0].size * given[1].size, given[0].k + given[1].k + 1)
    if kind in ("Cast", "Reciprocal"):
        return _Terms(given[0].size, given[0].k + 1)
    if kind == "Sqrt":
        return _Terms(value * np.abs(values[0]) * given[0].size, given[0].k + 1)
    raise NotReadError("computes a constant from numbers that are rounded")


def _summands(kind: str, options: dict[str, Any], given: Sequence[Any], found: _AffineForm) -> int:
    """Return how many operations a term goes through: products that are added up, and what else."""
    shapes = [x.offset.shape if isinstance(x, _AffineForm) else np.shape(x) for x in given]
    if kind in ("MatMul", "Gemm"):
        return shapes[0][-1] + 3
    if kind == "Conv":
        return math.prod(shapes[1][1:]) + 2
    if kind == "ReduceMean":
        return math.prod(shapes[0]) // found.offset.size + 1
    if kind == "Einsum":
        letters, out = options["equation"].replace(" ", "").split("->")
        if "." in letters:
            return math.prod(shapes[0])
        sizes = dict(zip(letters.replace(",", ""), [n for shape in shapes for n in shape], strict=True))
        return math.prod(n for letter, n in sizes.items() if letter not in out) + 1
    return {"BatchNormalization": 8, "Mul": 1, "Div": 1, "Cast": 1}.get(kind, 0)


def _unfinished(inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _Terms:
    """Carry on what entered a norm or an activation that is written out; all of it counts as often as anything may."""
    entered = [x for x, v in zip(inputs, values, strict=True) if isinstance(v, _AffineForm | _Unfinished)]
    size = np.maximum.reduce([x.size.offset for x in entered if x is not None])
    counts = np.maximum.reduce([x.size.columns[0] for x in entered if x is not None])
    constants = sum(x.k for x in inputs if x is not None and not isinstance(x.size, _AffineForm))
    return _Terms(_counted(size, counts + (constants + size.shape[-1] + 4) * size))


def _entered(
    node: Any, form: _AffineForm, inputs: Sequence[_Terms | None], values: Sequence[Any]
) -> _AffineForm:
    """Return the terms of what enters a norm or an activation, in its own scale."""
    found = []
    for terms, value in zip(inputs, values, strict=True):
        if terms is not None and isinstance(value, _AffineForm | _Unfinished):
            other, x = value.form if isinstance(value, _Unfinished) else value, terms.size
            if node.op_type == "LayerNormalization":
                size, counts = (y + y.mean(-1, keepdims=True) for y in (x.offset, x.columns[0]))
                return _counted(size, counts + (size.shape[-1] + 2) * size)
            found.append(x.mapped(lambda y, other=other: _ratio(form, other) * y))
    return _counted(*(np.maximum.reduce(x) for x in ([y.offset for y in found], [y.columns[0] for y in found])))


def _ratio(form: _AffineForm, other: _AffineForm) -> float:
    """Return how many times another form one is."""
    pairs = ((form.columns, other.columns), (form.offset, other.offset))
    return max((RAISED * float(np.abs(x).max() / np.abs(y).max()) for x, y in pairs if y.any()), default=1.0)
