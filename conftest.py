"""Doctests use torch and the names of their own module."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _torch_in_doctests(doctest_namespace: dict) -> None:
    doctest_namespace["torch"] = torch
