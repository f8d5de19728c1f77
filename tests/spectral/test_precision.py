"""Half and single precision, and numbers at the ends of their range."""

import copy
import dataclasses
import warnings

import pytest
import torch
from draws import gaussian, uniform
from oracles import dense_jacobian, top
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import ConvergenceWarning


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_float32(rng, dtype):
    f = hs.Attention.random(heads=2, d=8, causal=True, seed=rng).to(dtype)
    X = gaussian(rng, 2, 6, 8).to(dtype)
    norm = hs.maps.LayerNorm(gain=gaussian(rng, 8).to(dtype), bias=gaussian(rng, 8).to(dtype))
    for g in (f, norm, hs.maps.Chain(norm, f), hs.maps.Residual(hs.maps.Chain(norm, f))):
        estimate = hs.local_lipschitz(g, X, confidence=1 - 1e-9)  # at 99.9 % one start in a thousand may fail
        exact = g.to(torch.float64)
        truth = torch.stack([top(dense_jacobian(exact, x)) for x in X.double()])
        assert estimate.lower.dtype == torch.float32
        assert estimate.direction.dtype == torch.float32
        assert (estimate.lower <= truth * (1 + 1e-5)).all()
        assert (estimate.upper >= truth * (1 - 1e-5)).all()


def test_scores_of_ten_thousand_are_bracketed_in_float32(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 12, 8) * 100
    estimate = hs.local_lipschitz(f.to(torch.float32), X.float(), seed=rng)
    truth = top(dense_jacobian(f, X))
    # the scores, of size 10⁴, are themselves known to 2⁻²⁴·10⁴ ≈ 10⁻³ only
    assert_close(estimate.lower.double(), truth, rtol=5e-3, atol=0)


def test_the_bracket_holds_the_norm_of_saturated_attention_in_float32(rng):
    X, V = 1e4 * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimate = hs.local_lipschitz(f, X, seed=rng)
    assert estimate.lower <= top(V) * (1 + 1e-4)
    assert estimate.upper >= top(V) * (1 - 1e-4)


@pytest.mark.parametrize("size", [1e-200, 1e-300])
def test_a_tiny_operator_is_not_called_zero(rng, size):
    matrix = gaussian(rng, 20, 30)
    estimate = hs.spectral_norm(hs.maps.Dense(matrix * size), seed=rng)
    assert estimate.upper >= top(matrix) * size * (1 - 1e-10)


@pytest.mark.parametrize("size", [1e160, 1e200])
def test_a_huge_finite_operator_is_measured(rng, size):
    matrix = gaussian(rng, 20, 30)
    estimate = hs.spectral_norm(hs.maps.Dense(matrix * size), seed=rng)
    assert_close(estimate.lower / size, top(matrix), rtol=1e-3, atol=0)


def test_half_precision_operators_are_measured_in_float32(rng):
    matrix = gaussian(rng, 20, 30).half()
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), seed=rng)
    assert_close(estimate.lower.double(), top(matrix), rtol=1e-3, atol=0)


def biased(kind, rng, bias, *, size=0.01, **more):
    """One head in float32 whose bias of values is far larger than what tokens add to it."""
    query, key, value = (torch.randn(1, 2, 2, generator=rng) for _part in range(3))
    shift = bias * torch.randn(1, 2, generator=rng)
    return kind(query=query, key=key, value=size * value, value_bias=shift, **more)


BIASED = {
    "softmax": lambda rng, bias: biased(hs.Attention, rng, bias),
    "sink": lambda rng, bias: biased(hs.Attention, rng, bias, sink=torch.randn(1, generator=rng)),
    "sink that nobody looks at": lambda rng, bias: biased(hs.Attention, rng, bias, sink=torch.full((1,), -30.0)),
    "sigmoid": lambda rng, bias: biased(hs.maps.SigmoidAttention, rng, bias),
    "differential": lambda rng, bias: biased(
        hs.maps.DifferentialAttention, rng, bias, subtracted=torch.full((1,), 0.5)
    ),
    "linear": lambda rng, bias: biased(hs.maps.LinearAttention, rng, bias),
    "entmax": lambda rng, bias: biased(hs.maps.EntmaxAttention, rng, bias),
}


