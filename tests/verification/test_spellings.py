"""Many spellings of one network are one network to ``verify``, and what is read wrongly is never proven."""

import dataclasses
import importlib
import itertools
import math
import os

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.verification import Property, read_onnx, verify

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
from onnx import helper, numpy_helper
from verification.spellings import MISSES, Block, Speller, Truth, Twin, examined, examined_miss, spelled_until_read

NETWORKS, SPELLINGS = int(os.environ.get("HOWSMOOTH_SPELLINGS", "40")), 5


def described(outcome):
    return f"{outcome.said}; written with {outcome.taken or 'the first way everywhere'}"


@pytest.mark.parametrize("network", [k if k < 10 else pytest.param(k, marks=pytest.mark.slow) for k in range(NETWORKS)])
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
    ends = ("X", number, shape), (nodes[-1].output[0], number, outputs)
    values = [helper.make_tensor_value_info(*end) for end in ends]
    domains = [helper.make_opsetid("", opset)] + [helper.make_opsetid("mine", 1)] * bool(functions)
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants)
    model = helper.make_model(graph, functions=functions, opset_imports=domains, ir_version=8)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path)

    def run(x):
        return torch.tensor(session.run(None, {"X": x.numpy().astype(dtype).reshape(shape)})[0]).double().flatten()

    return run


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


def small_beside_large(*block):
    """Two tokens with one feature of about 10⁶ x, a block that is named v2 to v4, and what is left of it."""
    begin = [("MatMul", ["X", [[1e6]]], {}), ("Add", ["v0", [[[1e6], [1e6]]]], {})]
    end = [("Add", [*block[-1][1]], {}), ("Reshape", [f"v{len(block) + 1}", [1, 2]], {})]
    return [*begin, *block[:-1], *end, ("MatMul", [f"v{len(block) + 2}", [[1.0], [-1.0]]], {})]


