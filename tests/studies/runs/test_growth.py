"""Exponents: exact laws come back, intervals cover, and what is no power law is said to be none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import howsmooth as hs

LENGTHS = (8, 16, 32, 64, 128, 256)
REPLICATIONS = 400


@st.composite
def laws(draw):
    """A power law with its exponent and factor, and how many windows there are at each length."""
    lengths = draw(st.lists(st.integers(1, 4096), min_size=2, max_size=6, unique=True))
    counts = [draw(st.integers(1, 12)) for _ in lengths]
    exponent = draw(st.floats(-2, 2))
    factor = math.exp(draw(st.floats(-7, 7)))
    return exponent, factor, {n: [factor * n**exponent] * m for n, m in zip(lengths, counts, strict=True)}


def scattered(rng, *, exponent=0.3, factor=5.0, windows=10, scatter=0.2, lengths=LENGTHS):
    return {n: (factor * n**exponent * np.exp(scatter * rng.standard_normal(windows))).tolist() for n in lengths}


@given(laws())
def test_an_exact_power_law_comes_back(law):
    exponent, factor, values = law
    found = hs.growth(values, resamples=50)
    assert found.exponent == pytest.approx(exponent, abs=1e-8)
    assert found.factor == pytest.approx(factor, rel=1e-7)
    assert found.low == pytest.approx(exponent, abs=1e-8)
    assert found.high == pytest.approx(exponent, abs=1e-8)
    assert found.low <= found.exponent <= found.high
    assert "no power law" not in found.note
    assert found.exponents == pytest.approx([exponent] * (len(values) - 1), abs=1e-8)
    n = max(values)
    assert found.at(n) == pytest.approx(values[n][0], rel=1e-7)


@pytest.mark.slow
def test_the_interval_covers_the_exponent_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(REPLICATIONS):
        exponent = rng.uniform(-0.5, 1.0)
        found = hs.growth(scattered(rng, exponent=exponent), seed=seed, resamples=1000)
        covered += found.low <= exponent <= found.high
    assert 0.90 <= covered / REPLICATIONS <= 0.985


@pytest.mark.slow
@pytest.mark.parametrize("windows", [3, 5])
def test_few_windows_make_intervals_that_still_cover(windows):
    # without the enlargement by √(m/(m−1)) three windows would cover in fewer than 90 % of the cases
    rng = np.random.default_rng(2)
    covered = 0
    for seed in range(REPLICATIONS):
        found = hs.growth(scattered(rng, windows=windows), seed=seed, resamples=1000)
        covered += found.low <= 0.3 <= found.high
    assert 0.89 <= covered / REPLICATIONS <= 0.99


def test_a_higher_confidence_makes_a_wider_interval():
    values = scattered(np.random.default_rng(3))
    half, most, nearly_all = (hs.growth(values, confidence=level) for level in (0.5, 0.95, 0.999))
    assert nearly_all.low < most.low < half.low < half.exponent < half.high < most.high < nearly_all.high
    assert (half.confidence, most.confidence) == (0.5, 0.95)


def test_the_width_is_that_of_least_squares():
    # equal scatter everywhere: the bootstrap and the textbook must agree
    values = scattered(np.random.default_rng(4), windows=200)
    found = hs.growth(values, resamples=20_000)
    x, y = pooled(values)
    textbook = 2 * 1.96 * stats.linregress(x, y).stderr
    assert found.high - found.low == pytest.approx(textbook, rel=0.06)


def test_true_power_laws_are_seldom_doubted():
    rng = np.random.default_rng(5)
    p = np.array([hs.growth(scattered(rng), resamples=1).lack_of_fit for _ in range(REPLICATIONS)])
    assert (p < 0.01).mean() < 0.03
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_plateau_is_no_power_law():
    rng = np.random.default_rng(6)
    values = {n: (min(n, 48) ** 0.5 * np.exp(0.05 * rng.standard_normal(10))).tolist() for n in LENGTHS}
    found = hs.growth(values)
    assert found.lack_of_fit < 1e-3
    assert found.note.startswith("no power law (p = ")
    assert "the exponent is 0.5" in found.note or "the exponent is 0.4" in found.note
    assert "between 8 and 16 tokens" in found.note
    assert found.note.endswith("between 128 and 256")


def test_a_kink_is_no_power_law_and_the_note_tells_both_slopes():
    values = {n: [(n if n <= 32 else 32 * (n / 32) ** 0.25) * s for s in (0.99, 1.0, 1.01)] for n in LENGTHS}
    found = hs.growth(values)
    assert "1.00 between 8 and 16" in found.note
    assert "0.25 between 128 and 256" in found.note


@pytest.mark.parametrize("windows", [3, 7, 10])
def test_a_kink_is_seen_without_any_scatter_too(windows):
    values = {n: [float(min(n, 32))] * windows for n in LENGTHS}
    assert hs.growth(values).note.startswith("no power law")


@pytest.mark.parametrize("windows", [3, 7, 10])
def test_rounding_is_no_reason_to_doubt_a_power_law(windows):
    for exponent in np.linspace(0.01, 1.99, 50):
        assert not hs.growth({n: [3 * n**exponent] * windows for n in LENGTHS}, resamples=1).note


def test_two_lengths_cannot_show_a_lack_of_fit():
    found = hs.growth({8: [1.0, 1.1], 16: [2.0, 2.1]})
    assert found.lack_of_fit is None
    assert found.note == ""


def test_one_window_at_a_length_is_said():
    alone = hs.growth({8: [1.0], 16: [2.0], 32: [4.0]})
    assert alone.note.startswith("one window")
    assert alone.lack_of_fit is None
    assert alone.low == alone.exponent == alone.high
    kinked = hs.growth({8: [1.0], 16: [2.0, 2.01, 2.02], 32: [4.0, 4.01, 4.02], 64: [4.0, 4.01, 4.02]})
    assert "one window" in kinked.note
    assert "no power law" in kinked.note


def pooled(values):
    return tuple(np.concatenate(parts) for parts in zip(*_pairs(values), strict=True))


def _pairs(values):
    return [(np.full(len(found), math.log(n)), np.log(found)) for n, found in values.items()]


@pytest.mark.parametrize("counts", [(10, 10, 10), (1, 4, 9), (12, 2, 5), (3, 1, 1)])
def test_the_fit_is_that_of_linregress_on_every_window(counts):
    rng = np.random.default_rng(7)
    values = {n: np.exp(rng.standard_normal(m)).tolist() for n, m in zip((7, 50, 211), counts, strict=True)}
    found, expected = hs.growth(values), stats.linregress(*pooled(values))
    assert found.exponent == pytest.approx(expected.slope, rel=1e-9)
    assert math.log(found.factor) == pytest.approx(expected.intercept, rel=1e-9)


def unequal(rng, windows, ratio) -> dict[int, list[float]]:
    """Draw a true power law, log-normal around it, with a scatter that grows by a factor along the lengths."""
    lengths = LENGTHS if len(windows) == len(LENGTHS) else range(4, 4 * len(windows) + 4, 4)
    scatters = 0.1 * ratio ** np.linspace(0, 1, len(windows))
    cases = zip(lengths, windows, scatters, strict=True)
    return {n: (n**0.3 * np.exp(scatter * rng.standard_normal(m))).tolist() for n, m, scatter in cases}


@pytest.mark.parametrize(
    ("windows", "ratio"),
    [((20, 10, 8, 4, 3, 2), 3), ((20, 10, 8, 4, 3, 2), 15), ((10,) * 6, 15), ((3,) * 25, 15), ((40, 3, 3), 1 / 15)],
)
def test_true_power_laws_of_unequal_scatter_are_doubted_once_in_a_hundred(windows, ratio):
    rng = np.random.default_rng(11)
    p = np.array([hs.growth(unequal(rng, windows, ratio), resamples=1).lack_of_fit for _ in range(250)])
    # a test of level 0.01 rejects 9 times or more in 250 cases with a probability of 0.1 %
    assert (p < 0.01).sum() < 9
    assert (p < 0.05).sum() < 25


def test_the_deviation_is_that_of_the_contrasts_which_vanish_on_a_line():
    # (Cm)ᵀ(CSCᵀ)⁻¹(Cm) with the rows of C orthogonal to 1 and x; its law is simulated, here with other numbers
    values = {n: v[: 3 + i] for i, (n, v) in enumerate(scattered(np.random.default_rng(8)).items())}
    x, logs = np.log(list(values)), [np.log(v) for v in values.values()]
    contrasts = stats.norm.rvs(size=(4, 6), random_state=1)
    line = np.stack((np.ones(6), x))
    contrasts -= contrasts @ np.linalg.pinv(line) @ line

    def deviation(means, variances):
        moved = contrasts @ means
        return moved @ np.linalg.solve(contrasts * variances @ contrasts.T, moved)

    means, counts = np.array([log.mean() for log in logs]), np.array([len(log) for log in logs])
    variances = np.array([log.var(ddof=1) for log in logs]) / counts
    rng, fewest = np.random.default_rng(2), counts.min() - 1
    null = [
        deviation(np.sqrt(variances) * rng.standard_normal(6), variances * rng.chisquare(fewest, 6) / fewest)
        for _ in range(4000)
    ]
    expected = (np.array(null) >= deviation(means, variances)).mean()
    assert 0.02 < expected < 0.98
    assert hs.growth(values).lack_of_fit == pytest.approx(expected, abs=0.03)  # more than four standard errors of both


@pytest.mark.parametrize("windows", [(2, 2, 2, 2), (10, 10, 2, 1), (30, 1, 1, 1)])
def test_too_few_windows_for_a_test_are_said(windows):
    found = hs.growth(unequal(np.random.default_rng(12), windows, 1))
    assert found.lack_of_fit is None
    assert not found.doubted
    assert "not testable" in found.note
    assert "three windows at each of three lengths" in found.note


def test_the_order_of_lengths_does_not_matter():
    values = scattered(np.random.default_rng(9))
    assert hs.growth(dict(reversed(values.items()))) == hs.growth(values)


def test_the_seed_decides_the_interval_and_nothing_else():
    values = scattered(np.random.default_rng(10))
    first, again, other = hs.growth(values, seed=1), hs.growth(values, seed=1), hs.growth(values, seed=2)
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert (first.exponent, first.factor) == (other.exponent, other.factor)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({}, {}, "two lengths, got 0"),
        ({8: [1.0, 2.0]}, {}, "two lengths, got 1"),
        ({8: [1.0], 16: [0.0]}, {}, "positive"),
        ({8: [1.0], 16: [2.0, -1.0]}, {}, "positive"),
        ({8: [1.0], 16: []}, {}, "positive"),
        ({8: [1.0], 16: [2.0, math.nan]}, {}, "finite"),
        ({8: [1.0], 16: [math.inf]}, {}, "finite"),
        ({0: [1.0], 16: [1.0]}, {}, "lengths must be at least 1, got 0"),
        ({8: [1.0], 16: [1.0]}, {"confidence": 1.0}, "confidence"),
        ({8: [1.0], 16: [1.0]}, {"confidence": math.nan}, "confidence"),
        ({8: [1.0], 16: [1.0]}, {"resamples": 0}, "resamples"),
    ],
)
def test_what_has_no_exponent_is_refused_in_one_sentence(values, options, words):
    with pytest.raises(hs.errors.AssumptionError, match=words) as refusal:
        hs.growth(values, **options)
    assert len(str(refusal.value).splitlines()) == 1


def test_intervals_of_few_windows_hold_as_often_as_they_say():
    rng, held, trials = np.random.default_rng(0), 0, 300
    for _trial in range(trials):  # four windows, whose scatter differs between lengths
        values = {
            n: np.exp(0.25 * np.log(n) + s * rng.standard_normal(4)) for n, s in ((8, 0.05), (32, 0.2), (128, 0.8))
        }
        law = hs.growth({n: list(v) for n, v in values.items()}, resamples=200)
        held += law.low <= 0.25 <= law.high
    assert held >= 0.92 * trials


def neighbours_alike(rng, rho, *, windows, lengths=LENGTHS, scatter=0.2):
    """Values like n^0.3 whose logarithms are correlated by rho^|i−j| within a length."""
    z = rng.standard_normal((windows, len(lengths)))
    for i in range(1, windows):
        z[i] = rho * z[i - 1] + math.sqrt(1 - rho**2) * z[i]
    return {n: np.exp(0.3 * math.log(n) + scatter * z[:, j]).tolist() for j, n in enumerate(lengths)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "rho", "least", "blind"),
    [(4, 0.0, 0.93, None), (4, 0.8, 0.8, None), (10, 0.0, 0.93, None), (10, 0.5, 0.85, 0.8), (10, 0.8, 0.8, 0.6)],
)
def test_intervals_hold_where_neighbouring_windows_are_alike(windows, rho, least, blind):
    rng, held, shuffled, trials = np.random.default_rng(11), 0, 0, 300 if blind else 200
    for seed in range(trials):
        values = neighbours_alike(rng, rho, windows=windows)
        law = hs.growth(values, seed=seed, resamples=200)
        held += law.low <= 0.3 <= law.high
        if blind:  # without their order nobody can see that they are alike: what the interval would be worth
            mixed = hs.growth({n: list(rng.permutation(v)) for n, v in values.items()}, seed=seed, resamples=200)
            shuffled += mixed.low <= 0.3 <= mixed.high
    assert held >= least * trials
    assert not blind or shuffled <= blind * trials


def test_alike_neighbours_widen_the_interval_and_unlike_ones_never_narrow_it():
    rng = np.random.default_rng(12)
    alike = neighbours_alike(rng, 0.7, windows=12)
    found = hs.growth(alike)
    even_then_odd = hs.growth({n: v[::2] + v[1::2] for n, v in alike.items()})
    assert found.correlation > 0.5 > even_then_odd.correlation
    assert found.exponent == pytest.approx(even_then_odd.exponent)
    assert found.high - found.low > 1.3 * (even_then_odd.high - even_then_odd.low)
    zigzag = {n: [1.1 * n, 0.9 * n] * 5 for n in LENGTHS}
    blocks = {n: [1.1 * n] * 5 + [0.9 * n] * 5 for n in LENGTHS}
    unlike, same = hs.growth(zigzag), hs.growth(blocks)
    assert (unlike.correlation, same.correlation) == (0, pytest.approx(0.9))
    x, y = pooled(zigzag)
    assert unlike.high - unlike.low >= 2 * 1.9 * stats.linregress(x, y).stderr
