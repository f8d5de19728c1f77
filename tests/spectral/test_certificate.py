import math
import warnings

import numpy as np
import pytest
import torch
from oracles import Diagonal, worst_case_ratio
from scipy.stats import binom
from spectral.spectra import SPECTRA as SIXTY
from spectral.spectra import Counting

import howsmooth as hs
from howsmooth.errors import ConvergenceWarning
from howsmooth.spectral.certificate import exceeds, least_overlap, upper_bound

N = 60

SPECTRA = {
    "clustered": torch.cat((1 - 1e-4 * torch.linspace(0, 1, 20).double(), torch.linspace(0, 0.9, N - 20).double())),
    "flat": torch.ones(N, dtype=torch.float64),
    "geometric": 0.8 ** torch.arange(N).double(),
    "one outlier far above a crowd": torch.cat((torch.ones(1).double(), 0.01 * torch.ones(N - 1).double())),
    "tiny gaps": 1 - 1e-9 * torch.arange(N).double(),
    "uniform": torch.linspace(0, 1, N).double(),
    "hidden top": torch.cat((torch.ones(1).double(), torch.linspace(0, 0.95, N - 1).double())),
}
STARTS = 2000  # they tell one failure in ten from one in seven


def uppers(spectrum, steps, dtype, confidence, starts=STARTS):
    op = Diagonal(SPECTRA[spectrum].to(dtype), count=starts)
    seed = steps + 100 * (dtype == torch.float32)  # other starts in other numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hs.errors.ConvergenceWarning)
        return hs.spectral_norm(
            op, rtol=1e-5, confidence=confidence, max_steps=steps, generator=torch.Generator().manual_seed(seed)
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 8, 20])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_upper_bound_fails_no_more_often_than_it_says_and_the_lower_one_never(spectrum, steps, dtype):
    estimate = uppers(spectrum, steps, dtype, confidence=0.9)
    top = float(SPECTRA[spectrum].to(dtype).max())
    failures = int((estimate.upper.double() < top).sum())
    # a fair bound exceeds this count once in a hundred thousand tests
    assert failures <= binom.ppf(1 - 1e-5, STARTS, 0.1)
    assert float(estimate.lower.max()) <= top * (1 + 8 * torch.finfo(dtype).eps)


def test_the_confidence_is_not_wasted():
    """With one product the start alone decides: a bound at 90 % must fail nearly one time in ten."""
    estimate = uppers("one outlier far above a crowd", 1, torch.float64, confidence=0.9, starts=4000)
    rate = float((estimate.upper < 1).double().mean())
    assert 0.07 < rate < 0.117


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", ["clustered", "geometric", "uniform", "hidden top"])
@pytest.mark.parametrize("steps", [8, 20])
def test_the_bound_is_sharper_than_worst_case_theory(spectrum, steps):
    estimate = uppers(spectrum, steps, torch.float64, confidence=0.999, starts=1000)  # ten lie beyond the quantile
    ratio = float((estimate.upper / estimate.lower).quantile(0.99))
    assert ratio < worst_case_ratio(steps, N, 0.999)


def test_worst_case_theory_is_quoted_right():
    assert worst_case_ratio(10, 98_000, 0.999) == pytest.approx(1.39, abs=0.01)
    assert worst_case_ratio(30, 98_000, 0.999) == pytest.approx(1.026, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["top", "bottom", "everywhere"])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_a_guess_does_not_break_the_confidence(spectrum, aim):
    class Guessing(Diagonal):
        def guess(self):
            target = {"top": self.entries == self.entries.max(), "bottom": self.entries == self.entries.min()}
            return target.get(aim, torch.ones(N)).double().expand(STARTS, N)

    op = Guessing(SPECTRA[spectrum], count=STARTS)
    estimate = hs.spectral_norm(
        op, certify=False, rtol=1e-2, confidence=0.9, generator=torch.Generator().manual_seed(7)
    )
    failures = int((estimate.upper < op.entries.max()).sum())
    assert failures <= binom.ppf(1 - 1e-5, STARTS, 0.1)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 1000])
