"""What every test may use: one seeded generator, float64, doctests that know torch."""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores

# `make test` draws the same examples everywhere; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# These feed the library what its annotations forbid, to see the library's own refusals.
UNTYPED = {"bad_input", "spec"}


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20240214)


@pytest.fixture(autouse=True)
def _reproducible(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    jaxtyping.config.update("jaxtyping_disable", bool(UNTYPED & set(Path(request.path).parts)))
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
