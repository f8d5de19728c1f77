"""Records on disk: what is added is found, the first stays, and what is no run is refused."""

import dataclasses
import sqlite3
import threading

import pytest

import howsmooth as hs
from howsmooth.studies.records import Record
from howsmooth.studies.setting import here
from howsmooth.studies.store import FILE, VERSION, Store, check_writable
from howsmooth.studies.tasks import Task, fingerprint

FIRST = Task(model="m", text="t", digest="d", layer=0, map="attention", length=8, window=0)


def record(task=FIRST, **fields):
    known = {
        "lower": 0.1 + 0.2,  # not a short decimal
        "upper": 1 / 3,
        "steps": 5,
        "status": "converged",
        "products": 10,
        "radius": 2.0,
        "reach": 3.0,
        "local_upper": None,
        "released": None,
        "sensitivity": (0.25, 0.75),
        "response": (0.5, 0.5),
        "seconds": 0.1,
    }
    return Record(task=task, setting=here(), **known | fields)


def tasks(count, **fields):
    return [dataclasses.replace(FIRST, window=i, **fields) for i in range(count)]


def rows(folder, query):
    database = sqlite3.connect(folder / FILE)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


@pytest.mark.parametrize("kept", [True, False], ids=["on disk", "in memory"])
def test_what_is_added_is_found(kept, tmp_path):
    added = record(local_upper=1.5, released=0.7)
    with Store(tmp_path / "run" if kept else None) as store:
        assert store.find([FIRST]) == {}
        store.add([added])
        other = dataclasses.replace(FIRST, window=1)
        assert store.find([FIRST, other]) == {FIRST.key: added}


def test_what_is_added_is_there_after_closing_bit_for_bit(tmp_path):
    with Store(tmp_path) as store:
        store.add([record()])
    with Store(tmp_path) as store:
        assert store.find([FIRST]) == {FIRST.key: record()}


def test_what_is_there_first_stays(tmp_path):
    with Store(tmp_path) as store:
        store.add([record(lower=1.0)])
        store.add([record(lower=2.0)])
        assert store.find([FIRST])[FIRST.key].lower == 1.0
    assert rows(tmp_path, "SELECT count(*) FROM records") == [(1,)]


@pytest.mark.parametrize(
    "change", [{"layer": 1}, {"map": "heads"}, {"seed": 1}, {"rtol": 1e-4}, {"certify": False}, {"model": "n"}]
)
def test_every_setting_makes_another_task(change):
    assert dataclasses.replace(FIRST, **change).key != FIRST.key


def test_the_key_of_a_task_is_the_same_for_ever():
    # an old run must be found again by a new version
    assert FIRST.key == "c64056cf9cd84a69"
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_the_view_has_one_row_for_each_record(tmp_path):
    with Store(tmp_path) as store:
        store.add(record(task, lower=float(task.window), released=0.5) for task in tasks(3, length=2))
        store.add([record(dataclasses.replace(FIRST, map="head:1"), local_upper=4.0)])
    found = rows(tmp_path, "SELECT window, lower, released FROM measurements WHERE map = 'attention' ORDER BY window")
    assert found == [(0, 0.0, 0.5), (1, 1.0, 0.5), (2, 2.0, 0.5)]
    (row,) = rows(
        tmp_path,
        "SELECT model, text, layer, length, upper, confidence, steps, radius, reach, local_upper, status, seconds "
        "FROM measurements WHERE map = 'head:1'",
    )
    assert row == ("m", "t", 0, 8, 1 / 3, 0.999, 5, 2.0, 3.0, 4.0, "converged", 0.1)


def test_facts_are_kept_and_compared(tmp_path):
    with Store(tmp_path) as store:
        assert store.agree("weights", "abc")
    with Store(tmp_path) as store:
        assert store.agree("weights", "abc")
        assert not store.agree("weights", "other")
        assert store.agree("weights", "abc")


def test_windows_are_kept(tmp_path):
    with Store(tmp_path) as store:
        assert store.window("k") == ()
        store.note_windows({"k": ["down", "the", "rabbit-hole", "“é”"]})
        store.note_windows({"k": ["other"]})
    with Store(tmp_path) as store:
        assert store.window("k") == ("down", "the", "rabbit-hole", "“é”")


def test_two_stores_on_one_folder_both_write(tmp_path):
    with Store(tmp_path) as one, Store(tmp_path) as two:
        for i, task in enumerate(tasks(20)):
            (one, two)[i % 2].add([record(task)])
        assert len(one.find(tasks(20))) == len(two.find(tasks(20))) == 20


def test_stores_that_begin_at_the_same_moment_all_write(tmp_path):
    begin, failures = threading.Barrier(8, timeout=30), []

    def write(layer):
        begin.wait()
        try:
            with Store(tmp_path) as store:
                for task in tasks(10, layer=layer):
                    store.add([record(task)])
        except hs.errors.FileError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=write, args=(layer,), daemon=True) for layer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert failures == []
    assert rows(tmp_path, "SELECT count(*) FROM measurements") == [(80,)]


def test_a_run_of_a_newer_version_is_refused(tmp_path):
    with Store(tmp_path) as store:
        store.add([record()])
    database = sqlite3.connect(tmp_path / FILE)
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    with pytest.raises(hs.errors.FileError, match=f"newer howsmooth \\(version {VERSION + 1}") as refusal:
        Store(tmp_path)
    assert len(str(refusal.value).splitlines()) == 1
    assert rows(tmp_path, "SELECT count(*) FROM records") == [(1,)]


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    content = b"this is a letter, not a database\n" * 100
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(hs.errors.FileError, match="cannot be read or written") as refusal:
        Store(tmp_path)
    assert len(str(refusal.value).splitlines()) == 1
    assert FILE in str(refusal.value)
    assert (tmp_path / FILE).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    database = sqlite3.connect(tmp_path / FILE)
    database.execute("CREATE TABLE records (title TEXT)")
    database.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(hs.errors.FileError, match="no run of ours"):
        Store(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_below_a_file_is_refused(below, tmp_path):
    (tmp_path / "file").write_text("words", encoding="utf-8")
    with pytest.raises(hs.errors.FileError, match="is a file"):
        Store(tmp_path / "file" / below)
    with pytest.raises(hs.errors.FileError, match="--out"):
        check_writable(tmp_path / "file" / below)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_asking_whether_a_folder_can_be_made_does_not_make_it(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
