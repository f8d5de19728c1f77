"""Small networks written out as ONNX nodes, as exporters write them."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper


class Writer:
    """Nodes and constants of a graph."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, x):
        array = np.asarray(x)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, kind, *inputs, **options):
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [name], name=f"{kind}_{len(self.nodes)}", **options))
        return name

    def save(self, path, shape, output, classes, opset):
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, *shape])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, classes])],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


def write_vit(path, rng, *, activation="Relu", change=None, opset=13):
    """Write a small vision transformer on images of 1 × 4 × 4 with patches of 2 × 2, a class token and batch norms."""
    n, d, h, k, hidden, classes = 5, 6, 2, 3, 7, 3

    def gauss(*shape):
        return torch.randn(*shape, generator=rng).numpy() / 2

    w = Writer()
    patches = w.add("Conv", "input", gauss(d, 1, 2, 2), gauss(d), strides=[2, 2], kernel_shape=[2, 2])
    tokens = w.add("Transpose", w.add("Reshape", patches, np.array([1, d, n - 1])), perm=[0, 2, 1])
    # in older files axes are no inputs
    first = gauss(1, 1, d) if opset >= 13 else w.add("Unsqueeze", gauss(1, d), axes=[0])
    z = w.add("Add", w.add("Concat", first, tokens, axis=1), gauss(n, d))
    for _layer in range(2):
        turned = w.add("Transpose", z, perm=[0, 2, 1])
        normed = w.add("BatchNormalization", turned, gauss(d), gauss(d), gauss(d), np.abs(gauss(d)) + 0.5)
        x = w.add("Transpose", normed, perm=[0, 2, 1])
        q, key, v = (
            w.add("Reshape", w.add("Add", gauss(h * k), w.add("MatMul", x, gauss(d, h * k))), np.array([1, n, h, k]))
            for _part in range(3)
        )
        q, v = (w.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        scores = w.add("MatMul", q, w.add("Transpose", key, perm=[0, 2, 3, 1]))
        scaled = w.add("Mul", scores, np.array(k**-0.5))
        weights = w.add("Softmax", scaled, axis=3)
        if change == "weights":
            weights = w.add("Mul", weights, weights)
        heads = w.add("Transpose", w.add("MatMul", weights, v), perm=[0, 2, 1, 3])
        joined = w.add("Reshape", heads, np.array([1, n, h * k]))
        z = w.add("Add", w.add("Add", w.add("MatMul", joined, gauss(h * k, d)), gauss(d)), z)
        up = w.add("Add", w.add("MatMul", z, gauss(d, hidden)), gauss(n, hidden) if change == "bias" else gauss(hidden))
        z = w.add("Add", w.add("MatMul", w.add(activation, up), gauss(hidden, d)), z)
    pooled = w.add("ReduceMean", z, axes=[1], keepdims=0)
    output = w.add("Gemm", pooled, gauss(classes, d), gauss(classes), transB=1)
    return w.save(path, (1, 4, 4), output, classes, opset)
