"""ONNX graphs as steps of a proof: read exactly, compared with the nodes and with onnxruntime, misreadings caught."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from check.test_graph import X, saved
from onnx import helper
from verification.onnx_files import write_vit

import howsmooth as hs
from howsmooth.check import boxes, check_proof, counterexamples, graph, graph_steps
from howsmooth.check.balls import BallArray, ball
from howsmooth.check.box_models import BoxModel
from howsmooth.check.counterexamples import forward
from howsmooth.check.graph import Graph, runtime
from howsmooth.check.graph_steps import Reader, steps_of_graph
from howsmooth.check.outcomes import CannotCheck
from howsmooth.errors import AssumptionError
from howsmooth.maps import MLP, Attention, Chain, Dense, Residual
from howsmooth.maps.activations import Pointwise
from howsmooth.maps.affine import Affine
from howsmooth.proof_files import Step, steps_of, write_proof
from howsmooth.verification import Property
from howsmooth.verification.proofs import verdict_claim
from howsmooth.verification.verdicts import _expanded, _Margins, _Network

P = np.array


def gauss(rng, *shape, size=0.5):
    return (size * torch.randn(*shape, generator=rng)).numpy()


def attention(rng, tokens, *, heads=2, n=3, d=4, k=2, mask=None, first=0, softmax=None):
    """Nodes of attention on a tensor (1, n, d), the first of which has this number."""
    nodes, at = [], first
    for turn in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        nodes += [("MatMul", [tokens, gauss(rng, d, heads * k)], {}), ("Add", [f"v{at}", gauss(rng, heads * k)], {})]
        nodes += [("Reshape", [f"v{at + 1}", P([1, n, heads, k])], {}), ("Transpose", [f"v{at + 2}"], {"perm": turn})]
        at += 4
    nodes += [("MatMul", [f"v{first + 3}", f"v{first + 7}"], {}), ("Mul", [f"v{at}", P(0.7)], {})]
    if mask is not None:
        nodes.append(("Add", [f"v{at + 1}", mask], {}))
    nodes.append(("Softmax", [f"v{first + len(nodes) - 1}"], {"axis": -1} if softmax is None else softmax))
    at = first + len(nodes) - 1
    nodes += [("MatMul", [f"v{at}", f"v{first + 11}"], {}), ("Transpose", [f"v{at + 1}"], {"perm": [0, 2, 1, 3]})]
    nodes += [("Reshape", [f"v{at + 2}", P([1, n, heads * k])], {}),
              ("MatMul", [f"v{at + 3}", gauss(rng, heads * k, d)], {})]  # fmt: skip
    return nodes


def on_tokens(rng, *, mask=None):
    """Inputs that are tokens, attention with a residual connection, ReLUs with other biases for every token."""
    nodes = attention(rng, X, mask=mask)
    at = len(nodes)
    nodes += [("Add", [f"v{at - 1}", X], {}), ("MatMul", [f"v{at}", gauss(rng, 4, 5)], {})]
    nodes += [("Add", [f"v{at + 1}", gauss(rng, 3, 5)], {}), ("Relu", [f"v{at + 2}"], {})]
    nodes += [("MatMul", [f"v{at + 3}", gauss(rng, 5, 4)], {}), ("Add", [f"v{at}", f"v{at + 4}"], {})]
    return [*nodes, ("ReduceMean", [f"v{at + 5}"], {"axes": [1], "keepdims": 0}),
            ("MatMul", [f"v{at + 6}", gauss(rng, 4, 2)], {})], [1, 3, 4]  # fmt: skip


def convolved(rng):
    """Convolutions and ReLUs, one after the other, and a residual connection around two of them."""
    return [
        ("Conv", [X, gauss(rng, 3, 1, 2, 2), gauss(rng, 3)], {"pads": [0, 0, 1, 1]}),
        ("Relu", ["v0"], {}),
        ("Conv", ["v1", gauss(rng, 3, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v2"], {}),
        ("Add", ["v3", "v1"], {}),
        ("Flatten", ["v4"], {}),
        ("Gemm", ["v5", gauss(rng, 2, 27), gauss(rng, 2)], {"transB": 1}),
    ], [1, 1, 3, 3]


def relus_first(rng):
    """ReLUs of the inputs, added to these."""
    return [("Relu", [X], {}), ("Add", [X, "v0"], {}), ("MatMul", ["v1", gauss(rng, 4, 2)], {})], [1, 4]


def affine_alone(rng):
    return [("MatMul", [X, gauss(rng, 4, 3)], {}), ("Add", ["v0", gauss(rng, 3)], {})], [1, 4]


CAUSAL = np.where(np.tri(3), 0.0, -np.inf)
NETWORKS = {
    "tokens": on_tokens,
    "tokens, causal": lambda rng: on_tokens(rng, mask=CAUSAL),
    "tokens, a mask of numbers": lambda rng: on_tokens(rng, mask=gauss(rng, 2, 3, 3)),
    "tokens, hidden far below": lambda rng: on_tokens(rng, mask=np.where(np.tri(3), 0.0, -1e9)),
    "convolutions": convolved,
    "relus first": relus_first,
    "affine alone": affine_alone,
}


@pytest.fixture(params=[*NETWORKS, "vision transformer"])
def network(request, tmp_path, rng):
    if request.param == "vision transformer":
        return write_vit(tmp_path / "net.onnx", rng)
    nodes, shape = NETWORKS[request.param](rng)
    return saved(tmp_path / "net.onnx", nodes, shape, opset=13)


def test_steps_put_out_what_the_nodes_do(network, rng):
    read = Graph(network)
    steps = steps_of_graph(read)
    for _ in range(3):
        x = gauss(rng, *read.shape, size=1.0).astype(np.float64)
        found, exact = forward(steps, ball(x)).reshape(-1), read.evaluate(x)
        assert (np.abs(found.mid - exact.mid) <= found.rad + exact.rad).all()
        assert max(found.rad.max(), exact.rad.max()) < 1e-9
        assert np.abs(exact.mid - runtime(network)(x)).max() < 1e-5 * (1 + np.abs(exact.mid).max())


@pytest.mark.parametrize("level", [0, 1, 2])
def test_no_point_of_a_box_leaves_the_bounds_of_what_was_read(network, rng, level):
    read = Graph(network)
    steps, size = steps_of_graph(read), int(np.prod(read.shape))
    x, eps = gauss(rng, size, size=1.0).astype(np.float64), 0.1
    model = BoxModel(steps, x - eps, x + eps, [], level)
    functionals = np.concatenate([np.eye(model.centres[-1].size), -np.eye(model.centres[-1].size)])[:, None]
    above, _below = model.by_forms(ball(functionals))
    linear = model.symbols.ranges(ball(model.slopes[-1]))[0]
    ends = np.tile(linear, 2) + above
    centre = np.concatenate([model.centres[-1][0], -model.centres[-1][0]])
    points = x + eps * np.clip(np.random.default_rng(0).standard_normal((60, size)) * 3, -1, 1)
    found = np.stack([read.evaluate(point).mid for point in points])
    moved = (np.concatenate([found, -found], 1) - centre).max(0)
    assert (moved <= ends * (1 + 1e-9)).all()
    assert (moved > 0.05 * ends).all()


@pytest.mark.parametrize("kind", ["dense", "affine", "attention"])
def test_weights_that_are_known_up_to_a_radius_are_anywhere_within_it(kind):
    """Bounds hold for all networks whose weights lie in the balls, and not by accident."""
    rng, numbers = torch.Generator().manual_seed(1), np.random.default_rng(2)

    def drawn(*shape):
        return gauss(rng, *shape).astype(np.float64)

    first = Step("affine", {}, {"weight": drawn(3, 4, 1, 5), "bias": drawn(3, 4)})
    middle = {
        "dense": Step("dense", {"residual": 1}, {"weight": drawn(4, 4), "bias": drawn(4)}),
        "affine": Step("affine", {}, {"weight": drawn(3, 4, 3, 4), "bias": drawn(3, 4)}),
        "attention": Step(
            "attention",
            {"scale": 1.0, "causal": False, "residual": 1},
            {f"{part}{bias}": drawn(2, 2, *(() if bias else (4,))) for part in ("query", "key", "value")
             for bias in ("", "_bias")} | {"mask": drawn(2, 3, 3), "output": drawn(2, 4, 2)},
        ),
    }[kind]  # fmt: skip
    relu = Step("pointwise", {"activation": "relu"}, {})
    last = Step("affine", {}, {"weight": drawn(1, 2, 3, 4), "bias": drawn(1, 2)})
    loose = 0.03

    def with_arrays(change):
        return [first, Step(kind, middle.settings, {name: change(a) for name, a in middle.arrays.items()}), relu, last]

    x, eps = drawn(5), 0.05
    model = BoxModel(with_arrays(lambda a: BallArray(a, np.full_like(a, loose))), x - eps, x + eps, [], 0)
    functional = np.stack([np.eye(2), -np.eye(2)]).reshape(4, 1, 2)
    reach = np.tile(model.symbols.ranges(ball(model.slopes[-1]))[0], 2) + model.by_ranges(ball(functional))
    largest = np.zeros(4)
    for _ in range(150):
        steps = with_arrays(lambda a: a + loose * numbers.choice([-1.0, 1.0], a.shape))
        y = forward(steps, ball(x + eps * numbers.choice([-1.0, 1.0], 5))).mid[0] - model.centres[-1][0]
        largest = np.maximum(largest, np.concatenate([y, -y]))
    assert (largest <= reach).all()
    # without the radii the bounds are exceeded
    exact = BoxModel(with_arrays(lambda a: a), x - eps, x + eps, [], 0)
    tight = np.tile(exact.symbols.ranges(ball(exact.slopes[-1]))[0], 2) + exact.by_ranges(ball(functional))
    assert (largest > tight).any()


def proven(path, read, x, eps, tmp_path, share=0.1):
    """A file of a proof that lacks a share of what units take off the margin, so that lines do not suffice."""
    from howsmooth.verification.onnx_network import read_onnx

    f, A = read_onnx(path), torch.eye(int(read.evaluate(x).mid.size), dtype=torch.float64)[:1]
    x = torch.from_numpy(x).double().flatten()
    box = Property(x - eps, x + eps, ((A, torch.zeros(1, dtype=torch.float64)),))
    margins = _Margins.of(_expanded(_Network.of(f, box), box, 0), A, box.unsafe[0][1])
    missing = float(share * margins.units.abs().sum()) or -1e-3
    wanted = Property(box.lower, box.upper, ((A, -margins.lower - missing),))
    proof = tmp_path / "proof.json"
    write_proof(proof, path, [verdict_claim(f, wanted, 0, 60)])
    return proof, wanted


@pytest.mark.parametrize("name", ["vision transformer", "tokens", "tokens, causal"])
def test_verdicts_on_files_are_checked_with_the_units_that_they_name(name, tmp_path, rng):
    path = tmp_path / "net.onnx"
    if name == "vision transformer":
        write_vit(path, rng)
    else:
        nodes, shape = NETWORKS[name](rng)
        saved(path, nodes, shape, opset=13)
    read = Graph(path)
    eps, share = (0.05, 0.2) if name == "vision transformer" else (0.3, 0.1)
    proof, wanted = proven(path, read, gauss(rng, *read.shape, size=1.0).astype(np.float64), eps, tmp_path, share)
    (claim,) = json.loads(proof.read_text())["claims"]
    assert len(claim["unsafe"][0]["leaves"]) > 1
    (outcome,) = check_proof(proof, path, property=wanted)
    assert outcome.status == "checked", outcome
    assert outcome.asked[-1] == "compared with the property"


# ---- misreadings, planted in the checker -----------------------------------------------------------------------------


def flattened(rng, shape=(1, 3, 2)):
    """Attention whose softmax of opset 11 is over all scores, since it names no axis."""
    return [
        ("Div", [X, P(255.0)], {}),
        ("Transpose", ["v0"], {"perm": [0, 2, 1]}),
        ("MatMul", ["v0", "v1"], {}),
        ("Softmax", ["v2"], {}),
        ("MatMul", ["v3", "v0"], {}),
        ("Add", ["v0", "v4"], {}),
        ("Reshape", ["v5", P([1, 6])], {}),
        ("MatMul", ["v6", np.full((6, 1), 0.02)], {}),
        ("Add", ["v7", P([10.0])], {}),
    ], shape


def nearly_alone(rng):
    """Tokens that a product mixes a little, before ReLUs."""
    mixing = np.eye(3) + 1e-6 * np.ones((3, 3))
    return [
        ("MatMul", [mixing, X], {}),
        ("Relu", ["v0"], {}),
        ("Add", ["v1", X], {}),
        ("MatMul", ["v2", gauss(rng, 2, 2)], {}),
        ("Relu", ["v3"], {}),
        ("Flatten", ["v4"], {}),
        ("MatMul", ["v5", gauss(rng, 6, 2)], {}),
    ], [1, 3, 2]


def gathered(rng):
    return [
        ("MatMul", [X, gauss(rng, 3, 3)], {}),
        ("Gather", ["v0", P([2, 0, 1])], {"axis": 2}),
        ("Relu", ["v1"], {}),
        ("Flatten", ["v2"], {}),
        ("MatMul", ["v3", gauss(rng, 9, 2)], {}),
    ], [1, 3, 3]


def dropped(columns, bias):
    every = np.arange(len(columns.mid))
    return columns.moved(2, 1)[every, every][0], bias[0]


def turned_gather(o, x, index):
    return np.take(x, index, o["axis"] - 1)


def heads_exchanged(self, scores, value):
    found = ATTENTION(self, scores, value)
    return graph.Form(found.rows[:, :, ::-1], found.place)


def turned_windows(o, sizes, kernel):
    both, *others = WINDOWS(o, sizes, kernel)
    return [pads[::-1] for pads in both], *others


ATTENTION, WINDOWS = Reader.attention, graph._windows


def read_alone(function):
    """Apply a function to what stands on a box, and leave what is evaluated."""
    kept = graph.rearranged

    def planted(moved, options, *inputs):
        forms = [x for x in inputs if isinstance(x, graph.Form)]
        wrong = moved is graph.MOVED["Gather"] and any(form.place is not None for form in forms)
        return kept(function if wrong else moved, options, *inputs)

    return planted


MISREADINGS = {
    "a softmax over the last axis": (flattened, graph, "last_axis_of", lambda o, shape: True, "steps"),
    "small blocks that are dropped": (nearly_alone, graph_steps, "_every_token", dropped, "steps"),
    "a gather along another axis, on boxes": (gathered, graph, "rearranged", read_alone(turned_gather), "steps"),
    "a gather along another axis": (gathered, graph.MOVED, "Gather", turned_gather, "onnxruntime"),
    "heads in another order": (on_tokens, Reader, "attention", heads_exchanged, "steps"),
    "a residual connection that is left out": (convolved, Reader, "residual", lambda self, x, y: x, "steps"),
    "padding on the other side": (convolved, graph, "_windows", turned_windows, "onnxruntime"),
}


@pytest.mark.parametrize("name", MISREADINGS)
def test_misreadings_are_caught_where_the_network_is_evaluated(name, tmp_path, rng, monkeypatch):
    nodes, place, what, wrong, by = MISREADINGS[name]
    made, shape = nodes(rng)
    path = saved(tmp_path / "net.onnx", made, shape, opset=11 if nodes is flattened else 13)
    x = np.linspace(-1, 1, int(np.prod(shape)))
    y = Graph(path).evaluate(x)
    A, b = np.eye(len(y.mid))[:1], y.mid[:1] + 1e-3
    claim = {"kind": "verdict", "lower": (x - 1e-9).tolist(), "upper": (x + 1e-9).tolist(), "level": 0, "units": []}
    claim["unsafe"] = [{"A": A.tolist(), "b": b.tolist(), "row": 0, "leaves": [{}]}]
    if nodes is not flattened:
        assert boxes.check_graph_verdict(Graph(path), claim)
    if isinstance(place, dict):
        monkeypatch.setitem(place, what, wrong)
    else:
        monkeypatch.setattr(place, what, wrong)
    said = "the steps that were read" if by == "steps" else "onnxruntime puts out something else|not proven to be safe"
    with pytest.raises((CannotCheck, boxes.Refuted), match=said):
        boxes.check_graph_verdict(Graph(path), claim)


def test_where_onnxruntime_does_not_run_this_is_assumed(tmp_path, rng, monkeypatch):
    path = write_vit(tmp_path / "net.onnx", rng)
    proof, _wanted = proven(path, Graph(path), gauss(rng, 16).astype(np.float64), 1e-3, tmp_path)
    for place in (boxes, counterexamples):
        monkeypatch.setattr(place, "runtime", lambda path: None)
    (outcome,) = check_proof(proof, path)
    assert outcome.status == "checked"
    assert "onnxruntime does not run the file" in outcome.assumed[-1]
    assert outcome.asked[-1] == "compared with no property"


# ---- what was once proven of files, wrongly --------------------------------------------------------------------------


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def identity(n, d):
    return Affine(weight=torch.eye(n * d).double().reshape(n, d, 1, n * d), bias=torch.zeros(n, d).double())


def test_what_is_small_beside_the_largest_number_is_not_dropped(tmp_path):
    biases = P([[1e6, 0], [1e6 + 9, 0]])
    nodes = [
        ("MatMul", [X, P([[1.0]])], {}),
        ("Add", ["v0", P([[[1.0], [1.0]]])], {}),
        ("MatMul", ["v1", P([[1.0, -1.0]])], {}),
        ("Add", ["v2", biases], {}),
        ("Relu", ["v3"], {}),
        ("MatMul", ["v4", P([[1.0], [1.0]])], {}),
        ("Add", ["v1", "v5"], {}),
        ("Reshape", ["v6", P([1, 2])], {}),
        ("MatMul", ["v7", P([[1.0, -1], [1, 1]])], {}),
    ]
    path = saved(tmp_path / "net.onnx", nodes, [1, 2, 1])
    # both tokens with the biases of the first
    mlp = MLP(up=tensor([[1.0], [-1.0]]), up_bias=tensor([1e6, 0]), down=tensor([[1.0, 1.0]]), activation="relu")
    first = Affine(weight=identity(2, 1).weight, bias=tensor([[1.0], [1.0]]))
    last = Affine(weight=tensor([[[[1.0], [1.0]], [[-1.0], [1.0]]]]), bias=tensor([[0.0, 0.0]]))
    misread = Chain(first, Residual(mlp), last)
    wanted = Property(tensor([-1.0, -1.0]), tensor([1.0, 1.0]), ((tensor([[0.0, 1.0]]), tensor([5.0])),))
    assert_refused(path, misread, wanted, tmp_path)


def test_a_softmax_without_an_axis_is_that_of_the_opset(tmp_path):
    nodes, shape = flattened(None)
    path = saved(tmp_path / "net.onnx", nodes, shape, opset=11)
    unit = torch.eye(2).double()[None]
    misread = Chain(
        Affine(weight=identity(3, 2).weight / 255, bias=torch.zeros(3, 2).double()),
        Residual(Attention(query=unit, key=unit, value=unit, output=unit, scale=1.0)),
        Affine(weight=torch.full((1, 1, 3, 2), 0.02).double(), bias=tensor([[10.0]])),
    )
    wanted = Property(tensor([199.0] * 6), tensor([201.0] * 6), ((tensor([[-1.0]]), tensor([-10.15])),))
    assert_refused(path, misread, wanted, tmp_path)


def test_a_function_of_the_model_is_no_operation_of_its_name(tmp_path):
    imports = [helper.make_opsetid("", 17)]
    ends = [helper.make_node("Constant", [], [name], value_float=x) for name, x in (("low", 0.0), ("high", 6.0))]
    clip = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    function = helper.make_function("mine", "Relu", ["x"], ["y"], [*ends, clip], imports)
    nodes = [("Relu", [X], {"domain": "mine"}), ("MatMul", ["v0", P([[1.0]])], {})]
    misread = Chain(identity(1, 1), Pointwise(activation="relu", dtype=torch.float64), identity(1, 1))
    wanted = Property(tensor([7.0]), tensor([8.0]), ((tensor([[-1.0]]), tensor([-6.5])),))
    path = saved(tmp_path / "net.onnx", nodes, [1, 1], functions=[function])
    assert_refused(path, misread, wanted, tmp_path)
    assert_refused(saved(path, nodes, [1, 1]), misread, wanted, tmp_path)


def assert_refused(path, misread, wanted, tmp_path):
    """What is proven of a map that is not the network is checked of the map, and not of the file."""
    claim, proof = verdict_claim(misread, wanted, 0, 60), tmp_path / "proof.json"
    write_proof(proof, misread, [claim])
    assert [outcome.status for outcome in check_proof(proof, misread, property=wanted)] == ["checked"]
    write_proof(proof, path, [claim])
    (outcome,) = check_proof(proof, path, property=wanted)
    assert outcome.status in ("refuted", "cannot check")
    assert outcome.why


# ---- what is refused -------------------------------------------------------------------------------------------------


def without_bias_alike(rng):
    nodes = attention(rng, X)
    nodes[1] = ("Add", ["v0", gauss(rng, 3, 4)], {})
    return nodes


REFUSED = {
    "queries that depend on positions": (without_bias_alike, "query of a token depends on its position"),
    "a softmax over queries": (lambda rng: attention(rng, X, softmax={"axis": 2}), "not over the keys"),
    "weights that are squared": (
        lambda rng: [*attention(rng, X)[:15], ("Mul", ["v14", "v14"], {}), ("MatMul", ["v15", "v11"], {})],
        "Mul",
    ),
    "scores without a softmax": (
        lambda rng: [*attention(rng, X)[:14], ("MatMul", ["v13", "v11"], {})],
        "not their softmax by values",
    ),
    "scores as outputs": (lambda rng: attention(rng, X)[:15], "no affine function"),
    "tokens before the last block": (
        lambda rng: [("Relu", [X], {}), ("Relu", ["v0"], {}), ("Relu", [X], {}), ("Add", ["v1", "v2"], {})],
        "before the last nonlinear step",
    ),
    "another shortcut": (
        lambda rng: [("MatMul", [X, gauss(rng, 4, 4)], {}), ("Relu", [X], {}), ("Add", ["v0", "v1"], {})],
        "not the numbers before some steps",
    ),
    "a smooth activation": (lambda rng: [("Tanh", [X], {})], "not linear"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_step_is_refused_by_its_node(name, tmp_path, rng):
    nodes, said = REFUSED[name]
    read = Graph(saved(tmp_path / "net.onnx", nodes(rng), [1, 3, 4], opset=13))
    with pytest.raises(CannotCheck, match=said):
        steps_of_graph(read)


def test_scores_are_hidden_in_place_by_minus_infinity_alone(tmp_path, rng):
    for low, fine in ((-np.inf, True), (-1e9, False)):
        nodes = attention(rng, X)
        nodes[13] = ("Where", [np.tri(3) > 0, "v12", P(low)], {})
        path = saved(tmp_path / "net.onnx", nodes, [1, 3, 4], opset=13)
        x = gauss(rng, 12).astype(np.float64)
        if fine:
            read = Graph(path)
            found, exact = forward(steps_of_graph(read), ball(x)).reshape(-1), read.evaluate(x)
            assert (np.abs(found.mid - exact.mid) <= found.rad + exact.rad).all()
        else:
            with pytest.raises(CannotCheck, match="more with scores"):
                steps_of_graph(Graph(path))


# ---- steps of maps ---------------------------------------------------------------------------------------------------


def test_bare_relus_of_maps_are_checked(tmp_path, rng):
    def drawn(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64) / 2

    relu = Pointwise(activation="relu", dtype=torch.float64)
    first, last = Affine(weight=drawn(3, 4, 1, 6), bias=drawn(3, 4)), Affine(weight=drawn(1, 3, 3, 4), bias=drawn(1, 3))
    inner = Chain(Dense(weight=drawn(4, 4)), relu, Dense(weight=drawn(4, 4)))
    mlp = MLP(up=drawn(5, 4), down=drawn(4, 5), activation="relu")
    for f in (
        Chain(first, relu, last),
        Chain(first, relu, Residual(inner), last),
        Chain(first, Residual(relu), Residual(Chain(mlp, relu)), last),
        Chain(first, Residual(Chain(Dense(weight=drawn(4, 4)), mlp)), last),
    ):
        x = drawn(6)
        robust = Property.robust(x, eps=0.01, label=int(f(x[None]).argmax()), classes=3)
        verdict = hs.verify(f, robust)
        assert verdict.status == "proven"
        verdict.save(tmp_path / "proof.json", f, robust)
        (outcome,) = check_proof(tmp_path / "proof.json", f, property=robust)
        assert outcome.status == "checked", outcome
        model = BoxModel(steps_of(f), x.numpy() - 0.3, x.numpy() + 0.3, [], 1)
        above, _below = model.by_forms(ball(np.eye(3)[:, None]))
        ends = model.symbols.ranges(ball(model.slopes[-1]))[0] + above
        points = x + 0.3 * (torch.rand(200, 6, generator=rng, dtype=torch.float64) * 2 - 1)
        moved = (f(points[:, None])[:, 0].numpy() - model.centres[-1][0]).max(0)
        assert (moved <= ends).all()


def test_relus_of_the_inputs_themselves_are_checked(tmp_path):
    f = Chain(Pointwise(activation="relu", dtype=torch.float64), Dense(weight=tensor([[1.0, 1.0], [0.0, 1.0]])))
    wanted = Property(tensor([[-1.0, -1.0]]), tensor([[1.0, 1.0]]), ((tensor([[1.0, 0.0]]), tensor([2.5])),))
    verdict = hs.verify(f, wanted)
    verdict.save(tmp_path / "proof.json", f, wanted)
    assert [outcome.status for outcome in check_proof(tmp_path / "proof.json", f, property=wanted)] == ["checked"]
    far = Property(wanted.lower, wanted.upper, ((tensor([[1.0, 0.0]]), tensor([1.5])),))
    falsified = hs.verify(f, far)
    assert falsified.status == "falsified"
    falsified.save(tmp_path / "proof.json", f, far)
    assert [outcome.status for outcome in check_proof(tmp_path / "proof.json", f, property=far)] == ["checked"]


def test_smooth_activations_are_refused_when_a_verdict_is_saved(tmp_path, rng):
    f = Chain(identity(1, 2), MLP(up=torch.eye(2).double(), down=torch.eye(2).double(), activation="gelu"))
    wanted = Property(tensor([-1.0, -1.0]), tensor([1.0, 1.0]), ((tensor([[1.0, 0.0]]), tensor([9.0])),))
    verdict = hs.verify(f, wanted)
    assert verdict.status == "proven"
    with pytest.raises(AssumptionError, match="no smooth activations"):
        verdict.save(tmp_path / "proof.json", f, wanted)
    with pytest.raises(AssumptionError, match=r"got Linear; of a module, write it with torch\.onnx\.export"):
        verdict.save(tmp_path / "proof.json", torch.nn.Linear(2, 2), wanted)
