"""Doctests use torch and the names of their own module; types are checked in the first calls; files stay together."""

import gc
from typing import Any

import pytest
import typecheck

gc.set_threshold(10_000, 20, 10)  # by its usual thresholds the collector takes a tenth of the time, of imports too


@pytest.fixture(autouse=True)
def _torch_in_doctests(doctest_namespace: dict) -> None:
    import torch

    doctest_namespace["torch"] = torch


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the type checker know which test begins."""
    searches = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    typecheck.begin_test(item.nodeid, searches=searches)


@pytest.hookimpl(optionalhook=True)  # where tests share the cores by xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, as groups are: what a file prepares would be prepared in each process.

    Files come in their order: the last ones are short, so that no process waits for another.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)
