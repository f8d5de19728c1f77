"""One small network in many spellings: ONNX files of one function, and what is read from each.

A twin in float64 knows its outputs. A speller writes it as nodes; at every fork (opset, dtype, layout, how heads are
cut, how a norm is written, …) the first way is the base, and a seed takes others. Every file is run by onnxruntime
first, so that the spelling itself is right. Then it is read, and must be the twin, or be refused by one sentence about
a node. Properties whose truth is known are verified: what holds is never falsified, what fails is never proven, and
margins are those of the base. A few networks run in the suite (``HOWSMOOTH_SPELLINGS=200`` there takes more); by hand,
with a count of what was refused, and the forks without any of which a failure goes away:
``PYTHONPATH=tests python tests/verification/spellings.py --networks 200 --spellings 5``.
"""

import argparse
import collections
import math
import random
import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

import howsmooth as hs
from howsmooth.verification import Property, read_onnx, verify

OPSETS = range(7, 27)
# What a file may differ by, of the largest of its outputs: constants are rounded to the dtype of the file.
ROUNDING = {"float32": 1e-6, "float64": 1e-6, "float16": 4e-3}
# onnxruntime computes in it, and a norm divides by what has cancelled.
COMPUTED = {"float32": 2e-5, "float64": 1e-6, "float16": 1e-2}
# How far from the largest output a threshold lies, as a share of the range of this output on the box.
NEAR = 0.1
TIMEOUT = 5.0


def drawn(rng, *shape, size=0.5):
    """Draw weights that every dtype holds exactly."""
    return torch.round(64 * size * torch.randn(*shape, generator=rng, dtype=torch.float64)) / 64


@dataclass(frozen=True)
class Heads:
    """Attention: weights of queries, keys and values (h, k, d), their biases (h, k), and the output (d, h·k)."""

    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    output: torch.Tensor
    output_bias: torch.Tensor
    causal: bool

    def __call__(self, X):
        q, k, v = (
            torch.einsum("...nd,hkd->...hnk", X, W) + b[:, None] for W, b in zip(self.weights, self.biases, strict=True)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2) @ self.output.T + self.output_bias

    def behind(self, gain, shift):
        """Return the attention that has the gain and the shift of a norm in its weights."""
        biases = tuple(b + W @ shift for W, b in zip(self.weights, self.biases, strict=True))
        return replace(self, weights=tuple(W * gain for W in self.weights), biases=biases)


@dataclass(frozen=True)
class Perceptron:
    """Two linear maps with an activation between them."""

    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    activation: str

    def __call__(self, X):
        return ACTIVATIONS[self.activation](X @ self.up.T + self.up_bias) @ self.down.T + self.down_bias

    def behind(self, gain, shift):
        return replace(self, up=self.up * gain, up_bias=self.up_bias + self.up @ shift)


ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
}


@dataclass(frozen=True)
class Norm:
    """LayerNorm or RMSNorm over features, or a batch norm (then with its mean and variance)."""

    kind: str
    gain: torch.Tensor
    shift: torch.Tensor
    eps: float = 2.0**-8
    mean: torch.Tensor | None = None
    variance: torch.Tensor | None = None

    def __call__(self, X):
        if self.kind == "batch":
            return (X - self.mean) / torch.sqrt(self.variance + self.eps) * self.gain + self.shift
        if self.kind == "layer":
            X = X - X.mean(-1, keepdim=True)
        return X / torch.sqrt(X.square().mean(-1, keepdim=True) + self.eps) * self.gain + self.shift


@dataclass(frozen=True)
class Block:
    """A map with a residual connection and a norm before, behind or none."""

    map: Heads | Perceptron
    norm: Norm | None
    before: bool
    residual: bool

    def __call__(self, X):
        Y = self.map(self.norm(X) if self.norm and self.before else X)
        Y = X + Y if self.residual else Y
        return self.norm(Y) if self.norm and not self.before else Y


@dataclass(frozen=True)
class Twin:
    """A network in float64. Inputs are flat; of images there are patches, of features one token."""

    shape: tuple[int, ...]
    kernel: int
    stride: int
    embedding: torch.Tensor
    embedding_bias: torch.Tensor
    first: torch.Tensor | None
    places: torch.Tensor | None
    steps: tuple[Block | Norm, ...]
    pool: str
    head: torch.Tensor
    head_bias: torch.Tensor

    def tokens(self, x):
        X = x.unflatten(-1, self.shape)
        if len(self.shape) == 3:
            odd = (self.kernel - self.stride) % 2  # what is left over is added behind
            X = torch.nn.functional.pad(X, (0, odd, 0, odd))
            X = torch.nn.functional.conv2d(X, self.embedding, self.embedding_bias, self.stride).flatten(-2).mT
        else:
            X = (X if len(self.shape) == 2 else X.unsqueeze(-2)) @ self.embedding.T + self.embedding_bias
        if self.first is not None:
            X = torch.cat([self.first.expand(*X.shape[:-2], 1, -1), X], -2)
        return X if self.places is None else X + self.places

    def __call__(self, x):
        X = self.tokens(x)
        for step in self.steps:
            X = step(X)
        pooled = {"mean": lambda: X.mean(-2), "first": lambda: X[..., 0, :], "flatten": lambda: X.flatten(-2)}
        return pooled[self.pool]() @ self.head.T + self.head_bias

    def rescaled(self, scale, inner):
        """Return the same function with its features, and inside of maps what is free, multiplied by numbers."""

        def moved(f):
            f = f.behind(1 / scale, torch.zeros_like(scale))
            if isinstance(f, Perceptron):
                c = inner if f.activation == "relu" else 1.0
                return replace(
                    f, up=f.up * c, up_bias=f.up_bias * c, down=f.down.T.mul(scale).T / c, down_bias=f.down_bias * scale
                )
            factors = inner, 1 / inner, inner
            weights, biases = (
                tuple(W * c for W, c in zip(each, factors, strict=True)) for each in (f.weights, f.biases)
            )
            output, bias = f.output.T.mul(scale).T / inner, f.output_bias * scale
            return replace(f, weights=weights, biases=biases, output=output, output_bias=bias)

        features = self.embedding.shape[1:]
        return replace(
            self,
            embedding=self.embedding * scale.reshape(-1, *[1] * len(features)),
            embedding_bias=self.embedding_bias * scale,
            first=None if self.first is None else self.first * scale,
            places=None if self.places is None else self.places * scale,
            steps=tuple(replace(step, map=moved(step.map)) for step in self.steps),
            head=self.head.unflatten(-1, (-1, len(scale))).div(scale).flatten(-2),
        )

    @classmethod
    def of(cls, seed):
        """Draw a small network."""
        rng, choose = torch.Generator().manual_seed(seed), random.Random(f"twin {seed}")
        kind = choose.choice(("tokens", "tokens", "tokens", "image", "features"))
        d, heads, hidden, outputs = choose.randint(2, 6), choose.choice((1, 2)), choose.randint(2, 6), seed % 3 + 1
        activation = choose.choice(tuple(ACTIVATIONS))
        kernel, stride, first = 1, 1, None
        if kind == "image":
            kernel = choose.choice((2, 2, 2, 3))
            stride, shape, n = 2, (choose.choice((1, 2)), 4, choose.choice((2, 4))), 0
            n, embedding = shape[1] * shape[2] // 4, drawn(rng, d, shape[0], kernel, kernel)
        elif kind == "tokens":
            n, shape = choose.randint(2, 4), (0, choose.randint(2, 4))
            shape, embedding = (n, shape[1]), drawn(rng, d, shape[1])
        else:
            n, shape = 1, (choose.randint(2, 6),)
            embedding = drawn(rng, d, *shape)
        if kind != "features" and choose.random() < 0.3:
            first, n = drawn(rng, d), n + 1
        norm = choose.choice(("layer", "rms", "batch", None))
        before = choose.random() < (0.9 if norm == "batch" else 0.5)

        def normed(kind):
            gain, shift = 1 + drawn(rng, d, size=0.2), drawn(rng, d, size=0.2)
            if kind != "batch":
                return kind and Norm(kind, gain, shift)
            return Norm(kind, gain, shift, mean=drawn(rng, d), variance=1 + drawn(rng, d).abs())

        steps: list[Block | Norm] = []
        for _block in range(choose.randint(1, 2)):
            if choose.random() < 0.05:
                steps.append(normed("batch"))
            residual = choose.random() < (0.1 if kind == "features" else 0.9)
            if kind != "features":
                k = choose.choice((1, 2, 4, 4))
                parts, biases = (tuple(drawn(rng, heads, *size) for _ in "qkv") for size in ((k, d), (k,)))
                attention = Heads(parts, biases, drawn(rng, d, heads * k), drawn(rng, d), choose.random() < 0.15)
                steps.append(Block(attention, normed(norm), before, residual))
            maps = drawn(rng, hidden, d), drawn(rng, hidden), drawn(rng, d, hidden), drawn(rng, d)
            steps.append(Block(Perceptron(*maps, activation), normed(norm), before, residual))
        pool = choose.choice(("mean", "first", "flatten"))
        width = n * d if pool == "flatten" else d
        places = drawn(rng, n, d) if kind != "features" and choose.random() < 0.6 else None
        head = drawn(rng, outputs, width), drawn(rng, outputs)
        return cls(shape, kernel, stride, embedding, drawn(rng, d), first, places, tuple(steps), pool, *head)


