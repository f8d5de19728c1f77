"""Proofs about networks in float32: what onnxruntime puts out is within what is proven, and not far from it."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import howsmooth as hs
from howsmooth.errors import AssumptionError, UnsupportedModelError
from howsmooth.verification import Property, verify

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from verification.fuzz_float32 import EXACT, compared, ranges, runs
from verification.onnx_files import write_vit
from verification.test_what_is_read import network, numbers, unsafe

from howsmooth.verification.onnx_network import read_and_run
from howsmooth.verification.verdicts import _Network


def test_a_network_that_is_safe_in_real_arithmetic_and_not_in_float32_is_not_proven_in_float32(tmp_path):
    """relu(x + 1e4) − 1e4 is 9.8e-4 in float32 at 5e-4."""
    path = network(
        tmp_path / "f.onnx",
        [1, 1],
        [("Add", ["x", [[1e4]]], {}), ("Relu", ["v0"], {}), ("Add", ["v1", [[-1e4]]], {})],
    )
    wanted = Property(numbers(0.0), numbers(6e-4), unsafe([1.0], 7e-4))
    assert verify(path, wanted).status == "proven"
    verdict = verify(path, wanted, float32=True)
    assert verdict.status != "proven"
    found = float(runs(path, [1, 1])(numbers(5e-4)).max())
    assert found > 7e-4
    assert float(verdict.margins) <= 7e-4 - found
    assert float(verdict.rounding) >= found - 5e-4
    assert verdict.why == "rounding in float32 takes 0.0012 of a margin of 9e-05"
    assert "rounding" in verdict.uses
    # two units in the last place of 1e4 away
    assert verify(path, dataclasses.replace(wanted, unsafe=unsafe([1.0], 2e-3)), float32=True).status == "proven"


MANY = 0.02 * np.sin(np.arange(300.0))
# What cancels, or loses digits in another way: nodes behind an input of some size, how large inputs are, and at least
# which share of the bound is seen.
CASES = {
    "added and taken off": (1, 1.0, 0.2, [("Add", ["x", [[1e8]]], {}), ("Add", ["v0", [[-1e8]]], {})]),
    "constants that are computed": (
        1,
        1.0,
        0.01,
        [("Add", [[[1e8]], [[0.5]]], {}), ("Add", ["v0", [[-1e8]]], {}), ("Add", ["x", "v1"], {})],
    ),
    "weights that are computed": (
        1,
        1.0,
        0.05,
        [("Sqrt", [[[2.0]]], {}), ("Mul", ["v0", "v0"], {}), ("Div", ["x", "v1"], {}), ("Add", ["v2", [[1.0]]], {})],
    ),
    "a long sum": (300, 30.0, 2e-4, [("MatMul", ["x", MANY[:, None]], {})]),
    "a batch norm of what is far from its mean": (
        1,
        1.0,
        0.05,
        [("BatchNormalization", ["x", [1.0], [0.5], [1e5], [1e-6]], {"epsilon": 1e-9})],
    ),
    "a layer norm of what is far from zero": (
        8,
        1.0,
        5e-6,  # the mean square may be computed before the mean is taken off, and is not here
        [
            ("Add", ["x", [[300.0] * 8]], {}),
            ("LayerNormalization", ["v0", np.ones(8), np.zeros(8)], {"axis": -1}),
            ("MatMul", ["v1", np.linspace(-1, 1, 16).reshape(8, 2)], {}),
        ],
    ),
    "a large gelu": (4, 30.0, 0.01, [("Gelu", ["x"], {})]),
    "a hyperbolic tangent": (4, 1.0, 0.1, [("Tanh", ["x"], {})]),
    "large scores": (
        (2, 4),
        3.0,
        1e-3,
        [
            ("MatMul", ["x", 9 * np.cos(np.arange(16.0)).reshape(4, 4)], {}),
            ("Transpose", ["v0"], {"perm": [0, 2, 1]}),
            ("MatMul", ["x", "v1"], {}),
            ("Softmax", ["v2"], {"axis": -1}),
            ("MatMul", ["v3", "x"], {}),
            ("Add", ["v4", "x"], {}),
            ("ReduceMean", ["v5", np.array([1])], {"keepdims": 0}),
        ],
    ),
    "a large number added to scores": (
        (2, 4),
        1.0,
        1e-3,
        [
            ("MatMul", ["x", np.cos(np.arange(16.0)).reshape(4, 4)], {}),
            ("Transpose", ["v0"], {"perm": [0, 2, 1]}),
            ("MatMul", ["x", "v1"], {}),
            ("Add", ["v2", [[[1e5, 1e5]]]], {}),
            ("Softmax", ["v3"], {"axis": -1}),
            ("MatMul", ["v4", "x"], {}),
            ("Add", ["v5", "x"], {}),
            ("ReduceMean", ["v6", np.array([1])], {"keepdims": 0}),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_where_digits_are_lost_errors_are_within_their_bound_and_a_fair_share_of_it(tmp_path, rng, case):
    inputs, scale, share, operations = CASES[case]
    shape = [1, *np.atleast_1d(inputs).tolist()]
    path = network(tmp_path / "x.onnx", shape, operations, opset=20)
    f, itself = read_and_run(path)
    run, most = runs(path, shape), 0.0
    for _draw in range(30):
        x = scale * torch.randn(math.prod(shape), generator=rng, dtype=torch.float64)
        y = f(x[None]).flatten()
        low, high = ranges(
            _Network.of(f, Property(x, x, ((torch.ones(1, len(y)).double(), numbers(0.0)),))), itself.read, x, x, len(y)
        )
        assert bool((low <= y).all() and (y <= high).all())
        error, bound = (run(x) - y).abs().amax(0), torch.minimum(high - y, y - low) + EXACT * y.abs()
        assert bool((error <= bound).all()), (error / bound).max()
        most = max(most, float((error / bound).max()))
    assert most >= share


@pytest.mark.parametrize("seed", range(2, 9))
def test_networks_in_float32_are_within_what_is_proven(tmp_path, seed):
    found = compared(seed, tmp_path, points=3)
    assert "rounding is not followed" not in found.said
    if found.found == "compared":
        assert found.worst <= 1
        assert found.outside <= EXACT
        assert found.worst > 1e-5  # bounds that are not silly
        assert found.finite[0] == found.finite[1]


def test_a_property_of_a_file_is_proven_in_float32_with_a_smaller_margin(tmp_path, rng):
    path = write_vit(tmp_path / "vit.onnx", rng)
    x, run = torch.randn(16, generator=rng).double(), runs(path, [1, 1, 4, 4])
    label = int(run(x)[0].argmax())
    wanted = Property.robust(x, eps=1e-3, label=label, classes=3)
    real, single = verify(path, wanted), verify(path, wanted, float32=True)
    assert (real.status, single.status) == ("proven", "proven")
    assert real.rounding is None
    assert "float32" in repr(single)
    lost = real.margins - single.margins
    assert bool((lost > 0).all() and (lost < 1e-3 * real.margins).all())
    assert bool((single.rounding > 0).all() and (single.rounding <= 1.01 * lost).all())


@pytest.mark.parametrize("activation", ["Relu", "Tanh"])
def test_what_onnxruntime_puts_out_is_never_excluded(tmp_path, rng, activation):
    """The unsafe set begins at the output of one run, on a box that is a point: real arithmetic may exclude that."""
    path, excluded = write_vit(tmp_path / "vit.onnx", rng, activation=activation), 0
    run, (f, itself) = runs(path, [1, 1, 4, 4]), read_and_run(path)
    for _draw in range(8):
        x = torch.randn(16, generator=rng).double()
        wanted, most = Property(x, x, ((torch.eye(3).double(), torch.zeros(3)),)), run(x).amax(0)
        _low, high = ranges(_Network.of(f, wanted), itself.read, x, x, 3)
        assert bool((high >= most).all())
        excluded += int((f(x[None]).flatten() < most).sum())
    assert excluded


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def test_modules_are_followed_through_their_nodes(rng):
    torch.manual_seed(0)
    module, x = Small().eval(), torch.randn(4, generator=rng)
    label = int(module(x).argmax())
    wanted = Property.robust(x, eps=1e-3, label=label, classes=2)
    verdict = verify(module, wanted, float32=True)
    assert verdict.status == "proven"
    assert 0 < float(verdict.rounding) < 1e-4
    with pytest.raises(AssumptionError, match=r"takes float32: rounding is followed through its nodes; got .*float64"):
        verify(module.double(), wanted, float32=True)


def test_a_map_has_no_nodes_whose_rounding_could_be_followed(rng):
    f = hs.maps.Chain(hs.maps.Dense(torch.randn(2, 3, generator=rng).double()))
    wanted = Property(torch.zeros(1, 3), torch.ones(1, 3), ((torch.ones(1, 2), torch.full((1,), 99.0)),))
    with pytest.raises(AssumptionError, match="float32 needs an ONNX file, or a module, that takes float32"):
        verify(f, wanted, float32=True)


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([("Cast", ["x"], {"to": 10}), ("Cast", ["v0"], {"to": 1}), ("Relu", ["v1"], {})], "another precision"),
        ([("Exp", [[[0.5]]], {}), ("Sin", ["v0"], {}), ("Add", ["x", "v1"], {})], "numbers that are rounded"),
    ],
)
def test_nodes_whose_rounding_is_not_known_are_refused(tmp_path, operations, said):
    path = network(tmp_path / "x.onnx", [1, 1], operations)
    f, itself = read_and_run(path)
    x = numbers(0.5)
    whole = _Network.of(f, Property(x, x, unsafe([1.0], 99.0)))
    with pytest.raises(UnsupportedModelError, match=f"rounding is not followed through the node .*{said}"):
        ranges(whole, itself.read, x, x, 1)


def test_what_overflows_has_no_bound(tmp_path):
    path = network(tmp_path / "x.onnx", [1, 1], [("Mul", ["x", [[1e30]]], {}), ("Mul", ["v0", [[1e-30]]], {})])
    for size, finite in ((1.0, True), (1e9, False)):
        x = numbers(size)
        f, itself = read_and_run(path)
        wanted = Property(x, x, unsafe([1.0], 1e12))
        low, high = ranges(_Network.of(f, wanted), itself.read, x, x, 1)
        assert math.isfinite(float(high - low)) == finite
