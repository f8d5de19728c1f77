"""Numbers as people read them: what is claimed of a bound stays true, and one number is written in one way."""

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from howsmooth.spectral.estimates import bracket_digits
from howsmooth.wording import at_least, at_most, count, exponent, interval, number, percent

RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def read(text):
    """Take a written number for what a reader takes it."""
    mantissa, _dot, power = text.replace(",", "").replace("−", "-").rpartition("·")
    if power.startswith("10") and power != power.translate(RAISED):
        return Decimal(mantissa or 1).scaleb(int(power.translate(RAISED)[2:]))
    return Decimal(power)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9))
@example(0.19599999999999998, 3)
@example(2.0000000000000004, 5)
@example(0.3, 5)
def test_a_bound_is_rounded_to_the_side_where_it_stays_true(value, digits):
    # what is stored is the float, which its shortest decimal names
    assert read(at_least(value, digits)) <= Decimal(repr(value)) <= read(at_most(value, digits))


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 9))
def test_a_bound_gives_way_by_less_than_one_unit_of_its_last_digit(value, digits):
    unit = Decimal(1).scaleb(Decimal(value).adjusted() - digits + 1)
    assert read(at_most(value, digits)) - read(at_least(value, digits)) <= unit


@given(st.floats(0, 1e300), st.floats(0, 1e300))
def test_the_ends_of_a_bracket_are_rounded_outwards(one, other):
    lower, upper = sorted((one, other))
    low, high = bracket_digits(lower, upper)
    assert read(low) <= Decimal(repr(lower))
    assert Decimal(repr(upper)) <= read(high)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_what_it_is(value):
    assert abs(read(number(value, 6)) - Decimal(value)) <= abs(Decimal(value)) * Decimal("1e-5")


@given(st.floats(min_value=0, max_value=1, exclude_max=True))
def test_a_probability_below_one_is_never_written_as_certain(share):
    assert percent(share) != "100 %"


@given(st.floats(min_value=0, max_value=1, exclude_min=True))
def test_a_share_above_zero_is_never_written_as_none(share):
    assert percent(share) != "0 %"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (number(10_914.2), "10,900"),
        (number(9_999_999.0), "10⁷"),
        (number(1.2e7), "1.2·10⁷"),
        (number(0.001), "0.001"),
        (number(-4.56e-4), "−4.56·10⁻⁴"),
        (number(-math.inf), "−∞"),
        (number(math.nan), "—"),
        (number(10**400), "10⁴⁰⁰"),
        (number(1024), "1,024"),
        (at_least(0.1 + 0.2), "0.3"),
        (at_most(0.1 + 0.2), "0.30001"),
        (at_most(0.3), "0.3"),
        (interval(2.0, math.inf), "≥ 2"),
        (exponent(-0.0), "0.00"),
        (count(0, "token"), "0 tokens"),
    ],
)
def test_one_number_is_written_in_one_way(written, expected):
    assert written == expected
