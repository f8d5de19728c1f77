"""Many spellings of one network are one network to ``verify``, and what is read wrongly is never proven."""

import itertools
import os

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from verification.spellings import MISSES, Block, Speller, Truth, Twin, examined, examined_miss, spelled_until_read

NETWORKS, SPELLINGS = int(os.environ.get("HOWSMOOTH_SPELLINGS", "40")), 5


def described(outcome):
    return f"{outcome.said}; written with {outcome.taken or 'the first way everywhere'}"


@pytest.mark.parametrize("network", range(NETWORKS))
def test_every_spelling_of_a_network_is_read_alike_or_refused(network, tmp_path):
    truth = Truth.of(network)
    base = examined(truth, Speller(truth.twin).file(), tmp_path)
    found = [base]
    for seed in range(SPELLINGS * network, SPELLINGS * (network + 1)):
        found += spelled_until_read(truth, seed, tmp_path, base)
    assert [described(outcome) for outcome in found if outcome.found == "wrong"] == []


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("miss", MISSES)
def test_a_network_that_is_written_almost_like_another_is_not_read_as_that(miss, far, tmp_path):
    # far from zero, where no input that is drawn around zero sees what happens
    forced = {"sprinkled": "Dropout"} if miss == "dropout in training" else {}
    forced |= {"input scale": 1e3, "input scaled by": "Div"} if far else {}
    found = []
    for network in itertools.count():
        twin = Twin.of(network)
        if len(twin.shape) != 2 or not all(isinstance(step, Block) for step in twin.steps):
            continue
        speller = Speller(twin, miss=miss, forced=forced)
        file = speller.file()
        if speller.missed:
            found.append(examined_miss(Truth.of(network), file, tmp_path))
        if len(found) == 2:
            break
    assert [each.said for each in found if each.found == "wrong"] == []


def written(path, shape, outputs, steps, *, opset=17, dtype=np.float32, functions=()):
    """Write a file of nodes, each a kind, inputs (arrays are constants) and options, and return its outputs."""
    nodes, constants = [], []
    for k, (kind, inputs, options) in enumerate(steps):
        names = []
        for x in inputs:
            if not isinstance(x, str):
                constants.append(numpy_helper.from_array(np.asarray(x, np.int64 if kind == "Reshape" else dtype)))
                constants[-1].name = x = f"c{len(constants)}"
            names.append(x)
        nodes.append(helper.make_node(kind, names, [f"v{k}"], name=f"{kind}_{k}", **options))
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(*end) for end in (("X", number, shape), (nodes[-1].output[0], number, outputs))]
    domains = [helper.make_opsetid("", opset)] + [helper.make_opsetid("mine", 1)] * bool(functions)
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, functions=functions, opset_imports=domains, ir_version=8)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path)
    return lambda x: torch.tensor(session.run(None, {"X": x.numpy().astype(dtype).reshape(shape)})[0]).double().flatten()


def clipped_relu(high):
    """A function of another domain with the name of an operator."""
    ends = [
        helper.make_node("Constant", [], [end], value=numpy_helper.from_array(np.array(value, np.float32)))
        for end, value in (("low", 0.0), ("high", high))
    ]
    clip = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    return helper.make_function("mine", "Relu", ["x"], ["y"], [*ends, clip], [helper.make_opsetid("", 17)])


