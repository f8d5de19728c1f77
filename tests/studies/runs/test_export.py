"""Records as one flat table: every record a row, every digit kept."""

import csv
import json
import sqlite3
import sys

import pytest
from asked import ONE, answered, bounded, filler
from pyarrow import parquet

from howsmooth.errors import FileError
from howsmooth.studies.kinds.tokens_in_ball import RegimesAsk
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store, flat, write_table

FORMATS = ["csv", "jsonl", "parquet"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A run with records of several kinds, one of which has bounds without end."""
    folder = tmp_path_factory.mktemp("mixed")
    with Store(folder) as store:
        store.add([*(filler(i) for i in range(5)), bounded()])
        answered([RegimesAsk(length=5, radius=radius, **ONE) for radius in (1.5, 40.0)], store)
    return folder


def read(path):
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line, parse_constant=_refuse) for line in path.read_text(encoding="utf-8").splitlines()]
    return parquet.read_table(path).to_pylist()


def _refuse(name):
    raise AssertionError(f"{name} is no JSON")


def _same(cell, value):
    if value is None:
        return cell in ("", None)
    if isinstance(cell, str) and not isinstance(value, str):
        return cell == str(value) if isinstance(value, bool) else float(cell) == float(value)
    return cell == value and type(cell) is type(value)


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
def test_an_export_has_one_row_for_each_record_and_every_digit(to, mixed, tmp_path):
    stored = [flat(record) for record in read_run(mixed).records]
    assert write_table(str(mixed), tmp_path / f"table.{to}", to) == 8
    rows = read(tmp_path / f"table.{to}")
    assert len(rows) == len(stored) == len({row["key"] for row in rows}) == 8
    for row, record in zip(rows, stored, strict=True):
        for name, value in record.items():
            assert _same(row[name], value), name
        assert all(row[name] in ("", None) for name in row.keys() - record.keys())
    assert [path.name for path in tmp_path.iterdir()] == [f"table.{to}"]


def test_a_row_says_what_was_asked_what_was_found_and_with_what():
    record = filler(3)
    row = flat(record)
    assert (row["key"], row["kind"]) == (record.ask.key, "text")
    assert (row["model"], row["layer"], row["map"], row["length"], row["index"]) == ("m", 3, "attention", 8, 0)
    assert (row["rtol"], row["confidence"], row["seed"]) == (1e-3, 0.999, 0)
    for name in ("lower", "upper", "steps", "mean_radius", "reach", "typical", "released_quantity"):
        assert row[name] == getattr(record.answer, name)
    assert row["seconds"] == record.seconds
    assert row["with_torch"] == record.machine.torch
    assert "sensitivity" not in row


@pytest.mark.parametrize("to", FORMATS)
def test_an_empty_run_is_an_empty_table(to, tmp_path):
    with Store(tmp_path / "run"):
        pass
    assert write_table(str(tmp_path / "run"), tmp_path / f"table.{to}", to) == 0
    assert read(tmp_path / f"table.{to}") == []


def test_a_table_that_cannot_be_written_is_refused(mixed, tmp_path):
    with pytest.raises(FileError, match="nowhere") as refusal:
        write_table(str(mixed), tmp_path / "nowhere" / "table.csv", "csv")
    assert refusal.value.field == "out"
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="folder"):
        write_table(str(mixed), tmp_path / "folder", "csv")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["empty", "nowhere", "file"])
def test_a_folder_that_holds_no_run_is_refused_and_left_alone(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for look in (read_run, lambda folder: write_table(folder, tmp_path / "table.csv", "csv")):
        with pytest.raises(FileError, match=r"holds no run") as refusal:
            look(str(tmp_path / name))
        assert len(str(refusal.value).splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


def test_without_pyarrow_the_command_that_installs_it_is_given(mixed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FileError, match=r"pip install 'howsmooth\[parquet\]'"):
        write_table(str(mixed), tmp_path / "table.parquet", "parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["text", "bounds", "regimes"])
def test_the_view_of_a_kind_has_the_numbers_of_every_record(kind, mixed):
    database = sqlite3.connect(mixed / FILE)
    database.row_factory = sqlite3.Row
    rows = [dict(row) for row in database.execute(f"SELECT * FROM {kind} ORDER BY key")]
    database.close()
    stored = [flat(record) for record in read_run(mixed).records if record.ask.kind == kind]
    # tables say the kind and the machine besides
    assert rows == [{name: row[name] for name in rows[0]} for row in stored]
    assert {name for row in stored for name in row if not name.startswith("with_")} == rows[0].keys() | {"kind"}
