"""When the solver stops, and what it says about it."""

import json
import math

import pytest
import torch
from draws import gaussian
from oracles import top
from spectral.spectra import SPECTRA, Counting, with_spectrum

import howsmooth as hs
from howsmooth.errors import ConvergenceWarning


def test_products_count_what_the_operator_was_asked(rng):
    operator = Counting(SPECTRA["harmonic"].double())
    estimate = hs.spectral_norm(operator, seed=rng)
    assert estimate.products == operator.jvps + operator.vjps


def test_stopping_on_the_residual_takes_fewer_products_and_still_reports_an_upper_bound(rng):
    matrix = with_spectrum(rng, SPECTRA["geometric"].double(), 60, 60)
    products = []
    for seed in range(8):
        fast, full = (hs.spectral_norm(hs.maps.Dense(matrix), certify=certify, seed=seed) for certify in (False, True))
        assert fast.steps <= full.steps
        assert math.isfinite(fast.upper)
        assert fast.upper >= top(matrix)
        products.append((fast.products, full.products))
    assert all(few <= many for few, many in products)
    assert sum(few < many for few, many in products) >= 6  # a lucky start closes its bracket at once


@pytest.mark.parametrize("name", SPECTRA)
def test_testing_now_and_then_takes_hardly_more_steps_than_testing_after_every_one(rng, name, monkeypatch):
    matrix, exact = hs.maps.Dense(with_spectrum(rng, SPECTRA[name].double(), 60, 60)), float(SPECTRA[name].max())
    seldom = [hs.spectral_norm(matrix, seed=seed) for seed in range(4)]
    monkeypatch.setattr("howsmooth.spectral.stopping.LARGEST_GROWTH", math.inf)
    always = [hs.spectral_norm(matrix, seed=seed) for seed in range(4)]
    for few, many in zip(seldom, always, strict=True):
        assert many.steps <= few.steps <= many.steps + 1
        assert few.lower <= exact * (1 + 1e-12)
        assert few.upper >= exact * (1 - 1e-12)
        assert few.upper <= few.lower * 1.001
        if few.steps == many.steps:
            assert (few.lower, few.upper) == (many.lower, many.upper)


def test_a_batch_is_tested_when_its_first_operator_may_be_done(monkeypatch):
    entries = torch.stack([SPECTRA[name].double() for name in ("outlier", "nearly flat", "harmonic", "geometric")])
    operator = hs.maps.Dense(torch.diag_embed(entries))
    seldom = hs.spectral_norm(operator, seed=0)
    monkeypatch.setattr("howsmooth.spectral.stopping.LARGEST_GROWTH", math.inf)
    always = hs.spectral_norm(operator, seed=0)
    assert all(0 <= few - many <= 1 for few, many in zip(seldom.step_counts, always.step_counts, strict=True))
    assert bool((seldom.upper >= entries.amax(-1) * (1 - 1e-12)).all())


def test_the_residual_is_the_distance_to_a_singular_pair(rng):
    matrix = with_spectrum(rng, SPECTRA["harmonic"].double(), 60, 60)
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), seed=rng)
    values = torch.linalg.svdvals(matrix)
    assert (values - estimate.lower).abs().min() <= estimate.residual + 1e-9


def test_not_converging_is_data_and_one_warning(rng):
    with pytest.warns(ConvergenceWarning) as caught:
        estimate = hs.spectral_norm(Counting(SPECTRA["nearly flat"].double()), max_steps=2, rtol=1e-6, seed=rng)
    assert len(caught) == 1
    assert estimate.status is hs.spectral.Status.MAX_STEPS
    assert estimate.steps == 2
    assert estimate.lower <= 1 <= estimate.upper
    assert estimate.status.value in str(estimate)
    assert json.loads(estimate.to_json())["steps"] == 2


@pytest.mark.parametrize("rtol", [1e-1, 1e-3, 1e-6, 1e-10])
def test_the_bracket_is_as_tight_as_asked(rng, rtol):
    matrix = gaussian(rng, 80, 100)
    estimate = hs.spectral_norm(hs.maps.Dense(matrix), rtol=rtol, seed=rng)
    assert estimate.upper <= estimate.lower * (1 + rtol) * (1 + 1e-12)
    assert estimate.lower <= top(matrix) * (1 + 1e-12)
    assert estimate.upper >= top(matrix) * (1 - 1e-12)


def test_converged_means_that_the_bracket_closed(rng):
    X, V = 1e3 * torch.eye(4), torch.arange(16.0).view(4, 4)
    f = hs.Attention.single_head(A=torch.eye(4), V=V)
    estimate = hs.local_lipschitz(f, X, rtol=1e-3, seed=rng)
    assert estimate.status is hs.spectral.Status.CONVERGED
    assert bool(estimate.upper <= estimate.lower * (1 + 1e-3))


def test_an_operator_that_contradicts_itself_is_found_out(rng):
    class Torn(hs.maps.Dense):
        def vjp(self, G):
            return 3 * super().vjp(G)

    with pytest.warns(ConvergenceWarning, match="contradict"):
        estimate = hs.spectral_norm(Torn(gaussian(rng, 30, 30)), seed=rng)
    assert estimate.status is hs.spectral.Status.INCONSISTENT
    assert estimate.upper == torch.inf
