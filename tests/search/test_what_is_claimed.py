"""What a witness or a bracket claims is true of the map at the input, whatever the dtype."""

import dataclasses

import pytest
import torch
from draws import gaussian
from theory.fuzz import truth

import howsmooth as hs
from howsmooth.errors import AssumptionError

EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")  # scores of 10¹⁶ have no digits left
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("radius", [1.0, 1e4, 1e8])
def test_a_witness_is_worth_what_is_measured_at_its_tokens(dtype, radius):
    f = hs.Attention.single_head(A=-EYE.to(dtype), V=EYE.to(dtype))
    for build in (hs.inputs.tied_pair, hs.inputs.two_point, hs.inputs.origin_token, hs.inputs.equal_tokens):
        witness = build(f, 5, radius)
        assert witness.value <= truth(f, witness.tokens) * (1 + 1e-12)
        assert float(witness.tokens.double().norm(dim=-1).max()) <= radius


def test_equal_tokens_are_refused_where_the_biases_of_norms_turn(rng):
    norm = hs.maps.LayerNorm(gain=gaussian(rng, 4), bias=gaussian(rng, 4), eps=1e-3)
    f = hs.Attention(
        query=gaussian(rng, 1, 4, 3),
        key=gaussian(rng, 1, 4, 3),
        value=gaussian(rng, 1, 3, 3),
        query_norm=norm,
        key_norm=norm,
        positions=hs.maps.Positions(causal=True, rotary=hs.maps.Rotary()),
    )
    with pytest.raises(AssumptionError, match="rotary biases tilt them"):
        hs.inputs.equal_tokens(f, 10, 1.0)
    plain = dataclasses.replace(norm, bias=None)
    straight = hs.inputs.equal_tokens(dataclasses.replace(f, query_norm=plain, key_norm=plain), 10, 1.0)
    assert straight.value == pytest.approx(straight.formula)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("eps", [1e-7, 1e-6, 1e-5, 1e-3])
def test_neighbours_are_near_in_float32_too(rng, eps, per_token):
    X = 13 * torch.nn.functional.normalize(gaussian(rng, 6, 8), dim=-1).float()
    domain = hs.domains.Neighbourhood(X, eps, metric=("total", "token")[per_token])
    for Z in (domain.nearest(X + gaussian(rng, 50, 6, 8).float()), domain.draw(50, 6, X[0], rng)):
        offset = Z.double() - X.double()
        far = offset.norm(dim=-1).max() if per_token else offset.flatten(1).norm(dim=-1).max()
        assert float(far) <= eps
    if eps > 1e-4:  # where there is room, projections still reach the surface
        Z = domain.nearest(X + gaussian(rng, 6, 8).float()).double() - X.double()
        assert float(Z.norm(dim=-1).max() if per_token else Z.norm()) >= 0.9 * eps


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_brackets_in_float32_hold_the_constant_of_the_map(size):
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        f = hs.Attention.random(heads=2, d=6, seed=rng, dtype=torch.float32)
        X = size * torch.nn.functional.normalize(gaussian(rng, 6, 6), dim=-1).float()
        true = truth(f, X)
        found = hs.local_lipschitz(f, X, rtol=1e-5, confidence=1 - 1e-9, seed=rng)
        assert float(found.lower) <= true <= float(found.upper)
        assert float(found.upper / found.lower) <= 1 + 3e-5
        assert found.lower.dtype == found.direction.dtype == torch.float32


def test_brackets_in_float64_give_way_to_the_rounding_of_scores():
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        f = hs.Attention.random(heads=1, d=3, seed=rng, dtype=torch.float64)
        X = 1e4 * (gaussian(rng, 1, 3) + 1e-8 * gaussian(rng, 4, 3))
        found = hs.local_lipschitz(f, X, rtol=1e-7, confidence=1 - 1e-9, seed=rng)
        assert float(found.lower) <= truth(f, X) <= float(found.upper)
