"""Every code block of the README and the docs runs, every command in them exists, every link between them leads on."""

import re
import shlex
import sys
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from commands import commands  # noqa: E402

BUILT = {"_build", "pictures"}  # what `make docs` writes
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not BUILT & set(page.relative_to(ROOT).parts)),
]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def command_lines(page):
    """Yield the arguments of howsmooth, of make and the like, in blocks of shell code and in the text."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    inline = [" ".join(code.split()) for code in re.findall(r"`((?:howsmooth|make) [^`]+)`", prose)]
    for line in lines + inline:
        words = shlex.split(line, comments=True)
        if words:
            yield list(takewhile(lambda word: word not in (">", "|"), words))


def named(page):
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=named)
@pytest.mark.usefixtures("as_readers_do")
def test_the_code_blocks_of_a_page_run_one_after_another(page):
    names = {}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if list(command_lines(page))], ids=named)
def test_every_command_in_a_page_can_be_parsed(page):
    for program, *arguments in command_lines(page):
        if program == "howsmooth" and arguments[0] != "COMMAND":
            parse(*arguments)
        if program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            assert arguments[0] in targets


def parse(name, *arguments):
    """Read the arguments as the command line would, and do nothing with them."""
    wanted = [word for word in arguments if word != "--help"]
    command = commands()[name]
    if wanted or not any(parameter.required for parameter in command.params):
        command.make_context(name, wanted)


def test_a_command_that_does_not_exist_is_noticed():
    with pytest.raises(KeyError):
        parse("mesure")
    with pytest.raises(Exception, match="No such option: --layr"):
        parse("measure", "--layr", "3")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_local_link_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    # pages of the gallery are written when the site is built; tests/docs follows the links there
    assert [link for link in links if "pictures/" not in link and not (page.parent / link).exists()] == []


def test_the_architecture_page_lists_every_file():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = (ROOT / "src" / "howsmooth").rglob("*.py")
    named = {file.name for file in files if file.parent.name not in ("cli",) and not file.name.startswith("__")}
    assert sorted(named - set(re.findall(r"\w+\.py", page))) == []


def test_the_contribution_guide_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) < 50
