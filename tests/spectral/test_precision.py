"""Half and single precision, and numbers at the ends of their range."""

import dataclasses
import warnings

import pytest
import torch
from draws import gaussian
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
