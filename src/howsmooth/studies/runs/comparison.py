"""What a comparison of two runs returns: ratios with intervals that include error bars, and which differ from 1."""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.special import stdtrit

from howsmooth.studies.json_values import to_json
from howsmooth.studies.runs.result_table import ResultTable
from howsmooth.wording import at_least, at_most, count, number, percent

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
    def exp(log: float) -> float:
        return math.exp(log) if log < math.log(np.finfo(float).max) else math.inf

    low, high = near.tolist()
    return Ratio(
        value=exp(float(y[:, 0].mean() - x[:, 0].mean())),
        near=(exp(low), exp(high)),
        within=None if reach is None else (exp(low - reach), exp(high + reach)),
    )


def _scatter(logs: Logs) -> float:
    """Bound the standard deviation of numbers that are known between ends; infinite where an end is missing."""
    if not np.isfinite(logs).all():
        return math.inf
    half = (logs[:, 1] - logs[:, 0]) / 2
    return float(logs.mean(1).std(ddof=1) + math.sqrt(float(half @ half) / (len(logs) - 1)))


def _quantile(confidence: float, freedom: float) -> float:
    # from the far tail: 1 − confidence is smaller than what (1 + confidence)/2 can tell from 1
    return -float(stdtrit(freedom, (1 - confidence) / 2))


class DifferenceVerdict(enum.StrEnum):
    """What came of a comparison; the value is what the user reads."""

    LARGER = "larger"
    SMALLER = "smaller"
    ALIKE = "within error bars"
    OPEN = "not told apart"
    ONE = "one window"
    ZERO = "a constant is 0"


