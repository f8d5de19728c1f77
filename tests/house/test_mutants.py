"""The tool that looks for terms of bounds that no test would miss."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "mutants.py"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


@pytest.mark.slow
def test_a_sample_of_mutants_is_killed():
    run = subprocess.run([sys.executable, TOOL, "--replay"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def found(mutants, monkeypatch, folder, text):
    monkeypatch.setattr(mutants, "PACKAGE", folder)
    path = folder / "theory.py"
    path.write_text(text, encoding="utf-8")
    finder = mutants.Finder(path)
    names = [mutant.identity.split(": ", 1)[1] for mutant in finder.found]
    changed = []
    for mutant in finder.found:
        old = mutant.put(mutant.new)
        changed.append(ast.unparse(finder.tree))
        mutant.put(old)
    assert ast.unparse(finder.tree) == ast.unparse(ast.parse(text))
    return names, changed


def test_each_expression_is_changed_in_one_place(mutants, monkeypatch, tmp_path):
    text = (
        "def f(a, b):\n"
        "    if a < 0:\n"
        "        raise ValueError(f'{a + b}')\n"
        "    c = a + b * math.sqrt(a) + 8 * UNIT\n"
        "    d = max(abs(a), b)\n"
        "    return c - d if a > 1 else torch.where(a, b, c).clamp_min(0)\n"
    )
    names, changed = found(mutants, monkeypatch, tmp_path, text)
    assert names == [
        "no rounding: 8 * UNIT",
        "drop: b * math.sqrt(a)",
        "halve: b * math.sqrt(a)",
        "drop: a",
        "halve: a",
        "no sqrt: math.sqrt(a)",
        "only abs(a): max(abs(a), b)",
        "only b: max(abs(a), b)",
        "no abs: abs(a)",
        "negate: a > 1",
        "relax: a > 1",
        "drop: d",
        "halve: d",
        "drop: c",
        "halve: c",
        "no clamp_min: torch.where(a, b, c).clamp_min(0)",
        "only b: torch.where(a, b, c)",
        "only c: torch.where(a, b, c)",
    ]
    assert len(set(changed)) == len(changed)
    assert "c = a + b * math.sqrt(a)\n" in changed[0]
    assert "return -d if" in changed[13]


def test_identities_outlive_changes_elsewhere(mutants, monkeypatch, tmp_path):
    text = "def f(a, b):\n    return a + b\n"
    names, _changed = found(mutants, monkeypatch, tmp_path, text)
    later, _changed = found(mutants, monkeypatch, tmp_path, "import math\n\n\nX = 1 + 2\n\n\n" + text)
    assert names == later


def test_accepted_survivors_are_mutants_that_exist_each_with_a_reason(mutants):
    identities = [m.identity for file in mutants._target_files() for m in mutants.Finder(mutants.PACKAGE / file).found]
    assert len(set(identities)) == len(identities) > 3000
    listed = mutants.accepted()
    assert all(len(reason) > 10 for reason in listed.values())
    unused = [name for name in listed if not any(mutants._reason(i, {name: "x"}) for i in identities)]
    assert unused == []
