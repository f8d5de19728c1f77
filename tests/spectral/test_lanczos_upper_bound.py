import math
import warnings

import numpy as np
import pytest
import torch
from oracles import Diagonal, worst_case_ratio
from scipy.optimize import brentq
from scipy.stats import binom
from spectral.spectra import SPECTRA as SIXTY
from spectral.spectra import Counting

import howsmooth as hs
from howsmooth.errors import ConvergenceWarning
from howsmooth.spectral.bidiagonalisation import Bidiagonalisation
from howsmooth.spectral.lanczos_upper_bound import FEW, exceeds, least_overlap, upper_bound
from howsmooth.spectral.operators import random_start

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
        return hs.spectral_norm(op, rtol=1e-5, confidence=confidence, max_steps=steps, seed=seed)


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
    op = Diagonal(SPECTRA["one outlier far above a crowd"], count=4000)
    generator = torch.Generator().manual_seed(1)
    space = Bidiagonalisation(op, random_start(op, generator), generator)
    space.advance()
    upper = upper_bound(space.ritz(), space.alphas, space.betas, least_overlap(N, 0.9))
    assert 0.07 < (upper < 1).mean() < 0.117


@pytest.mark.parametrize("batch", [True, False], ids=["some of a batch", "alone"])
@pytest.mark.parametrize("separable", [True, False])
@pytest.mark.parametrize("confidence", [0.9, 0.5])
def test_a_start_that_missed_the_top_is_found_out_by_what_is_attained_and_drawn_again(confidence, separable, batch):
    """Nearly all brackets that would not hold the norm contradict themselves: they must not be shown."""
    entries, starts = SPECTRA["hidden top"], 400

    def operator(count):
        return hs.maps.Dense(torch.diag(entries).expand(count, N, N)) if separable else Diagonal(entries, count=count)

    generator = torch.Generator().manual_seed(0)
    calls = [operator(starts)] if batch else [operator(1) for _start in range(starts // 4)]
    found = [hs.spectral_norm(op, confidence=confidence, seed=generator) for op in calls]
    upper, lower = (torch.cat([getattr(estimate, end) for estimate in found]) for end in ("upper", "lower"))
    assert float((upper < 1).double().mean()) <= (1 - confidence) / 10
    assert bool((lower < upper).all())
    assert all(status is hs.spectral.Status.CONVERGED for estimate in found for status in estimate.statuses)


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
    estimate = hs.spectral_norm(op, certify=False, rtol=1e-2, confidence=0.9, seed=7)
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
        hs.spectral_norm(operator, confidence=confidence, rtol=0.1, seed=rng),
        hs.spectral_norm(operator, confidence=confidence, rtol=0.1, certify=False, seed=rng),
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
        Counting(entries.expand(starts, 60), (starts,)), confidence=confidence, max_steps=steps, seed=rng
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
            uppers.append(hs.spectral_norm(Counting(entries), confidence=confidence, max_steps=4, seed=3).upper.item())
    assert uppers == sorted(uppers)
    assert uppers[0] < uppers[-1]


def components(sigma, alphas, betas):
    """The sum of squares of the components of a singular vector, from the tridiagonal matrix BᵀB, densely."""
    k = len(alphas)
    B = np.zeros((k, k + 1))
    B[np.arange(k), np.arange(k)], B[np.arange(k), np.arange(1, k + 1)] = alphas, betas
    T = B.T @ B
    p = np.ones(k + 1)
    for j in range(k):  # row j of T p = σ² p
        p[j + 1] = (sigma**2 * p[j] - T[j, : j + 1] @ p[: j + 1]) / T[j, j + 1]
    return float(p @ p)


def bidiagonal(seed, k):
    rng = np.random.default_rng(seed)
    alphas, betas = 0.5 + rng.random(k), 0.1 + 0.5 * rng.random(k)
    B = np.zeros((k, k))
    B[np.arange(k), np.arange(k)], B[np.arange(k - 1), np.arange(1, k)] = alphas, betas[:-1]
    return alphas, betas, np.linalg.norm(B, 2)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_the_sum_that_is_compared_is_that_of_the_components(k, size):
    alphas, betas, ritz = bidiagonal(k, k)
    for stretch in (1.001, 1.2, 3.0):
        total = components(stretch * ritz, alphas, betas)
        for share in (1 - 1e-9, 1 + 1e-9):
            found = exceeds(np.array([size * stretch * ritz]), size * alphas[None], size * betas[None], total * share)
            assert bool(found[0]) == (share < 1)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 40])
