"""Types are checked in the first calls of every file, and anew in every eighth test."""

import jaxtyping
import pytest
import torch
import typecheck
from hypothesis import given
from hypothesis import strategies as st

import howsmooth as hs
from howsmooth.files import gigabytes


def test_a_function_is_checked_in_its_first_calls_of_every_file():
    for file in ("tests/test_one.py", "tests/test_other.py"):
        typecheck.begin_test(f"{file}::test_first", searches=False)
        for _ in range(typecheck.CALLS):
            with pytest.raises(jaxtyping.TypeCheckError):
                gigabytes("many")
        with pytest.raises(TypeError, match="not supported between instances"):  # Python's own words
            gigabytes("many")


def test_one_test_in_eight_checks_every_function_anew():
    checked = 0
    for number in range(80):
        typecheck.begin_test(f"tests/test_one.py::test_case[{number}]", searches=False)
        for _ in range(typecheck.CALLS):
            with pytest.raises(TypeError) as raised:
                gigabytes("many")
        checked += raised.type is jaxtyping.TypeCheckError
    assert 3 < checked < 25


@given(st.integers(0, 50))
def test_in_a_search_every_drawn_example_is_checked(number):
    with pytest.raises(jaxtyping.TypeCheckError):
        gigabytes(str(number))


@pytest.mark.parametrize(
    "wrong",
    [lambda f: f(torch.ones(3, 2, dtype=torch.int64)), lambda _: hs.maps.Rotary(base="two")],
    ids=["call", "field"],
)
def test_methods_and_the_fields_of_values_are_checked(wrong):
    f = hs.Attention.random(heads=1, d=2)
    for _ in range(typecheck.CALLS):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong(f)
