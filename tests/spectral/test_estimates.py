import io
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import howsmooth as hs
from howsmooth.spectral.estimates import bracket_digits


@pytest.fixture
def estimate(rng):
    f = hs.Attention.random(heads=2, d=8, dtype=torch.float64, generator=rng)
    return hs.local_lipschitz(f, torch.randn(3, 6, 8, dtype=torch.float64, generator=rng), generator=rng)


def test_an_estimate_prints_its_bracket(estimate):
    part = estimate[1]
    low, high = bracket_digits(float(part.lower), float(part.upper))
    assert repr(part) == f"NormEstimate: {low} ≤ Lip ≤ {high} (99.9 %), {part.steps} steps"


def test_the_spread_of_a_batch_is_not_told_as_an_error_bar(estimate):
    low, high = bracket_digits(float(estimate.lower.min()), float(estimate.upper.max()))
    widest = float((estimate.upper / estimate.lower).max())
    told = f"3 inputs, Lip from {low} to {high}, each within a factor of {widest:.5g} (99.9 %), {estimate.steps} steps"
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


def test_a_batch_can_be_taken_apart(estimate):
    assert len(estimate) == 3
    assert [float(part.lower) for part in estimate] == estimate.lower.tolist()
    assert torch.equal(estimate[-1].direction, estimate.direction[2])
    with pytest.raises(IndexError, match="batch of 3"):
        estimate[3]
    with pytest.raises(TypeError, match="no length"):
        len(estimate[0])


@given(lower=st.floats(1e-8, 1e8), width=st.floats(0, 1))
def test_printed_brackets_are_rounded_outwards(lower, width):
    upper = lower * (1 + width)
    low, high = bracket_digits(lower, upper)
    slack = 1e-11 * upper  # twelve digits are shown at most
    assert float(low) <= lower + slack
    assert float(high) >= upper - slack
    assert float(low) >= lower * (1 - 2e-4)
    assert float(high) <= upper * (1 + 2e-4)