def test_the_least_overlap_is_a_quantile_of_a_random_unit_vector(dimension, rng):
    v = torch.randn(200_000, min(dimension, 10), dtype=torch.float64, generator=rng)
    if dimension > 10:  # the rest of the vector enters through its squared length alone
        rest = torch.distributions.Chi2(torch.tensor(dimension - 10.0).double()).sample((200_000,))
        squared = v.square().sum(-1) + rest
    else:
        squared = v.square().sum(-1)
    overlap = v[:, 0].abs() / squared.sqrt()
    misses = float((overlap < least_overlap(dimension, 0.9)).double().mean())
    assert misses == pytest.approx(0.1 if dimension > 1 else 0.0, abs=0.003)


def test_a_large_space_has_the_overlap_of_a_gaussian():
    N, eps = 98_304, 1e-3
    assert least_overlap(N, 1 - eps) == pytest.approx(eps * np.sqrt(np.pi / (2 * N)), rel=1e-4)


def test_the_sum_of_squares_is_that_of_the_eigenvector():
    """At a Ritz value the recurrence gives the singular vector of B itself."""
    rng = np.random.default_rng(0)
    alphas, betas = rng.uniform(0.5, 1, (1, 6)), rng.uniform(0.1, 0.5, (1, 6))
    B = np.zeros((6, 7))
    B[range(6), range(6)], B[range(6), range(1, 7)] = alphas, betas
    _left, values, right = np.linalg.svd(B)
    # the components on v_1 … v_{k+1}, scaled to start at one, have length 1/|first component|
    exact = right[0, 0] ** -2
    sigma = values[:1]
    assert exceeds(sigma, alphas, betas, exact * (1 - 1e-6))[0]
    assert not exceeds(sigma, alphas, betas, exact * (1 + 1e-6))[0]


def test_the_bound_is_the_smallest_point_that_is_excluded():
    rng = np.random.default_rng(1)
    alphas, betas = rng.uniform(0.5, 1, (3, 9)), rng.uniform(0.1, 0.5, (3, 9))
    ritz = np.ones(3)
    upper = upper_bound(ritz, alphas, betas, 1e-5)
    assert exceeds(upper, alphas, betas, 1e10).all()
    below = ritz + (upper - ritz) * (1 - 2e-4)  # the bound is found to 1e-4 of its distance
    assert not exceeds(below, alphas, betas, 1e10).any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SIXTY)
def test_random_starts_violate_the_upper_bound_no_more_often_than_promised(rng, name, dtype):
    starts, size, confidence = 2000, 60, 0.9
    entries = SIXTY[name].to(dtype)
    operator = Counting(entries.expand(starts, size), (starts,))
    estimates = [
        hs.spectral_norm(operator, confidence=confidence, rtol=0.1, generator=rng),
        hs.spectral_norm(operator, confidence=confidence, rtol=0.1, certify=False, generator=rng),
    ]
    truth = entries.max().double()
    for estimate in estimates:
        misses = (estimate.upper.double() < truth * (1 - 4 * torch.finfo(dtype).eps)).double().mean().item()
        # three standard deviations of the count
        assert misses <= (1 - confidence) + 3 * math.sqrt(confidence * (1 - confidence) / starts)
        assert (estimate.lower.double() <= truth * (1 + 8 * torch.finfo(dtype).eps)).all()


@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_upper_bound_holds_at_its_confidence_wherever_the_solver_is_stopped(rng, steps):
    starts, confidence = 2000, 0.9
    entries = SIXTY["outlier above a crowd"].double()
    estimate = hs.spectral_norm(
        Counting(entries.expand(starts, 60), (starts,)), confidence=confidence, max_steps=steps, generator=rng
    )
    misses = (estimate.upper < 1 - 1e-12).double().mean().item()
    assert misses <= 0.1 + 3 * math.sqrt(0.09 / starts)
    assert (estimate.upper < 60).all()  # and it says something: the Frobenius norm is below √60


def test_a_higher_confidence_asks_for_a_larger_upper_bound(rng):
    entries = SIXTY["harmonic"].double()
    uppers = []
    for confidence in (0.5, 0.9, 0.999, 1 - 1e-9):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            uppers.append(
                hs.spectral_norm(
                    Counting(entries), confidence=confidence, max_steps=4, generator=torch.Generator().manual_seed(3)
                ).upper.item()
            )
    assert uppers == sorted(uppers)
    assert uppers[0] < uppers[-1]