def test_few_operators_are_compared_as_many_are(count, size):
    many = [bidiagonal(seed, 6) for seed in range(count)]
    alphas, betas, ritz = (np.stack([size * x[i] for x in many]) for i in range(3))
    for threshold in (1.0, 1e2, 1e6, 1e12):
        # the same points with an axis before them take the way of arrays, however few there are
        points = ritz * np.linspace(1.0001, 3.0, count)
        (wanted,) = exceeds(points[None], alphas, betas, threshold)
        assert (exceeds(points, alphas, betas, threshold) == wanted).all()


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-8])
def test_few_operators_are_bounded_as_many_are(delta, size):
    many = [bidiagonal(seed, 9) for seed in range(FEW + 1)]
    alphas, betas, ritz = (np.stack([size * x[i] for x in many]) for i in range(3))
    wanted = upper_bound(ritz, alphas, betas, delta)
    for count in (1, FEW):
        found = upper_bound(ritz[:count], alphas[:count], betas[:count], delta)
        # both are above the root by at most this share of its distance
        assert (np.abs(found - wanted[:count]) <= 1e-4 * (wanted - ritz)[:count] + 1e-15 * ritz[:count]).all()


def test_a_coupling_of_zero_among_few_operators_is_no_error():
    with np.errstate(divide="ignore"):
        assert exceeds(np.array([2.0]), np.ones((1, 2)), np.array([[0.5, 0.0]]), 1e300).all()


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("delta", [0.9, 1e-2, 1e-8])
def test_the_upper_bound_is_where_the_sum_reaches_its_threshold(delta, size):
    many = [bidiagonal(seed, 6) for seed in range(5)]
    alphas, betas, ritz = (np.stack([size * x[i] for x in many]) for i in range(3))
    found = upper_bound(ritz, alphas, betas, delta)
    for (a, b, low), value in zip(many, found / size, strict=True):
        high = 2 * low
        while components(high, a, b) < delta**-2:
            high = low + 2 * (high - low)
        root = low
        if components(low, a, b) < delta**-2:
            root = brentq(lambda x, a=a, b=b: math.log(components(x, a, b) * delta**2), low, high, xtol=1e-13)
        assert root * (1 - 1e-12) <= value <= root + 2e-4 * (root - low) + 1e-12


def test_the_least_overlap_is_that_of_a_random_direction():
    rng = np.random.default_rng(0)
    for dimension, confidence in ((2, 0.5), (5, 0.9), (40, 0.99)):
        v = rng.standard_normal((200000, dimension))
        overlap = np.abs(v[:, 0]) / np.linalg.norm(v, axis=1)
        rate = np.mean(overlap >= least_overlap(dimension, confidence))
        assert abs(rate - confidence) < 4 * math.sqrt(confidence * (1 - confidence) / 200000)
    assert least_overlap(1, 0.999) == 1.0


@pytest.mark.parametrize("beside", [1e-3, 1e3])
def test_sums_that_have_passed_their_threshold_stay_there_without_overflow(beside):
    # with three hundred steps more, components would grow by a thousand each
    alphas, betas = np.ones((1, 300)), np.full((1, 300), beside)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert exceeds(np.array([1e4]), alphas, betas, 1e6).all()
