"""The site, built once for all processes that test it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
WRITTEN = ("_build", "pictures", "__pycache__")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build a copy of docs/ with warnings as errors; the scripts of the gallery have a test of their own."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen") else base  # the processes of xdist share a folder
    copy, html = shared / "site", shared / "site" / "html"
    with FileLock(shared / "site.lock"):
        if not copy.exists():
            shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns(*WRITTEN))
            shutil.copy(ROOT / "CHANGELOG.md", copy)
            sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-D", "plot_gallery=0"]
            done = subprocess.run([*sphinx, copy / "docs", html], capture_output=True, text=True, check=False)
            (copy / "warnings.txt").write_text(done.stderr if done.returncode else "", encoding="utf-8")
    return html
