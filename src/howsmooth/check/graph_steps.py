"""ONNX graphs as steps: affine maps, ReLUs and softmax attention, read exactly, as proofs on boxes take them.

A pass over the graph from the identity (:mod:`howsmooth.check.graph`). A new place begins behind every ReLU, behind
attention, and at every tensor that is added to what is computed from it. What lies between two places is one affine
map, whose numbers are balls; where it does the same to every token, up to their radii, it is one matrix for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from howsmooth.check.balls import BallArray, ball, between
from howsmooth.check.graph import Form, Graph, inverse, nonzero, padded, product, total
from howsmooth.check.outcomes import CannotCheck
from howsmooth.proof_files import Step


@dataclass(frozen=True, eq=False)
class AttentionScores:
    """Products of queries with keys, times a factor, plus a mask; or their softmax."""

    query: Form  # (heads, n, k), whatever axes count heads
    key: Form  # (heads, k, n)
    factor: BallArray
    mask: BallArray | None = None
    weights: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return (*self.query.shape[:-1], self.key.shape[-1])


def steps_of_graph(graph: Graph) -> list[Step]:
    """Return a network as steps, the first of them affine.

    Raises:
        CannotCheck: With the node that is no part of an affine map, a ReLU, attention or a residual connection.
    """
    reader = Reader(graph)
    entering = reader.identity(graph.shape)
    found = graph.run(reader.begun(entering) if graph.source in reader.streams else entering, reader)
    if not isinstance(found, Form) or found.place not in (None, reader.place):
        raise CannotCheck("the output is no affine function of what the last nonlinear step puts out")
    reader.linear(found, (1, int(np.prod(found.shape))))
    return reader.steps


class Reader:
    """Steps, as the nodes of a graph come.

    Attributes:
        steps: The steps so far.
        shapes: The tokens (n, d) at every place; there is one more than there are steps.
        streams: The tensors that are added to something that is computed from them.
    """

    def __init__(self, graph: Graph) -> None:
        self.steps: list[Step] = []
        self.shapes = [_tokens(graph.shape)]
        self.streams = _streams(graph)

    @property
    def place(self) -> int:
        """The last place."""
        return len(self.steps)

    def identity(self, shape: Sequence[int]) -> Form:
        """Return the numbers at the last place, in some shape."""
        size = int(np.prod(shape))
        rows = np.concatenate([np.zeros((1, size)), np.eye(size)])
        return Form(ball(rows.reshape(-1, *shape)), self.place)

    def is_identity(self, form: Form) -> bool:
        """Tell whether a form is all numbers at its place, in their order."""
        flat = form.rows.reshape(len(form.rows.mid), -1)
        same = not flat.rad.any() and not flat.mid[0].any() and len(flat.mid) == flat.shape[1] + 1
        return same and np.array_equal(flat.mid[1:], np.eye(flat.shape[1]))

    def met(self, values: dict[str, Any], node: Any) -> None:
        """Begin a place at a tensor that will be added to what is computed from it."""
        for name in self.streams & set(node.output):
            form = values.get(name)
            if isinstance(form, Form) and form.place == self.place:
                values[name] = self.begun(form)

    def begun(self, form: Form) -> Form:
        """Return a form of the last place as all numbers of one; the first place is behind an affine map."""
        if form.place != self.place:
            raise CannotCheck("it goes back to numbers that stand before the last nonlinear step")
        return form if self.steps and self.is_identity(form) else self.linear(form)

    def linear(self, form: Form, shape: tuple[int, int] | None = None, back: int = 0) -> Form:
        """Add the affine map that a form is, with a residual connection over so many steps."""
        (n, d), (m, out) = self.shapes[-1], shape or _tokens(form.shape)
        rows = padded(form.rows, 1 + n * d)
        columns, bias = rows[1:].reshape(n, d, m, out), rows[0].reshape(m, out)
        same = _every_token(columns, bias) if self.steps and m == n else None
        settings = {"residual": back} if back else {}
        if same is None:
            arrays: Any = {"weight": columns.moved(2, 0).moved(3, 1), "bias": bias}
            self.steps.append(Step("affine", settings, arrays))
        else:
            weight, shared = same
            arrays = {"weight": weight.T, "bias": shared}
            self.steps.append(Step("dense", settings, arrays))
        self.shapes.append((m, out))
        return self.identity(form.shape)

    def relu(self, form: Form) -> Form:
        """Add ReLUs of all numbers of a tensor."""
        self.begun(form)
        self.steps.append(Step("pointwise", {"activation": "relu"}, {}))
        self.shapes.append(self.shapes[-1])
        return self.identity(form.shape)

    def residual(self, first: Form, second: Form) -> Form:
        """Add a tensor to what is computed from it."""
        stream, inner = sorted((first, second), key=lambda form: -1 if form.place is None else form.place)
        if inner.place != self.place or stream.place in (None, 0) or not self.is_identity(stream):
            raise CannotCheck(
                "it adds tensors that are not the numbers before some steps and what the steps make of them"
            )
        if stream.shape != inner.shape:
            raise CannotCheck("a residual connection adds tensors of different shapes")
        assert stream.place is not None
        return self.linear(inner, self.shapes[stream.place], self.place + 1 - stream.place)

    def holds_scores(self, x: Any) -> bool:
        """Tell whether a tensor is scores or weights of attention."""
        return isinstance(x, AttentionScores)

    def matrices(self, x: Any, y: Any) -> Any:
        """Multiply queries by keys, or weights by values."""
        if isinstance(x, Form) and isinstance(y, Form):
            return AttentionScores(x, y, ball(1.0))
        if not isinstance(x, AttentionScores) or not isinstance(y, Form) or not x.weights:
            raise CannotCheck("it multiplies scores by something, and not their softmax by values")
        return self.attention(x, y)

    def softmax(self, scores: AttentionScores, last_axis: bool) -> AttentionScores:
        """Take the softmax over keys."""
        if not last_axis or scores.weights:
            raise CannotCheck("its softmax is not over the keys")
        return replace(scores, weights=True)

    def of_scores(self, kind: str, options: dict[str, Any], *inputs: Any) -> AttentionScores:
        """Scale scores, add a mask to them, or hide some of them behind minus infinity."""
        (scores,) = (x for x in inputs if isinstance(x, AttentionScores))
        others = [x for x in inputs if not isinstance(x, AttentionScores)]
        if kind in ("Identity", "Dropout", "Cast"):
            return scores
        if scores.weights:
            raise CannotCheck("it does more with the weights of attention than to multiply values")
        if kind == "Where" and isinstance(others[0], np.ndarray) and isinstance(others[1], Form):
            hidden = others[0] if inputs[2] is scores else ~others[0]
            if (others[1].value().mid == -np.inf).all():
                return self._masked(scores, ball(np.where(hidden, -np.inf, 0.0)))
        elif (
            kind in ("Add", "Sub", "Mul", "Div")
            and isinstance(others[0], Form)
            and (kind in ("Add", "Mul") or inputs[0] is scores)
        ):
            x = others[0].value()
            if kind in ("Add", "Sub"):
                return self._masked(scores, x if kind == "Add" else -x)
            if x.mid.size == 1:
                x = x.reshape(1) if kind == "Mul" else inverse(x.reshape(1))
                mask = scores.mask if scores.mask is None else product(scores.mask, x)
                return replace(scores, factor=scores.factor * x, mask=mask)
        raise CannotCheck("it does more with scores than to scale them, to add a mask and to take their softmax")

    def _masked(self, scores: AttentionScores, mask: BallArray) -> AttentionScores:
        return replace(scores, mask=mask if scores.mask is None else total(scores.mask, mask))

    def attention(self, scores: AttentionScores, value: Form) -> Form:
        """Add attention whose heads stand side by side."""
        forms = (scores.query, Form(scores.key.rows.T, scores.key.place), value)
        lead = [form.shape[:-2] for form in forms]
        if len({form.place for form in forms}) > 1 or len(set(lead)) > 1:
            raise CannotCheck("queries, keys and values are not those of the same tokens and heads")
        if not self.steps:  # the inputs are the tokens
            self.begun(self.identity((1, *self.shapes[0])))
            forms = tuple(Form(form.rows, self.place) for form in forms)  # type: ignore[assignment]
        n, d = self.shapes[-1]
        arrays: dict[str, Any] = {}
        for name, form in zip(("query", "key", "value"), forms, strict=True):
            if form.place != self.place or form.shape[-2] != n:
                raise CannotCheck("it attends from some tokens to others")
            tokens = form.rows.reshape(1 + n * d, -1, n, form.shape[-1]).moved(2, 1)
            same = _every_token(tokens[1:].reshape(n, d, *tokens.shape[1:]), tokens[0])
            if same is None:
                raise CannotCheck(f"the {name} of a token depends on its position, or on other tokens")
            weight, bias = same
            by = scores.factor if name == "query" else ball(1.0)
            arrays |= {name: (weight.moved(0, -1)) * by, f"{name}_bias": bias * by}
        if scores.mask is not None:
            mask = scores.mask
            shape = (*(1,) * (len(scores.shape) - mask.mid.ndim), *mask.shape)
            whole = BallArray(*(np.broadcast_to(x.reshape(shape), scores.shape) for x in (mask.mid, mask.rad)))
            arrays["mask"] = whole.reshape(-1, n, n)
        self.steps.append(Step("attention", {"scale": 1.0, "causal": False}, arrays))
        heads, v = int(np.prod(lead[0])), value.shape[-1]
        self.shapes.append((n, heads * v))
        rows = self.identity((n, heads, v)).rows.moved(2, 1)
        return Form(rows, self.place).reshaped(*lead[0], n, v)


def _tokens(shape: Sequence[int]) -> tuple[int, int]:
    """Return how many tokens there are, and their size; all axes but the last count tokens."""
    return int(np.prod(shape[:-1])), int(shape[-1])


def _every_token(columns: BallArray, bias: BallArray) -> tuple[BallArray, BallArray] | None:
    """Return what every token does with itself, if all do the same, up to radii, and nothing with each other.

    Args:
        columns: What every token (n, d) does to every token (n, …), ``(n, d, n, …)``.
        bias: What is added, ``(n, …)``.
    """
    n = len(columns.mid)
    every = np.arange(n)
    if nonzero(columns).sum() != nonzero(own := columns.moved(2, 1)[every, every]).sum():
        return None
    found = [_united(own), _united(bias)]
    return None if None in found else (found[0], found[1])  # type: ignore[return-value]


def _united(x: BallArray) -> BallArray | None:
    """Return balls that hold those of all tokens, if these overlap."""
    low, high = x.lower, x.upper
    if not (low.max(0) <= high.min(0)).all():
        return None
    united = between(low.min(0), high.max(0))
    same = (x.mid == x.mid[0]).all(0) & (x.rad == x.rad[0]).all(0)
    return BallArray(np.where(same, x.mid[0], united.mid), np.where(same, x.rad[0], united.rad))


def _streams(graph: Graph) -> set[str]:
    """Return the tensors that are added to something that is computed from them, from the graph alone."""
    ancestors: dict[str, set[str]] = {graph.source: set()}
    found = set[str]()
    for node in graph.nodes:
        moving = [name for name in node.input if name in ancestors and node.op_type != "Shape"]
        if not moving:
            continue
        before = set(moving).union(*(ancestors[name] for name in moving))
        ancestors.update(dict.fromkeys(node.output, before))
        if node.op_type in ("Add", "Sub", "Sum"):
            found |= {x for x in moving for y in moving if x in ancestors[y]}
    return found
