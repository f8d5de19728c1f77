"""Runs can be listed, shown and taken along, without any model."""

import csv
import json
import math
import shutil
import sqlite3
import sys

import pytest
from pyarrow import parquet

from howsmooth.studies.export import flat
from howsmooth.studies.kinds import run
from howsmooth.studies.records import Failure, Record
from howsmooth.studies.setting import here
from howsmooth.studies.store import FILE, Store
from howsmooth.studies.sweep import sweep
from howsmooth.studies.tasks import Task

ONE = {"A": ((-1.0,),), "V": ((1.0,),)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def swept(folder, howsmooth, save_model):
    """A run of a small model that is gone meanwhile."""
    if not (folder / "small").exists():
        model = save_model(folder / "model")
        text = (
            f'models = ["{model}"]\nlengths = [6, 8]\nsequences = 2\nreleased = true\n'
            'maps = ["attention", "residual", "head:0", "head:1"]\nseeds = [0, 1]\n'
        )
        (folder / "study.toml").write_text(text, encoding="utf-8")
        done = howsmooth("sweep", str(folder / "study.toml"), "--out", str(folder / "small"))
        assert done.code == 0, done.err
        shutil.rmtree(model)
    return folder / "small"


def records(folder):
    with Store(folder) as store:
        return store.records()


def test_runs_are_listed(howsmooth, tmp_path):
    with Store(tmp_path / "runs" / "a") as store:
        sweep([Task(kind="regime", length=5, radius=1.0, **ONE)], store)
    with Store(tmp_path / "runs" / "deep" / "b") as store:
        store.add([Record(task=Task(model="m", length=3), lower=1.0, setting=here())])
        store.add([Failure(task=Task(model="m", length=4), error="no")])
    found = howsmooth("runs")
    assert found.out.splitlines() == [
        "runs/a: 1 records; no model; attention; n = 5",
        "runs/deep/b: 1 records, 1 failed; m; attention; n = 3",
    ]
    rows = json.loads(howsmooth("runs", "--json").out)
    about = {"models": ["m"], "texts": [], "maps": ["attention"], "lengths": [3]}
    assert rows[1] == {"run": "runs/deep/b", "records": 1, "failed": 1} | about
    assert howsmooth("runs", "runs/deep").out.startswith("runs/deep/b")


def test_a_folder_without_runs_says_so(howsmooth, tmp_path):
    (tmp_path / "empty").mkdir()
    assert howsmooth("runs", "empty").out == "No runs in empty.\n"
    done = howsmooth("runs", "nowhere")
    assert done.code == 2
    assert "nowhere" in done.err


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_folder_that_holds_no_run_is_refused_and_left_alone(command, howsmooth, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("empty", "nowhere", "file"):
        done = howsmooth(command, name)
        assert done.code == 2
        assert f"{name!r} holds no run" in done.err
        assert len(done.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


def test_a_run_is_shown_with_the_numbers_of_its_records_though_the_model_is_gone(swept, howsmooth):
    done = howsmooth("show", str(swept), "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    stored = records(swept)
    assert len(stored) == 2 * 2 * 2 * 4 * 2
    # one answer for each map and seed
    assert sorted(m["map"] for m in found) == sorted(2 * ["attention", "residual", "head:0", "head:1"])
    assert all(m["complete"] and m["heads"] == [] and len(m["records"]) == 8 for m in found)
    rows = [row for measurement in found for row in measurement["records"]]
    assert sorted(map(str, rows)) == sorted(str(record.as_row()) for record in stored)
    for measurement in found:
        assert {row["map"] for row in measurement["records"]} == {measurement["map"]}
        for layer in measurement["layers"]:
            at = [r["lower"] for r in measurement["records"] if (r["layer"], r["length"]) == (layer["layer"], 8)]
            assert layer["constant"] == pytest.approx(math.prod(at) ** (1 / len(at)))
            assert (layer["sharp_upper"] is not None) == (measurement["map"] != "residual")


def test_a_run_is_printed_map_by_map(swept, howsmooth):
    done = howsmooth("show", str(swept))
    assert (done.code, done.err) == (0, "")
    words = " ".join(done.out.split())  # lines break where the terminal ends
    for part in ("attention", "residual", "head:0", "head:1"):
        assert words.count(f"the constant of '{part}'") == 2


def test_show_says_the_same_as_measure_did_with_heads_beside_the_layer(howsmooth, tmp_path):
    options = ["minilm", "--layers", "0", "--lengths", "4,6", "--sequences", "2", "--per-head", "--out", "run"]
    done = howsmooth("measure", *options, "--json")
    assert done.code == 0, done.err
    (found,) = json.loads(howsmooth("show", "run", "--json").out)
    said = json.loads(done.out)
    order = {"key": lambda row: (row["layer"], row["length"], row["window"], row["map"])}
    assert sorted(found.pop("heads"), **order) == sorted(said.pop("heads"), **order)
    assert found == said


def test_a_run_that_was_stopped_is_not_called_complete(swept, howsmooth, tmp_path):
    shutil.copytree(swept, tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / FILE) as database:
        database.execute("DELETE FROM records WHERE key = (SELECT min(key) FROM records)")
    database.close()
    found = json.loads(howsmooth("show", "run", "--json").out)
    assert sorted(measurement["complete"] for measurement in found) == [False] + [True] * 7


def test_a_run_without_texts_says_how_to_see_it(howsmooth, tmp_path):
    with Store(tmp_path / "run") as store:
        sweep([Task(kind="regime", length=5, radius=1.0, **ONE)], store)
        store.add([Failure(task=Task(model="m", length=4), error="no such thing")])
    done = howsmooth("show", "run")
    assert done.code == 0
    assert "howsmooth export run" in done.out
    assert "no such thing" in done.err
    assert json.loads(howsmooth("show", "run", "--json").out) == []


def read(path):
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line, parse_constant=_refuse) for line in path.read_text(encoding="utf-8").splitlines()]
    return parquet.read_table(path).to_pylist()


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def mixed(swept, tmp_path):
    """The run of a model, with tasks of other kinds beside: one with an infinite bound."""
    shutil.copytree(swept, tmp_path / "run")
    with Store(tmp_path / "run") as store:
        sweep([Task(kind="regime", length=5, radius=radius, **ONE) for radius in (1.5, 40.0)], store)
        assert any(math.isinf(value) for record in store.records() for _, value in record.numbers)
    return tmp_path / "run"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_an_export_has_one_row_for_each_record_and_every_digit(kind, mixed, howsmooth):
    stored = [flat(record) for record in records(mixed)]
    done = howsmooth("export", str(mixed), "--to", kind)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{len(stored)} records in {mixed / f'records.{kind}'}.\n"
    rows = read(mixed / f"records.{kind}")
    assert len(rows) == len(stored) == 66
    assert len({row["key"] for row in rows}) == 66
    for row, record in zip(rows, stored, strict=True):
        for name, value in record.items():
            assert _same(row[name], value), name
        assert all(row[name] in ("", None) for name in row.keys() - record.keys())


def _same(cell, value):
    if value is None:
        return cell in ("", None)
    if isinstance(cell, str) and not isinstance(value, str):
        return cell == str(value) if isinstance(value, bool) else float(cell) == float(value)
    return cell == value and type(cell) is type(value)


def test_a_row_says_what_was_asked_what_was_found_and_with_what(mixed):
    record = next(record for record in records(mixed) if record.task.kind == "local")
    row = flat(record)
    assert row["key"] == record.task.key
    for name in ("model", "layer", "map", "length", "window", "seed", "rtol"):
        assert row[name] == getattr(record.task, name)
    for name in ("lower", "upper", "steps", "radius", "reach", "released", "seconds"):
        assert row[name] == getattr(record, name)
    assert row["with_torch"] == record.setting.torch


def test_a_table_goes_where_it_is_told(mixed, howsmooth, tmp_path):
    assert howsmooth("export", "run", "--to", "csv", "--out", "table.txt").code == 0
    assert len((tmp_path / "table.txt").read_text(encoding="utf-8").splitlines()) == 67
    done = howsmooth("export", "run", "--out", "nowhere/table.csv")
    assert done.code == 2
    assert "nowhere" in done.err
    (tmp_path / "folder").mkdir()
    done = howsmooth("export", "run", "--out", "folder")
    assert done.code == 2
    assert "folder" in done.err
    assert howsmooth("export", "run", "--to", "xlsx").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run", "table.txt"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_an_empty_run_is_an_empty_table(kind, howsmooth, tmp_path):
    with Store(tmp_path / "run"):
        pass
    done = howsmooth("export", "run", "--to", kind)
    assert (done.code, done.err) == (0, "")
    assert read(tmp_path / "run" / f"records.{kind}") == []


def test_without_pyarrow_the_command_that_installs_it_is_given(mixed, howsmooth, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = howsmooth("export", "run", "--to", "parquet")
    assert done.code == 2
    assert "pip install 'howsmooth[parquet]'" in done.err
    assert not (mixed / "records.parquet").exists()


def test_the_view_has_the_numbers_of_every_record(mixed):
    database = sqlite3.connect(mixed / FILE)
    database.row_factory = sqlite3.Row
    rows = [dict(row) for row in database.execute("SELECT * FROM measurements")]
    database.close()
    stored = [flat(record) for record in records(mixed)]
    columns = rows[0].keys()
    assert {"kind", "model", "layer", "map", "length", "window", "seed", "lower", "upper", "seconds"} <= columns

    def order(row):
        return str([row[name] for name in columns])

    assert sorted(({name: row[name] for name in columns} for row in stored), key=order) == sorted(rows, key=order)


def test_the_view_reads_an_infinite_number():
    task = Task(kind="regime", length=5, radius=40.0, **ONE)
    with Store(None) as store:
        store.add([run(task), Record(task=Task(length=1), lower=1.0, upper=math.inf, setting=here())])
        found = store._database.execute("SELECT upper FROM measurements ORDER BY upper").fetchall()
    assert found[1] == (math.inf,)
