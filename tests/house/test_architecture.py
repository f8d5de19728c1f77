"""The arrows between rooms point one way."""

import ast
from pathlib import Path

import pytest

import howsmooth

ROOT = Path(howsmooth.__file__).parent
GROUND = {"errors", "validation", "files", "markup"}
# What each room may import besides itself.
ALLOWED = {
    "errors": set(),
    "validation": {"errors"},
    "files": set(),
    "markup": set(),
    "maps": GROUND,
    "spectral": GROUND,
    "transport": GROUND,
    "theory": {*GROUND, "maps", "spectral", "transport"},
    "models": {*GROUND, "maps", "spectral"},
    "search": {*GROUND, "maps", "spectral", "transport", "theory"},
    "studies": {*GROUND, "maps", "spectral", "transport", "theory", "models", "search"},
    "report": {*GROUND, "maps", "spectral", "transport", "theory", "models", "search", "studies"},
    "__main__": {"cli"},
    "cli": {*GROUND, "maps", "spectral", "transport", "theory", "models", "search", "studies", "report", ""},
    "": set(),
}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imported_rooms(path: Path) -> set[str]:
    """The rooms of howsmooth that a file imports when it runs (not for type checkers only)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "howsmooth":
            found.add([*node.module.split("."), ""][1])
        if isinstance(node, ast.Import):
            found |= {[*alias.name.split("."), ""][1] for alias in node.names if alias.name.startswith("howsmooth")}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    assert imported_rooms(path) <= ALLOWED[room(path)] | {room(path)}


def test_no_file_is_a_drawer_for_odds_and_ends():
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_says_in_one_sentence_what_it_holds(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.splitlines()[0].rstrip(".") != ""
