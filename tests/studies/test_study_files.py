"""Study files: the documented examples work, and every mistake is one line that names the file and the line."""

import json
import time
from pathlib import Path

import huggingface_hub
import pytest

from howsmooth.studies.store import Store
from howsmooth.studies.study import NEEDS, read_study

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SMALL = {"layers": "[0]", "lengths": "[8]", "sequences": "1"}


def study(tmp_path, **keys):
    """Write a file with a comment, then one key on each line."""
    path = tmp_path / "study.toml"
    path.write_text("# a study\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "values"),
    [
        ("encoder", 18, {"layer": {0, 5}, "length": {8, 16, 32}, "window": {0, 1, 2}, "map": {"attention"}}),
        (
            "maps_and_seeds",
            24,
            {"map": {"attention", "residual", "head:0"}, "seed": {0, 1}, "length": {8, 16}, "window": {0, 1}},
        ),
    ],
)
def test_the_documented_examples_work(name, count, values, howsmooth, tmp_path):
    done = howsmooth("sweep", str(EXAMPLES / f"{name}.toml"), "--out", "run")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{count} of {count} measured, 0 failed.")
    with Store(tmp_path / "run") as store:
        tasks = [record.task for record in store.records()]
    assert len(tasks) == count
    assert all({getattr(task, field) for task in tasks} == found for field, found in values.items())
    assert howsmooth("show", "run").code == 0
    again = howsmooth("sweep", str(EXAMPLES / f"{name}.toml"), "--out", "run", "--json")
    assert json.loads(again.out) == {"run": "run", "tasks": count, "done": count, "failed": 0}


def test_every_key_of_the_file_is_documented():
    words = (EXAMPLES.parent / "studies.md").read_text(encoding="utf-8")
    assert [key for key in NEEDS if f"`{key}`" not in words] == []


def test_without_a_folder_the_run_is_called_after_the_study(howsmooth, tmp_path):
    study(tmp_path, name='"my: first/study"', **SMALL, maps='["head:0"]')
    assert howsmooth("sweep", "study.toml").code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["my--first-study"]


def test_all_layers_are_the_default(tmp_path):
    given, _ = read_study(study(tmp_path, layers='"all"'))
    assert given.layers is None
    assert given == read_study(study(tmp_path))[0]


def test_a_byte_order_mark_and_other_line_endings_are_read(tmp_path):
    (tmp_path / "study.toml").write_bytes("\ufeffseeds = [1]\r\nsequences = 3\r\n".encode())
    found, _ = read_study(tmp_path / "study.toml")
    assert (found.seeds, found.sequences) == ((1,), 3)


