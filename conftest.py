"""Doctests use torch and the names of their own module; types are checked anew in every test."""

import pytest
import torch
import typecheck


@pytest.fixture(autouse=True)
def _torch_in_doctests(doctest_namespace: dict) -> None:
    doctest_namespace["torch"] = torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin to count calls anew; a search through drawn examples may check more of them."""
    searches = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    typecheck.begin(calls=typecheck.SEARCHED if searches else typecheck.CALLS)
