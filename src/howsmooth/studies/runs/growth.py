"""How a constant grows with the length: an exponent with its interval, and whether a power law describes the data."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from howsmooth.errors import AssumptionError
from howsmooth.markup import paragraph, strict_json

RESAMPLES = 2000
# Fewer windows than this at a length say too little about their scatter to enter the lack-of-fit test.
FEWEST_WINDOWS = 3
# How many samples of a true power law the lack-of-fit test draws: its p-values are multiples of one in so many.
NULL_DRAWS = 2000
# A power law is doubted when data that follow one would deviate as much in one case of a hundred.
DOUBTFUL = 0.01


@dataclass(frozen=True, kw_only=True)
class Growth:
    r"""A power law :math:`c\,n^\alpha` fitted to values at several lengths.

    Attributes:
        exponent: :math:`\alpha`, the slope of log value on log n by least squares.
        low: The lower end of the interval.
        high: The upper end.
        factor: c.
        confidence: The probability that the interval aims at.
        lack_of_fit: The p-value of the lack-of-fit test; none with fewer than three windows at each of three lengths.
        exponents: The slopes between neighbouring lengths.
        correlation: The correlation of neighbouring windows that the interval reckons with.
        note: What to know about the fit, or nothing.
    """

    exponent: float
    low: float
    high: float
    factor: float
    confidence: float
    lack_of_fit: float | None
    exponents: tuple[float, ...]
    correlation: float = 0.0
    note: str

    @property
    def doubted(self) -> bool:
        """Whether the data deviate from a power law by more than their scatter explains."""
        return self.lack_of_fit is not None and self.lack_of_fit < DOUBTFUL

    def at(self, n: float) -> float:
        """Return the value of the fitted law."""
        return self.factor * n**self.exponent

    def to_json(self) -> str:
        """Return one JSON object."""
        return strict_json(asdict(self))

    def _repr_html_(self) -> str:
        interval = f"[{self.low:.3f}, {self.high:.3f}] ({100 * self.confidence:g} %)"
        said = f"Note: {self.note}." if self.note else ""
        return paragraph(f"{self.factor:.4g} · n^{self.exponent:.3f}, exponent in {interval}. {said}".rstrip())


def growth(
    values: Mapping[int, Sequence[float]], *, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Growth:
    r"""Fit :math:`c\,n^\alpha` to positive values at several lengths n.

    Least squares of :math:`\log v` on :math:`\log n`. The interval is the percentile bootstrap over windows: each
    resample draws, at every length, as many windows as there are, with replacement; its width is enlarged by
    :math:`\sqrt{m/(m-1)}` for m windows at each length, since a resample knows its own mean too well; it is never
    narrower than the t-interval of Welch and Satterthwaite, which few windows of unequal scatter need.

    Neighbouring windows of one text are alike. Their correlation :math:`\rho` is estimated from all lengths together,
    as if windows i and j were correlated by :math:`\rho^{|i-j|}`, with one :math:`\rho` for all lengths and none
    between lengths; both intervals are widened by what it does to means, and never narrowed. Why not a bootstrap of
    blocks: ten windows hold too few of them.

    Two windows at a length say nothing about their correlation: nothing is widened. What all windows of a text share,
    or a correlation that falls off slower than :math:`\rho^k`, is not seen.

    Whether a line describes the data is tested with a scatter of its own at every length: with the mean
    :math:`\bar y_i` and the variance :math:`s_i^2` of :math:`m_i` windows, the deviation

    .. math:: T = \min_{a,b}\sum_i\frac{m_i}{s_i^2}\,(\bar y_i - a - b\log n_i)^2

    is compared with 2,000 samples of a true power law with the variances that were found (a parametric bootstrap):
    :math:`\bar y_i\sim N(0, s_i^2/m_i)` with variances drawn from :math:`s_i^2\chi^2_\nu/\nu`,
    :math:`\nu = \min_i m_i - 1`. So no p-value is below 0.0005. Lengths with fewer than three windows are left out, and
    with fewer than three other lengths nothing can be tested. Why not the F test, which takes the scatter of all
    lengths for one: where scatter grows along the lengths and windows become fewer, it rejects true power laws. The
    test takes windows as independent, and doubts too readily where they are alike. How often both were right in
    simulations: :ref:`how-sure-an-exponent-is`.

    Args:
        values: For each length, the value of every window, in the order of the text.
        confidence: The probability that the interval aims at.
        seed: The seed of the resampling.
        resamples: How many resamples to draw.

    Raises:
        AssumptionError: If there are fewer than two lengths, or a value is not positive and finite.

    Example:
        >>> law = growth({n: [3 * n**0.25] * 4 for n in (8, 16, 32, 64)})
        >>> round(law.exponent, 6), round(law.factor, 6)
        (0.25, 3.0)
    """
    if len(values) < 2:
        raise AssumptionError(f"an exponent needs at least two lengths, got {len(values)}.")
    if min(values) < 1:
        raise AssumptionError(f"lengths must be at least 1, got {min(values)}.")
    if not all(len(found) and all(0 < value < math.inf for value in found) for found in values.values()):
        raise AssumptionError("a power law needs positive, finite values at every length.")
    if not 0 < confidence < 1:
        raise AssumptionError(f"confidence must lie strictly between 0 and 1, got {confidence}.")
    if resamples < 1:
        raise AssumptionError(f"resamples must be at least 1, got {resamples}.")
    lengths = sorted(values)
    logs = [np.log(np.asarray(values[n], dtype=float)) for n in lengths]
    x = np.log(np.asarray(lengths, dtype=float))
    slope, height = _line(x, logs)
    rho = correlation(logs)
    low, high = _interval(x, logs, slope, rho, confidence, seed, resamples)
    means = np.asarray([log.mean() for log in logs])
    p = _lack_of_fit(x, logs, slope)
    steps = tuple(float(s) for s in np.diff(means) / np.diff(x))
    return Growth(
        exponent=slope,
        low=low,
        high=high,
        factor=float(np.exp(height)),
        confidence=confidence,
        lack_of_fit=p,
        exponents=steps,
        correlation=rho,
        note=_note(lengths, logs, steps, p),
    )


def _line(x: NDArray, logs: Sequence[NDArray]) -> tuple[float, float]:
    counts = np.asarray([len(log) for log in logs], dtype=float)
    means = np.asarray([log.mean() for log in logs])
    centre = np.average(x, weights=counts)
    slope = float((counts * (x - centre)) @ means / ((counts * (x - centre)) @ (x - centre)))
    return slope, float(np.average(means, weights=counts) - slope * centre)


def _interval(
    x: NDArray, logs: Sequence[NDArray], slope: float, rho: float, confidence: float, seed: int, resamples: int
) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    counts = np.asarray([len(log) for log in logs], dtype=float)
    # the slope is linear in the means: resample those, all at once
    means = np.stack([log[rng.integers(len(log), size=(resamples, len(log)))].mean(1) for log in logs], axis=1)
    enlarged = [np.sqrt(m / (m - 1) * worth(m, rho).inflation) if m > 1 else 1.0 for m in map(len, logs)]
    means = np.asarray([log.mean() for log in logs]) + (means - [log.mean() for log in logs]) * enlarged
    centre = np.average(x, weights=counts)
    lever = counts * (x - centre) / ((counts * (x - centre)) @ (x - centre))
    ends = np.quantile(means @ lever, [(1 - confidence) / 2, (1 + confidence) / 2])
    wide = _welch(lever, logs, rho, confidence)
    return min(float(ends[0]), slope - wide), max(float(ends[1]), slope + wide)


def _welch(lever: NDArray, logs: Sequence[NDArray], rho: float, confidence: float) -> float:
    """Return half the width of the t-interval for windows whose scatter differs between lengths."""
    parts = []
    for w, log in zip(lever, logs, strict=True):
        if len(log) > 1:
            inflation, freedom = worth(len(log), rho)
            parts.append((w**2 * log.var(ddof=1) / len(log) * inflation, freedom))
    variance = sum(part for part, _freedom in parts)
    if not variance > 0:
        return 0.0
    # Welch and Satterthwaite: how many windows the sum of unequal variances is worth
    freedom = variance**2 / sum(part**2 / freedom for part, freedom in parts)
    return float(stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(variance))


def _lack_of_fit(x: NDArray, logs: Sequence[NDArray], slope: float) -> float | None:
    enough = [i for i, log in enumerate(logs) if len(log) >= FEWEST_WINDOWS]
    if len(enough) < 3:
        return None
    # windows that agree to the last digit still scatter by rounding: a line is not blamed for that
    rounding = 64 * np.finfo(float).eps * (1 + max(np.abs(log).max() for log in logs) + abs(slope) * x.max())
    x, logs = x[enough], [logs[i] for i in enough]
    counts = np.asarray([len(log) for log in logs], dtype=float)
    variances = np.asarray([max(log.var(ddof=1), rounding**2) for log in logs])
    rng, freedom = np.random.default_rng(0), counts.min() - 1
    means = np.sqrt(variances / counts) * rng.standard_normal((NULL_DRAWS, len(logs)))
    drawn = variances * rng.chisquare(freedom, means.shape) / freedom
    found = _deviation(x, np.asarray([[log.mean() for log in logs]]), counts / variances)
    return float((1 + (_deviation(x, means, counts / drawn) >= found).sum()) / (1 + NULL_DRAWS))


def _deviation(x: NDArray, means: NDArray, weights: NDArray) -> NDArray:
    """Return the weighted sum of squares around the weighted least-squares line, along the last axis."""
    total = weights.sum(-1, keepdims=True)
    across = x - (weights * x).sum(-1, keepdims=True) / total
    up = means - (weights * means).sum(-1, keepdims=True) / total
    slope = (weights * across * up).sum(-1, keepdims=True) / (weights * across**2).sum(-1, keepdims=True)
    return (weights * (up - slope * across) ** 2).sum(-1)


def _note(lengths: Sequence[int], logs: Sequence[NDArray], steps: Sequence[float], p: float | None) -> str:
    said = []
    if min(len(log) for log in logs) < 2:
        said.append("one window at a length: the interval does not show its scatter")
    if p is None and len(logs) > 2:
        said.append("whether a power law holds is not testable: that takes three windows at each of three lengths")
    if p is not None and p < DOUBTFUL:
        said.append(
            f"no power law (p = {p:.1g}): the exponent is {steps[0]:.2f} between {lengths[0]} and {lengths[1]} tokens "
            f"and {steps[-1]:.2f} between {lengths[-2]} and {lengths[-1]}"
        )
    return "; ".join(said)


# A larger correlation than this cannot be told from a drift by a handful of windows.
LARGEST_CORRELATION = 0.9
HALVINGS = 40


class Worth(NamedTuple):
    """What m windows say about their mean."""

    inflation: float  # how many times larger the variance of the mean is than scatter/m: g(m − 1)/(m − g)
    freedom: float  # the degrees of freedom of the scatter, tr(MC)²/tr(MCMC)


def worth(m: int, rho: float) -> Worth:
    """Return what m windows are worth whose neighbours have the correlation rho; m is at least 2.

    Example:
        >>> worth(10, 0.0)
        Worth(inflation=1.0, freedom=9.0)
        >>> round(worth(10, 0.5).inflation, 2), round(worth(10, 0.5).freedom, 1)
        (3.16, 6.2)
    """
    if rho == 0:
        return Worth(1.0, m - 1.0)
    rows = _rows(m, rho)
    g = float(rows.mean())
    apart = np.arange(1, m)
    squares = m + 2 * float((m - apart) @ rho ** (2 * apart)) - 2 * float(rows @ rows) / m + g**2
    return Worth(g * (m - 1) / (m - g), (m - g) ** 2 / squares)


def correlation(logs: Sequence[NDArray]) -> float:
    r"""Estimate the correlation of neighbouring windows from all lengths together: between 0 and 0.9.

    The sum of products of neighbours over the sum of squares, around the mean of each length, is far below
    :math:`\rho` for few windows, as means follow the windows (−1/m where they are independent). So we return the
    :math:`\rho` for which the expectations have the ratio that was found. Two windows say nothing.
    """
    around = [log - log.mean() for log in logs if len(log) > 2]
    squares = sum(float(e @ e) for e in around)
    if not squares > 0:
        return 0.0
    found = sum(float(e[:-1] @ e[1:]) for e in around) / squares
    counts = Counter(len(e) for e in around)
    low, high = 0.0, LARGEST_CORRELATION
    if found <= _expected(counts, low):
        return low
    for _halving in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _expected(counts, middle) < found else (low, middle)
    return high


def _expected(counts: Counter[int], rho: float) -> float:
    """Return the expected products of neighbours over the expected squares."""
    products = squares = 0.0
    for m, times in counts.items():
        rows = _rows(m, rho)
        g = float(rows.mean())
        products += times * ((m - 1) * (rho + g / m) - 2 * g + 2 * float(rows[0]) / m)
        squares += times * (m - g)
    return products / squares


def _rows(m: int, rho: float) -> NDArray:
    """Return the sums of the rows of C."""
    i = np.arange(m)
    return (1 + rho - rho ** (i + 1.0) - rho ** (m - i)) / (1 - rho)