MISTAKES = [
    # key, value, line of the mistake, words
    ("layer", "[0]", 2, "did you mean 'layers'?"),
    ("squences", "3", 2, "did you mean 'sequences'?"),
    ("zzz", "3", 2, "known are name, models"),
    ("name", "3", 2, "'name' must be a text, got 3"),
    ("models", '"minilm"', 2, "'models' must be a list of names, got 'minilm'"),
    ("models", "[1]", 2, "'models' must be a list of names"),
    ("text", "3", 2, "'text' must be a file name"),
    ("layers", "0", 2, "'layers' must be a list of whole numbers, or \"all\", got 0"),
    ("layers", "[0.5]", 2, "'layers' must be a list of whole numbers"),
    ("layers", '"some"', 2, "'layers' must be a list of whole numbers"),
    ("layers", "[true]", 2, "'layers' must be a list of whole numbers"),
    ("lengths", '["8"]', 2, "'lengths' must be a list of whole numbers"),
    ("lengths", "[[8]]", 2, "'lengths' must be a list of whole numbers"),
    ("sequences", "1.5", 2, "'sequences' must be a whole number"),
    ("sequences", "true", 2, "'sequences' must be a whole number, got True"),
    ("maps", '"attention"', 2, "'maps' must be a list of names"),
    ("maps", "[0]", 2, "'maps' must be a list of names"),
    ("seeds", "0", 2, "'seeds' must be a list of whole numbers"),
    ("seeds", "[false]", 2, "'seeds' must be a list of whole numbers"),
    ("special_tokens", "1", 2, "'special_tokens' must be true or false"),
    ("rtol", '"small"', 2, "'rtol' must be a number"),
    ("rtol", "true", 2, "'rtol' must be a number"),
    ("confidence", "[0.9]", 2, "'confidence' must be a number"),
    ("certify", '"yes"', 2, "'certify' must be true or false"),
    ("released", "0", 2, "'released' must be true or false"),
    ("models", "[]", 2, "'models' is empty"),
    ("layers", "[]", 2, "'layers' is empty"),
    ("lengths", "[]", 2, "'lengths' is empty"),
    ("maps", "[]", 2, "'maps' is empty"),
    ("seeds", "[]", 2, "'seeds' is empty"),
    ("rtol", "1979-05-27", 2, "'rtol' must be a number"),
    # what only the model and the text can tell
    ("models", '["minlm"]', 2, "minilm"),
    ("models", '["no/such/folder"]', 2, "no/such/folder"),
    ("layers", "[6]", 2, "has the layers 0 to 5, got 6"),
    ("layers", "[-1]", 2, "has the layers 0 to 5, got -1"),
    ("lengths", "[100_000]", 2, "positions for 512 tokens"),
    ("lengths", "[0]", 2, "lengths must be whole numbers, at least 1"),
    ("sequences", "0", 2, "sequences must be at least 1"),
    ("sequences", "1_000_000", 2, "fewer windows"),
    ("maps", '["everything"]', 2, "map must be one of"),
    ("maps", '["head:x"]', 2, "head:3"),
    ("maps", '["head:99"]', 2, "head"),
    ("maps", '["normed"]', 2, "normalises behind attention"),
    ("text", '"nowhere.txt"', 2, "'nowhere.txt' is not there"),
    ("text", '"."', 2, "is a folder"),
    ("rtol", "0", 2, "rtol must lie between 0 and 1"),
    ("rtol", "nan", 2, "rtol must lie between 0 and 1"),
    ("confidence", "1", 2, "confidence must lie strictly between 0 and 1"),
]


