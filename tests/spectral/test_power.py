"""Power iteration."""

import pytest
from oracles import top
from spectral.spectra import SPECTRA, with_spectrum
from torch.testing import assert_close

import howsmooth as hs


@pytest.mark.parametrize("name", ["geometric", "outlier", "harmonic", "flat", "rank one"])
def test_power_iteration_agrees_with_lanczos(rng, name):
    matrix = with_spectrum(rng, SPECTRA[name].double(), 60, 60)
    power = hs.spectral.power_iteration(hs.maps.Dense(matrix), rtol=1e-4, seed=rng)
    truth = top(matrix)
    assert isinstance(power, hs.NormEstimate)
    assert power.lower <= truth * (1 + 1e-12)
    assert power.upper >= truth * (1 - 1e-12)
    assert_close(power.lower, truth, rtol=5e-3, atol=0)
    assert_close((matrix @ power.direction).norm(), power.lower)
