"""A run of which records are missing says so; one on a read-only medium is read; one that never ends is refused."""

import contextlib
import random
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

RECORDS, FLIPS = 40, 60
PATIENCE = 120.0


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a run as a process that was killed leaves it: half of its records are in the log alone."""
    folder, copy = tmp_path_factory.mktemp("killed") / "run", tmp_path_factory.mktemp("copy") / "run"
    with Store(folder) as store:
        store.add(filler(i) for i in range(RECORDS // 2))
    with Store(folder) as store:
        store.add(filler(i) for i in range(RECORDS // 2, RECORDS))
        shutil.copytree(folder, copy)
    return copy


def check_refusal(folder, *words):
    with pytest.raises(FileError) as refusal:
        read_run(folder)
    assert len(str(refusal.value).splitlines()) == 1
    assert all(word in str(refusal.value) for word in (str(folder), *words))


def test_a_run_that_was_killed_is_read_whole(killed, tmp_path):
    run = shutil.copytree(killed, tmp_path / "run")
    assert (run / f"{FILE}-wal").stat().st_size > 0
    assert len(read_run(run).records) == RECORDS


def test_a_flipped_bit_in_the_log_loses_no_record_silently(killed, tmp_path):
    rng, refused = random.Random(0), 0
    log = (killed / f"{FILE}-wal").read_bytes()
    for flip in range(FLIPS):
        run = shutil.copytree(killed, tmp_path / str(flip))
        place = rng.randrange(len(log))
        harmed = log[:place] + bytes([log[place] ^ 1 << rng.randrange(8)]) + log[place + 1 :]
        (run / f"{FILE}-wal").write_bytes(harmed)
        with Store(run) as store:
            harmless = len(store.keys()) == RECORDS
        shutil.copytree(killed, run, dirs_exist_ok=True)
        (run / f"{FILE}-wal").write_bytes(harmed)
        if harmless:
            assert len(read_run(run).records) == RECORDS
        else:
            refused += 1
            check_refusal(run, "missing", f"of {RECORDS} records")
    assert refused > FLIPS // 4


def test_the_file_of_records_copied_alone_says_that_the_rest_is_missing(killed, tmp_path):
    shutil.copy(killed / FILE, tmp_path)
    check_refusal(tmp_path, "not closed", "copy the whole folder")


def test_the_file_and_its_number_copied_without_the_log_say_how_many_are_missing(killed, tmp_path):
    for name in (FILE, f"{FILE}-number"):
        shutil.copy(killed / name, tmp_path)
    check_refusal(tmp_path, f"{RECORDS // 2 - 1} of {RECORDS} records", "missing")  # the first was written to the file


def test_a_rerun_measures_what_is_missing_and_the_run_is_whole_again(killed, tmp_path):
    shutil.copy(killed / FILE, tmp_path)
    with Store(tmp_path) as store:
        assert len(store.keys()) == RECORDS // 2 + 1
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


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])  # older versions left runs in the second
def test_a_run_on_a_read_only_medium_is_read(journal, medium, tmp_path):
    with Store(medium) as store:
        store.add(filler(i) for i in range(3))
    with contextlib.closing(sqlite3.connect(medium / FILE)) as database:
        database.execute(f"PRAGMA journal_mode = {journal}")
    assert mount(medium, "remount,ro") == 0
    assert len(read_run(medium).records) == 3
    assert write_table(str(medium), tmp_path / "table.csv", "csv") == 3
