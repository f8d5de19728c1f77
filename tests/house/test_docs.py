"""Every code block of the README and the docs runs; every link between them leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{index}")
    for page in PAGES
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_code_block_runs(block):
    exec(compile(block, "<documentation>", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    assert all((page.parent / link).exists() for link in links)


def test_the_architecture_page_lists_every_file():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = (ROOT / "src" / "howsmooth").rglob("*.py")
    named = {file.name for file in files if file.parent.name not in ("cli",) and not file.name.startswith("__")}
    assert all(f" {name} " in page for name in named)


def test_the_contribution_guide_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) < 50
