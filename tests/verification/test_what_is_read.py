"""A verdict is about the file: nothing is dropped, what is not known is refused, and the map is compared on the box."""

import numpy as np
import pytest
import torch

import howsmooth as hs
from howsmooth.errors import UnsupportedModelError
from howsmooth.verification import Property, verdicts, verify

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper

from howsmooth.verification.onnx_network import read_and_run, read_onnx, session_of

KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}


def network(path, shape, operations, *, opset=17, dtype=np.float32, functions=(), domains=(), outputs=1, ir=8):
    """Write nodes one behind the other; arrays among their inputs become constants, ``x`` is the input."""
    constants, nodes = [], []

    def named(x):
        if isinstance(x, str):
            return x
        array = np.asarray(x)
        array = array.astype(dtype if array.dtype.kind == "f" else array.dtype)
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    for k, (kind, inputs, options) in enumerate(operations):
        domain = options.pop("domain", "")
        nodes.append(helper.make_node(kind, [*map(named, inputs)], [f"v{k}"], f"{kind}_{k}", domain=domain, **options))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", KINDS[dtype], shape)],
        [helper.make_empty_tensor_value_info(f"v{len(nodes) - 1 - k}") for k in range(outputs)],
        constants,
    )
    for output in graph.output:
        output.type.tensor_type.elem_type = KINDS[dtype]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=ir, functions=functions), path)
    return path


def numbers(*x):
    return torch.tensor(x, dtype=torch.float64)


def unsafe(row, bound):
    return ((numbers(*row), numbers(bound)),) if isinstance(row[0], list) else ((numbers(list(row)), numbers(bound)),)


def test_what_is_small_beside_the_largest_number_is_kept(tmp_path):
    """Two tokens with constants 1e6 and 1e6 + 9 are not two with 1e6; the second output is 5 to 13."""
    path = network(
        tmp_path / "x.onnx",
        [1, 2, 1],
        [
            ("MatMul", ["x", [[1.0]]], {}),
            ("Add", ["v0", [[[1.0], [1.0]]]], {}),
            ("MatMul", ["v1", [[1.0, -1.0]]], {}),
            ("Add", ["v2", [[[1e6, 0.0], [1e6 + 9, 0.0]]]], {}),
            ("Relu", ["v3"], {}),
            ("MatMul", ["v4", [[1.0], [1.0]]], {}),
            ("Add", ["v1", "v5"], {}),
            ("Reshape", ["v6", np.array([1, 2])], {}),
            ("MatMul", ["v7", [[1.0, -1.0], [1.0, 1.0]]], {}),
        ],
    )
    f, run = read_and_run(path)
    for x in torch.rand(4, 2, dtype=torch.float64):
        assert torch.allclose(f(x[None]).flatten(), run.exact(x), rtol=1e-12)
    box = Property(numbers(-1.0, -1.0), numbers(1.0, 1.0), unsafe([0.0, 1.0], 5.0))
    assert verify(path, box).status == "falsified"


@pytest.mark.parametrize("opset", [11, 13])
def test_a_softmax_over_all_axes_is_not_one_over_keys(tmp_path, opset):
    attention = [
        ("Div", ["x", 255.0], {}),
        ("Transpose", ["v0"], {"perm": [0, 2, 1]}),
        ("MatMul", ["v0", "v1"], {}),
        ("Softmax", ["v2"], {}),
        ("MatMul", ["v3", "v0"], {}),
        ("Add", ["v0", "v4"], {}),
        ("Reshape", ["v5", np.array([1, 6])], {}),
        ("MatMul", ["v6", np.full((6, 1), 0.02)], {}),
        ("Add", ["v7", [10.0]], {}),
    ]
    path = network(tmp_path / "x.onnx", [1, 3, 2], attention, opset=opset)
    box = Property(torch.full((6,), 199.0).double(), torch.full((6,), 201.0).double(), unsafe([-1.0], -10.15))
    if opset < 13:
        with pytest.raises(UnsupportedModelError, match=r"the node Softmax_3 \(Softmax\) .* more than the keys"):
            verify(path, box)
    else:
        assert verify(path, box).status == "proven"