# Of the two tokens the block has relu(z), and the difference of the outputs is that of the inputs, 2·10⁶, and what is
# small beside it.
TOKENS_MIXED = small_beside_large(
    ("MatMul", [[[1.0, 8e-6], [0.0, 1.0]], "v1"], {}),
    ("Relu", ["v2"], {}),
    ("Add", ["v1", "v3"], {}),
)
TOKENS_SCALED = small_beside_large(
    ("Mul", ["v1", [[1.0], [1 - 8e-6]]], {}),
    ("Relu", ["v2"], {}),
    ("Add", ["v1", "v3"], {}),
)
TOKENS_KEPT = small_beside_large(
    ("Relu", ["v1"], {}),
    ("Mul", ["v1", [[1.0], [1 - 8e-6]]], {}),
    ("Add", ["v2", "v3"], {}),
)
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
# What fails: the shape of the inputs, the nodes, the box, the row and from where on its values are unsafe, options.
PLANTED = {
    "constants of 1e6 and 1e6 + 9": ([1, 2, 1], LARGE_CONSTANTS, (-1.0, 1.0), [0.0, 1.0], 5.0, {}),
    "tokens that are mixed a little": ([1, 2, 1], TOKENS_MIXED, (-1e-7, 1e-7), [1.0], 7.0, {}),
    "a token that enters a little less": ([1, 2, 1], TOKENS_SCALED, (-1e-7, 1e-7), [1.0], 7.0, {}),
    "a token that is kept a little less": ([1, 2, 1], TOKENS_KEPT, (-1e-7, 1e-7), [1.0], 7.0, {}),
    "a flattened softmax of small numbers": ([1, 3, 2], FLATTENED, (199.0, 201.0), [-1.0], -10.15, {"opset": 11}),
    "a Relu of another domain": ([1, 2], FOREIGN, (4.0, 4.5), [-1.0], -7.0, {"functions": [clipped_relu(6.0)]}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_fails_is_not_proven(name, tmp_path, rng):
    shape, steps, (low, high), row, bound, options = PLANTED[name]
    path, inputs = tmp_path / "network.onnx", math.prod(shape)
    run = written(path, shape, [1, len(row)], steps, **options)
    lower, upper = torch.full((inputs,), low).double(), torch.full((inputs,), high).double()
    A, b = torch.tensor([row]).double(), torch.tensor([bound]).double()
    points = lower + (upper - lower) * torch.rand(200, inputs, generator=rng).double()
    assert max(float(A @ run(x)) for x in points) >= bound
    assert status_of(path, Property(lower, upper, ((A, b),))) != "proven"


def status_of(network, wanted):
    """Return a status, or refused."""
    try:
        return verify(network, wanted, timeout=10).status
    except hs.errors.HowsmoothError:
        return "refused"


# 10¹⁵ x + 0.06 x − 10¹⁵ x: the sum is 0.06 x, and zero where 0.06 x is lost beside the first summand
CANCELLED = [1e15, 0.06, -1e15]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_that_cancel_prove_nothing_in_files(dtype, tmp_path):
    steps = [("MatMul", ["X", [CANCELLED]], {}), ("MatMul", ["v0", [[1.0]] * 3], {}), ("Relu", ["v1"], {})]
    path = tmp_path / "network.onnx"
    written(path, [1, 1, 1], [1, 1, 1], steps, dtype=dtype)
    assert status_of(path, from_five_hundredths()) != "proven"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_weights_that_cancel_prove_nothing_in_maps(order):
    weight = torch.tensor([[CANCELLED[k]] for k in order]).double()
    first = hs.maps.Affine(weight=weight[None, :, None], bias=torch.zeros(1, 3).double())
    ones = torch.ones(1, 3).double()
    for last in (
        hs.maps.MLP(up=ones, down=torch.ones(1, 1).double(), activation="relu"),
        hs.maps.MLP(up=ones, down=torch.ones(1, 1).double(), activation="gelu"),
        hs.maps.Affine(weight=ones[None, :, None], bias=torch.zeros(1, 1).double()),
    ):
        assert status_of(hs.maps.Chain(first, last), from_five_hundredths(0.03)) != "proven"


def from_five_hundredths(bound=0.05):
    one = torch.ones(1, 1).double()
    return Property(0.9 * one[0], one[0], ((one, bound * one[0]),))


# Where the reader is, and the guard: what is patched.
READER = "howsmooth.verification.onnx_network.read_and_run"
GUARD = "howsmooth.verification.verdicts.agree"


def altered(f, kind, change):
    """Return a map with a change of every part of one kind."""
    if isinstance(f, hs.maps.Chain):
        return hs.maps.Chain(*(altered(g, kind, change) for g in f.maps))
    if isinstance(f, hs.maps.Residual):
        return hs.maps.Residual(altered(f.map, kind, change))
    return dataclasses.replace(f, **change(f)) if isinstance(f, kind) else f


def put(x, place, value):
    """Return a tensor with another entry."""
    y = x.clone()
    y[place] = value
    return y


def turned(f):
    return {"query": f.key, "key": f.query, "query_bias": f.key_bias, "key_bias": f.query_bias}


# What a reader might get wrong, in the map that it returns.
MISREADINGS = {
    "queries and keys swapped": (hs.Attention, turned),
    "attention that is causal": (hs.Attention, lambda f: {"positions": hs.maps.Positions(causal=True)}),
    "heads in another order": (hs.Attention, lambda f: {"output": f.output.flip(0)}),
    "scores off by 1 %": (hs.Attention, lambda f: {"query": 1.01 * f.query}),
    "values off by 1 %": (hs.Attention, lambda f: {"value": 1.01 * f.value}),
    "attention without a bias": (hs.Attention, lambda f: {"output_bias": torch.zeros_like(f.output_bias)}),
    "a small weight dropped": (hs.maps.MLP, lambda f: {"up": put(f.up, (0, 0), 0.0)}),
    "a small head dropped": (hs.Attention, lambda f: {"output": put(f.output, 1, 0.0)}),
    "another activation": (hs.maps.MLP, lambda f: {"activation": OTHER[str(f.activation)]}),
    "a bias of one hidden unit": (hs.maps.MLP, lambda f: {"up_bias": put(f.up_bias, 0, f.up_bias[0] + 0.01)}),
    "a bias of one token": (hs.maps.Affine, lambda f: {"bias": put(f.bias, (-1, 0), f.bias[-1, 0] + 0.01)}),
    "a bias off by a millionth": (hs.maps.Affine, lambda f: {"bias": put(f.bias, (-1, 0), f.bias[-1, 0] + 1e-6)}),
    "affine maps off by 1 %": (hs.maps.Affine, lambda f: {"weight": 1.01 * f.weight}),
    "another eps": (hs.maps.LayerNorm, lambda f: {"eps": 2 * f.eps}),
    "another gain": (hs.maps.LayerNorm, lambda f: {"gain": put(f.gain, 0, 1.01 * f.gain[0])}),
}
OTHER = {"relu": "gelu", "gelu": "gelu_tanh", "tanh": "relu"}


def with_small_parts(activation):
    """Return a twin of attention behind a LayerNorm and an MLP, with a weight and a head of a thousandth of others."""
    for network in itertools.count():
        twin = Twin.of(network)
        attention, mlp = (*twin.steps, None)[:2]
        if len(twin.shape) != 2 or not isinstance(mlp, Block) or not mlp.norm or mlp.norm.kind != "layer":
            continue
        heads, one = attention.map, len(attention.map.weights[0][0])
        if len(heads.output[0]) > one and not heads.causal and mlp.map.activation == activation:
            break
    up = put(mlp.map.up, (0, 0), float(mlp.map.up.max()) / 1024)
    output = torch.cat([heads.output[:, :one], heads.output[:, one:] / 512], 1)
    on = put(mlp.map.up_bias, 0, 1.0)  # a unit that is off would hide what is done to it
    steps = (
        dataclasses.replace(attention, map=dataclasses.replace(heads, output=output)),
        dataclasses.replace(mlp, map=dataclasses.replace(mlp.map, up=up, up_bias=on)),
    )
    return dataclasses.replace(twin, steps=steps)


def planted_misreading(name, activation, path, monkeypatch):
    """Have the reader return an altered map, and return a property that this map has and the network has not.

    And one with the same margin that the network has.
    """
    twin = with_small_parts(activation)
    file = Speller(twin).file()
    onnx.save(file.model, path)
    module, _, function = READER.rpartition(".")
    reader = getattr(importlib.import_module(module), function)
    f, run = reader(path)
    g = altered(f, *MISREADINGS[name])
    x = torch.randn(math.prod(twin.shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right, wrong = twin(x), g(x[None]).flatten()
    k = int((right - wrong).abs().argmax())
    A = torch.zeros(1, len(right)).double()
    A[0, k] = (right - wrong)[k].sign()

    def wanted(bound):
        return Property(x - 1e-9, x + 1e-9, ((A, bound),))

    # the largest value on the box that is proven not to be attained, of either map
    most, least = (float(A @ y + 1 - verify(h, wanted(A @ y + 1)).margins) for h, y in ((g, wrong), (f, right)))
    margin = (float(A @ right) - most) / 2
    assert margin > 0
    monkeypatch.setattr(READER, lambda *arguments: (altered(reader(*arguments)[0], *MISREADINGS[name]), run))
    return wanted(A @ right - margin), wanted(torch.tensor([least + margin]).double()), reader


@pytest.mark.parametrize(("name", "activation"), [*zip(MISREADINGS, itertools.cycle(OTHER))])
def test_a_map_that_is_not_the_file_proves_nothing(name, activation, tmp_path, monkeypatch):
    path = tmp_path / "network.onnx"
    fails, holds, reader = planted_misreading(name, activation, path, monkeypatch)
    assert status_of(path, fails) != "proven"
    monkeypatch.setattr(READER, reader)
    assert status_of(path, holds) == "proven"


@pytest.mark.parametrize("name", MISREADINGS)
def test_without_the_guard_each_of_these_is_proven(name, tmp_path, monkeypatch):
    path = tmp_path / "network.onnx"
    fails, _holds, _reader = planted_misreading(name, "gelu", path, monkeypatch)
    monkeypatch.setattr(GUARD, lambda *_arguments, **_options: None, raising=False)
    assert status_of(path, fails) == "proven"


def of_another_dtype(model):
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64


def with_a_loop(model):
    graph = helper.make_graph([], "then", [], [helper.make_tensor_value_info(model.graph.node[0].output[0], 1, None)])
    condition = numpy_helper.from_array(np.array(True), "condition")
    model.graph.initializer.append(condition)
    branch = helper.make_node("If", ["condition"], ["branch"], name="If_0", then_branch=graph, else_branch=graph)
    model.graph.node.insert(1, branch)
    model.graph.node[2].input[0] = "branch"


def second_input(model):
    model.graph.input.append(helper.make_tensor_value_info("more", 1, [1, 2]))


# What is done to a file that is right.
BROKEN = {
    "a tensor that is not defined": lambda model: model.graph.node[2].input.__setitem__(0, "nowhere"),
    "an output that is not defined": lambda model: setattr(model.graph.output[0], "name", "nowhere"),
    "no output": lambda model: model.graph.ClearField("output"),
    "no input": lambda model: model.graph.ClearField("input"),
    "two inputs": second_input,
    "no nodes": lambda model: model.graph.ClearField("node"),
    "nothing": lambda model: model.ClearField("graph"),
    "a newer version of the format": lambda model: setattr(model, "ir_version", 99),
    "a newer opset": lambda model: setattr(model.opset_import[0], "version", 99),
    "an opset of long ago": lambda model: setattr(model.opset_import[0], "version", 1),
    "no opset": lambda model: model.ClearField("opset_import"),
    "an operator of another domain": lambda model: setattr(model.graph.node[0], "domain", "mine"),
    "an operator that is not there": lambda model: setattr(model.graph.node[0], "op_type", "MatMull"),
    "too few inputs of a node": lambda model: model.graph.node[0].input.pop(),
    "nodes in another order": lambda model: model.graph.node.append(model.graph.node.pop(0)),
    "two nodes of one output": lambda model: model.graph.node.append(model.graph.node[0]),
    "weights of another shape": lambda model: model.graph.initializer[0].dims.__setitem__(0, 7),
    "weights that are missing": lambda model: model.graph.initializer[0].ClearField("raw_data"),
    "weights that are no numbers": lambda model: setattr(model.graph.initializer[0], "raw_data", b"\xff" * 48),
    "weights in another file": lambda model: setattr(model.graph.initializer[0], "data_location", 1),
    "integers as inputs": of_another_dtype,
    "inputs of unknown length": lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"),
    "inputs of no length": lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 0),
    "a branch": with_a_loop,
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_refused_in_a_sentence(how, tmp_path):
    weights = [[0.5, -1.0, 2.0], [1.0, 0.25, -0.5], [1.0, 1.0, 0.0], [0.0, -1.0, 1.0]]
    steps = [("MatMul", ["X", weights], {}), ("Relu", ["v0"], {}), ("MatMul", ["v1", np.ones((3, 1))], {})]
    path = tmp_path / "network.onnx"
    written(path, [1, 4], [1, 1], steps)
    one = torch.ones(1, 1).double()
    holds = Property(torch.zeros(4).double(), torch.ones(4).double(), ((one, 99 * one[0]),))
    assert verify(path, holds).status == "proven"
    model = onnx.load(path)
    BROKEN[how](model)
    path.write_bytes(model.SerializeToString())
    for function, more in ((read_onnx, ()), (verify, (holds,))):
        with pytest.raises(hs.errors.HowsmoothError) as refused:
            function(path, *more)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_off_is_refused_in_a_sentence(share, tmp_path):
    path = tmp_path / "network.onnx"
    content = Speller(Twin.of(1)).file().model.SerializeToString()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(hs.errors.HowsmoothError) as refused:
        read_onnx(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("inputs", [3, 5, 0])
@pytest.mark.parametrize("outputs", [1, 4])
def test_a_property_of_other_sizes_is_refused_in_a_sentence(inputs, outputs, tmp_path):
    path = tmp_path / "network.onnx"
    written(path, [1, 4], [1, 2], [("MatMul", ["X", np.ones((4, 2))], {}), ("Relu", ["v0"], {})])
    A, b = torch.ones(1, outputs).double(), torch.ones(1).double()
    with pytest.raises(hs.errors.HowsmoothError) as refused:
        verify(path, Property(torch.zeros(inputs).double(), torch.ones(inputs).double(), ((A, b),)))
    assert "\n" not in str(refused.value)
