"""Half and single precision, and numbers at the ends of their range."""

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
    f = hs.Attention.random(heads=2, d=8, causal=True, generator=rng).to(dtype)
    X = gaussian(rng, 2, 6, 8).to(dtype)
    norm = hs.LayerNorm(gain=gaussian(rng, 8).to(dtype), bias=gaussian(rng, 8).to(dtype))
    for g in (f, norm, hs.Chain(norm, f), hs.Residual(hs.Chain(norm, f))):
        estimate = hs.local_lipschitz(g, X, confidence=1 - 1e-9)  # at 99.9 % one start in a thousand may fail
        exact = g.to(torch.float64)
        truth = torch.stack([top(dense_jacobian(exact, x)) for x in X.double()])
        assert estimate.lower.dtype == torch.float32
        assert estimate.direction.dtype == torch.float32
        assert (estimate.lower <= truth * (1 + 1e-5)).all()
        assert (estimate.upper >= truth * (1 - 1e-5)).all()


def test_scores_of_ten_thousand_are_bracketed_in_float32(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    X = gaussian(rng, 12, 8) * 100
    estimate = hs.local_lipschitz(f.to(torch.float32), X.float(), generator=rng)
    truth = top(dense_jacobian(f, X))
    # the scores, of size 10⁴, are themselves known to 2⁻²⁴·10⁴ ≈ 10⁻³ only
    assert_close(estimate.lower.double(), truth, rtol=5e-3, atol=0)


def test_the_bracket_holds_the_norm_of_saturated_attention_in_float32(rng):
    X, V = 1e4 * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimate = hs.local_lipschitz(f, X, generator=rng)
    assert estimate.lower <= top(V) * (1 + 1e-4)
    assert estimate.upper >= top(V) * (1 - 1e-4)


@pytest.mark.parametrize("size", [1e-200, 1e-300])
def test_a_tiny_operator_is_not_called_zero(rng, size):
    matrix = gaussian(rng, 20, 30)
    estimate = hs.spectral_norm(hs.Dense(matrix * size), generator=rng)
    assert estimate.upper >= top(matrix) * size * (1 - 1e-10)


@pytest.mark.parametrize("size", [1e160, 1e200])
def test_a_huge_finite_operator_is_measured(rng, size):
    matrix = gaussian(rng, 20, 30)
    estimate = hs.spectral_norm(hs.Dense(matrix * size), generator=rng)
    assert_close(estimate.lower / size, top(matrix), rtol=1e-3, atol=0)


def test_half_precision_operators_are_measured_in_float32(rng):
    matrix = gaussian(rng, 20, 30).half()
    estimate = hs.spectral_norm(hs.Dense(matrix), generator=rng)
    assert_close(estimate.lower.double(), top(matrix), rtol=1e-3, atol=0)
