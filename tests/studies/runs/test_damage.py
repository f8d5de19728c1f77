"""Of damage to a store nothing is believed: every number is the old one, or it is refused, or it is missing."""

import contextlib
import random
import re
import sqlite3
from pathlib import Path

import pytest
from asked import answered, bounded, filler, radii, untimed

import howsmooth as hs
from howsmooth.errors import FileError
from howsmooth.studies.records import Failure, RunPlan
from howsmooth.studies.runs.database import FILE, TABLES, checksum
from howsmooth.studies.runs.run import read_run
from howsmooth.studies.runs.store import Store, write_table

FLIPS = 300
FACT, WINDOW = "bounds of m, layer 0, n = 8, R = 5.25", "opening of 3fb1"
PLAN = RunPlan(kind="text", keys=tuple(filler(i).ask.key for i in range(6)), command="howsmooth measure m")
FAILURE = Failure(ask=filler(77).ask, error="MemoryError: 30517 GiB")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a small run with something in every table."""
    folder = tmp_path_factory.mktemp("whole")
    with Store(folder) as store:
        store.add([*(filler(i) for i in range(6)), bounded(), FAILURE])
        store.keep(FACT, "6.75")
        store.note_windows({WINDOW: ["down", "the", "hole"]})
        store.keep_plan(PLAN)
    return (folder / FILE).read_bytes()


@pytest.fixture(scope="module")
def unharmed(whole, tmp_path_factory):
    return everything(placed(whole, tmp_path_factory.mktemp("unharmed")))


def placed(content, folder):
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
    (folder / FILE).write_bytes(content)
    return folder


def everything(folder):
    """Read all that a store holds, table by table: what is there, or the refusal."""
    try:
        store = Store(folder)
    except FileError as error:
        return {"store": error}
    with store:
        reads = {
            "records": lambda: {r.ask.key: r for r in store.records()},
            "failures": lambda: {f.ask.key: f for f in store.failures()},
            "plans": lambda: {p.key: p for p in store.plans()},
            "facts": lambda: {FACT: found} if (found := store.fact(FACT)) is not None else {},
            "windows": lambda: {WINDOW: found} if (found := store.window(WINDOW)) else {},
        }
        found = {}
        for name, read in reads.items():
            try:
                found[name] = read()
            except FileError as error:
                found[name] = error
        return found


def judge(folder, unharmed):
    """Return whether anything was refused; fail if anything was believed that was not written."""
    refused = False
    for name, found in everything(folder).items():
        if isinstance(found, FileError):
            refused = True
            said = str(found)
            assert len(said.splitlines()) == 1
            assert str(folder / FILE) in said
            assert "give another folder" in said or "again, into the same folder" in said or "cannot be read" in said
        else:
            assert found.items() <= unharmed[name].items()
    return refused


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def bits_of(content, words):
    start = content.index(words)
    return range(8 * start, 8 * (start + len(words)))


@pytest.mark.slow
def test_of_single_bits_that_flip_anywhere_none_is_believed(whole, unharmed, tmp_path):
    for bit in random.Random(0).sample(range(8 * len(whole)), FLIPS):
        judge(placed(flipped(whole, bit), tmp_path), unharmed)


@pytest.mark.slow
def test_every_bit_of_a_record_is_watched(whole, unharmed, tmp_path):
    (row,) = (found for found in rows(whole, tmp_path) if found[0] == filler(0).ask.key)
    content = "".join(row).encode()
    assert len(content) > 300
    # one bit of every byte, each of the eight in turn
    for place, bit in enumerate(bits_of(whole, content)[::8]):
        assert judge(placed(flipped(whole, bit + place % 8), tmp_path), unharmed), whole[bit // 8 :][:20]


def rows(content, folder):
    with contextlib.closing(sqlite3.connect(placed(content, folder) / FILE)) as database:
        return database.execute("SELECT * FROM records ORDER BY key").fetchall()


@pytest.mark.parametrize(
    "words",
    [b"6.75", b"hole", b"30517", b"measure m", PLAN.keys[2].encode()],
    ids=["fact", "word", "failure", "plan", "planned key"],
)
def test_every_bit_of_what_stands_beside_records_is_watched(words, whole, unharmed, tmp_path):
    for bit in bits_of(whole, words):
        assert judge(placed(flipped(whole, bit), tmp_path), unharmed)


def test_a_refusal_names_the_key_and_how_to_measure_again(whole, tmp_path):
    record = filler(3)
    bit = bits_of(whole, (record.ask.key + record.ask.to_json()).encode())[-20]
    with Store(placed(flipped(whole, bit), tmp_path)) as store, pytest.raises(FileError) as refusal:
        store.records()
    assert f"what is kept under {record.ask.key!r}" in str(refusal.value)
    assert "Run the command that made the run again, into the same folder" in str(refusal.value)


def harm(folder, table, column, key="(SELECT min(key) FROM {table})", value="replace({column}, '1', '7')"):
    """Change what is kept without its checksum."""
    names = {"table": table, "column": column}
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute(f"UPDATE {table} SET {column} = {value.format(**names)} WHERE key = {key.format(**names)}")


@pytest.mark.parametrize("column", ["key", "ask", "result", "checksum"])
def test_a_rerun_answers_anew_what_is_damaged_and_nothing_else(column, tmp_path):
    asks = radii(4)
    with Store(tmp_path) as store:
        answered(asks, store)
        before = store.records()
    value = "'another key'" if column == "key" else "replace({column}, substr({column}, 5, 1), 'é')"
    harm(tmp_path, "records", column, value=value)
    with Store(tmp_path) as store, pytest.raises(FileError):
        store.records()
    seen = []
    with Store(tmp_path) as store:
        answered(asks, store, progress=seen.append)
        assert len(seen) == 1
        after = store.records()
    assert untimed(after) == untimed(before)
    assert [r for r in after if r in before] == before[1:], "the others were left alone"


def test_bytes_that_are_no_text_are_answered_anew_too(tmp_path):
    asks = radii(3)
    with Store(tmp_path) as store:
        answered(asks, store)
        before = store.records()
    content = (tmp_path / FILE).read_bytes()
    bit = bits_of(content, (before[1].ask.key + before[1].ask.to_json()).encode())[8 * 20 + 7]
    placed(flipped(content, bit), tmp_path)
    with Store(tmp_path) as store, pytest.raises(FileError, match=before[1].ask.key):
        store.records()
    with Store(tmp_path) as store:
        assert answered(asks, store).done == 3
        assert untimed(store.records()) == untimed(before)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_measuring_again_mends_every_table(table, tiny, small, tmp_path):
    options = small | {"layers": [0], "lengths": [4], "out": tmp_path}
    first = hs.measure(tiny, **options)
    if table == "failures":
        with Store(tmp_path) as store:
            store.add([FAILURE])
    column = {"records": "result", "failures": "error"}.get(table, "value")
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute(f"UPDATE {table} SET {column} = {column} || ' '")
    with pytest.raises(FileError, match="damaged"):
        read_run(tmp_path)
    again = hs.measure(tiny, **options)
    assert untimed(again.records) == untimed(first.records)
    (found,) = read_run(tmp_path).measurements
    assert found == again
    assert (found.layers, found.tokens, found.openings) == (first.layers, first.tokens, first.openings)


WRONG = {
    "no JSON": ("result", "{{"),
    "a list": ("result", "[]"),
    "nothing in it": ("result", "{{}}"),
    "an answer that is a number": ("result", '{{"answer": 7, "machine": {machine}}}'),
    "an answer without its number": ("result", '{{"answer": {{}}, "machine": {machine}}}'),
    "a text for a number": ("result", '{{"answer": {{"lower": "1"}}, "machine": {machine}}}'),
    "null for a number": ("result", '{{"answer": {{"lower": null}}, "machine": {machine}}}'),
    "a number for a list": ("result", '{{"answer": {{"lower": 1, "sensitivity": 3}}, "machine": {machine}}}'),
    "an unknown field": ("result", '{{"answer": {{"lower": 1, "lowest": 3}}, "machine": {machine}}}'),
    "a machine that is none": ("result", '{{"answer": {{"lower": 1}}, "machine": {{"torch": 2}}}}'),
    "seconds in words": ("result", '{{"answer": {{"lower": 1}}, "machine": {machine}, "seconds": "few"}}'),
    "nested for ever": ("result", '{{"answer": ' + "[" * 100_000),
    "an ask of no kind": ("ask", '{{"kind": "guess"}}'),
    "an ask of another key": ("ask", filler(9).ask.to_json().replace("{", "{{").replace("}", "}}")),
    "an ask that is none": ("ask", "7"),
}


@pytest.mark.parametrize(("column", "content"), WRONG.values(), ids=WRONG)
def test_a_record_of_the_wrong_types_is_refused_though_its_checksum_matches(column, content, tmp_path):
    record = filler(1)
    machine = record.machine.to_json()
    good = '{"answer": {"lower": 1}, "machine": ' + machine + "}"
    parts = {"key": record.ask.key, "ask": record.ask.to_json(), "result": good}
    parts[column] = content.format(machine=machine)
    with Store(tmp_path):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (*parts.values(), checksum(*parts.values())))
    for read in (read_run, lambda folder: write_table(str(folder), folder / "table.csv", "csv")):
        with pytest.raises(FileError, match=f"under '{record.ask.key}' .* damaged: ") as refusal:
            read(tmp_path)
        assert len(str(refusal.value).splitlines()) == 1
        assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("content", ["7", '["a", 3]', "{", '{"kind": "text"}'])
@pytest.mark.parametrize("table", ["plans", "windows"])
def test_plans_and_words_of_the_wrong_types_are_refused_though_their_checksum_matches(table, content, tmp_path):
    with Store(tmp_path):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute(f"INSERT INTO {table} VALUES ('k', ?, ?)", (content, checksum("k", content)))
    with Store(tmp_path) as store, pytest.raises(FileError, match="under 'k'"):
        store.plans() if table == "plans" else store.window("k")


@pytest.mark.parametrize("start", [0, 16, 18, 44])
def test_a_store_with_a_damaged_header_is_refused(start, whole, unharmed, tmp_path):
    content = whole[:start] + b"\xff" * 32 + whole[start + 32 :]
    check_refusal(placed(content, tmp_path))


@pytest.mark.parametrize("size", [50, 100, 4095, 4096, 5000, -1])
def test_a_store_that_was_cut_off_is_refused(size, whole, tmp_path):
    check_refusal(placed(whole[:size], tmp_path))


def test_garbage_in_any_page_is_never_believed(whole, unharmed, tmp_path):
    noise = random.Random(0)
    for start in range(0, len(whole), 4096):
        content = whole[:start] + noise.randbytes(4096) + whole[start + 4096 :]
        assert judge(placed(content, tmp_path), unharmed)


def check_refusal(folder):
    before = (folder / FILE).read_bytes()
    (error,) = everything(folder).values()
    assert str(folder / FILE) in str(error)
    assert len(str(error).splitlines()) == 1
    assert (folder / FILE).read_bytes() == before, "what is damaged must stay as it is"
    for read in (read_run, lambda path: write_table(str(path), Path(path) / "table.csv", "csv")):
        with pytest.raises(FileError, match=re.escape(str(folder))):
            read(folder)