@pytest.mark.parametrize("bias", [10.0, 1000.0])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("kind", BIASED)
def test_a_large_bias_of_values_does_not_move_the_bracket_off_the_truth(kind, n, bias):
    rng = torch.Generator().manual_seed(int(bias) + n)
    f = BIASED[kind](rng, bias)
    X = torch.randn(16, n, 2, generator=rng)
    exact = [top(dense_jacobian(f.to(torch.float64), x.double())) for x in X]
    together = hs.local_lipschitz(f, X, confidence=1 - 1e-9, seed=rng)
    alone = [hs.local_lipschitz(f, x, confidence=1 - 1e-9, seed=rng) for x in X[:3]]
    for estimate, truth in zip([*together, *alone], [*exact, *exact[:3]], strict=True):
        assert estimate.lower.double() <= truth <= estimate.upper.double()
        assert estimate.upper <= estimate.lower * (1 + 1e-3 + 1e-6)  # as narrow as it was asked for


def test_tokens_far_from_the_origin_are_rounded_as_a_bias_is():
    """A coordinate that only values see: it adds the same to all of them."""
    rng = torch.Generator().manual_seed(0)
    f = hs.Attention(
        query=torch.randn(1, 2, 3, generator=rng) * torch.tensor([1.0, 1.0, 0.0]),
        key=torch.randn(1, 2, 3, generator=rng) * torch.tensor([1.0, 1.0, 0.0]),
        value=0.01 * torch.randn(1, 2, 3, generator=rng),
    )
    for _input in range(10):
        X = torch.randn(4, 3, generator=rng) + torch.tensor([0.0, 0.0, 1e5])
        estimate = hs.local_lipschitz(f, X, confidence=1 - 1e-9, seed=rng)
        truth = top(dense_jacobian(f.to(torch.float64), X.double()))
        assert estimate.lower.double() <= truth <= estimate.upper.double()


@pytest.mark.parametrize(
    "kind", [hs.Attention, hs.maps.LinearAttention, hs.maps.EntmaxAttention, hs.maps.SinkhornAttention]
)
def test_a_bias_of_values_is_added_to_what_comes_out_and_does_not_enter_the_derivative(rng, kind):
    shapes = {"query": (4, 3, 5), "key": (2, 3, 5), "value": (2, 2, 5)}
    f = kind(**{name: gaussian(rng, *shape) for name, shape in shapes.items()})
    X, bias = 0.3 * gaussian(rng, 2, 6, 5), gaussian(rng, 2, 2)
    shifted = dataclasses.replace(f, value_bias=1e8 * bias)
    assert torch.equal(shifted.jacobian(X).jvp(X), f.jacobian(X).jvp(X))
    value, _jacobian = dataclasses.replace(f, value_bias=bias).value_and_jacobian(X)
    assert_close(value, f(X) + bias.repeat_interleave(2, 0).flatten())
    assert_close(dataclasses.replace(f, value_bias=bias)(X), value)


def relative_truth(f, X, metric):
    """The relative constant, or the condition number, of one input in float64, by a dense SVD."""
    J, x, y = torch.func.jacrev(f)(X), X, f(X)
    sizes = (x.norm(dim=-1), y.norm(dim=-1)) if metric == "relative" else (x.norm(), y.norm())
    before, after = (size.expand(len(rows)) for size, rows in zip(sizes, (x, y), strict=True))
    return top((J * before[:, None] / after[:, None, None, None]).reshape(y.numel(), x.numel()))


def drawn_layers(rng):
    """Layers of every kind whose value has a bias, which half precision rounds."""
    d, heads = 6, {name: gaussian(rng, 2, 3, 6) for name in ("query", "key", "value")}
    attention = hs.Attention(**heads, output=gaussian(rng, 2, d, 3), value_bias=3 * gaussian(rng, 2, 3))
    sink = dataclasses.replace(attention, sink=gaussian(rng, 2))
    normed = dataclasses.replace(attention, query_norm=hs.maps.RMSNorm(gain=gaussian(rng, 3)))
    norm = hs.maps.LayerNorm(gain=gaussian(rng, d), bias=gaussian(rng, d))
    mlp = hs.maps.MLP(up=gaussian(rng, 8, d), down=gaussian(rng, d, 8), down_bias=10 * gaussian(rng, d))
    block = hs.maps.Residual(hs.maps.Chain(norm, hs.maps.Sum(attention, mlp)))
    layers = (attention, sink, normed, norm, mlp, hs.maps.Dense(gaussian(rng, d, d)), hs.maps.Chain(norm, sink), block)
    module = torch.nn.Sequential(torch.nn.LayerNorm(d), torch.nn.Linear(d, d), torch.nn.GELU(), torch.nn.Linear(d, d))
    return (*layers, module)


