"""Every script of the gallery runs, is short, says one thing and leaves one picture."""

import ast
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

from pictures import ORDER, charts_of, draw  # noqa: E402

SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
@pytest.mark.usefixtures("as_readers_do")
def test_a_script_leaves_exactly_one_picture(script, tmp_path):
    names = {"__name__": "__main__"}
    exec(compile(script.read_text(encoding="utf-8"), script.name, "exec"), names)
    (chart,) = charts_of(names)
    assert draw(chart).startswith("<svg")
    assert [path.name for path in tmp_path.iterdir()] == [f"{script.stem}.svg"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_uses_public_names_only(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert [name for name in imported if name.startswith("howsmooth")] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_says_one_sentence(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    _title, _line, sentence = (line for line in ast.get_docstring(tree).splitlines() if line)
    first, *_rest, last = tree.body[1:]
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0
    assert last.end_lineno - first.lineno < 40


def test_the_gallery_has_an_order_for_at_least_eight_scripts():
    assert sorted(ORDER) == [script.stem for script in SCRIPTS]
    assert len(ORDER) >= 8
