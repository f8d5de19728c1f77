import dataclasses
import json

import pytest
import torch
from torch import nn

import howsmooth as hs
from howsmooth.metrics import as_metrics
from howsmooth.search.ascent import maximise_counting
from howsmooth.search.claims import on_batches
from howsmooth.search.starts import start_patterns

F64 = torch.float64
QUICK = {"starts": 1, "steps": 5}


def linear(norm: float) -> nn.Linear:
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(norm * torch.eye(3))
    return layer


def test_a_wrong_claim_is_refuted_and_a_true_one_is_not():
    assert hs.audit(linear(2.0), claimed=1.9, input_shape=(3, 3), domain=hs.domains.Ball(1.0), **QUICK).refuted
    found = hs.audit(linear(2.0), claimed=2.01, input_shape=(3, 3), **QUICK)
    assert not found.refuted
    assert found.largest == pytest.approx(2.0, rel=1e-3)
    assert "not refuted: largest found" in repr(found)


def test_two_inputs_refute_and_the_derivative_does_not():
    found = hs.audit(torch.sin, claimed=0.9, input_shape=(2, 2), domain=hs.domains.Ball(1.0), **QUICK)
    moved = (torch.sin(found.pair.first) - torch.sin(found.pair.second)).norm()
    assert float(moved / (found.pair.first - found.pair.second).norm()) >= found.largest > 0.9
    assert max(float(x.norm(dim=-1).max()) for x in (found.pair.first, found.pair.second)) <= 1.0


@pytest.mark.parametrize("metric", ["token", "entries", "sum", "weighted"])
def test_claims_are_audited_in_the_metric_that_they_are_made_in(metric, rng):
    A, scale = torch.randn(2, 2, dtype=F64, generator=rng), torch.tensor([1.0, 10.0], dtype=F64)
    truth = {
        "token": 3 * torch.linalg.matrix_norm(A, 2),
        "entries": 3 * A.abs().sum(1).max(),
        "sum": A.abs().sum(0).max(),
        "weighted": 3**0.5 * torch.linalg.matrix_norm(A, 2),
    }[metric]
    if metric == "weighted":
        A, metric = scale[:, None] * A / scale, hs.metrics.weighted(torch.diag(scale**-2))

    def summed(X):
        return (X @ A.mT).sum(-2, keepdim=True)

    options = {"domain": hs.domains.Ball(1.0), "metric": metric, "seed": 0, **QUICK}
    found = hs.audit(summed, claimed=0.99 * float(truth), input_shape=(3, 2), **options)
    assert found.refuted
    assert found.largest <= float(truth) * (1 + 1e-9)
    metrics = as_metrics(metric)
    moved = metrics.output.size(summed(found.pair.first) - summed(found.pair.second))
    assert float(moved / metrics.input.size(found.pair.first - found.pair.second)) >= found.largest
    assert not hs.audit(summed, claimed=1.01 * float(truth), input_shape=(3, 2), **options).refuted


class Exaggerating(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X):
        return X.clone()

    @staticmethod
    def backward(ctx, G):
        return 5 * G


def test_a_derivative_that_is_not_that_of_the_outputs_refutes_nothing_and_is_told():
    found = hs.audit(Exaggerating.apply, claimed=2.0, input_shape=(2, 2), domain=hs.domains.Ball(1.0), **QUICK)
    assert not found.refuted
    assert not found.consistent
    assert found.found.value == pytest.approx(5.0)
    assert "not what the outputs do" in found.summary


def test_what_float32_inside_adds_refutes_nothing():
    def coarse(X):
        return X.float().double()

    # far from the origin neighbours are rounded apart, by more than their distance
    centre = 1e4 * torch.ones(2, dtype=F64)
    found = hs.audit(coarse, claimed=1.01, input_shape=(2, 2), domain=hs.domains.Ball(1.0, centre=centre), **QUICK)
    assert not found.refuted


def biased(bias: float) -> nn.Linear:
    layer = linear(3.6).double()
    with torch.no_grad():
        layer.bias.fill_(bias)
    return layer


@pytest.mark.parametrize(
    ("bias", "domain"), [(1e5, hs.domains.Ball(1.0)), (-1e9, None), (1e13, hs.domains.Ball(1.0)), (1e13, None)]
)
def test_a_large_bias_hides_no_slope_in_float64(bias, domain):
    found = hs.audit(biased(bias), claimed=1.8, input_shape=(4, 3), domain=domain, **QUICK)
    assert found.refuted
    assert found.consistent
    assert 3.2 < found.largest <= 3.6 * (1 + 1e-9)
    assert not dataclasses.replace(found, claimed=3.6001).refuted


@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_what_rounding_adds_where_an_offset_cancels_refutes_nothing(factor):
    def cancelling(X):
        return factor * ((X + 1e8) - 1e8)

    found = hs.audit(cancelling, claimed=1.0001 * factor, input_shape=(2, 2), domain=hs.domains.Ball(1.0), **QUICK)
    assert not found.refuted
    assert found.largest == pytest.approx(factor, rel=1e-3)