def test_a_function_that_a_file_calls_by_the_name_of_an_operation_is_not_that_operation(tmp_path):
    clip = helper.make_node("Clip", ["a", "low", "high"], ["b"])
    ends = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, np.float32)))
        for name, value in (("low", 0.0), ("high", 6.0))
    ]
    relu = helper.make_function("mine", "Relu", ["a"], ["b"], [*ends, clip], [helper.make_opsetid("", 17)])
    operations = [("Relu", ["x"], {"domain": "mine"}), ("MatMul", ["v0", [[1.0]]], {})]
    path = network(tmp_path / "x.onnx", [1, 1], operations, functions=[relu], domains=["mine"])
    assert float(session_of(path)(numbers(9.0))) == 6.0
    with pytest.raises(UnsupportedModelError, match=r"the node Relu_0 \(Relu\) is of the domain 'mine'"):
        verify(path, Property(numbers(0.0), numbers(9.0), unsafe([-1.0], -8.0)))


MISREAD = {
    "an option that is not looked at": (
        [("Conv", ["x", np.ones((1, 1, 2, 2))], {"auto_pad": "SAME_UPPER"}), ("Flatten", ["v0"], {})],
        {"shape": [1, 1, 3, 3]},
        r"Conv_0 .*padding",
    ),
    "an unknown option": ([("Relu", ["x"], {"alpha": 2.0})], {}, r"Relu_0 .*has the option alpha = 2.0"),
    "whole numbers": ([("Cast", ["x"], {"to": 7}), ("Cast", ["v0"], {"to": 1})], {}, r"Cast_0 .*whole numbers"),
    "dropped numbers": (
        [("Dropout", ["x", np.float32(0.5), np.array(True)], {})],
        {},
        r"Dropout_0 .*drops numbers by chance",
    ),
    "a batch of four": ([("Relu", ["x"], {})], {"shape": [4, 3]}, "batches of 4 inputs at once"),
    "whole inputs": ([("Relu", ["x"], {})], {"outputs": 2, "operations": 2}, "1 inputs and 2 outputs"),
    "an undefined tensor": ([("Add", ["x", "nothing"], {})], {}, r"Add_0 .*takes 'nothing', which no node"),
    "infinite numbers": ([("Div", ["x", [0.0, 1.0, 1.0]], {})], {}, r"Div_0 .*not finite"),
    "an empty reshape": (
        [("Reshape", ["x", np.array([1, 0])], {"allowzero": 1})],
        {},
        r"Reshape_0 .*without numbers",
    ),
    "a newer file than onnxruntime reads": ([("Relu", ["x"], {})], {"ir": 99}, "onnxruntime cannot run"),
}


@pytest.mark.parametrize("name", MISREAD)
def test_what_is_not_known_is_refused_in_a_sentence(tmp_path, name):
    operations, options, said = MISREAD[name]
    options = dict(options)
    operations = operations * options.pop("operations", 1)
    operations = [(kind, list(inputs), dict(settings)) for kind, inputs, settings in operations]
    shape = options.pop("shape", [1, 3])
    path = network(tmp_path / "x.onnx", shape, operations, **options)
    size = int(np.prod(shape[1:]))
    box = Property(torch.zeros(size).double(), torch.ones(size).double(), ((torch.ones(1, 3).double(), numbers(9.0)),))
    with pytest.raises(UnsupportedModelError, match=said) as refused:
        verify(path, box)
    assert "\n" not in str(refused.value)


READ = {
    "one affine map": ([("MatMul", ["x", np.eye(3)[:, :2]], {})], {}),
    "a vector": ([("MatMul", ["x", np.eye(3)[:, :2]], {}), ("Relu", ["v0"], {})], {"shape": [3]}),
    "double precision": (
        [("MatMul", ["x", np.eye(3)[:, :2]], {}), ("Relu", ["v0"], {})],
        {"dtype": np.float64},
    ),
    "half precision": ([("MatMul", ["x", np.eye(3)[:, :2]], {}), ("Relu", ["v0"], {})], {"dtype": np.float16}),
    "axes that broadcasting adds": (
        [
            ("Reshape", ["x", np.array([3])], {}),
            ("Add", ["v0", np.arange(6.0).reshape(2, 3)], {}),
            ("Mul", ["v1", np.array([[[2.0]]])], {}),
            ("Reshape", ["v2", np.array([1, 6])], {}),
            ("Relu", ["v3"], {}),
            ("MatMul", ["v4", np.eye(6)[:, :2] + 0.5], {}),
        ],
        {},
    ),
    "means over nothing": (
        [
            ("ReduceMean", ["x", np.zeros(0, np.int64)], {"noop_with_empty_axes": 1}),
            ("MatMul", ["v0", np.eye(3)[:, :2]], {}),
        ],
        {"opset": 18},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_spellings_that_stumbled_are_read(tmp_path, name):
    operations, options = READ[name]
    shape = options.get("shape", [1, 3])
    operations = [(kind, list(inputs), dict(settings)) for kind, inputs, settings in operations]
    others = {key: value for key, value in options.items() if key != "shape"}
    path = network(tmp_path / "x.onnx", shape, operations, **others)
    f, run = read_onnx(path), session_of(path)
    for x in torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)):
        assert torch.allclose(f(x[None]).flatten(), run(x), rtol=1e-2, atol=1e-2)
    y = run(torch.zeros(3, dtype=torch.float64))
    high = Property(-0.1 * torch.ones(3).double(), 0.1 * torch.ones(3).double(), unsafe([1.0, 0.0], float(y[0]) + 9))
    assert verify(path, high).status == "proven"
    low = Property(high.lower, high.upper, unsafe([1.0, 0.0], float(y[0]) - 9))
    assert verify(path, low).status == "falsified"


