r"""What float32 adds to every stage of a network that was read from a file (Theorem 17).

Between two nonlinearities a tensor is a sum of terms :math:`c_1\cdots c_kx_j`. In whatever order floats multiply and
add them, with weights folded together or not, they are off by :math:`\sum_tk_t|t|`, in units of roundoff, where a term
t goes through :math:`k_t` operations. What a nonlinearity makes of this, and its own rounding, is one more remainder of
its stage, bounded by ranges of what enters it: those of the Taylor model, to which errors made before belong.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from howsmooth.errors import UnsupportedModelError
from howsmooth.verification.activation_expansion import ActivationExpansion
from howsmooth.verification.attention_expansion import AttentionExpansion
from howsmooth.verification.network_expansion import ResidualStage
from howsmooth.verification.norm_expansion import NormExpansion
from howsmooth.verification.onnx_network import (
    _Activated,
    _AffineForm,
    _Attended,
    _called,
    _is_identity,
    _Normalised,
    _Reader,
    _Scores,
    _symbolic,
    _Unfinished,
)
from howsmooth.verification.onnx_operations import Array, NotReadError, options_of
from howsmooth.verification.properties import Property
from howsmooth.verification.relu_relaxation import ReLURelaxation
from howsmooth.verification.taylor_model import ExpandedStage, Forms, TaylorModel

UNIT = 2.0**-24
# Products of so many factors and so many of them in a sum: k units are less than 1.02 · k · UNIT.
MOST, FACTOR = 2**18, 1.02
# Below 2⁻¹²⁶ floats lose digits or are flushed to zero: an error of UNIT · TINY for every product.
TINY = 2.0**-102
# Where sums of absolute values are larger, floats may overflow on the way.
LARGEST = 2.0**126
# What activations add to the error of their argument, in units: erf, tanh and logistic functions, products and sums.
ACTIVATION_UNITS, TANH_UNITS, EXP_UNITS = 12, 8, 16
# Slopes of both factors of x Φ(x) together, each of which has an error of its own.
STEEPEST = 1.3
# Constants that are only moved about stay what they are.
_MOVED = {"Constant", "ConstantOfShape", "Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Gather", "Slice"}
_MOVED |= {"GatherElements", "Concat", "Expand", "Flatten", "Tile", "Where", "Trilu", "Abs", "Neg"}
# What one operation makes of exact numbers is rounded once, or is off by a few units.
_COMPUTED = {"Add": 1, "Sub": 1, "Mul": 1, "Div": 1, "Sqrt": 1, "Reciprocal": 1, "Cast": 1, "Range": 2, "Pow": 8}
_COMPUTED |= dict.fromkeys(("Exp", "Log", "Sin", "Cos", "Tanh", "Erf", "Sigmoid"), 8)
# What multiplies and adds up tensors that are kept.
_SUMS = frozenset(("Conv", "MatMul", "Gemm", "Einsum", "ReduceMean"))
# Types of ONNX: floats, those that are narrower than float32, and the others that hold float32.
_FLOAT, _DOUBLE, _HALF = 1, 11, (10, 16)
# What is no number has no bound.
_NO_NUMBERS = np.errstate(all="ignore")
# What makes the numbers behind a stage; behind a residual connection they are tokens.
_MAKERS: dict[type[ExpandedStage], type] = {
    AttentionExpansion: _Attended,
    ReLURelaxation: _Activated,
    ActivationExpansion: _Activated,
    NormExpansion: _Normalised,
    ResidualStage: NoneType,
}


@dataclass(frozen=True, eq=False)
class _Terms:
    """The terms that floats add up in a tensor.

    Attributes:
        size: Their absolute values, added up: an array for a constant. For what depends on the inputs it is the value
            of a form of one column, and in the column every term counts as often as it goes through an operation. For
            scores these are two forms; for an unfinished norm or activation that of what entered it.
        k: How many operations a term goes through, at most.
        product: How many products have just been added up: what is added next may be added up with them.
        convolution: Likewise in a convolution: all that is added next may be.
        half: Whether it is a constant in half precision.
    """

    size: Any
    k: int = 0
    product: int = 0
    convolution: int = 0
    half: bool = False


@dataclass(frozen=True, eq=False)
class _Numbers:
    """The numbers of a base: at the centre, and the largest absolute values that floats have."""

    value: Array
    size: Array


class RoundingErrors(ExpandedStage):
    """What floats may be off by behind a stage.

    Args:
        model: The model behind it.
        size: Bounds of the errors.
        seen_by: Returns linear functions of what is off from those of the tokens.
    """

    def __init__(self, model: TaylorModel, size: Tensor, seen_by: Callable[[Tensor], Tensor]) -> None:
        self.value, self.linear, self._size, self._seen_by = model.centre, model.derivative, size, seen_by

    def pull_back(self, functionals: Float[Tensor, "f n d"], forms: Forms) -> Float[Tensor, "f n d"]:
        """Add the errors."""
        forms.add_rounding((self._seen_by(functionals).abs() * self._size).flatten(1).sum(1))
        return functionals


class _OnlyRounding(Forms):
    """What floats are off by, to first order."""

    def add(self, left: Tensor, right: Callable[[], Tensor], ranges: Tensor) -> None:
        """Leave out second orders."""

    def add_remainder(self, size: Tensor) -> None:
        """Leave out what real numbers are off by."""

    def add_rounding(self, size: Tensor) -> None:
        """Add what floats are off by."""
        self.remainder += size


class Execution:
    """A network in float32, its nodes run in step with a Taylor model.

    Args:
        reader: The network, as it was read from a file.
        wanted: The box.

    Raises:
        UnsupportedModelError: If rounding cannot be followed through a node; so does every method.
    """

    def __init__(self, reader: _Reader, wanted: Property) -> None:
        graph = reader.graph
        self._reader, self._scratch, self._nodes = reader, _Reader(reader.opset), deque(graph.node)
        constants = {tensor.name for tensor in graph.initializer}
        self._terms = {
            x.name: _Terms(_sizes(reader.values[x.name]), half=x.data_type in _HALF) for x in graph.initializer
        }
        lower, upper = (x.numpy().reshape(reader.bases[0][1]) for x in (wanted.lower, wanted.upper))
        size = np.maximum(np.abs(lower), np.abs(upper))
        self._numbers = [_Numbers((lower + upper) / 2, size)]
        given = next(x.name for x in graph.input if x.name not in constants)
        self._keep(given, _Terms(_counted(size, size), 1))  # inputs are rounded once

    @_NO_NUMBERS
    def begin(self, model: TaylorModel) -> TaylorModel:
        """Add the errors of the first tokens."""
        bases = self._reader.bases
        return self._behind_tokens(model) if len(self._numbers) == 1 < len(bases) and bases[1][0] is None else model

    @_NO_NUMBERS
    def behind(self, model: TaylorModel) -> TaylorModel:
        """Add the errors of the last stage."""
        stage = model.stages[-1]
        if type(stage) not in _MAKERS:
            return model
        if isinstance(stage, ResidualStage):
            return self._behind_tokens(model)
        node = self._run_to(_MAKERS[type(stage)])
        made_by, shape = self._reader.bases[len(self._numbers)]
        seen_by = _as_they_are
        with _followed(node):
            if isinstance(stage, AttentionExpansion) and isinstance(made_by, _Attended):
                value, size, errors = self._attended(stage, made_by, self._linear(node).k)
                seen_by = functools.partial(torch.einsum, "hov,fno->fhnv", stage.heads.output)
            else:
                assert isinstance(made_by, _Activated | _Normalised)
                entered = _entered(node, made_by.form, *self._inputs(node))
                step: Any = self._normalised if isinstance(stage, NormExpansion) else self._activated
                value, size, errors = step(stage, entered)
            if value.size != math.prod(shape):
                raise NotReadError("makes other numbers than the map that was read")
        self._numbers.append(_Numbers(value.reshape(shape), size.reshape(shape)))
        found = self._reader.values[node.output[0]]
        form = found if found.base < len(self._numbers) else self._reader.parts[found.base][0]
        size, k = self._size(form), 0 if _is_identity(form) else 4
        self._keep(node.output[0], _Terms(_counted(size, k * size), k))
        return _with_errors(model, errors, seen_by)

    @_NO_NUMBERS
    def behind_all(self) -> Float[Tensor, " outputs"]:
        """Return what outputs are off by besides."""
        self._run_to(None)
        return _torch(_error(self._terms[self._reader.graph.output[0].name].size)).flatten()

    @staticmethod
    def to_first_order(model: TaylorModel, rows: Float[Tensor, "rows outputs"]) -> Float[Tensor, " rows"]:
        """Return how far linear functions of the outputs are off by all else, to first order in errors and moves."""
        sums, pulled = _OnlyRounding(model.symbols, len(rows), None, rows), rows.unsqueeze(1)
        for stage in reversed(model.stages):
            pulled = stage.pull_back(pulled, sums)
        return sums.remainder

    def _run_to(self, maker: type | None) -> Any:
        """Run linear nodes, up to the one behind which there are numbers made by this; or all."""
        while self._nodes:
            node = self._nodes.popleft()
            name, value = node.output[0], self._reader.values[node.output[0]]
            if isinstance(value, _AffineForm) and value.base >= len(self._numbers):
                made_by = self._reader.bases[len(self._numbers)][0]
                if isinstance(made_by, maker or ()):
                    return node
                if made_by is not None:
                    break
            with _followed(node):
                inputs, values = self._inputs(node)
                if isinstance(value, np.ndarray):
                    self._terms[name] = _constant(self._reader, node, inputs, values, value)
                elif isinstance(value, _Unfinished):
                    self._terms[name] = _unfinished(inputs, values)
                else:
                    self._keep(name, self._linear(node))
        else:
            if maker is None:
                return None
        raise UnsupportedModelError(
            "rounding is not followed: the maps that were read are in another order than nodes."
        )

    def _inputs(self, node: Any) -> tuple[list[_Terms | None], list[Any]]:
        """Return the terms and the values that a node takes."""
        names = list(node.input)
        terms = [self._terms[x] if x else None for x in names]
        return terms, [self._reader.values[x] if x else None for x in names]

    def _keep(self, name: str, terms: _Terms) -> None:
        """Keep the terms of a tensor. Where it is tokens that no stage is behind, their errors go on with them."""
        if terms.k > MOST:
            raise UnsupportedModelError(f"rounding is not followed through sums of more than {MOST} products.")
        found = self._reader.values[name]
        if isinstance(found, _AffineForm) and found.base == len(self._numbers):
            form = self._reader.parts[found.base][0]
            self._numbers.append(_Numbers(self._value(form), self._size(form) + _error(terms.size)))
        self._terms[name] = terms

    def _behind_tokens(self, model: TaylorModel) -> TaylorModel:
        """Add the errors of tokens that are kept."""
        node = self._run_to(NoneType)
        with _followed(node):
            errors = _error(self._linear(node).size)
        behind = _with_errors(model, errors.reshape(model.centre.shape))
        moved = model.symbols.linear_range(model.derivative).flatten()
        moved = moved + behind.beyond_linear(model.coordinates(), forms=False).size
        shape = errors.shape
        value = model.centre.numpy().reshape(shape)
        size = np.abs(value) + moved.numpy().reshape(shape)
        self._numbers.append(_Numbers(value, size))
        self._terms[node.output[0]] = _Terms(_counted(size, np.zeros(shape)))
        return behind

    def _linear(self, node: Any) -> _Terms:
        """Add up the absolute values of what a linear operation adds up; carry on queries, keys, scores and values."""
        kind, options = node.op_type, options_of(node, self._reader.opset)
        inputs, values = self._inputs(node)
        if kind == "Cast" and options["to"] not in (_FLOAT, _DOUBLE):
            raise NotReadError("computes in another precision than float32")
        options |= {name: abs(options[name]) for name in ("alpha", "beta") if name in options}
        terms = [_Terms(None) if x is None else x for x in inputs]
        if any(x.half for x in terms):
            raise NotReadError("computes in half precision")
        if kind == "Div":
            terms[1] = _inverse(terms[1], values[1])
        if kind in _SUMS:  # tensors that are kept
            terms = [self._kept(x, v) for x, v in zip(terms, values, strict=True)]
        given = [x.size for x in terms]
        if kind == "BatchNormalization":
            given[3], given[4] = -given[3], values[4]  # the mean is taken off, the variance is divided by
            if terms[4].k:
                raise NotReadError("divides by a variance that is rounded")
        elif kind == "Where":
            given = [x if isinstance(v, _Scores) else v for x, v in zip(given, values, strict=True)]
        found = _symbolic(self._scratch, {"Sub": "Add", "Div": "Mul"}.get(kind, kind), options, given)
        if isinstance(found, _Scores) or any(isinstance(x, _Scores) for x in given):
            k = 1 + sum(x.k for x in terms if not isinstance(x.size, _AffineForm))
            fresh = isinstance(terms[0].size, _AffineForm) and isinstance(terms[1].size, _AffineForm)
            return _Terms(found, found.query.offset.shape[-1] + 2 if fresh else k)
        size, counts = found.offset, found.columns[0]
        if kind in ("Add", "Sub"):
            for x, other in ((terms[0], terms[1]), (terms[1], terms[0])):
                alone = x.size.offset if isinstance(x.size, _AffineForm) else x.size
                constant = 0 if isinstance(x.size, _AffineForm) else x.k
                counts = counts + (other.product + constant) * alone
            counts = counts + self._largest_sum(node, size, counts)
            k = max(x.k for x in terms) + max(x.product for x in terms) + 1
            convolution = max(x.convolution for x in terms)
            return _Terms(_counted(size, counts), k, convolution, convolution)
        constants = sum(x.k for x in terms if not isinstance(x.size, _AffineForm))
        product, convolution = 0, 0
        if kind in _SUMS:
            summands = _summands(kind, options, given, found)
            product = summands if kind in ("Conv", "MatMul") or (kind == "Gemm" and len(terms) == 2) else 0
            convolution = summands if kind == "Conv" else 0
            size = size + summands * TINY
            counts, behind = counts + summands * self._largest_sum(node, size, counts), constants + 2
        elif kind in ("Mul", "Div", "BatchNormalization"):
            product, convolution = (max(getattr(x, name) for x in terms) for name in ("product", "convolution"))
            behind = constants + 1
            if kind == "BatchNormalization":
                behind = constants + 6
                alone = [given[0], given[1], 0 * given[2], 0 * given[3], given[4]]
                counts = counts + product * (size - _symbolic(self._scratch, kind, options, alone).offset)
        else:
            behind = constants + (kind == "Cast")
        k = max(x.k for x in terms if isinstance(x.size, _AffineForm)) + behind + product
        return _Terms(_counted(size, counts + behind * size), k, product, convolution)

    def _largest_sum(self, node: Any, size: Array, counts: Array) -> Array:
        """Bound all sums on the way: half of what terms add up to, and of their absolute values."""
        value = self._reader.values[node.output[0]]
        parts = (value,) if value.base < len(self._numbers) else self._reader.parts[value.base]
        return (size + np.minimum(sum(self._size(part) for part in parts) + FACTOR * UNIT * counts, size)) / 2

    def _value(self, form: _AffineForm) -> Array:
        """Return a form at the centre."""
        return form.offset + np.tensordot(self._numbers[form.base].value.ravel(), form.columns, 1)

    def _size(self, form: _AffineForm) -> Array:
        """Bound the absolute values of a form of floats."""
        numbers = self._numbers[form.base]
        moved = (numbers.size - np.abs(numbers.value)).ravel()
        return np.abs(self._value(form)) + np.tensordot(moved, np.abs(form.columns), 1)

    def _kept(self, terms: _Terms, value: Any) -> _Terms:
        """Return the terms of a tensor that is kept: its numbers are no larger than they are."""
        if not isinstance(value, _AffineForm):
            return terms
        size = np.minimum(self._size(value) + _error(terms.size), terms.size.offset)
        return replace(terms, size=_counted(size, terms.size.columns[0]))

    def _activated(self, stage: Any, entered: _AffineForm) -> tuple[Array, Array, Array]:
        """Return the numbers behind an activation, the largest they may be, and what they are off by."""
        errors = _error(entered).reshape(stage.value.shape)
        if isinstance(stage, ReLURelaxation):
            return stage.value.numpy(), stage.upper.clamp_min(0).numpy() + errors, errors
        size = stage.largest.numpy() + errors
        if stage.activation.name == "tanh":
            size = np.minimum(size, 1.0)
            errors = errors + TANH_UNITS * UNIT * size
        else:
            errors = STEEPEST * errors + ACTIVATION_UNITS * UNIT * size
        return stage.value.numpy(), size + errors, errors + TINY

    def _normalised(self, stage: NormExpansion, entered: _AffineForm) -> tuple[Array, Array, Array]:
        """Likewise behind a division by the root of the mean square."""
        terms, counts, errors = (
            x.reshape(stage.value.shape) for x in (entered.offset, entered.columns[0], _error(entered))
        )
        w = stage.symbols.linear_range(stage.w1) + stage.w2
        d, U = terms.shape[-1], stage.U.unsqueeze(-1).numpy()
        room = np.where(U < 1, 1 - U, np.nan)
        least = stage.length.unsqueeze(-1).numpy() * room
        unit = np.minimum(((1 + U) * np.abs(stage.unit.numpy()) + w.numpy()) / room, 1.0)
        # the mean square may be computed with or without the mean taken off first
        squares = (2 * terms * counts + (2 * d + 16) * terms**2).sum(-1, keepdims=True) + d * TINY
        r = FACTOR * UNIT * squares / least**2 + 8 * UNIT
        r = np.where((r < 0.5) & (squares < LARGEST), r, np.inf)
        errors = math.sqrt(d) * ((1 + r) * errors / least + unit * (r + 4 * UNIT) + TINY)
        return stage.value.numpy(), math.sqrt(d) * unit + errors, errors

    def _attended(self, stage: AttentionExpansion, made_by: _Attended, k: int) -> tuple[Array, Array, Array]:
        r"""Likewise behind attention, whose scores go through k operations.

        Where scores are off by at most d, weights become :math:`P_je^{\pm d_j}/\sum_lP_le^{\pm d_l}`: they are off by
        :math:`P_jY/(1-Y)` with :math:`Y=\sum_{l\ne j}P_l(e^{d_j+d_l}-1)`, and by no more than
        :math:`P_je^{d_j+\sum_lP_ld_l}`.
        """
        found = self._scratch.bases[-1][0]
        assert isinstance(found, _Attended)
        forms = found.scores.query, found.scores.key.mapped(lambda x: x.swapaxes(-1, -2)), found.value
        if any(form.offset.size != x.numel() for form, x in zip(forms, (stage.q, stage.k, stage.v), strict=True)):
            raise NotReadError("shares keys or values between heads")
        q, key, v, hidden = (x.numpy() for x in (stage.q, stage.k, stage.v, stage.hidden))
        eq, ek, ev = (_error(form).reshape(x.shape) for form, x in zip(forms, (q, key, v), strict=True))
        dq, dk, dv, alpha = (
            (getattr(stage, f"{name}1") + getattr(stage, f"{name}2")).numpy() for name in ("q", "k", "v", "alpha")
        )
        Q, K, V = np.abs(q) + dq, np.abs(key) + dk + ek, np.abs(v) + dv + ev
        scale, n, alpha = abs(stage.heads.scale), len(q[0]), np.where(hidden, 0.0, alpha)
        added = largest = np.zeros_like(alpha)
        if made_by.scores.added is not None and found.scores.added is not None:
            added, largest = (
                np.where(hidden, 0.0, np.broadcast_to(x, (1, *alpha.shape)).reshape(alpha.shape))
                for x in (made_by.scores.added, np.abs(found.scores.added))
            )
        s = np.where(hidden, -np.inf, stage.heads.scale * q @ key.swapaxes(-1, -2) + added)
        largest = largest + scale * (Q + eq) @ K.swapaxes(-1, -2)
        e = scale * (eq @ K.swapaxes(-1, -2) + Q @ ek.swapaxes(-1, -2)) + _error(_counted(largest, (k + 8) * largest))
        below = (s + alpha + e).max(-1, keepdims=True) - s + alpha + e
        d = np.where(hidden, 0.0, e + UNIT * (4 * below + EXP_UNITS))
        # P on the box, at most
        log_P = s - s.max(-1, keepdims=True)
        log_P = np.minimum(log_P - np.log(np.exp(log_P).sum(-1, keepdims=True)) + alpha, 0.0)
        P = np.exp(log_P)
        grown = np.where(d < 1, P * np.expm1(d), np.exp(log_P + d))
        others = (x.sum(-1, keepdims=True) - x + 1e-12 for x in (grown, P))
        Y = sum(x * y for x, y in zip((np.exp(d), np.expm1(d)), others, strict=True))
        most = np.exp(log_P + d + (P * d).sum(-1, keepdims=True))
        off = np.where(Y < 0.5, P * Y / (1 - Y), most)
        off = off + FACTOR * UNIT * (3 * n + 24) * (P + off) + TINY  # sums over the row, and the division
        errors = off @ V + (P + off) @ ev
        return stage.o.numpy(), np.minimum(P @ V, V.max(-2, keepdims=True)) + errors, errors


@contextmanager
def _followed(node: Any) -> Iterator[None]:
    try:
        yield
    except NotReadError as error:
        said = f"rounding is not followed through the node {_called(node)} ({node.op_type}), which {error}"
        raise UnsupportedModelError(f"{said}.") from error


def _as_they_are(functionals: Tensor) -> Tensor:
    return functionals


def _with_errors(model: TaylorModel, errors: Array, seen_by: Callable[[Tensor], Tensor] = _as_they_are) -> TaylorModel:
    return replace(model, stages=(*model.stages, RoundingErrors(model, _torch(errors), seen_by)))


def _torch(x: Array) -> Tensor:
    """Return bounds; what is no number has none."""
    return torch.from_numpy(np.where(np.isfinite(x), x, np.inf))


def _counted(size: Array, counts: Array) -> _AffineForm:
    """Return terms with these absolute values, added up, and counted; what may overflow has no bound from there on."""
    return _AffineForm(0, size, np.where(size < LARGEST, counts, np.inf)[None])


def _error(terms: _AffineForm) -> Array:
    """Return how far floats are from a sum of terms."""
    return FACTOR * UNIT * (terms.columns[0] + TINY)


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
    half = any(x.half for x in given) or any(option.t.data_type in _HALF for option in options.values())
    if kind in _MOVED:
        if not k:
            return _Terms(_sizes(value), half=half)
        return _Terms(np.abs(reader.constant(node, [None if x is None else x.size for x in inputs])), k)
    if half and kind != "Cast":
        raise NotReadError("computes in half precision")
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
    """Return how many terms an operation adds up."""
    shapes = [x.offset.shape if isinstance(x, _AffineForm) else np.shape(x) for x in given]
    if kind in ("MatMul", "Gemm"):
        return shapes[0][-1] + 1
    if kind == "Conv":
        return math.prod(shapes[1][1:]) + 1
    if kind == "ReduceMean":
        return math.prod(shapes[0]) // found.offset.size
    letters, out = options["equation"].replace(" ", "").split("->")
    if "." in letters:
        return math.prod(shapes[0])
    sizes = dict(zip(letters.replace(",", ""), [n for shape in shapes for n in shape], strict=True))
    return math.prod(n for letter, n in sizes.items() if letter not in out)


def _unfinished(inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _Terms:
    """Carry on what entered a norm or an activation that is written out; all of it counts as often as anything may."""
    entered = [x for x, v in zip(inputs, values, strict=True) if isinstance(v, _AffineForm | _Unfinished)]
    size = np.maximum.reduce([x.size.offset for x in entered if x is not None])
    counts = np.maximum.reduce([x.size.columns[0] for x in entered if x is not None])
    constants = sum(x.k for x in inputs if x is not None and not isinstance(x.size, _AffineForm))
    return _Terms(_counted(size, counts + (constants + size.shape[-1] + 4) * size))


def _entered(node: Any, form: _AffineForm, inputs: Sequence[_Terms | None], values: Sequence[Any]) -> _AffineForm:
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
    return max((float(np.abs(x).max() / np.abs(y).max()) for x, y in pairs if y.any()), default=1.0)
