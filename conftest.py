"""Doctests use torch and the names of their own module; types are checked in the first calls."""

import pytest
import torch
import typecheck


@pytest.fixture(autouse=True)
def _torch_in_doctests(doctest_namespace: dict) -> None:
    doctest_namespace["torch"] = torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the type checker know which test begins."""
    searches = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    typecheck.begin_test(item.nodeid, searches=searches)