def with_one_entry_changed(f, change):
    """Return a chain with another matrix in its first attention or MLP."""
    maps = list(f.maps)
    place = next(k for k, g in enumerate(maps) if isinstance(g, hs.maps.Residual))
    maps[place] = hs.maps.Residual(change(maps[place].map))
    return hs.maps.Chain(*maps)


def test_a_map_that_is_not_the_network_proves_nothing(tmp_path, rng, monkeypatch):
    """A scale off by a share of the margin is seen by comparison on the box, and by nothing else."""
    from verification.onnx_files import write_vit

    path, x = write_vit(tmp_path / "vit.onnx", rng), torch.randn(16, generator=rng).double()
    f, run = read_and_run(path)
    wrong = with_one_entry_changed(f, lambda g: hs.maps.Attention(**(vars_of(g) | {"scale": 1.5 * g.score_scale})))
    apart = float((wrong(x[None]) - f(x[None])).flatten()[0])
    assert abs(apart) > 1e-4
    # unsafe is what the network really puts out at the centre; the wrong map stays away from it
    sign = 1.0 if apart < 0 else -1.0
    box = Property(
        x - 1e-7, x + 1e-7, unsafe([sign, 0.0, 0.0], sign * float(f(x[None]).flatten()[0]) - 0.2 * abs(apart))
    )
    assert verify(path, box).status == "falsified"
    monkeypatch.setattr("howsmooth.verification.onnx_network.read_and_run", lambda _path: (wrong, run))
    with pytest.raises(UnsupportedModelError, match="differs from the network's own values"):
        verify(path, box)
    monkeypatch.setattr(verdicts, "agree", lambda *_: None)
    assert verify(path, box).status == "proven"


def vars_of(attention):
    names = ("query", "key", "value", "query_bias", "key_bias", "value_bias", "output", "output_bias")
    return {name: getattr(attention, name) for name in names}


def test_counterexamples_are_inputs_of_the_box_that_the_network_itself_puts_out(tmp_path):
    path = network(tmp_path / "x.onnx", [1, 1], [("Relu", ["x"], {}), ("MatMul", ["v0", [[1.0]]], {})])
    # 0.1 is no number of single precision, and the nearest one is above
    found = verify(path, Property(numbers(0.0), numbers(0.1), unsafe([1.0], 0.0999999)))
    assert found.status == "falsified"
    assert 0.0999999 <= float(found.counterexample) <= 0.1
    assert found.outputs.tolist() == session_of(path)(found.counterexample).tolist()


def test_units_that_are_off_do_not_end_an_attack(tmp_path):
    path = network(tmp_path / "x.onnx", [1, 2], [("Relu", ["x"], {}), ("MatMul", ["v0", [[1.0], [0.0]]], {})])
    box = Property(numbers(-1.0, -1.0), numbers(1.0, 1.0), unsafe([1.0], 0.9))
    assert verify(path, box).status == "falsified"


def test_an_output_on_the_boundary_of_a_strict_set_violates_nothing(tmp_path):
    path = network(tmp_path / "x.onnx", [1, 1], [("Relu", ["x"], {}), ("MatMul", ["v0", [[1.0]]], {})])
    text = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 -1))(assert (<= X_0 1))(assert ({} Y_0 0))"
    for sign, status in (("<", "unknown"), ("<=", "falsified")):
        (tmp_path / "p.vnnlib").write_text(text.format(sign), encoding="utf-8")
        assert verify(path, tmp_path / "p.vnnlib", timeout=5).status == status
