"""The checker's reader of ONNX graphs: what it computes in balls is what onnxruntime computes in floats."""

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper
from verification.onnx_files import Writer, write_vit
from verification.test_onnx_network import MODULES

from howsmooth.check.balls import ball
from howsmooth.check.graph import Graph, constant, runtime
from howsmooth.check.graph_steps import Reader
from howsmooth.check.outcomes import CannotCheck
from howsmooth.verification.onnx_network import written

X = "input"
DRAWN = np.random.default_rng(0)


def gauss(*shape):
    return DRAWN.standard_normal(shape).astype(np.float32)


def saved(path, nodes, shape, opset=17, inputs=None, **more):
    """Write nodes (operation, inputs, attributes), each reading what is before it; arrays become weights."""
    constants, made = [], []
    for k, (kind, given, options) in enumerate(nodes):
        names = [x for x in given if isinstance(x, str)]
        for x in (np.asarray(x) for x in given if not isinstance(x, str)):
            array = x.astype(np.float32) if x.dtype == np.float64 else x
            constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        weights = iter(constant.name for constant in constants[len(constants) - len(given) + len(names) :])
        names = [x if isinstance(x, str) else next(weights) for x in given]
        attributes = {"outputs": [f"v{k}"], "name": f"node{k}"} | options
        made.append(helper.make_node(kind, names, **attributes))
    graph = helper.make_graph(
        made,
        "graph",
        inputs or [helper.make_tensor_value_info(X, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(made[-1].output[min(1, len(made[-1].output) - 1)], TensorProto.FLOAT, None)],
        constants,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8, **more), path)
    return path


