"""Code of the documentation as readers run it, but for what takes long and has tests of its own."""

import dataclasses
import functools
import importlib

import jaxtyping
import pytest

import howsmooth as hs
from howsmooth.studies.runs import run_metadata
from howsmooth.theory.results import BoundsTable

LOADING = ("howsmooth.models.load", "howsmooth.studies.resources", "howsmooth.certificates.certify")


@pytest.fixture
def as_readers_do(tmp_path, monkeypatch):
    """Run code in an empty folder, without type checks; load models once, and bound layers by the paper alone."""
    monkeypatch.chdir(tmp_path)
    jaxtyping.config.update("jaxtyping_disable", True)
    for module in map(importlib.import_module, LOADING):
        monkeypatch.setattr(module, "load", _load)
    monkeypatch.setattr(run_metadata, "table", _table)


def _load(model, **how):
    return _kept(model, **{key: value for key, value in how.items() if value})


_kept = functools.cache(hs.load)


def _table(attention, *, n, radius, heads, metric):
    biases = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"))
    plain = dataclasses.replace(attention, **biases)  # which the paper does not speak of
    return BoundsTable(bounds=(hs.bounds.discrete_upper(plain, n=n, radius=radius),))
