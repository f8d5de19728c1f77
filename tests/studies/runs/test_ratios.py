"""Ratios of constants: the intervals of the textbook where constants are exact, and wider by their error bars."""

import math

import numpy as np
import pytest
from scipy import stats

from howsmooth.studies.runs.comparison import independent_ratio, paired_ratio

WAYS = [paired_ratio, independent_ratio]


@pytest.fixture
def draw():
    return np.random.default_rng(0)


def exact(values):
    return [(value, value) for value in values.tolist()]


def test_of_exact_constants_at_the_same_windows_the_interval_is_that_of_the_paired_t_test(draw):
    x, y = np.exp(draw.normal(size=(2, 7)))
    found = paired_ratio(exact(x), exact(y), confidence=0.9)
    oracle = stats.ttest_rel(np.log(y), np.log(x)).confidence_interval(0.9)
    assert np.log(found.within) == pytest.approx([oracle.low, oracle.high])
    assert found.near == pytest.approx((found.value, found.value))
    assert found.value == pytest.approx(stats.gmean(y / x))


def test_of_exact_constants_at_other_windows_the_interval_is_that_of_welch(draw):
    x, y = np.exp(draw.normal(size=5)), np.exp(3 * draw.normal(size=8))
    found = independent_ratio(exact(x), exact(y), confidence=0.99)
    oracle = stats.ttest_ind(np.log(y), np.log(x), equal_var=False).confidence_interval(0.99)
    assert np.log(found.within) == pytest.approx([oracle.low, oracle.high])
    assert found.value == pytest.approx(stats.gmean(y) / stats.gmean(x))


def test_the_interval_of_pairs_holds_those_of_all_constants_within_the_error_bars(draw):
    for m in (2, 3, 6):
        low = np.exp(0.05 * draw.normal(size=(2, m)))
        high = low * np.exp(0.1 * draw.random((2, m)))
        bars = [list(zip(a.tolist(), b.tolist(), strict=True)) for a, b in zip(low, high, strict=True)]
        found = paired_ratio(*bars, confidence=0.95)
        for _trial in range(50):
            # ends as often as what lies between them
            share = np.clip(draw.uniform(-1, 2, size=(2, m)), 0, 1)
            truth = paired_ratio(*map(exact, low ** (1 - share) * high**share), confidence=0.95)
            assert found.near[0] * (1 - 1e-12) <= truth.value <= found.near[1] * (1 + 1e-12)
            assert found.within[0] <= truth.within[0] * (1 + 1e-12)
            assert truth.within[1] <= found.within[1] * (1 + 1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_intervals_hold_as_often_as_they_say_whatever_the_number_of_windows(way, draw):
    for m in (2, 6):
        held = 0
        for x, y in np.exp(draw.normal(size=(200, 2, m))):
            low, high = way(exact(x), exact(1.7 * y), confidence=0.9).within
            held += low <= 1.7 <= high
        assert held / 200 > 0.84  # three standard errors below what is said


@pytest.mark.parametrize("way", WAYS)
def test_one_window_has_a_ratio_and_error_bars_but_no_interval(way):
    found = way([(2.0, 2.1)], [(3.0, 3.3)], confidence=0.95)
    assert found.value == pytest.approx(1.5)
    assert found.near == pytest.approx((3.0 / 2.1, 3.3 / 2.0))
    assert found.within is None


@pytest.mark.parametrize("way", WAYS)
def test_without_an_upper_end_nothing_is_known_from_one_side(way):
    found = way([(1.0, 1.0), (1.0, math.inf)], [(5.0, 5.0), (5.0, 5.0)], confidence=0.95)
    assert (found.near[0], found.within) == (0.0, (0.0, math.inf))
    assert found.near[1] == pytest.approx(5.0)


@pytest.mark.parametrize("way", WAYS)
def test_windows_that_all_agree_leave_the_error_bars_alone(way):
    found = way(exact(np.full(3, 2.0)), exact(np.full(3, 3.0)), confidence=0.95)
    assert found.within == pytest.approx((1.5, 1.5))