P = np.array
# Operation, inputs besides the data, attributes, shape of the data, opset.
LINEAR = {
    "MatMul": ("MatMul", [X, gauss(4, 3)], {}, (1, 5, 4), 17),
    "MatMul of a vector": ("MatMul", [X, gauss(4)], {}, (1, 5, 4), 17),
    "MatMul from the left": ("MatMul", [gauss(3, 5), X], {}, (1, 5, 4), 17),
    "MatMul by many": ("MatMul", [X, gauss(2, 4, 3)], {}, (1, 5, 4), 17),
    "MatMul of one row": ("MatMul", [X, gauss(4, 3)], {}, (4,), 17),
    "Gemm": ("Gemm", [X, gauss(3, 4), gauss(3)], {"transB": 1, "alpha": 0.5, "beta": 2.0}, (1, 4), 17),
    "Gemm turned": ("Gemm", [X, gauss(1, 3)], {"transA": 1}, (1, 4), 17),
    "Add to more axes": ("Add", [X, gauss(2, 1, 3, 1)], {}, (1, 3, 4), 17),
    "Sub from a constant": ("Sub", [gauss(3, 4), X], {}, (1, 3, 4), 17),
    "Sum": ("Sum", [X, gauss(4), X], {}, (1, 3, 4), 17),
    "Mul": ("Mul", [gauss(2, 3, 1), X], {}, (1, 3, 4), 17),
    "Div": ("Div", [X, P(-255.0)], {}, (1, 3, 4), 17),
    "Neg": ("Neg", [X], {}, (1, 3, 4), 17),
    "Conv": ("Conv", [X, gauss(4, 2, 3, 2), gauss(4)], {"strides": [2, 1]}, (1, 2, 6, 5), 17),
    "Conv padded": ("Conv", [X, gauss(4, 2, 3, 2)], {"pads": [1, 0, 2, 1], "dilations": [2, 1]}, (1, 2, 6, 5), 17),
    "Conv in groups": ("Conv", [X, gauss(4, 1, 3)], {"group": 2, "pads": [1, 1]}, (1, 2, 6), 17),
    "Conv of many": ("Conv", [X, gauss(4, 2, 3)], {}, (3, 2, 6), 17),
    "Conv same": ("Conv", [X, gauss(4, 2, 2, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (1, 2, 5, 5), 17),
    "Conv same lower": ("Conv", [X, gauss(4, 2, 2, 2)], {"auto_pad": "SAME_LOWER"}, (1, 2, 5, 5), 17),
    "Conv valid": ("Conv", [X, gauss(4, 2, 2, 2)], {"auto_pad": "VALID"}, (1, 2, 5, 5), 17),
    "BatchNormalization": (
        "BatchNormalization",
        [X, gauss(3), gauss(3), gauss(3), np.abs(gauss(3)) + 0.1],
        {"epsilon": 1e-2},
        (1, 3, 4),
        13,
    ),
    "BatchNormalization, old": (
        "BatchNormalization",
        [X, gauss(3), gauss(3), gauss(3), np.abs(gauss(3)) + 0.1],
        {},
        (1, 3),
        9,
    ),
    "ReduceMean": ("ReduceMean", [X], {"axes": [1, -1], "keepdims": 0}, (1, 3, 4, 2), 13),
    "ReduceMean of all": ("ReduceMean", [X], {}, (1, 3, 4), 17),
    "ReduceMean, new": ("ReduceMean", [X, P([-1])], {}, (1, 3, 4), 18),
    "ReduceSum": ("ReduceSum", [X, P([1])], {"keepdims": 0}, (1, 3, 4), 13),
    "ReduceSum of none": ("ReduceSum", [X], {"noop_with_empty_axes": 1}, (1, 3, 4), 13),
    "ReduceSum, old": ("ReduceSum", [X], {"axes": [1]}, (1, 3, 4), 11),
    "Einsum": ("Einsum", [X, gauss(4, 2)], {"equation": "bij, jk -> bki"}, (1, 3, 4), 17),
    "Einsum of a mean": ("Einsum", [X, gauss(3)], {"equation": "bij,i->bj"}, (1, 3, 4), 17),
    "Trilu": ("Trilu", [X, P(1)], {"upper": 0}, (1, 3, 4), 17),
    "Reshape": ("Reshape", [X, P([0, -1, 2])], {}, (1, 3, 4), 17),
    "Flatten": ("Flatten", [X], {"axis": -1}, (1, 3, 4), 17),
    "Transpose": ("Transpose", [X], {"perm": [2, 0, 1]}, (1, 3, 4), 17),
    "Transpose of all": ("Transpose", [X], {}, (1, 3, 4), 17),
    "Unsqueeze": ("Unsqueeze", [X, P([0, -1])], {}, (1, 3), 17),
    "Unsqueeze, old": ("Unsqueeze", [X], {"axes": [1]}, (1, 3), 11),
    "Squeeze": ("Squeeze", [X, P([-2])], {}, (1, 3, 1, 2), 17),
    "Squeeze, old": ("Squeeze", [X], {}, (1, 3, 1, 2), 11),
    "Slice": ("Slice", [X, P([1, -1]), P([9, -9]), P([1, -1]), P([1, -2])], {}, (1, 3, 4), 17),
    "Slice, old": ("Slice", [X], {"starts": [1], "ends": [-1], "axes": [2]}, (1, 3, 4), 9),
    "Gather": ("Gather", [X, P([[2, -1]])], {"axis": 1}, (1, 3, 4), 17),
    "Gather one": ("Gather", [X, P(0)], {"axis": -1}, (1, 3, 4), 17),
    "GatherElements": ("GatherElements", [X, P([[[2, 0, 1, 1]]])], {"axis": 1}, (1, 3, 4), 17),
    "Concat": ("Concat", [X, gauss(1, 2, 4), X], {"axis": 1}, (1, 3, 4), 17),
    "Expand": ("Expand", [X, P([2, 3, 4])], {}, (1, 3, 1), 17),
    "Tile": ("Tile", [X, P([2, 1, 3])], {}, (1, 3, 2), 17),
    "Where": ("Where", [P([[True], [False], [True]]), X, P(2.0)], {}, (1, 3, 4), 17),
    "Split": ("Split", [X, P([1, 3])], {"axis": 1, "outputs": ["first", "part"]}, (1, 4, 2), 17),
    "Split evenly": ("Split", [X], {"axis": 2, "num_outputs": 2, "outputs": ["first", "part"]}, (1, 4, 3), 18),
    "Identity": ("Identity", [X], {}, (1, 3, 4), 17),
    "Dropout": ("Dropout", [X], {}, (1, 3, 4), 17),
    "Cast": ("Cast", [X], {"to": TensorProto.FLOAT}, (1, 3, 4), 17),
}
OTHERS = {
    "Relu": ("Relu", [X], {}, (1, 3, 4), 17),
    "Gelu": ("Gelu", [X], {}, (1, 3, 4), 20),
    "Gelu, approximate": ("Gelu", [X], {"approximate": "tanh"}, (1, 3, 4), 20),
    "Erf": ("Erf", [X], {}, (1, 3, 4), 17),
    "Tanh": ("Tanh", [X], {}, (1, 3, 4), 17),
    "Sigmoid": ("Sigmoid", [X], {}, (1, 3, 4), 17),
    "Exp": ("Exp", [X], {}, (1, 3, 4), 17),
    "Abs": ("Abs", [X], {}, (1, 3, 4), 17),
    "Reciprocal": ("Reciprocal", [X], {}, (1, 3, 4), 17),
    "Pow": ("Pow", [X, P(3.0)], {}, (1, 3, 4), 17),
    "Mul of two": ("Mul", [X, X], {}, (1, 3, 4), 17),
    "Div of two": ("Div", [P(2.0), X], {}, (1, 3, 4), 17),
    "Softmax": ("Softmax", [X], {}, (1, 3, 4), 17),
    "Softmax of rows": ("Softmax", [X], {"axis": 1}, (1, 3, 4), 13),
    "Softmax, old": ("Softmax", [X], {}, (1, 3, 4), 11),
    "Softmax, old, of one axis": ("Softmax", [X], {"axis": 2}, (1, 3, 4), 11),
    "LayerNormalization": ("LayerNormalization", [X, gauss(4), gauss(4)], {"epsilon": 1e-2}, (1, 3, 4), 17),
    "LayerNormalization of two axes": ("LayerNormalization", [X, gauss(3, 4)], {"axis": 1}, (1, 3, 4), 17),
    "Max": ("Max", [X, gauss(4), P(0.1)], {}, (1, 3, 4), 17),
    "Min": ("Min", [X, gauss(4)], {}, (1, 3, 4), 17),
    "Clip": ("Clip", [X, P(-0.5), P(0.25)], {}, (1, 3, 4), 17),
    "Clip above": ("Clip", [X, "", P(0.25)], {}, (1, 3, 4), 17),
    "Clip, old": ("Clip", [X], {"min": -0.5}, (1, 3, 4), 7),
}


def of_case(case, path):
    kind, inputs, options, shape, opset = case
    return Graph(saved(path, [(kind, inputs, options)], shape, opset)), shape


@pytest.mark.parametrize("name", [*LINEAR, *OTHERS])
def test_every_operation_is_that_of_onnxruntime(name, tmp_path):
    graph, shape = of_case((LINEAR | OTHERS)[name], tmp_path / "x.onnx")
    run = runtime(graph.path)
    for _ in range(3):
        x = gauss(*shape).astype(np.float64)
        found, theirs = graph.evaluate(x), run(x)
        assert found.shape == theirs.shape
        assert np.abs(found.mid - theirs).max() <= 2e-6 * (1 + np.abs(theirs).max())
        assert found.rad.max() <= 1e-11


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_acts_on_values_and_changes_alike(name, tmp_path):
    graph, shape = of_case(LINEAR[name], tmp_path / "x.onnx")
    reader = Reader(graph)
    rows = graph.run(reader.identity(graph.shape), reader).rows
    x = gauss(*shape).astype(np.float64)
    flat = rows.reshape(len(rows.mid), -1)
    found = flat[0] + (ball(x.reshape(1, -1)) @ flat[1:]).reshape(-1)
    exact = graph.evaluate(x)
    assert (np.abs(found.mid - exact.mid) <= found.rad + exact.rad).all()
    assert found.rad.max() <= 1e-11
    # a change of an input shows where it did in floats, and is exactly zero elsewhere
    touched = [
        (graph.evaluate(x + np.eye(x.size)[k].reshape(shape)).mid != exact.mid).reshape(-1) for k in range(x.size)
    ]
    assert ((np.stack(touched)) == ((flat.mid[1:] != 0) | (flat.rad[1:] != 0))).all()


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in ("Relu",)])
def test_what_is_not_linear_is_refused_on_a_box(name, tmp_path):
    graph, _shape = of_case(OTHERS[name], tmp_path / "x.onnx")
    reader = Reader(graph)
    with pytest.raises(CannotCheck, match=r"^the node node0 \(\w+\) is not read"):
        graph.run(reader.identity(graph.shape), reader)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_evaluated_as_onnxruntime_runs_them(name, tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "module.onnx"
    path.write_bytes(written(MODULES[name]().eval(), torch.zeros(1, 4, 8)).getvalue())
    graph, run = Graph(path), runtime(path)
    for _ in range(2):
        x = gauss(4, 8).astype(np.float64)
        found, theirs = graph.evaluate(x), run(x)
        assert np.abs(found.mid - theirs).max() <= 2e-6 * (1 + np.abs(theirs).max())
        assert found.rad.max() <= 1e-8


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("activation", ["Relu", "Tanh"])
def test_a_vision_transformer_is_evaluated_as_onnxruntime_runs_it(tmp_path, rng, opset, activation):
    path = write_vit(tmp_path / "vit.onnx", rng, opset=opset, activation=activation)
    graph, run = Graph(path), runtime(path)
    x = gauss(16).astype(np.float64)
    found, theirs = graph.evaluate(x), run(x)
    assert np.abs(found.mid - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert found.rad.max() <= 1e-9


def test_shapes_are_computed_exactly(tmp_path):
    nodes = [
        ("Shape", [X], {}),
        ("Gather", ["v0", P(2)], {}),
        ("Cast", ["v1"], {"to": TensorProto.FLOAT}),
        ("Sqrt", ["v2"], {}),
        ("Div", [P(1.0), "v3"], {}),
        ("Range", [P(0), "v1", P(2)], {}),
        ("Gather", [X, "v5"], {"axis": 2}),
        ("Equal", ["v5", P(2)], {}),
        ("Where", ["v7", P(-3.0), "v6"], {}),
        ("ConstantOfShape", [P([1])], {"value": numpy_helper.from_array(P([2.5], dtype=np.float32))}),
        ("Mul", ["v8", "v9"], {}),
        ("Mul", ["v10", "v4"], {}),
        ("Add", [P([7]), P([-3])], {}),
        ("Div", [P([-7]), P([2])], {}),
        ("Max", [P([-7]), "v12", P([2])], {}),
        ("Concat", ["v12", "v13", "v14"], {"axis": 0}),
        ("Cast", ["v15"], {"to": TensorProto.FLOAT}),
        ("ReduceSum", ["v16"], {"keepdims": 0}),
        ("Add", ["v11", "v17"], {}),
    ]
    graph = Graph(saved(tmp_path / "x.onnx", nodes, [1, 2, 5]))
    x = gauss(1, 2, 5).astype(np.float64)
    assert np.abs(graph.evaluate(x).mid - runtime(graph.path)(x)).max() < 1e-6


def test_constants_are_cast_to_the_precision_that_a_node_names(tmp_path):
    nodes = [("Cast", [P(0.1).astype(np.float32)], {"to": TensorProto.FLOAT16}),
             ("Cast", ["v0"], {"to": TensorProto.FLOAT}), ("Mul", [X, "v1"], {})]  # fmt: skip
    found = Graph(saved(tmp_path / "x.onnx", nodes, [1, 2])).evaluate(np.ones(2))
    assert found.mid.tolist() == [float(np.float16(0.1))] * 2


REFUSED = {
    "another domain": ([("Relu", [X], {"domain": "mine"})], "its domain 'mine' is not that of ONNX"),
    "a name that is taken": ([("Relu", [X], {"outputs": [X]})], "has the name input"),
    "a name that is taken by a weight": ([("Add", [X, P(1.0)], {"outputs": ["c0"]})], "has the name c0"),
    "a quotient of whole numbers by none": (
        [("Div", [P([1]), P([0])], {}), ("Cast", ["v0"], {"to": TensorProto.FLOAT})],
        "divides by zero",
    ),
    "no operation": ([("NoSuchNode", [X], {})], "NoSuchNode"),
    "an operation that is not known": ([("Sin", [X], {})], "not known here"),
    "an attribute that is none": ([("Relu", [X], {"alpha": 1.0})], "'alpha' is not one of opset 17"),
    "a dropout in training": ([("Dropout", [X, P(0.5), P(True)], {})], "training mode"),
    "a batch norm in training": (
        [("BatchNormalization", [X, *[P([1.0] * 4)] * 4], {"training_mode": 1, "outputs": ["v0", "a", "b"]})],
        "training mode",
    ),
    "another output of a node": (
        [("LayerNormalization", [X, P([1.0] * 4)], {"outputs": ["v0", "mean"]}), ("Add", ["v0", "mean"], {})],
        "nothing known here puts out what it reads, mean",
    ),
    "a comparison on a box": ([("Greater", [X, P(0.0)], {}), ("Where", ["v0", X, P(0.0)], {})], "it is not linear"),
    "a comparison of what is rounded": ([("Exp", [X], {}), ("Greater", ["v0", P(0.0)], {})], "up to rounding only"),
    "whole numbers of what is rounded": ([("Exp", [X], {}), ("Cast", ["v0"], {"to": TensorProto.INT64})], "rounding"),
    "a shape that does not fit": ([("Reshape", [X, P([7])], {})], "ValueError: cannot reshape"),
    "an index that is too large": ([("Gather", [X, P(9)], {"axis": 1})], "IndexError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_its_node(name, tmp_path):
    nodes, said = REFUSED[name]
    graph = Graph(saved(tmp_path / "x.onnx", nodes, [1, 4]))
    reader = Reader(graph) if "on a box" in name else None
    entering = constant(np.ones((1, 4))) if reader is None else reader.identity(graph.shape)
    with pytest.raises(CannotCheck, match=said) as refused:
        graph.run(entering, reader)
    assert "\n" not in str(refused.value)


def test_graphs_of_another_kind_are_refused(tmp_path):
    path, plain = tmp_path / "x.onnx", [("Relu", [X], {})]
    two = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in (X, "other")]
    function = helper.make_function("mine", "Relu", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])],
                                    [helper.make_opsetid("", 17)])  # fmt: skip
    for said, changes in (
        ("one input and one output", {"inputs": two}),
        ("functions of its own", {"functions": [function]}),
        ("opsets from 7", {"opset": 6}),
        ("opsets from 7", {"opset": 99}),
        ("a known size", {"inputs": [helper.make_tensor_value_info(X, TensorProto.FLOAT, [1, None])]}),
        ("a known size", {"inputs": [helper.make_tensor_value_info(X, TensorProto.FLOAT, [1, 10**6])]}),
    ):
        with pytest.raises(CannotCheck, match=said):
            Graph(saved(path, plain, [1, 4], **changes))
    path.write_bytes(b"\x00\x01 nothing")
    with pytest.raises(CannotCheck, match="no ONNX file"):
        Graph(path)
    with pytest.raises(CannotCheck, match="has 4 inputs, got 3"):
        Graph(saved(path, plain, [1, 4])).evaluate(np.ones(3))