class Tokens(NamedTuple):
    """A tensor of the graph. Its layout: b is the batch, n tokens, d features, and m is b and n as one axis."""

    name: str
    layout: str
    n: int
    d: int


@dataclass(frozen=True)
class File:
    """A network as it was written.

    Attributes:
        model: The file.
        taken: At which forks another way than the base was taken, and which.
        batch: How many inputs it takes at once.
        input_scale: The inputs of the twin, times this and plus the shift, are those of the file.
        input_shift: See there.
        output_scale: The outputs of the twin, times this, are those of the file.
        dtype: Of the inputs.
        shape: Of the inputs.
    """

    model: onnx.ModelProto
    taken: dict[str, str]
    batch: int
    input_scale: float
    input_shift: float
    output_scale: float
    dtype: str
    shape: list[int]

    def inputs(self, x):
        return x * self.input_scale + self.input_shift

    def run(self, level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL):
        """Return the network as onnxruntime runs it, on flat inputs in the scale of the file."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        name = session.get_inputs()[0].name

        def outputs(x):
            one = x.numpy().astype(self.dtype).reshape(1, -1)
            found = session.run(None, {name: np.repeat(one, self.batch, 0).reshape(self.shape)})[0]
            return torch.from_numpy(found.astype(np.float64)).reshape(self.batch, -1)[0]

        return outputs


class Speller:
    """Writes a twin as nodes, and at every fork takes the first way or, drawn by the seed, another one.

    Args:
        twin: The network.
        seed: Which ways are taken.
        share: At how many of the forks.
        only: Where another way than the first may be taken; everywhere if it is None.
        forced: Ways by the name of their fork, for every place.
        miss: What is written wrongly, by its name in ``MISSES``, so that the file is of another function.
    """

    def __init__(self, twin, seed=0, share=0.0, only=None, forced=(), miss=None):
        self.twin, self.seed, self.share = twin, seed, share
        self.only, self.forced, self.miss = only, dict(forced), miss
        self.taken, self.places, self.nodes, self.stored = {}, collections.Counter(), [], {}
        self.functions, self.missed = [], False
        smooth = any(isinstance(s, Block) and getattr(s.map, "activation", "") == "gelu" for s in twin.steps)
        least = max(9 if smooth else 7, LEAST_OPSETS.get(miss, 7))
        newer = [k for k in OPSETS if least <= k <= MOST_OPSETS.get(miss, OPSETS[-1]) and k != 17]
        first = [17] if MOST_OPSETS.get(miss, 17) >= 17 >= least else []
        self.opset = self.fork("opset", *first, *newer, share=0.9)
        self.dtype = self.fork("dtype", "float32", "float64", "float16", share=min(0.15, share))
        self.batched = self.fork("batch", "1", "dynamic", "4", share=min(0.3, 2 * share))
        self.batch = 4 if self.batched == "4" else 1
        # powers of two, so that nothing is rounded
        if self.dtype != "float16" and all(isinstance(step, Block) and step.norm is None for step in twin.steps):
            widest = {"even": 0, "uneven": 10, "far apart": 20}[
                self.fork("feature scale", "even", "uneven", "far apart")
            ]
            powers = random.Random(seed).choices((-widest, 0, widest), k=len(twin.embedding_bias))
            inner = 2.0 ** {"one": 0, "small": -12, "large": 12}[self.fork("inner scale", "one", "small", "large")]
            self.twin = twin.rescaled(2.0 ** torch.tensor(powers, dtype=torch.float64), inner)

    # forks, nodes and constants

    def fork(self, name, *ways, share=None):
        ways = [way for way in ways if way is not None]
        place = f"{name}/{self.places[name]}"
        self.places[name] += 1
        if name in self.forced and self.forced[name] in ways:
            return self.forced[name]
        draw = random.Random(f"{self.seed} {place}")  # by its place, so that a fork does not depend on others
        share = self.share if share is None or not self.share else share
        if len(ways) < 2 or draw.random() >= share or (self.only is not None and place not in self.only):
            return ways[0]
        self.taken[place] = str(way := draw.choice(ways[1:]))
        return way

    def wrong(self, miss):
        """Say whether this place is the one to be written wrongly."""
        now = self.miss == miss and not self.missed
        self.missed |= now
        return now

    def since(self, opset, way):
        return way if self.opset >= opset else None

    def node(self, kind, *inputs, outputs=1, domain="", **options):
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        out = [f"t{len(self.nodes)}"] + [f"t{len(self.nodes)}_{k}" for k in range(1, outputs)]
        options = {name: value for name, value in options.items() if value is not None}
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, out, name=name, domain=domain, **options))
        return out[0] if outputs == 1 else out

    def constant(self, x):
        array = np.asarray(x)
        floats = array.dtype.kind == "f"
        array = array.astype(self.dtype) if floats else array
        equal = floats and self.opset >= 9 and array.size and bool((array == array.flat[0]).all())
        with np.errstate(over="ignore"):
            half = floats and self.dtype != "float16" and bool((array.astype(np.float16) == array).all())
        way = self.fork(
            "constant",
            "initialiser",
            "node",
            "shared",
            "identity",
            "half" if half else None,
            "double" if floats and self.dtype == "float32" else None,
            "fill" if equal else None,
            "turned" if array.ndim == 2 and floats else None,
        )
        if way == "node":
            return self.node("Constant", value=numpy_helper.from_array(array))
        if way == "identity":
            return self.node("Identity", self.initialiser(array))
        if way in ("half", "double"):
            typed = self.initialiser(array.astype({"half": np.float16, "double": np.float64}[way]))
            return self.node("Cast", typed, to=self.number)
        if way == "fill":
            value = numpy_helper.from_array(array.reshape(-1)[:1])
            return self.node("ConstantOfShape", self.initialiser(np.array(array.shape, np.int64)), value=value)
        if way == "turned":
            return self.node("Transpose", self.initialiser(np.ascontiguousarray(array.T)), perm=[1, 0])
        return self.initialiser(array, shared=way == "shared")

    def initialiser(self, array, shared=False):
        key = (array.dtype.str, array.shape, array.tobytes(), None if shared else len(self.stored))
        if key not in self.stored:
            self.stored[key] = numpy_helper.from_array(array, f"c{len(self.stored)}")
        return self.stored[key].name

    @property
    def number(self):
        return helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))

    # nodes whose options became inputs

    def reduce(self, kind, x, axes, rank, keepdims=1):
        axes = (
            [a - rank for a in axes]
            if self.opset >= 11 and self.fork("axis", "counted", "negative") == "negative"
            else axes
        )
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self.node(kind, x, np.array(axes), keepdims=keepdims)
        return self.node(kind, x, axes=axes, keepdims=keepdims)

    def squeeze(self, kind, x, axes):
        return self.node(kind, x, np.array(axes)) if self.opset >= 13 else self.node(kind, x, axes=axes)

    def slice(self, x, axis, start, stop):
        if self.opset < 10:
            return self.node("Slice", x, axes=[axis], starts=[start], ends=[stop])
        steps = [np.array([1])] if self.fork("slice", "no steps", "steps") == "steps" else []
        return self.node("Slice", x, np.array([start]), np.array([stop]), np.array([axis]), *steps)

    def split(self, x, axis, parts, size):
        sizes = [size] * parts
        if parts == 1:
            return [x]
        if self.opset < 13:
            return self.node("Split", x, outputs=parts, axis=axis, split=sizes)
        if self.opset >= 18 and self.fork("split", "sizes", "number") == "number":
            return self.node("Split", x, outputs=parts, axis=axis, num_outputs=parts)
        return self.node("Split", x, np.array(sizes), outputs=parts, axis=axis)

    def pad(self, x, before, after):
        pads = [*before, *after]
        if self.opset < 11:
            return self.node("Pad", x, pads=pads, mode="constant", value=0.0)
        return self.node("Pad", x, np.array(pads))

    def clip(self, x, low, high=None):
        if self.opset < 11:
            return self.node("Clip", x, min=low, max=high)
        return self.node("Clip", x, np.array(low), *([] if high is None else [np.array(high)]))

    def reshape(self, x, dims, batched=True):
        """Reshape into the batch and further axes; batched says that the batch is the first axis already."""
        ways = ["numbers", "copied" if batched else None, "counted" if batched else None, self.since(14, "allowzero")]
        way = self.fork("reshape", *ways)
        batch = -1 if self.batched == "dynamic" else self.batch
        if way == "counted":
            first = self.node("Gather", self.node("Shape", x), np.array(0), axis=0)
            parts = [self.squeeze("Unsqueeze", first, [0]), *(np.array([k]) for k in dims)]
            return self.node("Reshape", x, self.node("Concat", *parts, axis=0))
        if way == "copied":
            return self.node("Reshape", x, np.array([0, *dims[:-1], -1]))
        return self.node("Reshape", x, np.array([batch, *dims]), allowzero=1 if way == "allowzero" else None)

    # layouts

    def laid(self, x, layout):
        """Return a tensor in another layout."""
        if x.layout == layout:
            return x
        name = x.name
        if x.layout == "dm":
            name = self.node("Transpose", name, perm=[1, 0])
        if x.layout == "bdn":
            name = self.node("Transpose", name, perm=[0, 2, 1])
        if x.layout in ("md", "dm"):
            one = "Unsqueeze" if self.batched == "1" else None
            if self.fork("batch back", "Reshape", one) == "Unsqueeze":
                name = self.squeeze("Unsqueeze", name, [0])
            else:
                name = self.reshape(name, [x.n, x.d], batched=False)
        if layout == "bdn":
            name = self.node("Transpose", name, perm=[0, 2, 1])
        if layout in ("md", "dm"):
            one = "Squeeze" if self.batched == "1" else None
            way = self.fork("batch away", "Reshape", one, self.since(9, "Flatten"))
            if way == "Squeeze":
                name = self.squeeze("Squeeze", name, [0])
            elif way == "Flatten":
                name = self.node("Flatten", name, axis=2)
            else:
                name = self.node("Reshape", name, np.array([-1, x.d]))
        if layout == "dm":
            name = self.node("Transpose", name, perm=[1, 0])
        return Tokens(name, layout, x.n, x.d)

    def sprinkled(self, x):
        """Add what does nothing."""
        name, rank = x.name, len(x.layout)
        way = self.fork(
            "sprinkled",
            "nothing",
            "Identity",
            "Cast",
            "Dropout",
            "twice transposed",
            "times one",
            "plus zero",
            "slice of all",
            "pad by none",
            "concat of one",
            "unsqueezed",
            "leading axis" if rank == 3 else None,
            "noop reduce" if self.opset >= 13 else None,
            "Expand" if self.opset >= 8 else None,
            "Flatten" if rank == 2 else None,
            "minus minus",
            "there and back",
        )
        if way == "Identity":
            name = self.node("Identity", name)
        elif way == "Cast":
            name = self.node("Cast", name, to=self.number)
        elif way == "there and back":
            double = TensorProto.FLOAT if self.dtype == "float64" else TensorProto.DOUBLE
            if self.dtype != "float64":
                name = self.node("Cast", self.node("Cast", name, to=double), to=self.number)
        elif way == "Dropout":
            name = self.dropout(name)
        elif way == "twice transposed":
            turned = list(reversed(range(rank)))
            name = self.node("Transpose", self.node("Transpose", name, perm=turned), perm=turned)
        elif way == "times one":
            name = self.node("Mul", np.ones([1] * rank), name)
        elif way == "plus zero":
            name = self.node("Add", name, np.zeros(()))
        elif way == "slice of all":
            name = self.slice(name, rank - 1, 0, 2**31 - 1)
        elif way == "pad by none":
            name = self.pad(name, [0] * rank, [0] * rank)
        elif way == "concat of one":
            name = self.node("Concat", name, axis=rank - 1)
        elif way == "unsqueezed":
            name = self.squeeze("Squeeze", self.squeeze("Unsqueeze", name, [1]), [1])
        elif way == "leading axis":
            name = self.squeeze("Squeeze", self.node("Add", name, np.zeros((1, 1, 1, 1))), [0])
        elif way == "noop reduce":
            name = self.node("ReduceSum", name, noop_with_empty_axes=1)
        elif way == "Expand":
            name = self.node("Expand", name, np.ones(rank, np.int64))
        elif way == "Flatten":
            name = self.node("Flatten", name)
        elif way == "minus minus":
            name = self.node("Neg", self.node("Sub", np.zeros(()), name))
        return x._replace(name=name)

    def dropout(self, x):
        if self.opset < 12:
            return self.node("Dropout", x, ratio=0.25)
        if self.wrong("dropout in training"):
            return self.node("Dropout", x, np.array(0.5), np.array(True), seed=7)
        way = self.fork("dropout", "plain", "ratio", "told")
        more = {"plain": [], "ratio": [np.array(0.25)], "told": [np.array(0.25), np.array(False)]}[way]
        return self.node("Dropout", x, *more)

    # parts of networks

    def linear(self, x, W, b=None):
        """Return x Wᵀ + b."""
        W = W.numpy()
        b = None if b is None else b.numpy()
        way = self.fork("linear", "MatMul", "left", "Gemm", "Conv", self.since(12, "Einsum"), "halves", "joined")
        if way == "Gemm" or (way == "MatMul" and x.layout in ("md", "dm")):
            return self.gemm(self.laid(x, "md"), W, b)
        n, d = x.n, len(W)
        if way == "Conv":
            rest = [] if b is None else [b]
            return Tokens(self.node("Conv", self.laid(x, "bdn").name, W[:, :, None], *rest), "bdn", n, d)
        if way == "left":
            layout = self.fork("left", "bdn", "dm")
            turned = self.laid(x, layout)
            column = None if b is None else b[:, None]
            return Tokens(self.plus(self.node("MatMul", W, turned.name), column), layout, n, d)
        x = self.laid(x, "bnd")
        if way == "Einsum":
            found = self.node("Einsum", x.name, W, equation="bnd,ed->bne")
        elif way == "halves":  # two products that are added
            part = np.round(64 * W * 0.4) / 64
            found = self.node("Add", self.node("MatMul", x.name, part.T), self.node("MatMul", x.name, (W - part).T))
        elif way == "joined" and d > 1:
            parts = (self.node("MatMul", x.name, W[cut].T) for cut in (slice(1), slice(1, None)))
            found = self.node("Concat", *parts, axis=2)
        else:
            name = x.name
            if b is not None and len(b) <= x.d and self.fork("bias", "behind", "before") == "before":
                before = np.linalg.lstsq(W, b, rcond=None)[0]
                # only where it is as small as what it stands for, since it is rounded
                if np.abs(W @ before - b).max() < 1e-12 and np.abs(before).max() < 4 and self.dtype != "float16":
                    name, b = self.node("Add", name, before), None
            found = self.node("MatMul", name, W.T)
        return Tokens(self.plus(found, b), "bnd", n, d)

    def plus(self, x, b):
        if b is None:
            return x
        way = self.fork("plus", "behind", "before", "minus", "twice")
        if way == "before":
            return self.node("Add", b, x)
        if way == "minus":
            return self.node("Sub", x, -b)
        if way == "twice":
            return self.node("Add", self.node("Add", x, b / 2), b / 2)
        return self.node("Add", x, b)

    def gemm(self, x, W, b):
        options, how = {}, self.fork("gemm", "transB", "plain", "transA", "alpha", "beta")
        name = x.name
        if how == "transA":
            name, options = self.node("Transpose", name, perm=[1, 0]), {"transA": 1, "transB": 1}
        elif how == "alpha":
            W, options = W / 2, {"alpha": 2.0, "transB": 1}
        elif how == "beta":
            b, options = None if b is None else b / 4, {"beta": 4.0, "transB": 1}
        elif how == "plain":
            W = W.T
        else:
            options = {"transB": 1}
        if b is None:
            b = [np.zeros(1)] if self.opset < 11 else []
        else:
            b = [b[None]] if self.fork("gemm bias", "flat", "row") == "row" else [b]
        rows = W.shape[0] if options.get("transB") else W.shape[1]
        return Tokens(self.node("Gemm", name, W, *b, **options), "md", x.n, rows)

    def activated(self, x, kind):
        name = x.name
        half = np.float64(0.5)
        if kind == "relu":
            way = self.fork(
                "relu", "Relu", self.since(8, "Max"), "Clip", "PRelu", "LeakyRelu", self.since(9, "Where"),
                self.since(10, "ThresholdedRelu"),
            )  # fmt: skip
            if self.wrong("a function that is called Relu"):
                clip = helper.make_node("Clip", ["x", "low", "high"], ["y"])
                ends = [
                    helper.make_node("Constant", [], [end], value=numpy_helper.from_array(np.array(value, self.dtype)))
                    for end, value in (("low", 0.0), ("high", 0.5))
                ]
                known = [helper.make_opsetid("", self.opset)]
                self.functions = [helper.make_function("mine", "Relu", ["x"], ["y"], [*ends, clip], known)]
                name = self.node("Relu", name, domain="mine")
            elif self.wrong("relu clipped"):
                name = self.clip(name, 0.0, 0.5)
            elif self.wrong("relu with a slope"):
                name = self.node("LeakyRelu", name, alpha=0.1)
            elif way == "Max":
                name = self.node("Max", name, np.zeros(()))
            elif way == "Clip":
                name = self.clip(name, 0.0)
            elif way == "PRelu":
                name = self.node("PRelu", name, np.zeros(1))
            elif way == "LeakyRelu":
                name = self.node("LeakyRelu", name, alpha=0.0)
            elif way == "ThresholdedRelu":
                name = self.node("ThresholdedRelu", name, alpha=0.0)
            elif way == "Where":
                positive = self.node("Greater", name, np.zeros(()))
                name = self.node("Where", positive, name, np.zeros(()))
            else:
                name = self.node("Relu", name)
        elif kind == "gelu":
            way = self.fork("gelu", "Div", "Mul", "half inside", self.since(20, "Gelu"))
            if way == "Gelu":
                name = self.node(
                    "Gelu", name, approximate={"told": "none"}.get(self.fork("gelu kind", "not told", "told"))
                )
            else:
                root = math.sqrt(2)
                inner = self.node("Mul", name, 1 / root) if way == "Mul" else self.node("Div", name, root)
                if self.wrong("gelu of another width"):
                    inner = self.node("Div", name, 1.25)
                both = self.node("Add", self.node("Erf", inner), np.float64(1))
                if way == "half inside":
                    name = self.node("Mul", name, self.node("Mul", both, half))
                else:
                    name = self.node("Mul", self.node("Mul", name, both), half)
        elif kind == "gelu_tanh":
            way = self.fork("gelu_tanh", "Pow", "Mul", self.since(20, "Gelu"))
            if way == "Gelu":
                name = self.node("Gelu", name, approximate="tanh")
            else:
                cube = self.node("Pow", name, np.float64(3))
                if way == "Mul":
                    cube = self.node("Mul", name, self.node("Mul", name, name))
                inner = self.node("Add", name, self.node("Mul", cube, np.float64(0.044715)))
                inner = self.node("Tanh", self.node("Mul", inner, np.float64(math.sqrt(2 / math.pi))))
                name = self.node("Mul", self.node("Mul", half, name), self.node("Add", inner, np.float64(1)))
        elif kind == "silu":
            way = self.fork("silu", "Mul", "turned round", "Exp", self.since(24, "Swish"))
            if way == "Swish":
                name = self.node("Swish", name)
            elif way == "Exp":
                below = self.node("Add", self.node("Exp", self.node("Neg", name)), np.float64(1))
                name = self.node("Div", name, below)
            else:
                gate = self.node(
                    "Sigmoid", self.node("Mul", name, 1.5) if self.wrong("silu of another width") else name
                )
                name = self.node("Mul", *((gate, name) if way == "turned round" else (name, gate)))
        else:
            way = self.fork("tanh", "Tanh", "Sigmoid")
            if way == "Sigmoid":
                name = self.node("Mul", self.node("Sigmoid", self.node("Mul", name, np.float64(2))), np.float64(2))
                name = self.node("Sub", name, np.float64(1))
            else:
                name = self.node("Tanh", name)
        return x._replace(name=name)

    def normed(self, x, norm):
        if norm.kind == "batch":
            return self.batch_normed(x, norm)
        x = self.laid(x, self.fork("norm layout", "bnd", "md", "bdn"))
        axis, rank = x.layout.index("d"), len(x.layout)
        along = [1] * rank
        along[axis] = x.d
        gain, shift = (part.numpy().reshape(along if axis != rank - 1 else [x.d]) for part in (norm.gain, norm.shift))
        ops = {"layer": self.since(17, "LayerNormalization"), "rms": self.since(23, "RMSNormalization")}
        way = self.fork("norm", "written", ops[norm.kind] if axis == rank - 1 else None)
        if way == "LayerNormalization":
            last = self.fork("layer norm", -1, rank - 1)
            more = 3 if self.fork("layer norm outputs", "one", "three") == "three" else 1
            found = self.node(way, x.name, gain, shift, outputs=more, axis=last, epsilon=norm.eps)
            return x._replace(name=found if more == 1 else found[0])
        if way == "RMSNormalization":
            return x._replace(name=self.node("Add", self.node(way, x.name, gain, epsilon=norm.eps), shift))
        centred = x.name
        if self.wrong("norm over tokens"):
            axis = rank - 2 if axis == rank - 1 else rank - 1

        def mean(name):
            way = self.fork("mean", "ReduceMean", "ReduceSum", "squeezed", "MatMul" if axis == rank - 1 else None)
            if way == "ReduceSum":
                return self.node("Div", self.reduce("ReduceSum", name, [axis], rank), np.float64(x.d))
            if way == "squeezed":
                return self.squeeze("Unsqueeze", self.reduce("ReduceMean", name, [axis], rank, keepdims=0), [axis])
            if way == "MatMul" and axis == rank - 1:
                return self.node("MatMul", name, np.full((x.d, 1), 1 / x.d))
            return self.reduce("ReduceMean", name, [axis], rank)

        if norm.kind == "layer":
            centred = self.node("Sub", x.name, mean(x.name))
        squared = centred
        if self.wrong("norm by the length of another"):
            squared = x.name if norm.kind == "layer" else self.node("Sub", x.name, mean(x.name))
        if self.fork("square", "Pow", "Mul") == "Pow":
            squared = self.node("Pow", squared, np.float64(2))
        else:
            squared = self.node("Mul", squared, squared)
        variance = mean(squared)
        if self.wrong("variance by n − 1"):
            variance = self.node("Mul", variance, x.d / max(x.d - 1, 0.5))
        if self.wrong("eps behind the root"):
            below = self.node("Add", self.node("Sqrt", variance), np.float64(0.25))
        else:
            below = self.node("Sqrt", self.node("Add", variance, np.float64(norm.eps)))
        way = self.fork("division", "Div", "Reciprocal", "Pow")
        if way == "Reciprocal":
            found = self.node("Mul", centred, self.node("Reciprocal", below))
        elif way == "Pow":
            found = self.node("Mul", centred, self.node("Pow", below, np.float64(-1)))
        else:
            found = self.node("Div", centred, below)
        return x._replace(name=self.plus(self.node("Mul", found, gain), shift))

    def batch_normed(self, x, norm):
        x = self.laid(x, self.fork("batch norm layout", "bdn", "md"))
        way = self.fork("batch norm", "BatchNormalization", "affine", "written")
        parts = [part.numpy() for part in (norm.gain, norm.shift, norm.mean, norm.variance)]
        if way == "BatchNormalization":
            options = {"epsilon": norm.eps}
            if self.fork("batch norm options", "few", "all") == "all":
                options |= {"momentum": 0.8} | ({"spatial": 1} if self.opset < 9 else {})
                options |= {"training_mode": 0} if self.opset >= 14 else {}
            if self.wrong("batch norm in training"):
                found = self.node(way, x.name, *parts, outputs=3, **(options | {"training_mode": 1}))[0]
                return x._replace(name=found)
            return x._replace(name=self.node(way, x.name, *parts, **options))
        gain, shift, mean, variance = (part[:, None] if x.layout == "bdn" else part for part in parts)
        root = np.sqrt(variance + norm.eps)
        if way == "affine":
            return x._replace(name=self.plus(self.node("Mul", x.name, gain / root), shift - mean * gain / root))
        scaled = self.node("Mul", self.node("Div", self.node("Sub", x.name, mean), root), gain)
        return x._replace(name=self.node("Add", scaled, shift))

    def attended(self, x, f):
        heads, k, d = f.weights[0].shape
        way = self.fork("heads", "reshape", "slice", "split", "fused", "five axes", "each", self.since(23, "Attention"))
        scaling = self.fork("scaling", "Mul", "Div", "query", "folded", "both")
        root = math.sqrt(k)
        weights, biases = [W.flatten(0, 1) for W in f.weights], [b.flatten() for b in f.biases]
        scaling = "behind" if way == "Attention" else scaling
        if scaling == "folded":
            weights[0], biases[0] = weights[0] / root, biases[0] / root
        if self.wrong("queries with a bias for each token"):
            moved = torch.zeros(x.n, heads * k, dtype=torch.float64)
            moved[0] = 0.5
            self.moved = moved.numpy()
        else:
            self.moved = None
        if way in ("fused", "five axes"):
            together = self.laid(self.linear(x, torch.cat(weights), torch.cat(biases)), "bnd").name
            if way == "fused":
                if self.fork("fused", "Split", "Slice") == "Split":
                    parts = self.split(together, 2, 3, heads * k)
                else:
                    parts = [self.slice(together, 2, j * heads * k, (j + 1) * heads * k) for j in range(3)]
            else:
                axes = self.node("Transpose", self.reshape(together, [x.n, 3, heads, k]), perm=[2, 0, 3, 1, 4])
                parts = [self.node("Gather", axes, np.array(j), axis=0) for j in range(3)]
                return self.joined(self.scored(*parts, f, scaling, x.n), x, f)
        elif way == "each":
            found = []
            for h in range(heads):
                part = [
                    self.laid(self.linear(x, W[h * k : h * k + k], b[h * k : h * k + k]), "bnd").name
                    for W, b in zip(weights, biases, strict=True)
                ]
                one = self.scored(*part, f, scaling, x.n, axes=3)
                whole = f.output[:, h * k : h * k + k]
                found.append(self.laid(self.linear(Tokens(one, "bnd", x.n, k), whole, None), "bnd").name)
            total = found[0]
            for part in found[1:]:
                total = self.node("Add", total, part)
            return Tokens(self.plus(total, f.output_bias.numpy()), "bnd", x.n, d)
        else:
            linear = [self.linear(x, W, b) for W, b in zip(weights, biases, strict=True)]
            parts = [self.laid(part, "bnd").name for part in linear]
        if self.moved is not None:
            parts[0] = self.node("Add", parts[0], self.moved)
        if way in ("slice", "split"):
            cut = [
                self.split(part, 2, heads, k)
                if way == "split"
                else [self.slice(part, 2, h * k, h * k + k) for h in range(heads)]
                for part in parts
            ]
            found = [self.scored(*part, f, scaling, x.n, axes=3) for part in zip(*cut, strict=True)]
            joined = found[0] if len(found) == 1 else self.node("Concat", *found, axis=2)
            return self.linear(Tokens(joined, "bnd", x.n, heads * k), f.output, f.output_bias)
        if way == "Attention":
            options = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": int(f.causal)}
            joined = self.node("Attention", *parts, **options)
            return self.linear(Tokens(joined, "bnd", x.n, heads * k), f.output, f.output_bias)
        parts = [self.reshape(part, [x.n, heads, k]) for part in parts]
        parts = [self.node("Transpose", part, perm=[0, 2, 1, 3]) for part in parts]
        return self.joined(self.scored(*parts, f, scaling, x.n), x, f)

    def joined(self, attended, x, f):
        heads, k, _d = f.weights[0].shape
        if not self.wrong("heads joined without a transpose"):
            attended = self.node("Transpose", attended, perm=[0, 2, 1, 3])
        joined = self.reshape(attended, [x.n, heads * k])
        return self.linear(Tokens(joined, "bnd", x.n, heads * k), f.output, f.output_bias)

    def scored(self, query, key, value, f, scaling, n, axes=4):
        """Return softmax(query keyᵀ / √k) value, with two or one axes before tokens and features."""
        root, turned = math.sqrt(f.weights[0].shape[1]), [*range(axes - 2), axes - 1, axes - 2]
        if scaling == "query":
            query = self.node("Div", query, np.float64(root))
        if scaling == "both":
            query, key = (self.node("Mul", part, np.float64(root**-0.5)) for part in (query, key))
        if self.wrong("queries and keys swapped"):
            query, key = key, query
        keyed = self.fork("scores", "query first", "key first" if self.opset >= 13 else None)
        first, second = (key, query) if keyed == "key first" else (query, key)
        scores = self.node("MatMul", first, self.node("Transpose", second, perm=turned))
        if scaling in ("Mul", "Div"):
            scores = self.node(scaling, scores, np.float64(1 / root if scaling == "Mul" else root))
        if f.causal:
            low = self.fork("hidden", "-inf", "lowest", "-1e4" if self.dtype == "float32" else None)
            # what a dtype can hold, and what exporters write
            least = {"-inf": -np.inf, "lowest": float(np.finfo(self.dtype).min), "-1e4": -1e4}[low]
            mask = np.where(np.triu(np.ones((n, n)), 1) > 0, least, 0.0)
            scores = self.node("Add", scores, mask.T if keyed == "key first" else mask)
        if self.wrong("weights over queries"):
            weights = self.node("Softmax", scores, axis=axes - 2)
        elif self.wrong("softmax flattened"):
            weights = self.node("Softmax", scores)
        elif keyed == "key first":
            weights = self.node("Transpose", self.node("Softmax", scores, axis=-2), perm=turned)
        else:
            weights = self.softmax(scores, axes, n)
        if self.wrong("weights squared"):
            weights = self.node("Mul", weights, weights)
        return self.node("MatMul", weights, value)

    def softmax(self, scores, axes, n):
        way = self.fork("softmax", "last", self.since(11, "-1"), "default", "written" if self.opset >= 18 else None)
        if way == "written":
            most = self.node("ReduceMax", scores, np.array([-1]), keepdims=1)
            powers = self.node("Exp", self.node("Sub", scores, most))
            return self.node("Div", powers, self.node("ReduceSum", powers, np.array([-1]), keepdims=1))
        if way == "default" and self.opset < 13:  # it is axis 1, and what follows is flattened
            rows = self.node("Softmax", self.node("Reshape", scores, np.array([-1, n])))
            shape = self.node("Shape", scores) if self.fork("flattened", "numbers", "Shape") == "Shape" else None
            batch = -1 if self.batched == "dynamic" else self.batch
            dims = np.array([batch, *([-1 if batch > 0 else self.twin_heads] if axes == 4 else []), n, n])
            return self.node("Reshape", rows, dims if shape is None else shape)
        return self.node("Softmax", scores, axis={"last": axes - 1, "-1": -1, "default": None}[way])

    @property
    def twin_heads(self):
        return next(
            len(s.map.output_bias) and len(s.map.weights[0])
            for s in self.twin.steps
            if hasattr(s, "map") and isinstance(s.map, Heads)
        )

    def perceptron(self, x, f):
        x = self.linear(x, f.up, f.up_bias)
        if self.wrong("biases of one token"):
            moved = np.zeros((x.n, x.d))
            moved[0] = 0.5
            x = Tokens(self.node("Add", self.laid(x, "bnd").name, moved), "bnd", x.n, x.d)
        x = self.activated(self.sprinkled(x), f.activation)
        return self.linear(self.sprinkled(x), f.down, f.down_bias)

    def block(self, x, block):
        entered, f, norm = x, block.map, block.norm
        if norm and block.before:
            if self.fork("gain", "in the norm", "in the weights") == "in the weights":
                f = f.behind(norm.gain, norm.shift)
                norm = replace(norm, gain=torch.ones_like(norm.gain), shift=torch.zeros_like(norm.shift))
            entered = self.normed(x, norm)
        found = self.attended(entered, f) if isinstance(f, Heads) else self.perceptron(entered, f)
        if self.wrong("attention of a small share"):
            found = found._replace(name=self.node("Mul", found.name, np.float64(0.98)))
        if block.residual:
            found = self.laid(found, self.fork("residual layout", "bnd", "bdn", "md"))
            names = [found.name, self.laid(x, found.layout).name]
            way = self.fork("residual", "Add", "turned round", self.since(8, "Sum"))
            found = found._replace(
                name=self.node("Sum" if way == "Sum" else "Add", *(names[::-1] if way == "Add" else names))
            )
        if norm and not block.before:
            found = self.normed(found, norm)
        return self.sprinkled(found)

    def entered(self, name, scaled):
        """Return the tokens of the input."""
        twin, shape = self.twin, self.twin.shape
        W, b, d = twin.embedding, twin.embedding_bias, len(twin.embedding)
        # folded: x = (z − shift) / scale for the input z of the file
        rounded = self.dtype == "float16"
        scales = (1.0, 16.0, 1 / 16) if rounded else (1.0, 2.0**-10, 1 / 255, 1e3, 0.1)
        self.input_scale, self.input_shift = self.fork("input scale", *scales), 0.0
        how = self.fork("input scaled by", "weights", "Mul", "Div") if self.input_scale != 1 else "weights"
        if self.fork("input shift", "none", "half") == "half":
            self.input_shift = self.input_scale / 2
            name = self.node("Sub", name, np.float64(self.input_shift))
        if how == "weights":
            W = W / self.input_scale
        elif how == "Mul":
            name = self.node("Mul", name, np.float64(1 / self.input_scale))
        else:
            name = self.node("Div", name, np.float64(self.input_scale))
        if len(shape) == 3:
            n = shape[1] * shape[2] // 4
            odd = (twin.kernel - twin.stride) % 2
            way = self.fork("patches", "pads", "auto_pad", "Pad")
            options = {"strides": [twin.stride] * 2}
            if self.fork("kernel shape", "told", "not told") == "told":
                options["kernel_shape"] = [twin.kernel] * 2
            if way == "Pad" and odd:
                name = self.pad(name, [0] * 4, [0, 0, odd, odd])
            elif way == "auto_pad":
                options["auto_pad"] = (
                    "SAME_UPPER" if odd else self.fork("auto_pad", "VALID", "SAME_LOWER", "SAME_UPPER")
                )
            elif odd:
                options["pads"] = [0, 0, odd, odd]
            patches = self.node("Conv", name, W.numpy(), b.numpy(), **options)
            flat = self.reshape(patches, [d, n])
            x = Tokens(flat, "bdn", n, d)
        elif len(shape) == 2:
            n = shape[0]
            x = self.linear(Tokens(name, "bnd", *shape), W, b)
        else:
            n = 1
            x = self.linear(Tokens(name, "md", 1, shape[0]), W, b)
        if twin.first is not None:
            x = self.laid(x, "bnd")
            # a constant cannot be as long as a batch whose length is not known
            one = "Concat" if self.batched == "1" else None
            if self.fork("class token", one, "Pad") == "Concat":
                found = self.node("Concat", twin.first.numpy()[None, None], x.name, axis=1)
            else:
                place = np.zeros((n + 1, d))
                place[0] = twin.first.numpy()
                found = self.node("Add", self.pad(x.name, [0, 1, 0], [0, 0, 0]), place)
            x = Tokens(found, "bnd", n + 1, d)
        if twin.places is not None:
            x = self.laid(x, self.fork("places", "bnd", "bdn"))
            places = twin.places.numpy().T if x.layout == "bdn" else twin.places.numpy()
            x = x._replace(name=self.plus(x.name, places))
        return x

    def pooled(self, x):
        """Return the pooled tokens with the axes md."""
        pool = self.twin.pool
        d = x.d * (x.n if pool == "flatten" else 1)
        if pool == "mean":
            way = self.fork(
                "mean of tokens", "ReduceMean", "squeezed", "GlobalAveragePool", "left", "ReduceSum", "AveragePool"
            )
            if way in ("GlobalAveragePool", "AveragePool"):
                options = {"kernel_shape": [x.n]} if way == "AveragePool" else {}
                name = self.node("Flatten", self.node(way, self.laid(x, "bdn").name, **options))
            elif way == "left":
                name = self.squeeze(
                    "Squeeze", self.node("MatMul", np.full((1, x.n), 1 / x.n), self.laid(x, "bnd").name), [1]
                )
            elif way == "ReduceSum":
                total = self.reduce("ReduceSum", self.laid(x, "bnd").name, [1], 3, keepdims=0)
                name = self.node("Mul", total, np.float64(1 / x.n))
            else:
                x = self.laid(x, self.fork("pool layout", "bnd", "bdn"))
                axis = x.layout.index("n")
                name = self.reduce("ReduceMean", x.name, [axis], 3, keepdims=int(way == "squeezed"))
                name = self.squeeze("Squeeze", name, [axis]) if way == "squeezed" else name
        elif pool == "first":
            way = self.fork("first token", "Gather", "Slice", "left", "gathered")
            x = self.laid(x, "bnd")
            if way == "Gather":
                name = self.node("Gather", x.name, np.array(0), axis=1)
            elif way == "left":
                name = self.squeeze("Squeeze", self.node("MatMul", np.eye(1, x.n), x.name), [1])
            else:
                name = (
                    self.slice(x.name, 1, 0, 1)
                    if way == "Slice"
                    else self.node("Gather", x.name, np.array([0]), axis=1)
                )
                name = self.squeeze("Squeeze", name, [1])
        else:
            x = self.laid(x, "bnd")
            way = self.fork("flattened", "Flatten", "Reshape", "axis 1")
            name = (
                self.reshape(x.name, [d])
                if way == "Reshape"
                else self.node("Flatten", x.name, axis=1 if way == "axis 1" else None)
            )
        return Tokens(name, "md", 1, d)

    def head(self, x):
        twin, rounded = self.twin, self.dtype == "float16"
        self.output_scale = self.fork("output scale", *((1.0, 16.0) if rounded else (1.0, 1e3, 1e6, 1e-3)))
        W, b = twin.head, twin.head_bias
        how = self.fork("output scaled by", "weights", "Mul") if self.output_scale != 1 else "weights"
        if how == "weights":
            W, b = W * self.output_scale, b * self.output_scale
        way = self.fork("head", "Gemm", "MatMul")
        if way == "Gemm":
            x = self.gemm(x, W.numpy(), b.numpy())
        else:
            x = Tokens(self.plus(self.node("MatMul", x.name, W.T.numpy()), b.numpy()), "md", 1, len(W))
        return x if how == "weights" else x._replace(name=self.node("Mul", x.name, np.float64(self.output_scale)))

    def file(self):
        """Return the file."""
        twin, shape = self.twin, list(self.twin.shape)
        form = self.fork(
            "input",
            "as it is",
            "flat",
            "one axis" if self.batched == "1" else None,
            "further axis",
            share=min(0.3, 2 * self.share),
        )
        batch = {"1": 1, "dynamic": "batch", "4": 4}[self.batched]
        size = math.prod(shape)
        given = {
            "as it is": [batch, *shape],
            "flat": [batch, size],
            "one axis": [size],
            "further axis": [batch, 1, *shape],
        }[form]
        name = "input"
        if form in ("flat", "one axis") and (form == "one axis" or len(shape) > 1):
            name = self.reshape(name, shape, batched=form == "flat")
        elif form == "further axis":
            name = self.squeeze("Squeeze", name, [1])
        x = self.sprinkled(self.entered(name, None))
        for step in twin.steps:
            x = self.block(x, step) if isinstance(step, Block) else self.normed(x, step)
        x = self.head(self.sprinkled(self.pooled(self.sprinkled(x))))
        name, outputs = self.sprinkled(x).name, len(twin.head_bias)
        out, more = [batch, outputs], []
        if self.fork("output", "a row", "one axis" if self.batched == "1" else None) == "one axis":
            name, out = self.squeeze("Squeeze", name, [0]), [outputs]
        if self.fork("second output", "none", "unused") == "unused":
            more = [helper.make_tensor_value_info(self.node("Tanh", name), self.number, out)]
        domains = [helper.make_opsetid("", self.opset)]
        domains += [helper.make_opsetid("mine", 1)] if self.functions else []
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("input", self.number, given)],
            [helper.make_tensor_value_info(name, self.number, out), *more],
            list(self.stored.values()),
        )
        least = 3 if self.opset < 9 else 8
        version = self.fork("ir version", 8, 13, *([least] if least < 8 else []))
        if version == 3:  # initialisers are inputs too
            for each in self.stored.values():
                graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
        model = helper.make_model(graph, opset_imports=domains, ir_version=version, functions=self.functions)
        shape = [self.batch if axis == "batch" else axis for axis in given]
        scales = self.input_scale, self.input_shift, self.output_scale
        return File(model, self.taken, self.batch, *scales, self.dtype, shape)


# What may be written wrongly, each a network of its own; in which opsets it can be.
MISSES = (
    "softmax flattened", "weights over queries", "weights squared", "queries and keys swapped",
    "queries with a bias for each token", "heads joined without a transpose", "relu clipped", "relu with a slope",
    "a function that is called Relu", "gelu of another width", "silu of another width", "norm over tokens",
    "norm by the length of another", "variance by n − 1", "eps behind the root", "batch norm in training",
    "dropout in training", "biases of one token", "attention of a small share",
)  # fmt: skip
LEAST_OPSETS = {"batch norm in training": 14, "dropout in training": 12, "weights over queries": 13}
LEAST_OPSETS |= {"a function that is called Relu": 13}
MOST_OPSETS = {"softmax flattened": 12}


@dataclass(frozen=True)
class Truth:
    """A twin, a box, and the largest value of rows of its outputs on it."""

    twin: Twin
    lower: torch.Tensor
    upper: torch.Tensor
    rows: torch.Tensor
    least: torch.Tensor
    most: torch.Tensor
    size: float
    points: torch.Tensor = field(repr=False)

    @classmethod
    def of(cls, seed):
        twin, rng = Twin.of(seed), torch.Generator().manual_seed(seed)
        inputs, outputs = math.prod(twin.shape), len(twin.head_bias)
        centre = torch.randn(inputs, generator=rng, dtype=torch.float64)
        half = torch.full_like(centre, (0.01, 0.03, 0.1)[seed % 3])
        half[torch.rand(inputs, generator=rng) < 0.2] = 0.0  # inputs that stay where they are
        if not half.any():
            half[0] = 0.03
        rows = torch.eye(outputs, dtype=torch.float64)
        rows = torch.cat([rows, -rows, rows[:1] - rows[1:2]]) if outputs > 1 else torch.cat([rows, -rows])
        corners = torch.randint(0, 2, (256, inputs), generator=rng).double() * 2 - 1
        xi = torch.cat([corners, torch.rand(1024, inputs, generator=rng, dtype=torch.float64) * 2 - 1])
        points = torch.cat([centre[None], centre + half * xi[250:260]])
        found = twin(centre + half * xi) @ rows.T
        least, most = found.amin(0), found.amax(0)
        starts = xi[found.argmax(0)]
        for step in range(30):
            starts = starts.detach().requires_grad_()
            value = (twin(centre + half * starts) @ rows.T).diagonal()
            most = torch.maximum(most, value.detach())
            (gradient,) = torch.autograd.grad(value.sum(), starts)
            starts = (starts + (1 - step / 30) ** 2 * gradient.sign()).clamp(-1, 1)
        least = torch.minimum(least, most)
        size = float(found.abs().max())
        return cls(twin, centre - half, centre + half, rows, least, most, size, points)

    def holds(self, file):
        """Return a property that holds: of every row, values a little beyond the largest are unsafe."""
        beyond = self.most + NEAR * (self.most - self.least) + 2e-5 * self.size
        return self.of_file(file, range(len(self.rows)), beyond + self.rounding(file))

    def fails(self, file):
        """Return a property that fails at an input that was found: of the row whose values vary most."""
        row = int((self.most - self.least).argmax())
        return self.of_file(file, [row], self.most - NEAR * (self.most - self.least) - self.rounding(file))

    def rounding(self, file):
        """How far a file may be from the twin, whose constants it rounds."""
        return 3 * self.size * ROUNDING[file.dtype]

    def of_file(self, file, rows, bounds):
        sets = tuple((self.rows[k : k + 1], file.output_scale * bounds[k : k + 1]) for k in rows)
        return Property(file.inputs(self.lower), file.inputs(self.upper), sets)


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    Attributes:
        found: One of read, refused, wrong; or not run, by onnxruntime, which has no kernel for some opset or dtype.
        said: What is wrong, or the refusal.
        taken: The forks at which another way than the base was taken.
        margins: Of the property that holds, in the scale of the twin.
        status: Of this property.
        nodes: How many pieces its proof has.
    """

    found: str
    said: str = ""
    taken: dict[str, str] = field(default_factory=dict)
    margins: torch.Tensor | None = None
    status: str = ""
    nodes: int = 0


