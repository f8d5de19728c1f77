"""The site, built once, for tests that stay in one process."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import as_readers_do as as_readers_do

ROOT = Path(__file__).parents[2]
WRITTEN = ("_build", "pictures", "__pycache__")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Keep the tests of the site in one process, so that no other waits while it is built."""
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("site"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build a copy of docs/ with warnings as errors; the scripts of the gallery have a test of their own."""
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns(*WRITTEN))
    shutil.copy(ROOT / "CHANGELOG.md", copy)
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-D", "plot_gallery=0"]
    done = subprocess.run([*sphinx, copy / "docs", copy / "html"], capture_output=True, text=True, check=False)
    (copy / "warnings.txt").write_text(done.stderr if done.returncode else "", encoding="utf-8")
    return copy / "html"