def test_what_is_no_number_stays_none(tmp_path):
    mask = P([0.0, -np.inf, 0.0, -np.inf])
    hidden = Graph(saved(tmp_path / "x.onnx", [("Add", [X, mask], {}), ("Softmax", ["v0"], {})], [1, 4]))
    found = hidden.evaluate(np.arange(4.0))
    assert found.mid[1] == found.mid[3] == 0
    assert found.rad[1] < 1e-300
    assert found.mid.sum() == pytest.approx(1)
    for nodes in (
        [("Mul", [X, P([1.0, np.nan, 1.0, 1.0])], {})],
        [("Mul", [X, P([1.0, np.inf, 1.0, 1.0])], {})],
        [("MatMul", [X, P([[1.0], [0.0], [np.nan], [0.0]])], {})],
        [("Add", [X, P([np.nan] * 4)], {}), ("Softmax", ["v0"], {})],
        [("Sqrt", [X], {}), ("Log", ["v0"], {})],
        [("Div", [P(1.0), X], {})],
    ):
        found = Graph(saved(tmp_path / "x.onnx", nodes, [1, 4])).evaluate(P([0.0, 0.0, -1.0, 0.0]))
        assert not np.isfinite(found.size).all(), nodes


def test_the_writer_of_the_tests_is_read(tmp_path):
    w = Writer()
    output = w.add("Gemm", w.add("Flatten", "input"), gauss(3, 4), transB=1)
    path = w.save(tmp_path / "x.onnx", (2, 2), output, 3, 13)
    assert Graph(path).evaluate(np.ones(4)).shape == (3,)
