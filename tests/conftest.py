"""What every test may use: one seeded generator, float64, models that are loaded once."""

import gc
import os
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

import howsmooth as hs

collect_ignore = ["refused_by_mypy.py"]  # mypy reads it, and nothing runs it

os.environ["HOWSMOOTH_CACHE"] = ""  # no answer of an earlier run is found again

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores

# `make test` draws the same examples everywhere; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what was imported and collected out of reach of the garbage collector, which looks through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20240214)


# Real weights are loaded once in a process; tests of SmolLM2 stay in one by their mark `xdist_group("smollm2")`.
@pytest.fixture(scope="session")
def minilm() -> "hs.Transformer":
    return hs.load("minilm")


@pytest.fixture(scope="session")
def smollm2() -> "hs.Transformer":
    return hs.load("smollm2")


@pytest.fixture(autouse=True)
def _reproducible(request: pytest.FixtureRequest) -> Iterator[None]:
    # Why not torch.manual_seed: for each kind of accelerator that is not there it keeps a traceback, which takes
    # milliseconds, for the day when there is one.
    torch.default_generator.manual_seed(0)
    # tests marked so feed the library what its annotations forbid, to see the library's own refusals
    jaxtyping.config.update("jaxtyping_disable", request.node.get_closest_marker("untyped") is not None)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def small_memory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the machine say that it has 4 GiB."""
    limit = tmp_path_factory.mktemp("limits") / "memory.max"
    limit.write_text(str(2**32), encoding="ascii")
    monkeypatch.setattr("howsmooth.files.LIMITS", (limit,))
    return 2**32
