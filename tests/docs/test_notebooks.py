"""Every notebook of the documentation runs from top to bottom, and what it stores is small and was run in order."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
@pytest.mark.usefixtures("as_readers_do")
def test_the_cells_of_a_notebook_run_one_after_another(notebook):
    names = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook)):
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_stored_outputs_come_from_one_run_and_are_small(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    assert notebook.stat().st_size < 100_000


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_stored_outputs_hold_no_complaint_and_no_path(notebook):
    outputs = json.dumps([cell["outputs"] for cell in code_cells(notebook)])
    assert not any(word in outputs for word in ('"stderr"', '"error"', "/home/", "/tmp/", "site-packages"))


def test_there_is_a_notebook():
    assert "first_steps" in [notebook.stem for notebook in NOTEBOOKS]