class WrongError(Exception):
    """What must not happen."""


class RefusedError(Exception):
    """A refusal as it should be."""


def answer(file, function, *arguments, **options):
    """Return what the library answers; what it raises must be one of its own sentences, about a node of the file."""
    try:
        return function(*arguments, **options)
    except hs.errors.HowsmoothError as error:
        said = f"{type(error).__name__}: {error}"
        names = [node.name for node in file.model.graph.node]
        # what is no fault of one node is one of the whole file
        if "\n" in said or not re.search(
            rf"\b({'|'.join(names)}|inputs?|outputs?|batch|opset|values|onnxruntime)\b", said
        ):
            raise WrongError(f"{function.__name__} says no node: {said}") from error
        raise RefusedError(said) from error
    except Exception as error:
        raise WrongError(f"{function.__name__} raised {type(error).__name__}: {str(error)[:200]}") from error


def outcome_of(file, folder, judge):
    """Write a file, run it, and judge what is read."""
    path = Path(folder) / "network.onnx"
    onnx.save(file.model, path)
    try:
        run, fast = file.run(), file.run(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except Exception as error:
        return Outcome("not run", str(error).splitlines()[0][:200], file.taken)
    try:
        return replace(judge(path, run, fast), taken=file.taken)
    except (WrongError, RefusedError) as error:
        return Outcome({WrongError: "wrong", RefusedError: "refused"}[type(error)], str(error), file.taken)


def off(file, found, wanted):
    """Return how far outputs in the scale of a file are from those of the twin."""
    found = torch.stack(list(found)) / file.output_scale
    return float((found - wanted).abs().max()) if found.shape == wanted.shape else math.inf


def examined(truth, file, folder, base=None):
    """Say whether a file is the twin, and what is proven of it what holds and is proven of the base."""

    def judge(path, run, fast):
        inputs, wanted = file.inputs(truth.points), truth.twin(truth.points)
        spelled = off(file, map(run, inputs), wanted) / truth.size
        assert spelled <= COMPUTED[file.dtype], f"the spelling itself is off by {spelled:.2g}: {file.taken}"
        if not off(file, map(fast, inputs), wanted) <= 2 * COMPUTED[file.dtype] * truth.size:
            return Outcome("not run", "onnxruntime optimises the network into another one")
        f = answer(file, read_onnx, path)
        read = off(file, (answer(file, f, x[None]).flatten() for x in inputs), wanted) / truth.size
        if not read <= ROUNDING[file.dtype]:
            raise WrongError(f"what was read is off by {read:.2g}")
        verdicts = []
        for wanted in (truth.holds(file), truth.fails(file)):
            verdicts.append(answer(file, verify, path, wanted, timeout=TIMEOUT))
            if verdicts[-1].status == "falsified":
                y = truth.twin((verdicts[-1].counterexample - file.input_shift) / file.input_scale)
                rounding = COMPUTED[file.dtype] * truth.size
                if not any(bool((A @ y >= b / file.output_scale - rounding).all()) for A, b in wanted.unsafe):
                    raise WrongError("falsified by an input that is not unsafe")
                # what does not move may be a number that the dtype of the file does not have
                x, slack = (
                    verdicts[-1].counterexample,
                    torch.finfo(getattr(torch, file.dtype)).eps * inputs.abs().amax(),
                )
                if not bool(((x >= wanted.lower - slack) & (x <= wanted.upper + slack)).all()):
                    raise WrongError("falsified by an input that is not in the box")
        holds, fails = verdicts
        if fails.status == "proven":
            raise WrongError(f"proven what fails, with margins {fails.margins.tolist()}")
        margins = holds.margins / file.output_scale
        found = Outcome("read", "", {}, margins, holds.status, holds.nodes)
        rescaled = any(place.startswith(("feature scale", "inner scale")) for place in file.taken)
        if (
            base is None or base.found != "read" or file.dtype == "float16" or rescaled
        ):  # margins differ, a little or much
            return found
        if {holds.status, base.status} == {"proven", "falsified"}:
            raise WrongError(f"{holds.status}, and the base is {base.status}")
        if holds.nodes == base.nodes == 0:  # nothing was split until time was over
            # margins are less by what onnxruntime rounds; infinite ones are equal
            rounding = COMPUTED["float32"] * max(truth.size, float(base.margins.abs().nan_to_num(posinf=0).max()))
            apart = float(torch.where(margins == base.margins, 0.0, (margins - base.margins).abs()).max())
            if not apart <= rounding:
                raise WrongError(f"margins are off by {apart / truth.size:.2g}")
            if holds.status != base.status and float(base.margins.abs().min()) > rounding:
                raise WrongError(f"{holds.status}, and the base is {base.status}")
        return found

    return outcome_of(file, folder, judge)


def examined_miss(truth, file, folder):
    """Say whether a file that is of another function is read as the twin."""

    def judge(path, run, fast):
        box = truth.lower + (truth.upper - truth.lower) * torch.rand(200, len(truth.lower), dtype=torch.float64)
        wanted = torch.stack([run(file.inputs(x)) for x in torch.cat([truth.points, box])]) / file.output_scale
        size, values = max(truth.size, float(wanted.abs().max())), wanted @ truth.rows.T
        most, near = values.amax(0), NEAR * (values.amax(0) - values.amin(0)) + COMPUTED[file.dtype] * size
        row = int((most - near - truth.most).argmax())
        fails = truth.of_file(file, [row], most - near)
        verdict = answer(file, verify, path, fails, timeout=TIMEOUT)
        if verdict.status == "proven":
            raise WrongError(f"proven what fails, with margins {verdict.margins.tolist()}")
        f = answer(file, read_onnx, path)
        found = (answer(file, f, file.inputs(x)[None]).flatten() for x in truth.points)
        read = off(file, found, wanted[: len(truth.points)]) / size
        if not read <= 2 * COMPUTED[file.dtype]:
            raise WrongError(f"what was read is off by {read:.2g}")
        return Outcome("read")

    return outcome_of(file, folder, judge)


SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)


