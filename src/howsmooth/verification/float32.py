r"""How far a network that runs in float32 is from its values in real arithmetic, on a whole box (Theorem 17).

Between two nonlinearities a tensor is a sum of terms :math:`c_1\cdots c_kx_j`. In whatever order floats multiply and
add them, with weights folded together or not, it is off by :math:`\gamma_kS`: S the sum of their absolute values, k how
many operations a term goes through. What a nonlinearity makes of this, and its own rounding, is the local error of what
it puts out. Errors go on through Jacobians: those at the centre as they are, all others by how far they are from these,
which ranges bound. Ranges are bounded in the same way; there, what moves is the input.
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
# Types of ONNX that hold float32 and more.
_WIDE = (1, 11)


def gamma(k: int) -> float:
    """Return the relative error of a sum of products that go through k operations each."""
    return k * UNIT / (1 - k * UNIT) if k * UNIT < 0.5 else math.inf


def rounding(reader: _Reader, wanted: Property, rows: Float[Tensor, "rows outputs"]) -> Float[Tensor, " rows"]:
    """Bound how far linear functions of the outputs in float32 are from those in real arithmetic, on a box.

    Args:
        reader: The network, read from an ONNX file.
        wanted: The box.
        rows: The functions.

    Returns:
        The bounds; infinite where something may overflow, or lose its sign within a norm.

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
        size: Their absolute values, added up. For a constant that is an array; for what depends on the inputs a form
            whose columns are zero, for scores two of them, and for an unfinished norm or activation what entered it.
        k: How many operations a term goes through.
        parts: The same of queries and of keys.
    """

    size: Any
    k: int = 0
    parts: tuple[int, int] = (0, 0)

    @property
    def error(self) -> Array:
        """What they are off by."""
        size = self.size.offset if isinstance(self.size, _AffineForm) else self.size
        return np.where(size < LARGEST, gamma(self.k) * (size + TINY), np.inf)


@dataclass(frozen=True, eq=False)
class _Moves:
    """How far numbers move: on the box, and from real arithmetic to floats."""

    box: Array
    error: Array

    @property
    def both(self) -> Array:
        """How far floats are from what is at the centre."""
        return self.box + self.error


@dataclass(frozen=True, eq=False)
class _Numbers:
    """The numbers of a base.

    Attributes:
        value: What they are at the centre, up to what is in ``bends``.
        bends: How they move beyond the linear part of what moves before.
        size: A bound on the absolute values of floats.
        pull_back: Turns linear functions of them, to first order, into those of forms.
    """

    value: Array
    bends: _Moves
    size: Array
    pull_back: Callable[[Array], Iterable[tuple[_AffineForm, Array]]]


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
        shape = reader.bases[0][1]
        lower, upper = (x.numpy().reshape(shape) for x in (wanted.lower, wanted.upper))
        half, size = RAISED * (upper - lower) / 2, np.maximum(np.abs(lower), np.abs(upper))
        self.numbers = [_Numbers((upper + lower) / 2, _Moves(half, np.zeros(shape)), size, lambda _functionals: ())]
        graph = reader.graph
        constants = [x.name for x in graph.initializer]
        self.terms = {name: _Terms(_sizes(reader.values[name])) for name in constants}
        (given,), self.output = (x.name for x in graph.input if x.name not in constants), graph.output[0].name
        # inputs are rounded once
        self.terms[given] = self._tokens(reader.values[given], _Terms(_without_columns(size), 1))
        for node in graph.node:
            try:
                self._run(node)
            except NotReadError as error:
                raise UnsupportedModelError(
                    f"rounding is not followed through the node {_called(node)} ({node.op_type}), which {error}."
                ) from error

    def rounding(self, rows: Array) -> Array:
        """Bound the errors of linear functions of the outputs."""
        form, terms = self.reader.values[self.output], self.terms[self.output]
        pulled = self._columns(form).pull_back(rows)
        return (self._moves(form.base, pulled).error + np.abs(rows) @ terms.error.ravel()) * RAISED

    def _run(self, node: Any) -> None:
        name = node.output[0]
        inputs = [self.terms[x] if x else None for x in node.input]
        values = [self.reader.values[x] if x else None for x in node.input]
        value = self.reader.values[name]
        if isinstance(value, np.ndarray):
            self.terms[name] = _constant(self.reader, node, inputs, values, value)
            return
        if isinstance(value, _Unfinished):
            self.terms[name] = _unfinished(node, inputs, values)
            return
        new = isinstance(value, _AffineForm) and value.base >= len(self.numbers)
        made_by = self.reader.bases[len(self.numbers)][0] if new else None
        if isinstance(made_by, _Activated | _Normalised):
            entered = _entered(node, made_by.form, inputs, values)
            step = self._activated if isinstance(made_by, _Activated) else self._normalised
            self.numbers.append(step(made_by, entered))
        else:
            terms = self._linear(node, inputs, values)
            if isinstance(made_by, _Attended):
                self.numbers.append(self._attended(made_by, inputs[0], inputs[1]))
        if made_by is not None:
            form = value if value.base < len(self.numbers) else self.reader.parts[value.base][0]
            size = np.abs(form.offset) + np.tensordot(self.numbers[-1].size.ravel(), np.abs(form.columns), 1)
            terms = _Terms(_without_columns(size), 4)
        self.terms[name] = self._tokens(value, terms)

    def _linear(self, node: Any, inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _Terms:
        """Add up the absolute values of what a linear operation adds up; carry on queries, keys and scores."""
        kind, options = node.op_type, options_of(node, self.reader.opset)
        if kind == "Cast" and options["to"] not in _WIDE:
            raise NotReadError("computes in another precision than float32")
        options |= {name: abs(options[name]) for name in ("alpha", "beta") if name in options}
        given = [None if x is None else x.size for x in inputs]
        ks = [0 if x is None else x.k for x in inputs]
        if kind == "Div":
            given[1], ks[1] = _inverse(inputs[1], values[1])
        elif kind == "BatchNormalization":
            given[3], given[4] = -given[3], values[4]  # the mean is taken off, the variance is divided by
        elif kind == "Where":
            given = [x if isinstance(v, _Scores) else v for x, v in zip(given, values, strict=True)]
        found = _symbolic(self.scratch, {"Sub": "Add", "Div": "Mul"}.get(kind, kind), options, given)
        before = next((x for x in inputs if x is not None and isinstance(x.size, _Scores)), None)
        if before is not None:
            return _Terms(found, sum(ks) + 1, before.parts)
        if isinstance(found, _Scores):
            return _Terms(found, found.query.offset.shape[-1], (ks[0], ks[1]))
        summands = _summands(kind, options, given, found)
        k = (max if kind in ("Add", "Sub", "Concat") else sum)(ks) + summands
        return _Terms(_without_columns(found.offset + summands * TINY), k)

    def _tokens(self, value: Any, terms: _Terms) -> _Terms:
        """Let tensors that are kept be new numbers, with errors of their own."""
        if not isinstance(value, _AffineForm) or value.base < len(self.numbers):
            return terms
        parts = self.reader.parts[value.base]
        if any(part.offset.shape != value.offset.shape for part in parts):
            raise NotReadError("adds tensors of two shapes")
        bends, centre = _Moves(np.zeros(value.offset.shape), terms.error), sum(self._value(part) for part in parts)
        self.numbers.append(_Numbers(centre, bends, centre, lambda functionals: [(x, functionals) for x in parts]))
        moves = self._moves(value.base, np.eye(centre.size))
        size = np.abs(centre) + moves.both.reshape(centre.shape)
        self.numbers[-1] = replace(self.numbers[-1], size=size)
        return _Terms(_without_columns(size))

    def _activated(self, made_by: _Activated, entered: _Terms) -> _Numbers:
        y, moves, local = self._value(made_by.form), self._moves_of(made_by.form), entered.error
        low, high = y - moves.both - local, y + moves.both + local
        size, activation = np.maximum(np.abs(low), np.abs(high)), known_activation(made_by.activation)
        if activation.name == "relu":
            bent = (low < 0) & (high > 0)
            slope = np.where(bent, high / (high - low), low >= 0)
            gap = np.where(bent, -slope * low / 2, 0.0)  # half of how far the line is above the kink
            value, size = slope * y + gap, np.maximum(high, 0.0)
            bends = _Moves(gap, np.where(bent, np.maximum(slope, 1 - slope) * moves.error, 0.0) + local)
        else:
            value, slope = (f(torch.from_numpy(y)).numpy() for f in (activation.value, activation.slope))
            second = largest_derivative(activation, torch.from_numpy(low), torch.from_numpy(high)).numpy()
            steeper = np.fmin(second * moves.both, 2 * STEEPEST)  # than at the centre
            if activation.name == "tanh":
                size = np.minimum(size, 1.0)
                local = local + TANH_UNITS * UNIT * size
            else:
                local = STEEPEST_FACTORS * local + ACTIVATION_UNITS * UNIT * size
            box = np.fmin(0.5 * second * moves.box**2, 2 * STEEPEST * moves.box)
            bends = _Moves(box, steeper * moves.error + local)
        return _Numbers(value, bends, size * (1 + 16 * UNIT) + TINY, lambda x: [(made_by.form, slope * x)])

    def _normalised(self, made_by: _Normalised, entered: _Terms) -> _Numbers:
        r"""Divide by the root of the mean square.

        At :math:`c+\delta`, with :math:`N=|c|` and :math:`\delta=N(u\hat c+w)`, the Jacobian times a change is off from
        :math:`w` by what the length and the direction have changed by.
        """
        form, c = made_by.form, self._value(made_by.form)
        d, tokens = c.shape[-1], c.size // c.shape[-1]
        N = np.sqrt((c**2).sum(-1, keepdims=True) + d * made_by.eps)
        unit, root = c / N, math.sqrt(d)
        along = np.eye(tokens)[..., None] * (unit / N).reshape(tokens, d)
        across = np.einsum("ts,kl->tksl", np.eye(tokens), np.eye(d)) / N.reshape(-1, 1, 1, 1)
        across = across - np.einsum("tk,tsl->tksl", unit.reshape(tokens, d), along)
        u = self._moves(form.base, self._columns(form).pull_back(along)).reshape(*c.shape[:-1], 1)
        w = self._moves(form.base, self._columns(form).pull_back(across.reshape(-1, tokens, d))).reshape(*c.shape)
        last = np.sqrt(d * made_by.eps) / N  # the coordinate that eps adds to c

        def bend(U: Array, W: Array, du: Array, dw: Array) -> Array:
            W, dw_length = (np.sqrt((x**2).sum(-1, keepdims=True) + (last * y) ** 2) for x, y in ((W, U), (dw, du)))
            room = np.where(U < 1, 1 - U, np.nan)  # further away a token may change its sign
            longer, turned = np.maximum(U / room, np.hypot(1 + U, W) - 1), W / room
            return longer * dw + (turned * du + (np.abs(unit) + turned) * turned * np.hypot(du, dw_length)) / room

        both = u.both, w.both
        box = 0.5 * bend(u.box, w.box, u.box, w.box)
        W = np.sqrt((both[1] ** 2).sum(-1, keepdims=True) + (last * both[0]) ** 2)
        least = np.where(both[0] < 1, N * (1 - both[0]), np.nan)
        size = np.minimum(np.abs(unit) + W / (1 - both[0]), 1.0)
        # the mean square may be computed with or without the mean taken off first
        squares = (entered.size.offset**2).sum(-1, keepdims=True)
        r = gamma(2 * entered.k + 2 * d + 16) * (squares + d * TINY) / least**2 + 8 * UNIT
        r = np.where((r < 0.5) & (squares < LARGEST), r, np.nan)
        local = (1 + r) * entered.error / least + size * (r + 4 * UNIT) + TINY
        bends = _Moves(root * box, root * (bend(*both, u.error, w.error) + local))

        def pull_back(x: Array) -> Iterable[tuple[_AffineForm, Array]]:
            return [(form, root * (x - unit * (unit * x).sum(-1, keepdims=True)) / N)]

        return _Numbers(root * unit, bends, root * (size + local), pull_back)

    def _attended(self, made_by: _Attended, of_scores: _Terms, of_values: _Terms) -> _Numbers:
        r"""Average values.

        With centred changes b of scores, weights P become :math:`P_je^{b_j}/Z`, :math:`1\le Z\le1+\zeta`; the Jacobian
        times a change is :math:`\sum_jP_j'\,db_j(v_j'-o')+\sum_jP_j'\,dv_j` with the scores' own changed Jacobian.
        """
        scores, sizes = made_by.scores, self.scratch.bases[-1][0]
        forms = scores.query, scores.key, made_by.value
        if len({form.offset.shape[:-2] for form in forms}) > 1:
            raise NotReadError("shares keys or values between heads")
        assert isinstance(sizes, _Attended)
        (q, k, v), scale = (self._value(form) for form in forms), scores.scale
        s = scale * q @ k
        added = np.zeros_like(s) if scores.added is None else np.broadcast_to(scores.added, s.shape)
        hidden = added <= HIDDEN
        s = np.where(hidden, -np.inf, s + added)
        P = np.exp(s - s.max(-1, keepdims=True))
        P = P / P.sum(-1, keepdims=True)
        o = P @ v
        spread = np.abs(v[..., None, :, :] - o[..., :, None, :])  # of values around their means
        dq, dk, dv = (self._moves_of(form) for form in forms)
        b = self._scores_moves(scores, P, q, k)

        def weighted(weights: Array, x: Array) -> Array:
            return np.einsum("...ij,...ijv->...iv", weights, x)

        def grown(b: Array, dq: Array, dk: Array, dv: Array) -> tuple[Array, Array, Array]:
            """Return bounds of :math:`P'_j/P_j`, of how far that is from one, and of how far means move."""
            products = abs(scale) * dq @ dk
            alpha = np.where(hidden, 0.0, b + products + (P * products).sum(-1, keepdims=True))
            more = np.exp(alpha)
            apart = more * (1 + (P * (np.expm1(alpha) - alpha)).sum(-1, keepdims=True)) - 1
            return more, apart, weighted(P * apart, spread) + (P * more) @ dv

        def bend(at: Sequence[Array], changes: Sequence[Array]) -> Array:
            (_b, q_at, k_at, v_at), (db, cq, ck, cv) = at, changes
            more, apart, mean = grown(*at)
            moved = v_at[..., None, :, :] + mean[..., :, None, :]
            on_scores = abs(scale) * (cq @ k_at + q_at @ ck)
            found = weighted(P * more * (db + on_scores), moved) + weighted(P * more * on_scores, spread)
            return found + weighted(P * apart * db, spread) + (P * apart) @ cv

        moves = b, dq, dk, dv
        box, error, at = ([getattr(x, name) for x in moves] for name in ("box", "error", "both"))
        more, _apart, mean = grown(*at)
        weights, alpha = np.minimum(P * more, 1.0), np.log(more)
        # what floats make of exact projections: queries, keys, values; scores; exponentials; and sums over the row
        (kq, kk), n = of_scores.parts, s.shape[-1]
        eq, ek, ev = _Terms(sizes.scores.query, kq).error, _Terms(sizes.scores.key, kk).error, of_values.error
        Q, K, V = np.abs(q) + dq.both, np.abs(k) + dk.both + ek, np.abs(v) + dv.both + ev
        beside = 0.0 if scores.added is None else np.where(hidden, 0.0, np.abs(sizes.scores.added))
        e = abs(scale) * (eq @ K + Q @ ek) + _Terms(abs(scale) * (Q + eq) @ K + beside, of_scores.k + 8).error
        below = (s + alpha + e).max(-1, keepdims=True) - s + alpha + e
        grow = np.expm1(np.where(hidden, 0.0, e + UNIT * (4 * below + EXP_UNITS)))
        total = (weights * grow).sum(-1, keepdims=True) + gamma(2 * n + 16)
        relative = np.where(total < 0.5, (1 + grow) * (1 + gamma(8)) / (1 - total) - 1, np.nan)
        local = (weights * (relative + gamma(n + 4) * (1 + relative))) @ V + (weights * (1 + relative)) @ ev
        local = local + TINY * V.sum(-2, keepdims=True)

        def pull_back(x: Array) -> Iterable[tuple[_AffineForm, Array]]:
            on_scores = scale * P * (x @ v.swapaxes(-1, -2) - (x * o).sum(-1, keepdims=True))
            return [
                (forms[0], on_scores @ k.swapaxes(-1, -2)),
                (forms[1], q.swapaxes(-1, -2) @ on_scores),
                (forms[2], P.swapaxes(-1, -2) @ x),
            ]

        return _Numbers(o, _Moves(0.5 * bend(box, box), bend(at, error) + local), np.abs(o) + mean + local, pull_back)

    def _scores_moves(self, scores: _Scores, P: Array, q: Array, k: Array) -> _Moves:
        """Return how far scores move minus their means, to first order in queries and keys."""
        lead, (n, m) = P.shape[:-2], P.shape[-2:]
        P, q, k = (x.reshape(-1, *x.shape[-2:]) for x in (P, q, k))
        pulled = []
        for head in range(len(P)):
            centring = np.eye(m) - P[head][:, None]  # of query i: functionals of scores, one for each key
            on_query, on_key = np.zeros((2, 0))
            for i in range(n):
                on_query, on_key = np.zeros((m, *q.shape)), np.zeros((m, *k.shape))
                on_query[:, head, i] = scores.scale * centring[i] @ k[head].T
                on_key[:, head] = scores.scale * q[head, i][None, :, None] * centring[i][:, None]
                parts = (self._columns(scores.query).pull_back(on_query), self._columns(scores.key).pull_back(on_key))
                pulled.append(sum(parts))
        moves = self._moves(scores.query.base, np.concatenate(pulled))
        return _Moves(*(x.reshape(*lead, n, m) for x in (moves.box, moves.error)))

    def _value(self, form: _AffineForm) -> Array:
        """Return a form at the centre."""
        return form.offset + np.tensordot(self.numbers[form.base].value.ravel(), form.columns, 1)

    def _moves_of(self, form: _AffineForm) -> _Moves:
        """Return how far each number of a form moves."""
        moves = self._moves(form.base, form.columns.reshape(len(form.columns), -1).T)
        return _Moves(*(x.reshape(form.offset.shape) for x in (moves.box, moves.error)))

    def _moves(self, base: int, functionals: Array) -> _Moves:
        """Return how far linear functions of a base move."""
        found = []
        for first in range(0, len(functionals), BATCH):
            part = functionals[first : first + BATCH]
            waiting, total = {base: part}, np.zeros((2, len(part)))
            for place in range(base, -1, -1):
                if place not in waiting:
                    continue
                on_numbers, numbers = waiting.pop(place), self.numbers[place]
                total += np.stack([x.ravel() for x in (numbers.bends.box, numbers.bends.error)]) @ np.abs(on_numbers).T
                for form, on_form in numbers.pull_back(on_numbers.reshape(-1, *numbers.value.shape)):
                    waiting[form.base] = waiting.get(form.base, 0.0) + self._columns(form).pull_back(on_form)
            found.append(total)
        return _Moves(*(RAISED * np.concatenate(found, 1)))

    def _columns(self, form: _AffineForm) -> _Columns:
        if id(form) not in self.columns:
            self.columns[id(form)] = _Columns(form)  # which keeps the form alive
        return self.columns[id(form)]


def _without_columns(size: Array) -> _AffineForm:
    return _AffineForm(0, size, np.zeros((1, *size.shape)))


def _sizes(x: Array) -> Array:
    """Return absolute values; of what floats may flush to zero, what that changes."""
    if x.dtype.kind != "f":
        return x
    size = np.abs(x)
    return np.where((size > 0) & (size < UNIT * TINY), TINY, size)


def _inverse(terms: _Terms, x: Array) -> tuple[Array, int]:
    """Return the terms of 1 over a constant: of that, and of what it is off by."""
    if not terms.k:
        return 1 / np.abs(x), 0
    return np.where(2 * terms.error < np.abs(x), terms.size / x**2, np.inf), 2 * terms.k + 2


def _constant(reader: _Reader, node: Any, inputs: Sequence[_Terms | None], values: Sequence[Any], value: Array) -> _Terms:
    """Return the terms of what does not depend on the inputs."""
    given = [x for x in inputs if x is not None]
    kind, k = node.op_type, max((x.k for x in given), default=0)
    if value.dtype.kind != "f":
        if k and kind != "Shape":
            raise NotReadError("turns rounded numbers into whole numbers or truth values")
        return _Terms(value)
    if kind in _MOVED:
        if not k:
            return _Terms(_sizes(value))
        return _Terms(np.abs(reader.constant(node, [None if x is None else x.size for x in inputs])), k)
    if kind == "Cast" and next(option.i for option in node.attribute if option.name == "to") not in _WIDE:
        raise NotReadError("computes in another precision than float32")
    if kind in _COMPUTED and not k:
        return _Terms(_sizes(value), _COMPUTED[kind])
    sizes, ks = [x.size for x in given], [x.k for x in given]
    if kind == "Div":
        sizes[1], ks[1] = _inverse(given[1], values[1])
    if kind in ("Add", "Sub"):
        return _Terms(sizes[0] + sizes[1], k + 1)
    if kind in ("Mul", "Div"):
        return _Terms(sizes[0] * sizes[1], sum(ks) + 1)
    if kind == "Cast":
        return _Terms(sizes[0], k + 1)
    if kind == "Reciprocal":
        size, k = _inverse(given[0], values[0])
        return _Terms(size, k + 1)
    if kind == "Sqrt":
        size, k = _inverse(given[0], values[0])
        return _Terms(value * np.abs(values[0]) * size, k + 1)
    raise NotReadError("computes a constant from numbers that are rounded")


def _summands(kind: str, options: dict[str, Any], given: Sequence[Any], found: _AffineForm) -> int:
    """Return how many products an operation adds up, and what else a term goes through."""
    shapes = [x.offset.shape if isinstance(x, _AffineForm) else np.shape(x) for x in given]
    if kind in ("MatMul", "Gemm"):
        return shapes[0][-1] + 2
    if kind == "Conv":
        return math.prod(shapes[1][1:]) + 1
    if kind == "ReduceMean":
        return math.prod(shapes[0]) // found.offset.size + 1
    if kind == "Einsum":
        letters, out = options["equation"].replace(" ", "").split("->")
        if "." in letters:
            return math.prod(shapes[0])
        sizes = {c: n for part, shape in zip(letters.split(","), shapes, strict=True) for c, n in zip(part, shape, strict=True)}
        return math.prod(n for c, n in sizes.items() if c not in out)
    return 8 if kind == "BatchNormalization" else 1


def _unfinished(node: Any, inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _Terms:
    """Carry on what entered a norm or an activation that is written out, and how many operations it has gone through."""
    entered = [x for x, v in zip(inputs, values, strict=True) if isinstance(v, _AffineForm | _Unfinished)]
    size = np.maximum.reduce([x.size.offset for x in entered])
    return _Terms(_without_columns(size), sum(x.k for x in inputs if x is not None) + size.shape[-1] + 4)


def _entered(node: Any, form: _AffineForm, inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _Terms:
    """Return the terms of what enters a norm or an activation, in its own scale."""
    k = sum(x.k for x in inputs if x is not None)
    if node.op_type == "LayerNormalization":
        size = inputs[0].size.offset
        return _Terms(_without_columns(size + size.mean(-1, keepdims=True)), k + size.shape[-1] + 2)
    sizes = []
    for terms, value in zip(inputs, values, strict=True):
        if isinstance(value, _AffineForm | _Unfinished):
            entered = value.form if isinstance(value, _Unfinished) else value
            sizes.append(terms.size.offset * _ratio(form, entered))
    return _Terms(_without_columns(np.maximum.reduce(sizes)), k)


def _ratio(form: _AffineForm, other: _AffineForm) -> float:
    """Return how many times another form one is."""
    pairs = ((form.columns, other.columns), (form.offset, other.offset))
    return max((RAISED * np.abs(x).max() / np.abs(y).max() for x, y in pairs if y.any()), default=1.0)
