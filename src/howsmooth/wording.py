"""How numbers are written wherever a person reads them: terminal, report, charts."""

import math
import unicodedata
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

# From here on digits are hard to count, and a power of ten says it better.
SMALL, LARGE = Decimal("0.001"), 10**7
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# What ends a line, and what joins letters or keeps them apart: it has no shape, but gives one.
_KEPT = "\n\u200c\u200d"


def visible(text: str) -> str:
    r"""Write by its number what has no shape of its own: control characters, and marks that turn the direction.

    Names of models, files and tokens come from others, who could hide or forge what stands in a terminal with them.

    >>> visible("a\x1b[2Jb\u202e"), visible("naïve 模型")
    ('a⟨U+001B⟩[2Jb⟨U+202E⟩', 'naïve 模型')
    """
    return text if text.isprintable() else "".join(map(_shape, text))


def _shape(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return f"⟨U+{ord(character):04X}⟩" if hidden and character not in _KEPT else character


def number(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits; a whole number (an ``int``) with all of them below 10⁷.

    >>> number(10914.2), number(14918), number(0.5), number(-1.25e-9), number(math.inf)
    ('10,900', '14,918', '0.5', '−1.25·10⁻⁹', '∞')
    """
    if isinstance(value, int) and abs(value) < LARGE:
        return _true_minus(f"{value:,}")
    return _rounded(value, digits, ROUND_HALF_EVEN)


def at_least(value: float, digits: int = 5) -> str:
    """Write a lower bound: rounded down, so that what is claimed stays true.

    >>> at_least(2.99999, digits=3)
    '2.99'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def at_least_above(value: float, limit: float, digits: int = 5) -> str:
    """Write a lower bound that exceeds a limit with as many digits as show that it does.

    >>> at_least_above(5.004, 5.001, 3), at_least_above(7.123, 5.001, 3)
    ('5.004', '7.12')
    """
    exact = _decimal(value)
    while digits < 17 and rounded(value, digits - 1 - exact.adjusted(), ROUND_FLOOR) <= _decimal(limit):
        digits += 1
    return at_least(value, digits)


def at_most(value: float, digits: int = 5) -> str:
    """Write an upper bound: rounded up, so that what is claimed stays true.

    >>> at_most(3.00001, digits=3)
    '3.01'
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded(value: float, places: int, rounding: str) -> Decimal:
    """Round to so many places behind the point, exactly: a bound moves to the side that is asked for, or not at all.

    >>> rounded(2.0000000000000004, 2, ROUND_CEILING), rounded(0.3, 1, ROUND_FLOOR)
    (Decimal('2.01'), Decimal('0.3'))
    """
    return _decimal(value).scaleb(places).to_integral_value(rounding).scaleb(-places)


def interval(low: float, high: float | None, digits: int = 4) -> str:
    """Write both ends of a bracket, rounded outwards; one without an upper end says so.

    >>> interval(30.381, 30.4102), interval(2.0, 2.0), interval(2.0, None)
    ('30.38 – 30.42', '2', '≥ 2')
    """
    if high is None or math.isinf(high):
        return f"≥ {at_least(low, digits)}"
    ends = at_least(low, digits), at_most(high, digits)
    return ends[0] if ends[0] == ends[1] else " – ".join(ends)


def estimated(value: float, low: float | None, high: float | None) -> tuple[str, str]:
    """Write an estimate and its interval down to the first digit of half its width; without one, a single digit.

    >>> estimated(0.20514, 0.1921, 0.2263), estimated(2.0, 2.0, 2.0), estimated(0.20514, None, None)
    (('0.21', '[0.19, 0.23]'), ('2', '[2, 2]'), ('≈ 0.2', ''))
    """
    if low is None or high is None:
        return f"≈ {number(value, 1)}", ""
    # of the value alone, four digits are enough
    last = math.floor(math.log10(max((high - low) / 2, 1e-4 * value))) if high > 0 else 0

    def digits(end: float) -> int:
        return max(1, math.floor(math.log10(end)) - last + 1) if end > 0 else 1

    return number(value, digits(value)), f"[{at_least(low, digits(low))}, {at_most(high, digits(high))}]"


def exponent(value: float) -> str:
    """Write an exponent with two digits behind the point.

    >>> exponent(0.1949), exponent(-0.5), exponent(-0.001)
    ('0.19', '−0.50', '0.00')
    """
    # adding zero turns -0.0 into 0.0
    return _true_minus(f"{round(value, 2) + 0.0:.2f}")


def grows(factor: float, through: str = "") -> str:
    """Say what becomes of a perturbation that is multiplied by a factor.

    >>> grows(7.2345), grows(0.0647, " through 'mlp'"), grows(0.9999)
    ('grows 7.23-fold', "shrinks through 'mlp' to 0.0647 of its size", 'keeps its size')
    """
    if number(factor) == "1":
        return f"keeps its size{through}"
    if factor < 1:
        return f"shrinks{through} to {number(factor)} of its size"
    return f"grows{through} {number(factor)}-fold"


def power_of_ten(power: int) -> str:
    """Write a power of ten, which may be far beyond a float.

    >>> power_of_ten(1001), power_of_ten(-4)
    ('10¹⁰⁰¹', '10⁻⁴')
    """
    return f"10{str(power).translate(_RAISED)}"


def count(n: int, thing: str, things: str | None = None) -> str:
    """Write how many there are of something.

    >>> count(1, "window"), count(1200, "window"), count(2, "entry", "entries")
    ('1 window', '1,200 windows', '2 entries')
    """
    return f"{n:,} {thing if n == 1 else things or thing + 's'}"


def duration(seconds: float) -> str:
    """Write how long something takes, as people say it.

    >>> duration(42.3), duration(300), duration(9000)
    ('42 seconds', '5 minutes', '2.5 hours')
    """
    if seconds < 90:
        return count(round(seconds), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def percent(share: float) -> str:
    """Write a share or a probability with one digit behind the point, or as many as tell it from 0 and from 1.

    >>> percent(0.999), percent(1 - 1e-9), percent(0.1234), percent(1.0), percent(2e-5)
    ('99.9 %', '99.9999999 %', '12.3 %', '100 %', '0.002 %')
    """
    # the decimal that was meant: 0.999 as a float is a little less
    exact = Decimal(repr(float(share)))
    places = [-2 - part.adjusted() for part in (exact, 1 - exact) if part]
    shown = round(100 * exact, max(1, *places)).normalize()
    return f"{_true_minus(f'{shown:,f}')} %"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Write the rows of a table as lines, every column as wide as its widest cell.

    >>> aligned([["layer", "worst"], ["0", "12.8"]])
    ['layer  worst', '    0   12.8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not isinstance(value, int) and not math.isfinite(value):
        return "—" if math.isnan(value) else _true_minus("∞" if value > 0 else "-∞")
    if not value:
        return "0"
    places = digits - 1 - _decimal(value).adjusted()
    return _true_minus(_digits(rounded(value, places, rounding).normalize()))


def _decimal(value: float) -> Decimal:
    """Return the decimal that a float is written as, and read from: 0.3, and not 0.299999999999999988897…."""
    return Decimal(value if isinstance(value, int) else repr(float(value)))


def _digits(shown: Decimal) -> str:
    if SMALL <= abs(shown) < LARGE:
        return f"{shown:,f}"
    mantissa, power = shown.scaleb(-shown.adjusted()).normalize(), power_of_ten(shown.adjusted())
    return power if mantissa == 1 else f"{mantissa:f}·{power}"


def _true_minus(text: str) -> str:
    return text.replace("-", "−")
