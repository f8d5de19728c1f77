"""How many times larger constants are than others: a mean ratio with an interval, error bars counted in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy import stats

# The two ends that a constant lies between; without an upper one, infinity.
Ends = tuple[float, float]
Logs = Float[ndarray, "_ 2"]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The mean of ratios, taken on logarithms.

    Attributes:
        value: The ratio of the geometric means of what is attained.
        near: Between which ends the error bars leave that ratio, for these windows alone.
        within: The interval for windows like these, error bars counted in; none if there is a single window.
    """

    value: float
    near: Ends
    within: Ends | None


def paired_ratio(first: Sequence[Ends], second: Sequence[Ends], *, confidence: float) -> Ratio:
    r"""Compare constants at the same windows: a t-interval of the mean of the differences of their logarithms.

    .. math:: \bar d \pm t_{m-1}\,\frac{s}{\sqrt m},\qquad d_i = \log\frac{\sigma_i'}{\sigma_i} \in [a_i, b_i]

    No constant is known better than its error bar, so the interval holds all those that any constants within their
    bars would give: it begins at the mean of :math:`a_i`, ends at that of :math:`b_i`, and
    :math:`s \le \mathrm{sd}((a_i+b_i)/2) + (\sum_i (b_i-a_i)^2/4(m-1))^{1/2}`.

    Why no bootstrap: of five windows it makes intervals that are too short. Those of t are exact for normal logarithms,
    whatever the number of windows, and near to it otherwise.

    Args:
        first: The ends of each constant.
        second: Likewise, at the same windows.
        confidence: The probability with which the interval holds.
    """
    x, y = np.log(first), np.log(second)
    differences = np.stack((y[:, 0] - x[:, 1], y[:, 1] - x[:, 0]), axis=1)
    near, m = differences.mean(0), len(differences)
    if m < 2:
        return _ratio(x, y, near, None)
    return _ratio(x, y, near, _quantile(confidence, m - 1) * _scatter(differences) / math.sqrt(m))


def independent_ratio(first: Sequence[Ends], second: Sequence[Ends], *, confidence: float) -> Ratio:
    r"""Compare constants at windows that have nothing to do with each other: Welch's t-interval on their logarithms.

    .. math:: \bar y - \bar x \pm t_\nu\,(s_x^2/m_x + s_y^2/m_y)^{1/2}

    with the degrees of freedom of Welch and Satterthwaite, and error bars counted in as :func:`paired_ratio` does.

    Args:
        first: The ends of each constant.
        second: Likewise, at other windows.
        confidence: The probability with which the interval holds.
    """
    x, y = np.log(first), np.log(second)
    near = y.mean(0) - x.mean(0)[::-1]
    if min(len(x), len(y)) < 2:
        return _ratio(x, y, near, None)
    squares = [_scatter(logs) ** 2 / len(logs) for logs in (x, y)]
    total = sum(squares)
    if not 0 < total < math.inf:
        return _ratio(x, y, near, total)
    shares = [(square / total) ** 2 / (len(logs) - 1) for square, logs in zip(squares, (x, y), strict=True)]
    return _ratio(x, y, near, _quantile(confidence, 1 / sum(shares)) * math.sqrt(total))


def _ratio(x: Logs, y: Logs, near: Float[ndarray, " 2"], reach: float | None) -> Ratio:
    low, high = near.tolist()
    return Ratio(
        value=_exp(float(y[:, 0].mean() - x[:, 0].mean())),
        near=(_exp(low), _exp(high)),
        within=None if reach is None else (_exp(low - reach), _exp(high + reach)),
    )


def _scatter(logs: Logs) -> float:
    """Bound the standard deviation of numbers that are known between ends; infinite where an end is missing."""
    if not np.isfinite(logs).all():
        return math.inf
    half = (logs[:, 1] - logs[:, 0]) / 2
    return float(logs.mean(1).std(ddof=1) + math.sqrt(float(half @ half) / (len(logs) - 1)))


def _quantile(confidence: float, freedom: float) -> float:
    # from the far tail: 1 − confidence is smaller than what (1 + confidence)/2 can tell from 1
    return float(stats.t.isf((1 - confidence) / 2, freedom))


def _exp(log: float) -> float:
    return math.exp(log) if log < math.log(np.finfo(float).max) else math.inf