@pytest.mark.parametrize("metric", ["relative", "condition"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_relative_constants_hold_the_truth_of_the_given_weights(dtype, metric):
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        for f in drawn_layers(rng):
            size = 10 ** float(torch.empty(()).uniform_(-3, 3, generator=rng))
            f, X = f.to(dtype), (size * gaussian(rng, 5, 6)).to(dtype)
            estimate = hs.local_lipschitz(f, X, metric=metric, confidence=1 - 1e-9, seed=rng)
            truth = relative_truth(copy.deepcopy(f).to(torch.float64), X.double(), metric)
            assert estimate.lower.double() <= truth * (1 + 1e-6)
            assert estimate.upper.double() >= truth * (1 - 1e-6)
            assert estimate.upper <= estimate.lower * (1 + 1e-3 + 1e-6)


def test_relative_constants_hold_where_values_of_heads_cancel_in_float32():
    """At some tokens by more than at others; relative metrics weigh these most."""
    for seed in (4, 26, 31, 36, 53, 58):
        rng = torch.Generator().manual_seed(seed)
        query, key, value, output = (gaussian(rng, 1, *shape) for shape in ((3, 6), (3, 6), (3, 6), (6, 3)))
        f = hs.Attention(
            query=torch.cat([query, query + 1e-3 * gaussian(rng, 1, 3, 6)]),
            key=torch.cat([key, key]),
            value=torch.cat([value, value]),
            output=torch.cat([output, -output]),
        ).to(torch.float32)
        X = (gaussian(rng, 5, 6) * 2 ** uniform(rng, 5, 1)).float()
        estimate = hs.local_lipschitz(f, X, metric="relative", confidence=1 - 1e-9, seed=rng)
        truth = relative_truth(f.to(torch.float64), X.double(), "relative")
        assert estimate.lower.double() <= truth <= estimate.upper.double()
        assert estimate.upper <= 1.01 * estimate.lower


def test_scores_of_ten_thousand_are_bracketed_in_compositions(rng):
    attention = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng).to(torch.float32)
    norm = hs.maps.RMSNorm(gain=100 + gaussian(rng, 8)).to(torch.float32)
    f = hs.maps.Sum(hs.maps.Chain(norm, attention), norm)
    for _input in range(10):
        X = gaussian(rng, 12, 8).float()
        estimate = hs.local_lipschitz(f, X, confidence=1 - 1e-9, seed=rng)
        assert (
            estimate.lower.double() <= top(dense_jacobian(f.to(torch.float64), X.double())) <= estimate.upper.double()
        )


def test_a_relative_constant_of_a_module_is_that_in_eval_mode(rng):
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.9)).double()
    X = gaussian(rng, 5, 6)
    estimate = hs.local_lipschitz(module, X, metric="relative", seed=rng)
    truth = relative_truth(module[0], X, "relative")
    assert estimate.lower * (1 - 1e-12) <= truth <= estimate.upper * (1 + 1e-12)
    attention = torch.nn.MultiheadAttention(6, 2, batch_first=True).double()
    estimate = hs.local_lipschitz(attention, X[None], metric="condition", seed=rng)
    truth = relative_truth(lambda x: attention(x[None], x[None], x[None])[0][0], X, "condition")
    assert estimate.lower[0] * (1 - 1e-12) <= truth <= estimate.upper[0] * (1 + 1e-12)


def test_rounding_is_counted_in_the_units_of_the_metric(rng):
    """An output in other units has the same bracket in these units."""
    f = dataclasses.replace(
        hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng),
        query_norm=hs.maps.LayerNorm(gain=gaussian(rng, 3)),
    )
    X = gaussian(rng, 5, 6)
    plain = hs.local_lipschitz(f, X, seed=0)
    for unit in (1e-5, 1e5):
        output = hs.metrics.weighted(unit**2 * torch.eye(6, dtype=torch.float64))
        found = hs.local_lipschitz(f, X, metric=hs.Metrics(input=hs.metrics.total, output=output), seed=0)
        assert_close(found.lower / unit, plain.lower, rtol=1e-11, atol=0)
        assert_close(found.upper / unit, plain.upper, rtol=1e-11, atol=0)


@pytest.mark.parametrize(("size", "seed"), [(50, 27), (60, 31), (80, 16)])
def test_features_of_linear_attention_that_underflow_are_measured_in_float64(size, seed):
    rng = torch.Generator().manual_seed(seed)
    parts = {name: gaussian(rng, 2, 3, 6) for name in ("query", "key", "value")}
    f = hs.maps.LinearAttention(**parts, output=gaussian(rng, 2, 6, 3)).to(torch.float32)
    X = size * gaussian(rng, 5, 6).float()
    found = hs.local_lipschitz(f, X, metric="sum")
    truth = dense_jacobian(f.to(torch.float64), X.double()).abs().sum(0).max()
    assert found.lower.double() <= truth <= found.upper.double()
