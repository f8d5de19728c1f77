"""Neighbouring windows: closed forms against matrices, and the correlation that data were drawn with."""

import numpy as np
import pytest

from howsmooth.studies.runs.growth import LARGEST_CORRELATION, correlation, worth


def matrices(m, rho):
    i = np.arange(m)
    return np.eye(m) - 1 / m, rho ** np.abs(i[:, None] - i[None]).astype(float)


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("m", [2, 3, 4, 10, 57])
def test_what_windows_are_worth_is_that_of_matrices(m, rho):
    M, C = matrices(m, rho)
    scatter = np.trace(M @ C) / (m - 1)
    found = worth(m, rho)
    assert found.inflation == pytest.approx(C.mean() / (scatter / m), rel=1e-11)
    assert found.freedom == pytest.approx(np.trace(M @ C) ** 2 / np.trace(M @ C @ M @ C), rel=1e-11)


@pytest.mark.parametrize("rho", [0.05, 0.4, 0.8])
@pytest.mark.parametrize("counts", [(3,), (4, 4, 4), (10, 3, 25)])
def test_the_correlation_of_average_windows_comes_back(counts, rho):
    # m scaled eigenvectors have, together, the products and squares that are expected of m draws
    logs = []
    for m in counts:
        values, vectors = np.linalg.eigh(matrices(m, rho)[1])
        logs += [np.sqrt(m * v) * e for v, e in zip(values, vectors.T, strict=True)]
    assert correlation(logs) == pytest.approx(rho, abs=1e-9)


def test_it_stays_between_none_and_the_largest():
    zigzag, steps = np.tile([1.0, -1.0], 6), np.repeat([1.0, -1.0], 12)
    assert correlation([zigzag]) == 0
    assert correlation([steps]) == pytest.approx(LARGEST_CORRELATION)
    assert correlation([np.ones(5), np.zeros(7)]) == 0
    assert correlation([np.array([0.0, 1.0]), np.array([3.0])]) == 0


def test_independent_windows_are_not_taken_for_unlike_ones():
    # without the correction for means, four windows would have −1/4 on average
    rng = np.random.default_rng(0)
    many = [rng.standard_normal(4) for _ in range(4000)]
    assert correlation(many) < 0.05
    shifted = [rng.standard_normal(4) + 3 * rng.standard_normal() for _ in range(4000)]
    assert correlation(shifted) < 0.05