# two tokens whose constants differ by a hundred-thousandth; what is unsafe is Y_1 ≥ 5, and it is 5 to 13 on the box
LARGE_CONSTANTS = [
    ("MatMul", ["X", [[1.0]]], {}),
    ("Add", ["v0", [[[1.0], [1.0]]]], {}),
    ("MatMul", ["v1", [[1.0, -1.0]]], {}),
    ("Add", ["v2", [[[1e6, 0.0], [1e6 + 9, 0.0]]]], {}),
    ("Relu", ["v3"], {}),
    ("MatMul", ["v4", [[1.0], [1.0]]], {}),
    ("Add", ["v1", "v5"], {}),
    ("Reshape", ["v6", [1, 2]], {}),
    ("MatMul", ["v7", [[1.0, -1.0], [1.0, 1.0]]], {}),
]
# a block that adds relu(x) to a feature of size one, beside a feature of size 10⁶ that nothing depends on
SMALL_BLOCK = [
    ("MatMul", ["X", [[1.0, 0.0]]], {}),
    ("Add", ["v0", [[[0.0, 1e6], [0.0, 1e6]]]], {}),
    ("MatMul", ["v1", [[1.0], [0.0]]], {}),
    ("Relu", ["v2"], {}),
    ("MatMul", ["v3", [[1.0, 0.0]]], {}),
    ("Add", ["v1", "v4"], {}),
    ("Reshape", ["v5", [1, 4]], {}),
    ("MatMul", ["v6", [[1.0], [0.0], [1.0], [0.0]]], {}),
]
# the same with weights that differ by that much, and with a connection between the tokens
SMALL_WEIGHTS = [
    ("MatMul", ["X", [[1.0, 1e3]]], {}),
    ("Add", ["v0", [[[1.0, -3e3], [2.0, 5e3]]]], {}),
    ("MatMul", ["v1", [[1e-3, 0.0], [0.0, 1e3]]], {}),
    ("Relu", ["v2"], {}),
    ("MatMul", ["v3", [[1e3, 0.0], [0.0, 1e-6]]], {}),
    ("Add", ["v1", "v4"], {}),
    ("Reshape", ["v5", [1, 4]], {}),
    ("MatMul", ["v6", [[1.0], [0.0], [-1.0], [0.0]]], {}),
]
FLATTENED = [
    ("Div", ["X", 255.0], {}),
    ("Transpose", ["v0"], {"perm": [0, 2, 1]}),
    ("MatMul", ["v0", "v1"], {}),
    ("Softmax", ["v2"], {}),
    ("MatMul", ["v3", "v0"], {}),
    ("Add", ["v0", "v4"], {}),
    ("Reshape", ["v5", [1, 6]], {}),
    ("MatMul", ["v6", np.full((6, 1), 0.02)], {}),
    ("Add", ["v7", [10.0]], {}),
]
FOREIGN = [
    ("MatMul", ["X", [[1.0], [1.0]]], {}),
    ("Relu", ["v0"], {"domain": "mine"}),
    ("MatMul", ["v1", [[1.0]]], {}),
]
CANCELLED = [
    ("MatMul", ["X", [[1e15, 0.06, -1e15]]], {}),
    ("MatMul", ["v0", [[1.0], [1.0], [1.0]]], {}),
]
CANCELLED_BEHIND_RELU = [
    ("MatMul", ["X", [[1e15, 1e15]]], {}),
    ("Add", ["v0", [2e15 + 0.25, 2e15]], {}),
    ("Relu", ["v1"], {}),
    ("MatMul", ["v2", [[1.0, 0.3], [-1.0, -0.3]]], {}),
]
ROUNDED = [
    ("MatMul", ["X", [[1.0]]], {}),
    ("Add", ["v0", [1e4]], {}),
    ("Relu", ["v1"], {}),
    ("MatMul", ["v2", [[1.0]]], {}),
    ("Add", ["v3", [-1e4]], {}),
]
# What fails: the shape of the inputs, the nodes, the box, the row and from where on its values are unsafe, options.
PLANTED = {
    "constants of 1e6 and 1e6 + 9": ([1, 2, 1], LARGE_CONSTANTS, (-1.0, 1.0), [0.0, 1.0], 5.0, {}),
    "a block beside a feature of 1e6": ([1, 2, 1], SMALL_BLOCK, (-1.0, 1.0), [1.0], 3.5, {}),
    "weights of 1e-3 and 1e3": ([1, 2, 1], SMALL_WEIGHTS, (-1.0, 1.0), [1.0], 2.0, {}),
    "a flattened softmax of small numbers": ([1, 3, 2], FLATTENED, (199.0, 201.0), [-1.0], -10.15, {"opset": 11}),
    "a Relu of another domain": ([1, 2], FOREIGN, (4.0, 4.5), [-1.0], -7.0, {"functions": [clipped_relu(6.0)]}),
    "weights of 1e15 that cancel": ([1, 1], CANCELLED, (0.9, 1.0), [1.0], 0.05, {"dtype": np.float64}),
    "float32 that rounds by more than the margin": ([1, 1], ROUNDED, (0.0, 6e-4), [1.0], 7e-4, {}),
}
