"""A run of which records are missing says so; one on a read-only medium is read; one that never ends is refused."""

import contextlib
import shutil
import sqlite3
import subprocess
import time

import pytest
from asked import filler

from howsmooth.errors import FileError
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store, write_table

RECORDS = 40
PATIENCE = 120.0


def check_refusal(folder, *words):
    with pytest.raises(FileError) as refusal:
        read_run(folder)
    assert len(str(refusal.value).splitlines()) == 1
    assert all(word in str(refusal.value) for word in (str(folder), *words))


def test_a_run_that_is_being_written_can_be_read_and_copied(tmp_path):
    with Store(tmp_path / "run") as store:
        store.add(filler(i) for i in range(RECORDS))
        assert len(read_run(tmp_path / "run").records) == RECORDS
        shutil.copy(tmp_path / "run" / FILE, tmp_path)
    assert len(read_run(tmp_path).records) == RECORDS


def test_a_rerun_measures_what_is_missing_and_the_run_is_whole_again(tmp_path):
    with Store(tmp_path) as store:
        store.add(filler(i) for i in range(RECORDS))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("DELETE FROM records WHERE key = ?", (filler(1).ask.key,))
    with Store(tmp_path) as store:
        assert len(store.keys()) == RECORDS - 1
        store.add(filler(i) for i in range(RECORDS))
    assert len(read_run(tmp_path).records) == RECORDS


def test_a_run_that_is_closed_is_one_file(tmp_path):
    with Store(tmp_path / "run") as store:
        store.add(filler(i) for i in range(RECORDS))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [FILE]
    shutil.copy(tmp_path / "run" / FILE, tmp_path)
    assert len(read_run(tmp_path).records) == RECORDS


def test_a_row_that_is_gone_is_missing(tmp_path):
    with Store(tmp_path) as store:
        store.add(filler(i) for i in range(3))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("DELETE FROM records WHERE key = ?", (filler(1).ask.key,))
    check_refusal(tmp_path, "1 of 3 records")


def test_an_empty_file_of_records_is_refused_by_whoever_reads_it(tmp_path):
    (tmp_path / FILE).touch()
    check_refusal(tmp_path, "is empty")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS {} FROM n"


@pytest.mark.parametrize("table", ["records", "facts", "plans"])
@pytest.mark.clock("it is refused within seconds")
def test_a_view_without_an_end_in_place_of_a_table_is_refused_at_once(table, tmp_path):
    with Store(tmp_path) as store:
        store.add([filler(0)])
    columns = "key, i AS ask, i AS result, i AS value, i AS error, i AS checksum"
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute(f"DROP TABLE {table}")
        database.execute(f"CREATE VIEW {table} AS {ENDLESS.format(columns)}")
    began = time.monotonic()
    for read in (read_run, Store):
        with pytest.raises(FileError, match="tables are not those of a run"):
            read(tmp_path)
    assert time.monotonic() - began < 10


def test_a_sparse_file_of_records_beyond_the_memory_is_refused_at_once(tmp_path, small_memory):
    with Store(tmp_path) as store:
        store.add([filler(0)])
    with (tmp_path / FILE).open("r+b") as file:
        file.truncate(10 * 2**30)
    check_refusal(tmp_path, "of memory")


@pytest.fixture
def medium(tmp_path):
    """A file system that can be made read-only."""
    folder = tmp_path / "medium"
    folder.mkdir()
    if shutil.which("mount") is None or mount(folder, "size=4m") != 0:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=PATIENCE)


def mount(folder, options):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode


def test_a_run_on_a_read_only_medium_is_read(medium, tmp_path):
    with Store(medium) as store:
        store.add(filler(i) for i in range(3))
    assert mount(medium, "remount,ro") == 0
    assert len(read_run(medium).records) == 3
    assert write_table(str(medium), tmp_path / "table.csv", "csv") == 3