def spelled(truth, seed, folder, base, only=None):
    """Say what becomes of one spelling, or of what is left of it where only some forks are taken."""
    file = Speller(truth.twin, seed, SHARES[seed % len(SHARES)], only).file()
    return examined(truth, file, folder, base)


def spelled_until_read(truth, seed, folder, base):
    """Return what becomes of a spelling, and, while it is refused, of the same one with a third of its forks."""
    outcomes, halves = [spelled(truth, seed, folder, base)], random.Random(seed)
    while outcomes[-1].found in ("refused", "not run") and outcomes[-1].taken:
        left = sorted(outcomes[-1].taken)
        outcomes.append(spelled(truth, seed, folder, base, set(halves.sample(left, len(left) // 3))))
    return outcomes


def kind_of(said):
    """Return what is said, without names and numbers of nodes."""
    return re.sub(r"(_\d+|-?\d[\d.e-]*)", "#", said)[:160]


def needed(truth, seed, folder, base, outcome):
    """Return the forks without any of which the same is no longer said."""
    left = dict(outcome.taken)
    for place in outcome.taken:
        again = spelled(truth, seed, folder, base, set(left) - {place})
        if place in left and (again.found, kind_of(again.said)) == (outcome.found, kind_of(outcome.said)):
            left = again.taken
    return left


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument("--spellings", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    counts, said = collections.Counter(), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for network in range(given.seed, given.seed + given.networks):
            truth = Truth.of(network)
            base = examined(truth, Speller(truth.twin).file(), folder)
            counts[f"base {base.found} {base.status}"] += 1
            if base.found != "read":
                said[base.found, kind_of(base.said), "the base"].append(f"network {network}")
            for seed in range(given.spellings * network, given.spellings * (network + 1)):
                for outcome in spelled_until_read(truth, seed, folder, base):
                    counts[outcome.found] += 1
                    if outcome.found != "read":
                        why = needed(truth, seed, folder, base, outcome) if outcome.found == "wrong" else {}
                        ways = {f"{place.split('/')[0]}: {way}" for place, way in why.items()}
                        where = said[outcome.found, kind_of(outcome.said), ", ".join(sorted(ways))]
                        where.append(f"network {network} seed {seed}")
    for (found, text, ways), where in sorted(said.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"{len(where):4} {found}: {text}\n     by {ways}\n     {'; '.join(where[:3])}")
    print(dict(counts), f"{time.process_time() - began:.0f} s of one core")


if __name__ == "__main__":
    main()
