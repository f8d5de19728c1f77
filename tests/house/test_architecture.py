"""The arrows between rooms point one way."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import howsmooth

ROOT = Path(howsmooth.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
GROUND = {
    "errors",
    "validation",
    "files",
    "lazy_names",
    "linear_operators",
    "metrics",
    "markup",
    "ring_attention",
    "proof_files",
    "rounding",
    "scaled_dot_product",
    "attention_calls",
    "torch_internals",
    "tensor_dataclass",
    "token_ring",
    "wording",
}
INSTRUMENTS = {
    "domains",
    "maps",
    "spectral",
    "transport",
    "theory",
    "models",
    "search",
    "attacks",
    "tokens",
    "certificates",
    "training",
    "budgets",
    "verification",
}
# What each room may import besides itself.
ALLOWED = {
    "errors": set(),
    "torch_internals": set(),
    "validation": {"errors", "torch_internals"},
    "files": {"errors", "wording"},
    "linear_operators": {"validation"},
    "metrics": {"errors", "validation"},
    "markup": {"errors", "wording"},
    "token_ring": {"errors"},
    "ring_attention": {"errors", "token_ring", "torch_internals"},
    "scaled_dot_product": {"errors", "ring_attention", "torch_internals"},
    "proof_files": {"errors", "files", "rounding"},
    "rounding": set(),
    # written from the theorems: of the library it knows how weights are read, and nothing else
    "check": {"errors", "lazy_names", "proof_files", "models"},
    "attention_calls": {"errors", "scaled_dot_product"},
    "tensor_dataclass": set(),
    "domains": GROUND,
    "wording": set(),
    "maps": {*GROUND, "domains"},
    "spectral": GROUND,
    "transport": GROUND,
    "theory": {*GROUND, "domains", "maps", "spectral", "transport"},
    "models": {*GROUND, "maps", "spectral"},
    "search": {*GROUND, "domains", "maps", "spectral", "transport", "theory"},
    "certificates": {*GROUND, "maps", "theory", "models", "tokens"},
    "attacks": {*GROUND, "maps", "spectral", "theory"},
    "tokens": {*GROUND, "maps", "spectral", "transport", "models"},
    "training": {*GROUND, "maps", "spectral", "models"},
    "budgets": {*GROUND, "spectral", "models"},
    "verification": {*GROUND, "maps", "certificates"},
    "studies": {*GROUND, *INSTRUMENTS},
    "report": {*GROUND, *INSTRUMENTS, "studies"},
    "lab": GROUND,
    "__main__": {"cli"},
    "cli": {*GROUND, *INSTRUMENTS, "check", "studies", "report", "lab", ""},
    "lazy_names": set(),
    "threads": set(),
    "": {"lazy_names", "threads"},
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imported_rooms(path: Path) -> set[str]:
    """The rooms of howsmooth that a file imports when it runs (not for type checkers only)."""
    nodes = list(ast.walk(parsed(path)))
    typing_only = {
        id(node)
        for block in nodes
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in nodes:
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "howsmooth":
            if {alias.name for alias in node.names} == {"__version__"}:
                continue  # it is known before the front door loads anything
            found.add([*node.module.split("."), ""][1])
        if isinstance(node, ast.Import):
            found |= {[*alias.name.split("."), ""][1] for alias in node.names if alias.name.startswith("howsmooth")}
    return found


def test_imports_follow_the_arrows():
    strays = {path: imported_rooms(path) - ALLOWED[room(path)] - {room(path)} for path in FILES}
    assert {path: rooms for path, rooms in strays.items() if rooms} == {}


def test_the_checker_knows_nothing_of_the_library_but_how_weights_are_read():
    files = sorted((ROOT / "check").glob("*.py"))
    others = {path.name: imported_rooms(path) - {"check"} for path in files}
    assert {name: rooms for name, rooms in others.items() if rooms} == {
        "__init__.py": {"errors", "lazy_names"},
        "checker.py": {"errors"},
        "graph_steps.py": {"proof_files"},
        "weights.py": {"errors", "proof_files", "models"},
    }


def test_no_file_is_a_drawer_for_odds_and_ends():
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "helpers", "common", "misc"}


def test_every_file_says_in_one_sentence_what_it_holds():
    first = {path: (ast.get_docstring(parsed(path)) or "").split("\n")[0].rstrip(".") for path in FILES}
    assert [path for path, sentence in first.items() if not sentence] == []


def strings_of(path: Path) -> list[str]:
    """The strings of a file that are not docstrings, with {} for what f-strings put in."""
    tree, found, inside = parsed(path), [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inside |= set(ast.walk(node))  # a docstring
        elif isinstance(node, ast.JoinedStr) and node not in inside:
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.append("".join(map(str, parts)))
            inside |= set(ast.walk(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            found.append(node.value)
    return found


def test_only_the_command_line_speaks_of_its_options():
    # words of a command are no sentence, and a whole command names its options
    command = re.compile(r"\b(howsmooth|pip) [^;]*")
    named = {
        (path.relative_to(ROOT).as_posix(), text)
        for path in FILES
        if room(path) not in ("cli", "lab")
        for text in strings_of(path)
        if re.search(r"(^|[ '\"`])--[a-z]+", command.sub("", text)) and " " in text.strip()
    }
    assert named == set(), "say `tokenizer=`, which the command line prints as --tokenizer"


def test_no_class_name_stands_twice_in_the_package():
    named = [
        node.name for path in ROOT.rglob("*.py") for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, times in Counter(named).items() if times > 1] == []


@pytest.mark.parametrize("name", ["theory", "certificates"])
def test_the_mathematics_is_commented(name):
    lines = [line.strip() for path in (ROOT / name).rglob("*.py") for line in path.read_text("utf-8").splitlines()]
    assert sum(line.startswith("#") for line in lines) >= 0.04 * len(lines)