def test_inputs_far_apart_refute_what_float32_beside_a_bias_hides_from_near_ones():
    layer = biased(1e5)

    def single(X):
        return (X.float() @ layer.weight.T.float() + layer.bias.float()).double()

    found = hs.audit(single, claimed=1.8, input_shape=(4, 3), **QUICK)
    assert found.refuted
    assert float((found.pair.first - found.pair.second).norm()) > 1


def test_what_rounding_hides_is_told_and_no_contradiction():
    found = hs.audit(biased(1e17), claimed=1.8, input_shape=(4, 3), domain=hs.domains.Ball(1.0), **QUICK)
    assert not found.refuted
    assert found.consistent  # with the derivative, since rounding could have taken all of it
    assert "rounding hides" in found.summary
    assert "not what the outputs do" not in found.summary


def test_a_kernel_without_second_derivative_is_refused_in_a_sentence():
    def distances(X):
        return torch.cdist(X, X)

    with pytest.raises(hs.errors.AssumptionError, match=r"differentiates twice|not twice differentiable"):
        hs.audit(distances, claimed=1.0, input_shape=(3, 2), domain=hs.domains.Ball(1.0), **QUICK)


def test_structured_starts_find_what_random_tokens_miss(rng):
    eye = torch.eye(2, dtype=F64)
    f = hs.Attention.single_head(A=30 * eye, V=eye)
    ball, like = hs.domains.Ball(3.0), torch.empty(2, dtype=F64)
    X = start_patterns(ball, 6, like, 8, rng)
    random, structured = (float(hs.local_lipschitz(f, x).lower.max()) for x in (X[:8], X[8:]))
    assert structured > random
    assert float(X.norm(dim=-1).max()) <= 3.0


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_every_arrangement_has_n_tokens(n, rng):
    assert start_patterns(hs.domains.Ball(1.0), n, torch.empty(1, dtype=F64), 2, rng).shape[1:] == (n, 1)


def one_by_one(X):
    return torch.softmax(X @ X.transpose(0, 1), -1) @ X


def mixing(X):
    return X * X.square().sum().sqrt() if X.ndim == 3 else X


@pytest.mark.parametrize("f", [one_by_one, mixing, nn.Linear(3, 2).double()])
def test_any_callable_becomes_one_on_batches(f, rng):
    X = torch.randn(4, 2, 3, dtype=F64, generator=rng)
    expected = torch.stack([f(x) for x in X])
    torch.testing.assert_close(on_batches(f, X[0])(X), expected)


def test_modules_are_audited_without_dropout_and_left_as_they_were():
    layer = nn.Sequential(linear(1.0), nn.Dropout(0.5))
    assert not hs.audit(layer, claimed=1.1, input_shape=(2, 3), domain=hs.domains.Ball(1.0), **QUICK).refuted
    assert layer.training
    assert layer[0].weight.dtype == torch.float32


def test_products_are_counted(rng):
    _found, none = maximise_counting(torch.sin, n=2, d=2, domain=hs.domains.Ball(1.0), starts=1, steps=0, seed=rng)
    _found, some = maximise_counting(torch.sin, n=2, d=2, domain=hs.domains.Ball(1.0), starts=1, steps=3, seed=rng)
    assert some - none >= 3 * 32 * 10  # three trials of 32 runs, ten products each


def test_an_audit_is_saved_and_becomes_json(tmp_path):
    from safetensors.torch import load_file

    found = hs.audit(linear(2.0), claimed=1.0, input_shape=(2, 3), domain=hs.domains.Ball(1.0), **QUICK)
    found.save(tmp_path / "a.safetensors")
    kept = load_file(tmp_path / "a.safetensors")
    moved = 2 * (kept["first"] - kept["second"])
    assert float(moved.norm() / (kept["first"] - kept["second"]).norm()) > 1.0
    assert json.loads(found.to_json())["refuted"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"claimed": 0.0, "n": 2}, "claimed must be a positive number"),
        ({"claimed": float("nan"), "n": 2}, "claimed must be a positive number"),
        ({"claimed": 1.0}, "say how many tokens"),
        ({"claimed": 1.0, "n": 3, "input_shape": (2, 2)}, "must agree"),
        ({"claimed": 1.0, "input_shape": (2, 2, 2)}, r"input_shape must be \(n, d\)"),
        ({"claimed": 1.0, "n": 2}, "dimension of a token"),
        ({"claimed": 1.0, "n": 2, "starts": 0}, "starts must be"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments, message):
    with pytest.raises(hs.errors.HowsmoothError, match=message):
        hs.audit(torch.sin, **arguments)


def test_what_fails_on_its_input_is_told():
    with pytest.raises(hs.errors.AssumptionError, match="does not work on inputs of the shape"):
        hs.audit(nn.Linear(3, 3), claimed=1.0, input_shape=(2, 5))
    with pytest.raises(hs.errors.DtypeError, match="must return one tensor, got tuple"):
        hs.audit(lambda X: (X, X), claimed=1.0, input_shape=(2, 5))
