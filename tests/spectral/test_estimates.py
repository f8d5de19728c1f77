import dataclasses
import io
import json
import math
import pickle

import pytest
import torch
from draws import gaussian
from hypothesis import given
from hypothesis import strategies as st
from oracles import dense_jacobian
from rich.console import Console
from torch.testing import assert_close

import howsmooth as hs
from howsmooth.errors import ContradictionError
from howsmooth.spectral.estimates import bracket_digits
from howsmooth.wording import at_most, number


@pytest.fixture
def estimate(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    return hs.local_lipschitz(f, torch.randn(3, 6, 8, dtype=torch.float64, generator=rng), seed=rng)


def test_an_estimate_prints_its_bracket(estimate):
    part = estimate[1]
    low, high = bracket_digits(float(part.lower), float(part.upper))
    random = f"a random direction: about {number(float(part.random_gain), 1)}"  # another start gives other digits
    assert repr(part) == f"NormEstimate: {low} ≤ Lip ≤ {high} (99.9 %), {part.steps} steps; {random}"


def test_the_spread_of_a_batch_is_not_told_as_an_error_bar(estimate):
    low, high = bracket_digits(float(estimate.lower.min()), float(estimate.upper.max()))
    widest = float((estimate.upper / estimate.lower).max())
    each = f"each within a factor of {at_most(widest)} (99.9 %)"
    told = f"3 inputs, Lip from {low} to {high}, {each}, {estimate.steps} steps"
    assert repr(estimate) == f"NormEstimate: {told}"
    assert widest < 1.001 < float(estimate.upper.max() / estimate.lower.min())


def test_an_estimate_renders_in_rich_and_in_notebooks(estimate):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(estimate[0])
    low, high = bracket_digits(float(estimate[0].lower), float(estimate[0].upper))
    assert f"{low} ≤ Lip ≤ {high}" in console.export_text()
    assert estimate._repr_html_().count("<tr>") == 4


def test_an_estimate_becomes_json(estimate):
    data = json.loads(estimate.to_json())
    assert data["lower"] == estimate.lower.tolist()
    assert data["upper"] == estimate.upper.tolist()
    assert data["confidence"] == 0.999
    assert data["steps"] == estimate.steps
    assert data["status"] == "converged"
    assert len(data["token_sensitivity"]) == 3
    assert len(data["token_sensitivity"][0]) == 6


def test_the_gain_of_the_random_start_is_a_sample_of_the_typical_one(rng):
    f = hs.Attention.random(heads=1, d=6, k=1, dtype=torch.float64, seed=rng)  # so thin that it is compressed
    X = torch.randn(4, 6, dtype=torch.float64, generator=rng).expand(400, 4, 6)
    gains = hs.local_lipschitz(f, X, seed=rng).random_gain
    exact = float(dense_jacobian(f, X[0]).norm()) / 24**0.5
    assert float(gains.square().mean().sqrt()) == pytest.approx(exact, rel=0.15)


def test_a_start_that_is_no_random_one_says_nothing_about_random_directions(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, seed=rng)
    X = torch.randn(6, 8, dtype=torch.float64, generator=rng)
    estimate = hs.local_lipschitz(f, X, certify=False, seed=rng)
    assert estimate.random_gain is None
    assert "random" not in repr(estimate)


def test_the_singular_values_above_half_of_the_largest_are_counted_and_never_too_many(rng):
    spectrum = torch.tensor([10, 9, 8, 5.001, 4.999, 1, 0.1], dtype=torch.float64)
    assert hs.spectral_norm(hs.maps.Dense(spectrum.diag()), rtol=1e-9, seed=rng).leading == (4,)
    early = hs.spectral_norm(hs.maps.Dense(torch.linspace(1, 10, 60, dtype=torch.float64).diag()), rtol=0.1, seed=rng)
    assert 1 <= early.leading[0] <= 34


def test_a_zero_operator_has_no_leading_direction(rng):
    assert hs.spectral_norm(hs.maps.Dense(torch.zeros(3, 3, dtype=torch.float64)), seed=rng).leading == (0,)


def test_a_batch_can_be_taken_apart(estimate):
    assert len(estimate) == 3
    assert [float(part.lower) for part in estimate] == estimate.lower.tolist()
    assert [float(part.random_gain) for part in estimate] == estimate.random_gain.tolist()
    assert tuple(part.leading[0] for part in estimate) == estimate.leading
    assert torch.equal(estimate[-1].direction, estimate.direction[2])
    with pytest.raises(IndexError, match="batch of 3"):
        estimate[3]
    with pytest.raises(TypeError, match="no length"):
        len(estimate[0])


@given(lower=st.floats(1e-8, 1e8), width=st.floats(0, 1))
def test_printed_brackets_are_rounded_outwards(lower, width):
    upper = lower * (1 + width)
    low, high = bracket_digits(lower, upper)
    assert float(low) <= lower
    assert float(high) >= upper
    assert float(low) >= lower * (1 - 2e-4)
    assert float(high) <= upper * (1 + 2e-4)


def test_shares_of_tokens_are_the_squared_norms_of_direction_and_response(rng):
    f = hs.Attention.random(heads=2, d=6, causal=True, dtype=torch.float64, seed=rng)
    X = gaussian(rng, 9, 6)
    estimate = hs.local_lipschitz(f, X)
    assert_close(estimate.token_sensitivity.sum(), torch.tensor(1.0).double())
    assert_close(estimate.token_response.sum(), torch.tensor(1.0).double())
    assert_close(estimate.token_sensitivity, estimate.direction.square().sum(-1))
    moved = f.jacobian(X).jvp(estimate.direction)
    assert_close(estimate.token_response, moved.square().sum(-1) / moved.square().sum())


def test_the_estimate_becomes_json_and_a_sentence(rng):
    f = hs.Attention.random(heads=2, d=6, dtype=torch.float64, seed=rng)
    for X in (gaussian(rng, 5, 6), gaussian(rng, 3, 5, 6)):
        estimate = hs.local_lipschitz(f, X)
        record = json.loads(estimate.to_json())
        assert record["lower"] == estimate.lower.tolist()
        assert record["upper"] == estimate.upper.tolist()
        assert record["confidence"] == 0.999
        assert record["steps"] == estimate.steps
        assert "Lip" in str(estimate)
        assert "99.9" in str(estimate)


def test_the_estimate_of_a_zero_map_says_so_in_json_and_print(rng):
    zero = torch.zeros(4, 4).double()
    f = hs.Attention.single_head(A=gaussian(rng, 4, 4), V=zero)
    X = gaussian(rng, 3, 4)
    estimate = hs.local_lipschitz(f, X)
    assert estimate.lower == 0
    assert estimate.upper == 0
    assert estimate.status is hs.spectral.Status.ZERO
    assert estimate.status.value in str(estimate)
    assert not estimate.token_response.isnan().any()
    assert "NaN" not in estimate.to_json()
    assert_close(estimate.direction.norm(), torch.tensor(1.0).double())


def test_estimates_take_one_index_per_batch_axis(rng):
    estimate = hs.spectral_norm(hs.maps.Dense(gaussian(rng, 2, 3, 5, 5)), seed=rng)
    assert estimate[1, 2].lower == estimate.lower[1, 2]


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_a_bracket_that_contradicts_itself_or_is_no_number_is_a_bug_to_report(estimate, end):
    ends = {"lower": estimate.upper.clone(), "upper": estimate.lower.clone()}
    with pytest.raises(ContradictionError, match="bug of howsmooth: please report"):
        dataclasses.replace(estimate, **ends)
    with pytest.raises(ContradictionError, match="nan"):
        dataclasses.replace(estimate, **{end: torch.full_like(estimate.lower, math.nan)})
    assert dataclasses.replace(estimate, upper=estimate.lower).status is estimate.status  # equal ends are no error
    error = pickle.loads(pickle.dumps(ContradictionError.between(2.0, 1.0, "a bracket")))
    assert "at least 2.0 and at most 1.0" in str(error)
