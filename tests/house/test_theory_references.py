"""A module that states or proves something names the result it rests on, and the name leads to a page of the theory."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "howsmooth"
MODULES = sorted(
    path for room in ("theory", "certificates") for path in (PACKAGE / room).rglob("*.py") if path.stem != "__init__"
)
# Modules that do not name their result yet. The list only shrinks: a module that names it is taken off, and one that
# was moved or is new names it. Names of modules that no longer exist are passed over.
NOT_YET_BY_ROOM = {
    "theory": "mean_field",
    "theory/around_input": "layer_on_ball",
}
NOT_YET = {f"{room}/{name}.py" for room, names in NOT_YET_BY_ROOM.items() for name in names.split()}
# Modules that hold or list results of others.
VALUES = {"theory/results.py", "theory/tables.py"}

# A docstring states something if it has an inequality, or a word that results are told with.
STATES = re.compile(
    r"\\(?:le|ge|preceq|succeq)(?![a-z])|[≤≥]|\A(?:Bound|Prove)"
    r"|\bat (?:most|least)\b|\bproven?\b|\battain|\bties?\b|\btied\b"
)
# Theorem 3.2 is one of a paper.
NUMBERED = re.compile(r"\bTheorem\s+(\d+)(?![.\d]*\d)")
REFERENCE = re.compile(r":ref:`(?:[^`<]*<)?([\w-]+)>?`")


def labels():
    pages = (ROOT / "docs" / "theory").glob("*.md")
    return {label for page in pages for label in re.findall(r"^\(([\w-]+)\)=$", page.read_text("utf-8"), re.MULTILINE)}


def docstrings(path):
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]


def states(texts):
    return any(STATES.search(text) for text in texts)


def named(texts):
    """Return the labels of the theory that docstrings name, as ``Theorem 5`` or ``:ref:`Heads together <…>```."""
    text = "\n".join(texts)
    return {f"theorem-{number}" for number in NUMBERED.findall(text)} | set(REFERENCE.findall(text))


def place(path):
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_a_module_that_states_something_names_a_result(path):
    texts = docstrings(path)
    found = named(texts)
    if place(path) in NOT_YET:
        assert not found, f"{place(path)} names {', '.join(sorted(found))}: take it off the list NOT_YET."
    else:
        states_nothing = place(path) in VALUES or not states(texts)
        assert found or states_nothing, f"{place(path)} states something: name its result, as in docs/theory/."


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_what_a_module_names_is_on_a_page_of_the_theory(path):
    assert named(docstrings(path)) - labels() == set()


def test_labels_of_the_theory_are_those_of_the_theorems():
    assert {f"theorem-{number}" for number in range(1, 14)} <= labels()


def test_results_are_found_by_their_number_and_by_their_label():
    assert named(["Theorem 5, far from X.", "See :ref:`heads-together` and :ref:`the pair <rotary-pair>`."]) == {
        *("theorem-5", "heads-together", "rotary-pair")
    }
    assert named(["After Kim et al., Theorem 3.2.", "Every theorem that applies."]) == set()
    assert named(["Of Theorem\n12 alone."]) == {"theorem-12"}


@pytest.mark.parametrize("text", [r"Since :math:`\|P\|\le1`.", "Bound the norm.", "It is ≥ 0.", "Two tokens that tie."])
def test_inequalities_and_bounds_are_statements(text):
    assert states([text])


@pytest.mark.parametrize("text", [r"On the :math:`\left` side.", "Every bound under one name.", "Ranges of settings."])
def test_names_and_settings_are_not(text):
    assert not states([text])
