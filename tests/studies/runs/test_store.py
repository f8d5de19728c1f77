"""Records on disk: what is added is found, the first stays, and what is no run is refused."""

import sqlite3
import threading

import pytest
from asked import bounded, filler
from measured import changed
from msgspec.structs import replace

import howsmooth as hs
from howsmooth.studies.records import Failure, RunPlan
from howsmooth.studies.runs.database import FILE, VERSION, check_writable
from howsmooth.studies.runs.store import Store

FIRST = filler(0)


def rows(folder, query):
    database = sqlite3.connect(folder / FILE)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


@pytest.mark.parametrize("kept", [True, False], ids=["on disk", "in memory"])
def test_what_is_added_is_found(kept, tmp_path):
    with Store(tmp_path / "run" if kept else None) as store:
        assert store.find([FIRST.ask.key]) == {}
        store.add([FIRST])
        assert store.find([FIRST.ask.key, filler(1).ask.key]) == {FIRST.ask.key: FIRST}
        assert store.done([FIRST.ask, filler(1).ask]) == {FIRST.ask.key}


def test_what_is_added_is_there_after_closing_bit_for_bit_and_typed(tmp_path):
    added = [filler(1), filler(2), bounded()]
    with Store(tmp_path) as store:
        store.add(added)
    with Store(tmp_path) as store:
        found = store.records()
    assert sorted(found, key=lambda r: r.ask.key) == found
    assert {record.ask.key: record for record in found} == {record.ask.key: record for record in added}
    assert {type(record.answer) for record in found} == {type(record.answer) for record in added}


def test_what_is_there_first_stays(tmp_path):
    with Store(tmp_path) as store:
        store.add([changed(FIRST, lower=1.0)])
        store.add([changed(FIRST, lower=2.0)])
        assert store.find([FIRST.ask.key])[FIRST.ask.key].answer.lower == 1.0
    assert rows(tmp_path, "SELECT count(*) FROM records") == [(1,)]


def test_a_failure_is_kept_until_there_is_a_record(tmp_path):
    with Store(tmp_path) as store:
        store.add([Failure(ask=FIRST.ask, error="old")])
        store.add([Failure(ask=FIRST.ask, error="new")])
        assert store.failures() == [Failure(ask=FIRST.ask, error="new")]
        assert store.failed([FIRST.ask]) == {FIRST.ask.key}
        assert store.failures([FIRST.ask]) == store.failures()
        assert store.failures([]) == []
        assert store.keys() == frozenset()
        store.add([FIRST])
        assert store.keys() == {FIRST.ask.key}
        assert store.failures() == []
        # another process may fail where this one did not
        store.add([Failure(ask=FIRST.ask, error="out of memory")])
        assert store.failures() == []
        assert store.records() == [FIRST]


def test_every_kind_has_a_view_with_a_column_for_each_field(tmp_path):
    with Store(tmp_path) as store:
        store.add(replace(filler(i), ask=replace(filler(i).ask, released=True)) for i in range(3))
        store.add([bounded()])
    found = rows(tmp_path, "SELECT layer, lower, upper, released FROM text ORDER BY layer")
    assert found == [(i, 0.1 + i / 3, 0.2 + i / 3, 1) for i in range(3)]
    (row,) = rows(
        tmp_path,
        'SELECT model, map, text, length, "index", rtol, confidence, steps, status, local_upper, threads, seconds '
        "FROM text WHERE layer = 2",
    )
    assert row == ("m", "attention", "t", 8, 0, 0.001, 0.999, 2, "converged", None, None, 0.1)
    (row,) = rows(tmp_path, "SELECT length, radius, biases, sharp_upper, tied_pair, two_point, seconds FROM bounds")
    assert row == (3, 1.5, 1, 1 / 3, 0.1 + 0.2, None, 0.0)
    columns = [name for _, name, *_ in rows(tmp_path, "PRAGMA table_info(text)")]
    assert "sensitivity" not in columns
    assert len(columns) == len(set(columns))


def test_facts_are_kept_and_compared(tmp_path):
    with Store(tmp_path) as store:
        assert store.agree("weights", "abc")
    with Store(tmp_path) as store:
        assert store.agree("weights", "abc")
        assert not store.agree("weights", "other")
        assert store.fact("weights") == "abc"
        store.keep("weights", "other")
        assert store.fact("weights") == "other"
        assert store.fact("nothing") is None


def test_windows_are_kept(tmp_path):
    with Store(tmp_path) as store:
        assert store.window("k") == ()
        store.note_windows({"k": ["down", "the", "rabbit-hole", "“é”"]})
        store.note_windows({"k": ["other"]})
    with Store(tmp_path) as store:
        assert store.window("k") == ("down", "the", "rabbit-hole", "“é”")


def test_plans_are_numbered_as_they_come_and_one_that_comes_again_stays(tmp_path):
    plans = [RunPlan(kind="text", keys=(name,), command=f"howsmooth {name}") for name in "zab"]
    with Store(tmp_path) as store:
        for plan in (*plans, plans[0], plans[2]):
            store.keep_plan(plan)
    with Store(tmp_path) as store:
        assert store.plans() == [replace(plan, number=i) for i, plan in enumerate(plans)]


def test_two_stores_on_one_folder_both_write(tmp_path):
    records = [filler(i) for i in range(20)]
    with Store(tmp_path) as one, Store(tmp_path) as two:
        for i, record in enumerate(records):
            (one, two)[i % 2].add([record])
        assert one.records() == two.records()
        assert len(one.records()) == 20


def test_stores_that_begin_at_the_same_moment_all_write(tmp_path):
    begin, failures = threading.Barrier(8, timeout=120), []

    def write(number):
        begin.wait()
        try:
            with Store(tmp_path) as store:
                for i in range(10):
                    store.add([filler(10 * number + i)])
        except hs.errors.FileError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert failures == []
    assert rows(tmp_path, "SELECT count(*) FROM text") == [(80,)]


def test_a_run_of_a_newer_version_is_refused(tmp_path):
    with Store(tmp_path) as store:
        store.add([FIRST])
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


def test_a_file_that_a_killed_process_left_empty_is_begun(tmp_path):
    (tmp_path / FILE).touch()
    with Store(tmp_path) as store:
        store.add([FIRST])
        assert store.records() == [FIRST]


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_below_a_file_is_refused(below, tmp_path):
    (tmp_path / "file").write_text("words", encoding="utf-8")
    with pytest.raises(hs.errors.FileError, match="is a file"):
        Store(tmp_path / "file" / below)
    with pytest.raises(hs.errors.FileError, match="out=") as refusal:
        check_writable(tmp_path / "file" / below)
    assert refusal.value.field == "out"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_asking_whether_a_folder_can_be_made_does_not_make_it(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
