"""One small model, in memory and in a folder, and the beginning of a book: what most studies are tried on."""

import logging

import distributed
import pytest
import torch
from asked import windows
from small import beginning, bounds_once, folder_model, module, save_model, tokenizer

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.studies.resources import Resources

__all__ = ["beginning", "bounds_once", "folder_model", "module", "save_model", "tokenizer"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep the tests on a cluster in one process, so that it is started once for each file."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("cluster"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def digest(beginning):
    return read_text(beginning).digest


@pytest.fixture(scope="session")
def loaded(module, tokenizer):
    """Return small models in memory, in float64, each built once."""
    known = {}

    def load(family="bert", seed=0):
        if (family, seed) not in known:
            known[family, seed] = hs.load(module(family, seed), dtype=torch.float64, tokenizer=tokenizer)
        return known[family, seed]

    return load


@pytest.fixture(scope="session")
def tiny(loaded):
    return loaded()


@pytest.fixture
def resources(tiny):
    return Resources([tiny])


@pytest.fixture(scope="session")
def small(beginning):
    """Return a small question for ``hs.measure``."""
    return {"text": beginning, "layers": [0, 1], "lengths": [4, 6], "sequences": 2}


@pytest.fixture(scope="session")
def usual(tiny, small):
    """Return the answer to the small question, to compare with."""
    return hs.measure(tiny, **small)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return the address of a cluster of one worker process, on this machine alone.

    Not for the whole session: idle, it takes a twentieth of a core until the end of all tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
        with distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            local_directory=str(tmp_path_factory.mktemp("dask")),
            silence_logs=logging.CRITICAL,
        ) as found:
            yield found.scheduler_address


@pytest.fixture
def asks(tiny, beginning, digest):
    """Return asks at windows of the text with the small model."""

    def make(**choices):
        return windows(tiny.name, **{"place": beginning, "digest": digest} | choices)

    return make