@pytest.mark.parametrize(("key", "value", "line", "words"), MISTAKES, ids=[f"{m[0]} = {m[1]}" for m in MISTAKES])
def test_a_mistake_is_one_line_that_names_file_and_line_and_leaves_nothing(
    key, value, line, words, howsmooth, tmp_path, monkeypatch
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    keys = {key: value} | {name: small for name, small in SMALL.items() if name != key}
    study(tmp_path, **keys)
    for options in ([], ["--dry-run"]):
        done = howsmooth("sweep", "study.toml", *options)
        assert done.code == 2
        assert done.out == ""
        assert done.err.startswith(f"howsmooth: study.toml, line {line}: ")
        assert words in done.err
        assert len(done.err.splitlines()) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


CONTENTS = {
    "a table": ("# mine\n\n[study]\nlayers = [0]\n", "line 3: there is no key 'study'"),
    "a table of a known name": ("[models]\na = 1\n", "line 1: 'models' must be a list"),
    "tables of tables": ("layers = [0]\n[[runs]]\na = 1\n", "line 2: there is no key 'runs'"),
    "a dotted key": ("layers = [0]\nsolver.rtol = 1e-3\n", "line 2: there is no key 'solver'"),
    "a quoted key": ('"layer" = [0]\n', "line 1: there is no key 'layer'; did you mean 'layers'?"),
    "a key after a list of many lines": (
        "lengths = [\n  8,\n  16,\n]\nsedes = [0]\n",
        "line 5: there is no key 'sedes'",
    ),
    "no value": ("layers = [0]\nlengths =\n", "line 2"),
    "no TOML": ("layers: [0]\n", "line 1"),
    "an open list": ("layers = [0\nlengths = [8]\n", "line 2"),
    "a key twice": ("layers = [0]\nlayers = [1]\n", "line 2"),
}


@pytest.mark.parametrize(("content", "words"), CONTENTS.values(), ids=CONTENTS)
def test_a_file_of_the_wrong_form_is_refused_with_its_line(content, words, howsmooth, tmp_path):
    (tmp_path / "study.toml").write_text(content, encoding="utf-8")
    done = howsmooth("sweep", "study.toml")
    assert done.code == 2
    assert "study.toml" in done.err
    assert words in done.err
    assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


def test_a_file_that_is_not_there_or_not_text_is_refused(howsmooth, tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"layers = [0]\nname = '\xff\xfe'\n")
    (tmp_path / "folder.toml").mkdir()
    for name, words in (
        ("missing.toml", "No such file"),
        ("folder.toml", "Is a directory"),
        ("bytes.toml", "line 2: this is not UTF-8"),
    ):
        done = howsmooth("sweep", name)
        assert done.code == 2
        assert name in done.err
        assert words in done.err
        assert len(done.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.toml", "folder.toml"]


def test_a_folder_that_is_a_file_is_refused_before_a_model_is_loaded(howsmooth, tmp_path):
    study(tmp_path, models='["no/such/folder"]', **SMALL)
    done = howsmooth("sweep", "study.toml", "--out", "study.toml/run")
    assert done.code == 2
    assert "--out" in done.err


def test_a_dry_run_counts_and_estimates_and_writes_nothing(howsmooth, tmp_path):
    study(tmp_path, layers="[0, 1, 2]", lengths="[8, 16, 32]", sequences="4")
    (tmp_path / "empty").mkdir()
    for more in ([], ["--out", "empty"]):
        found = json.loads(howsmooth("sweep", "study.toml", "--dry-run", "--json", *more).out)
        assert (found["tasks"], found["done"], found["left"]) == (36, 0, 36)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "study.toml"]
    said = howsmooth("sweep", "study.toml", "--dry-run")
    assert said.out.startswith("36 tasks, 0 done, 36 left: about ")
    began = time.perf_counter()
    assert howsmooth("sweep", "study.toml", "--out", "run").code == 0
    took = time.perf_counter() - began
    with Store(tmp_path / "run") as store:
        work = sum(record.seconds for record in store.records())
    assert work <= took
    assert work / 5 < found["expected_seconds"] < 5 * work
    again = json.loads(howsmooth("sweep", "study.toml", "--dry-run", "--json", "--out", "run").out)
    assert again == {"run": "run", "tasks": 36, "done": 36, "left": 0, "expected_seconds": 0.0}


def test_a_failure_is_said_and_ends_with_exit_code_one_until_it_is_mended(howsmooth, tmp_path, save_model):
    model = save_model(tmp_path / "model")
    path = study(tmp_path, models=f'["{model}"]', **SMALL | {"layers": "[0, 1]"})
    assert howsmooth("sweep", str(path), "--out", "run").code == 0
    with Store(tmp_path / "run") as store:
        record, other = store.records()
        store._database.execute("DELETE FROM records WHERE key = ?", (record.task.key,))
        store._database.execute(
            "INSERT INTO failures VALUES (?, ?, ?)", (record.task.key, record.task.to_json(), "OSError: gone")
        )
    done = howsmooth("sweep", str(path), "--out", "run", "--json")
    assert done.code == 1
    assert json.loads(done.out)["failed"] == 1
    assert "OSError: gone" in done.err
    # failures of tasks that the study no longer asks for are not its own
    fewer = study(tmp_path, models=f'["{model}"]', **SMALL | {"layers": f"[{other.task.layer}]"})
    assert howsmooth("sweep", str(fewer), "--out", "run").code == 0
    path = study(tmp_path, models=f'["{model}"]', **SMALL | {"layers": "[0, 1]"})
    done = howsmooth("sweep", str(path), "--out", "run", "--retry-failed")
    assert (done.code, done.err) == (0, "")