@dataclass(frozen=True, kw_only=True)
class LayerDifference:
    """One part of a layer at one length, in two runs.

    Attributes:
        models: Which model, in the first run and in the second.
        texts: Which text, likewise.
        map: Which part of the layer.
        layer: Which layer.
        length: How many tokens; none for sequences that are measured whole, each with its own.
        windows: How many windows of the first run, and of the second.
        paired: Whether both runs have the same windows, so that each is compared with itself.
        constants: The geometric mean of the constants, in the first run and in the second.
        ratio: That of the second run over that of the first; none if a constant is zero.
    """

    models: tuple[str, str]
    texts: tuple[str, str]
    map: str
    layer: int
    length: int | None
    windows: tuple[int, int]
    paired: bool
    constants: tuple[float, float]
    ratio: Ratio | None

    @property
    def verdict(self) -> DifferenceVerdict:
        """Whether the difference is real, that is, whether the interval, error bars counted in, leaves out 1."""
        if self.ratio is None:
            return DifferenceVerdict.ZERO
        if self.ratio.within is None:
            return DifferenceVerdict.ONE
        low, high = self.ratio.within
        if low > 1:
            return DifferenceVerdict.LARGER
        if high < 1:
            return DifferenceVerdict.SMALLER
        least, most = self.ratio.near
        return DifferenceVerdict.ALIKE if least <= 1 <= most else DifferenceVerdict.OPEN

    @property
    def real(self) -> bool:
        """Whether the second run is told apart from the first here."""
        return self.verdict in (DifferenceVerdict.LARGER, DifferenceVerdict.SMALLER)

    @property
    def place(self) -> str:
        """Where it is, in words."""
        part = "" if self.map == "attention" else f"{self.map} of "
        return f"{part}layer {self.layer}" + ("" if self.length is None else f" at {count(self.length, 'token')}")

    def cells(self, confidence: float) -> dict[str, str]:
        """The row of a table, by what its columns are called."""
        return {
            "model": self.models[1],
            "text": self.texts[1],
            "map": self.map,
            "layer": str(self.layer),
            "n": "—" if self.length is None else number(self.length),
            "windows": ", ".join(dict.fromkeys(map(str, self.windows))),
            "first": number(self.constants[0], 4),
            "second": number(self.constants[1], 4),
            "ratio": "—" if self.ratio is None else number(self.ratio.value, 4),
            "error bars": "—" if self.ratio is None else bracketed(self.ratio.near),
            percent(confidence): "—" if self.ratio is None else bracketed(self.ratio.within),
            "second is": self.verdict.value,
        }

    def as_row(self) -> dict[str, Any]:
        """Return the fields that the command line prints as JSON."""
        ratio = self.ratio
        low, high = (None, None) if ratio is None or ratio.within is None else ratio.within
        least, most = (None, None) if ratio is None else ratio.near
        return {
            **{
                name: getattr(self, name) for name in ("models", "texts", "map", "layer", "length", "windows", "paired")
            },
            "first": self.constants[0],
            "second": self.constants[1],
            "ratio": None if ratio is None else ratio.value,
            "low": low,
            "high": high,
            "error_low": least,
            "error_high": most,
            "real": self.real,
            "verdict": self.verdict.value,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(ResultTable):
    """How many times larger the constants of one run are than those of another.

    Attributes:
        first: What the ratios are relative to.
        second: What is compared with it.
        rows: One for each part of a layer and length that both have.
        confidence: The probability with which all intervals hold together.
        notes: What a reader has to know: windows that are no pairs, places that one run alone has.
    """

    EXPENDABLE = ("error bars", "windows", "text", "model", "second", "first", "map")
    ALIKE = ("model", "text", "map")
    first: str
    second: str
    rows: tuple[LayerDifference, ...]
    confidence: float
    notes: tuple[str, ...] = ()

    @property
    def real(self) -> tuple[LayerDifference, ...]:
        """The differences that are real."""
        return tuple(row for row in self.rows if row.real)

    @property
    def paired(self) -> bool:
        """Whether every window is compared with itself."""
        return all(row.paired for row in self.rows)

    def chart(self) -> Any:
        """Draw every ratio with its interval, one panel for each length and map."""
        return self._drawn()

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        return f"{self.second} over {self.first}"

    @property
    def sentence(self) -> str:
        """Say which differences are real, and the largest of them."""
        sure, known = self.real, sum(row.ratio is not None for row in self.rows)
        zero = f"at {count(len(self.rows) - known, 'place')} a constant is 0" if known < len(self.rows) else ""
        if not sure:
            told = f"of {count(known, 'ratio')}, none is told apart from 1" if known else ""
            return f"No difference is real: {'; '.join(filter(None, (told, zero)))}."
        ratios = [(row.place, row.ratio) for row in sure if row.ratio is not None]
        place, most = max(ratios, key=lambda pair: _log_size(pair[1].value))
        told = f"{place} differs most, {number(most.value, 4)} times the first {bracketed(most.within)}"
        share = f"{count(len(sure), 'difference')} of {known} {'is' if len(sure) == 1 else 'are'} real"
        return f"{share}: {'; '.join(filter(None, (told, zero)))}."

    @property
    def suffered(self) -> str:
        """Say which layers are less smooth in the second run, which are smoother, and which nobody can tell apart."""
        groups = {
            "less smooth in the second": [row for row in self.rows if row.verdict is DifferenceVerdict.LARGER],
            "smoother": [row for row in self.rows if row.verdict is DifferenceVerdict.SMALLER],
            "not told apart": [row for row in self.rows if not row.real and row.ratio is not None],
        }
        said = []
        for what, rows in groups.items():
            layers = sorted({row.layer for row in rows})
            ratios = [row.ratio.value for row in rows if row.ratio is not None]
            ends = list(dict.fromkeys(number(end, 4) for end in (min(ratios), max(ratios)))) if ratios else []
            extent = f" ({' to '.join(ends)} times)" if ends else ""
            said += [f"{what}: layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}{extent}"] if rows else []
        return f"{'; '.join(said)}.".capitalize() if self.real else ""

    def meaning(self, columns: Sequence[str]) -> str:
        """Say what the columns mean and what they are worth."""
        pairs = "each window with itself" if self.paired else "windows as independent samples"
        return (
            f"Ratio: geometric mean of the second over that of the first, {pairs}. Intervals are of t on logarithms; "
            f"the error bars of the constants are part of them, and all hold together with {percent(self.confidence)} "
            "(Bonferroni). A difference is real if its interval leaves out 1."
        )

    @property
    def lead(self) -> tuple[str, ...]:
        """The answer comes first."""
        return tuple(filter(None, (self.sentence, self.suffered)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader has to know."""
        return self.notes

    @property
    def cells(self) -> list[dict[str, str]]:
        """One row for each ratio."""
        return [row.cells(self.confidence) for row in self.rows]

    def to_json(self) -> str:
        """Return one JSON object; a number without end is null."""
        about = {name: getattr(self, name) for name in ("first", "second", "confidence", "paired")}
        return to_json(about | {"rows": [row.as_row() for row in self.rows], "notes": self.notes})


def bracketed(ends: tuple[float, float] | None) -> str:
    """Write both ends of an interval of ratios, rounded outwards.

    Example:
        >>> bracketed((0.98765, 1.23451)), bracketed((1.0000001, math.inf))
        ('[0.987, 1.235]', '[1.0000001, ∞]')
    """
    return "—" if ends is None else f"[{_end(ends[0], at_least)}, {_end(ends[1], at_most)}]"


def _end(value: float, rounded: Callable[[float, int], str]) -> str:
    """Round one end to three digits, or to as many as tell it from 1."""
    written = (rounded(value, digits) for digits in range(3 if value < 1 else 4, 17))
    return next((text for text in written if text != "1"), "1")


def _log_size(ratio: float) -> float:
    """How far a ratio lies from 1, upwards or downwards."""
    return abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf
