"""Reports in headless Chromium: skipped where there is none, unless HOWSMOOTH_BROWSER=required."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser.pages import DESKTOP, Open, Report, opened
from browser.runs import Runs
from howsmooth.lab.page import write_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests in one process, which opens one browser, and each page once; none of them is quick."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.clock("a browser draws in its own time"))


def _missing(what: str, remedy: str) -> None:
    stop = pytest.fail if os.environ.get("HOWSMOOTH_BROWSER") == "required" else pytest.skip
    stop(f"the browser tests need {what}: {remedy}")


@pytest.fixture(scope="session", autouse=True)
def chromium() -> str:
    """The browser of this machine."""
    for package in ("playwright", "axe_playwright_python"):
        if find_spec(package) is None:
            _missing(package, "pip install 'howsmooth[browser]'")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        _missing("Chromium", "make setup-browser")
    return str(found)


# Of this folder, no longer: while Playwright runs, its event loop is that of the whole thread.
@pytest.fixture(scope="package")
def browser(chromium: str) -> "Iterator[Browser]":
    """One browser, headless, with one process for all pages: it compiles the program that draws charts once."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--process-per-site"])
        browser.new_context()
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of every kind."""
    return Runs(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="session")
def lab_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab, written once."""
    return write_lab(tmp_path_factory.mktemp("lab") / "lab.html")


@pytest.fixture(scope="package")
def _shown(browser: "Browser", runs: Runs) -> Iterator[Open]:
    with ExitStack() as stack:

        @cache
        def visit(run: str, scheme: str, size: tuple[int, int]) -> Report:
            return stack.enter_context(opened(browser, runs.report(run), scheme=scheme, size=size))

        yield visit


@pytest.fixture
def shown(_shown: Open) -> Iterator[Open]:
    """Look at the report of a run without changing anything: all tests see the same page."""
    reports: list[Report] = []

    def visit(run: str, *, scheme: str = "light", size: tuple[int, int] = DESKTOP) -> Report:
        reports.append(_shown(run, scheme, size))
        reports[-1].bring_to_front()
        return reports[-1]

    yield visit
    assert [complaint for report in reports for complaint in report.watch.complaints] == []


@pytest.fixture
def borrowed(_shown: Open) -> Iterator[Open]:
    """Work with the report of a run that all tests look at; putting it back is cheaper than opening another."""
    reports: list[Report] = []

    def visit(run: str) -> Report:
        reports.append(_shown(run, "light", DESKTOP))
        reports[-1].bring_to_front()
        return reports[-1]

    yield visit
    for report in reports:
        report.reset()
    assert [complaint for report in reports for complaint in report.watch.complaints] == []


@pytest.fixture
def open_report(browser: "Browser", runs: Runs) -> Iterator[Open]:
    """Open the report of a run, or a page; whatever the test does there, nothing may go wrong behind the scenes."""
    reports: list[Report] = []
    with ExitStack() as stack:

        def visit(what: str | Path, **options: Any) -> Report:
            path = what if isinstance(what, Path) else runs.report(what)
            reports.append(stack.enter_context(opened(browser, path, **options)))
            return reports[-1]

        yield visit
    assert [complaint for report in reports for complaint in report.watch.complaints] == []
