"""Whatever happens to a process, a disk or a file: what was stored is whole, and a sweep goes on from there.

This file is also a program: it loads everything once, and then forks a sweep whenever it is asked to, so that a sweep
can be killed twenty times without paying for twenty imports.
"""

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import howsmooth as hs
from howsmooth.models.text import read_text
from howsmooth.studies.records import Record
from howsmooth.studies.setting import here
from howsmooth.studies.store import FILE, VERSION, Store
from howsmooth.studies.sweep import sweep
from howsmooth.studies.tasks import Task
from howsmooth.studies.workers import using_threads

KILLS = 20
PATIENCE = 60.0
ONE = {"A": ((-1.0,),), "V": ((1.0,),)}


def work():
    """Return 84 tasks: some by themselves, and some in cells of four."""
    alone = [Task(kind="regime", length=3 + i, radius=1.0 + 0.01 * i, **ONE) for i in range(60)]
    digest = read_text().digest
    together = [
        Task(model="minilm", text="alice", digest=digest, layer=layer, map="head:0", length=8, window=window)
        for layer in range(6)
        for window in range(4)
    ]
    return [task for i in range(6) for task in alone[10 * i : 10 * i + 10] + together[4 * i : 4 * i + 4]]


def filler(i, most=40):
    task = Task(kind="regime", length=i + 1, **ONE)
    numbers = tuple((f"n{j}", j / 7) for j in range(37 * i % most))
    return Record(task=task, lower=float(i), numbers=numbers, setting=here())


def large(i):
    """A record that takes many pages, so that a kill finds some of them written and others not."""
    return filler(i, most=3000)


def serve():
    """Fork a sweep, or a process that does nothing but write, for each line of standard input."""
    with Store(None) as store:
        sweep(work()[:1] + work()[10:11], store)  # loads all that sweeps need
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if child == 0:
            os._exit(do(**asked))
        print(child, flush=True)


def do(folder, what, limit=None):
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with Store(folder) as store:
            if what == "sweep":
                with using_threads(1):
                    sweep(work(), store)
            else:
                for i in range(len(store.records()), 100_000):
                    store.add([large(i)])
    except hs.errors.FileError as error:
        Path(f"{folder}.said").write_text(str(error), encoding="utf-8")
        return 2
    return 0


class Launcher:
    """The other end of :func:`serve`."""

    def __init__(self, process):
        self._process = process
        assert self._line() == "ready"

    def start(self, folder, what="sweep", **options):
        return int(self._ask({"folder": str(folder), "what": what} | options))

    def wait(self, pid):
        return int(self._ask({"wait": pid}))

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def _ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self):
        # a bound on every wait: the alarm ends a test that hangs
        before = signal.signal(signal.SIGALRM, _too_late)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            return self._process.stdout.readline().strip()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _too_late(*_):
    raise TimeoutError("the process did not answer")


@pytest.fixture(scope="module")
def launcher():
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Launcher(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it and what it forked
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def uninterrupted(launcher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert launcher.wait(launcher.start(folder)) == 0
    return by_key(folder)


def by_key(folder):
    with Store(folder) as store:
        assert store.failures() == []
        return {record.task.key: dataclasses.replace(record, seconds=0.0) for record in store.records()}


def rows(folder, query):
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return database.execute(query).fetchall()


def check_whole(folder, uninterrupted):
    assert rows(folder, "PRAGMA integrity_check") == [("ok",)]
    assert rows(folder, "SELECT count(*), count(DISTINCT key) FROM records") == [(len(work()), len(work()))]
    assert {task.key for task in work()} == uninterrupted.keys()
    assert by_key(folder) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sweep_killed_twenty_times_ends_as_one_that_was_not(seed, launcher, uninterrupted, tmp_path):
    moments = random.Random(seed)
    counts = [0]
    for kill in range(KILLS):
        pid = launcher.start(tmp_path / "run")
        time.sleep(moments.uniform(0, 0.01 if kill % 4 == 0 else 0.15))
        assert launcher.kill(pid) == -signal.SIGKILL, "it had ended: give it more work"
        if (tmp_path / "run" / FILE).exists():
            with Store(tmp_path / "run") as store:
                counts.append(len(store.records()))
    assert counts == sorted(counts), "a record was lost"
    assert 0 < counts[-1] < len(work())
    assert launcher.wait(launcher.start(tmp_path / "run")) == 0
    check_whole(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_a_process_that_only_writes_can_be_killed_at_any_moment(launcher, tmp_path):
    moments = random.Random(2)
    count = 0
    for _ in range(KILLS):
        pid = launcher.start(tmp_path / "run", "write")
        time.sleep(moments.uniform(0.01, 0.1))
        assert launcher.kill(pid) == -signal.SIGKILL
        with Store(tmp_path / "run") as store:
            found = sorted(store.records(), key=lambda record: record.task.length)
        assert rows(tmp_path / "run", "PRAGMA integrity_check") == [("ok",)]
        # another process may use another number of threads
        found = [dataclasses.replace(record, setting=here()) for record in found]
        assert found == [large(i) for i in range(len(found))], "a hole, or half a record"
        assert len(found) >= count
        count = len(found)
    assert count > KILLS
    assert rows(tmp_path / "run", "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.slow
def test_the_command_line_killed_and_called_again_ends_as_one_that_was_not(howsmooth, tmp_path, untimed):
    study = tmp_path / "study.toml"
    study.write_text(
        'lengths = [8, 12, 16]\nsequences = 4\ncertify = false\nmaps = ["head:0", "head:1"]',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "howsmooth", "sweep", str(study), "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and process.poll() is None and not _some(tmp_path / "killed"):
            time.sleep(0.02)
        process.kill()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    with Store(tmp_path / "killed") as store:
        assert 0 < len(store.records()) < 144
    assert howsmooth("sweep", str(study), "--out", str(tmp_path / "killed")).code == 0
    assert howsmooth("sweep", str(study), "--out", str(tmp_path / "whole")).code == 0
    with Store(tmp_path / "killed") as killed, Store(tmp_path / "whole") as whole:
        assert len(whole.records()) == 144
        assert untimed(killed.records()) == untimed(whole.records())


def _some(folder):
    try:
        return rows(folder, "SELECT count(*) FROM records") != [(0,)]
    except sqlite3.OperationalError:
        return False


@pytest.mark.slow
def test_two_processes_on_one_folder_both_finish_and_every_record_is_there_once(launcher, uninterrupted, tmp_path):
    for name in ("one", "two"):  # they also begin the file at the same moment
        pids = [launcher.start(tmp_path / name) for _ in range(2)]
        assert [launcher.wait(pid) for pid in pids] == [0, 0]
        check_whole(tmp_path / name, uninterrupted)


def test_a_process_finishes_beside_one_that_is_killed(launcher, uninterrupted, tmp_path):
    pids = [launcher.start(tmp_path / "run") for _ in range(2)]
    time.sleep(0.3)
    assert launcher.kill(pids[0]) == -signal.SIGKILL
    assert launcher.wait(pids[1]) == 0
    check_whole(tmp_path / "run", uninterrupted)


@pytest.mark.parametrize("limit", [4096, 150_000])
def test_a_file_that_may_not_grow_is_a_clear_error_and_the_store_stays_whole(limit, launcher, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    assert launcher.wait(launcher.start(folder, limit=limit)) == 2
    said = (tmp_path / "run.said").read_text(encoding="utf-8")
    assert len(said.splitlines()) == 1
    assert str(folder / FILE) in said
    if limit > 100_000:
        assert rows(folder, "PRAGMA integrity_check") == [("ok",)]
        kept = by_key(folder)
        assert 0 < len(kept) < len(work())
        assert kept.items() <= uninterrupted.items()
    assert launcher.wait(launcher.start(folder)) == 0
    check_whole(folder, uninterrupted)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or not _mount(folder, "size=256k"):
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=PATIENCE)


def _mount(folder, options):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0


def test_a_full_disk_is_one_line_and_exit_code_two_and_with_room_the_sweep_goes_on(small_disk, howsmooth, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'layers = [0, 1, 2]\nlengths = [4, 8, 12, 16]\nsequences = 10\nmaps = ["head:0", "head:1"]\ncertify = false',
        encoding="utf-8",
    )
    run = small_disk / "run"
    for _ in range(2):  # still full
        done = howsmooth("sweep", str(study), "--out", str(run))
        assert done.code == 2
        assert len(done.err.splitlines()) == 1
        assert "full" in done.err
        assert str(run / FILE) in done.err
        assert done.out == ""
    assert rows(run, "PRAGMA integrity_check") == [("ok",)]
    kept = rows(run, "SELECT * FROM records ORDER BY key")
    assert 0 < len(kept) < 240
    assert _mount(small_disk, "remount,size=8m")
    done = howsmooth("sweep", str(study), "--out", str(run), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"run": str(run), "tasks": 240, "done": 240, "failed": 0}
    assert set(kept) <= set(rows(run, "SELECT * FROM records"))
    assert rows(run, "PRAGMA integrity_check") == [("ok",)]


def test_a_disk_without_any_room_is_one_line_and_exit_code_two(small_disk, howsmooth, tmp_path):
    (tmp_path / "study.toml").write_text("layers = [0]\nlengths = [8]\nsequences = 1", encoding="utf-8")
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb") as file:
        file.write(bytes(2**20))
    done = howsmooth("sweep", "study.toml", "--out", str(small_disk / "run"))
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert str(small_disk / "run") in done.err


@pytest.fixture
def filled(tmp_path):
    with Store(tmp_path / "run") as store:
        store.add(filler(i) for i in range(200))
    assert (tmp_path / "run" / FILE).stat().st_size > 10 * 4096
    return tmp_path / "run"


def check_refusal(folder):
    """Every way to the records is refused in one line that names the file."""
    before = (folder / FILE).read_bytes()
    with pytest.raises(hs.errors.FileError) as refusal, Store(folder) as store:
        store.records()
    assert str(folder / FILE) in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert (folder / FILE).read_bytes() == before, "what is damaged must stay as it is"


def overwrite(folder, start, content):
    with (folder / FILE).open("r+b") as file:
        file.seek(start)
        file.write(content)


@pytest.mark.parametrize("start", [0, 16, 18, 44])
def test_a_store_with_a_damaged_header_is_refused(start, filled):
    overwrite(filled, start, b"\xff" * 32)
    check_refusal(filled)


@pytest.mark.parametrize("size", [50, 100, 4095, 4096, 5000, 30_000, -1])
def test_a_store_that_was_cut_off_is_refused(size, filled):
    with (filled / FILE).open("r+b") as file:
        file.truncate(size % (filled / FILE).stat().st_size)
    check_refusal(filled)


def test_garbage_in_any_page_is_refused(filled):
    whole = (filled / FILE).read_bytes()
    noise = random.Random(0)
    for start in range(0, len(whole), 4096):
        (filled / FILE).write_bytes(whole)
        overwrite(filled, start, noise.randbytes(4096))
        check_refusal(filled)


@pytest.mark.parametrize("text", ["{", "[]", '{"lower": 1}', "7", '{"lower": 1, "sensitivity": 3}'])
def test_a_record_that_we_did_not_write_is_refused(text, filled):
    with contextlib.closing(sqlite3.connect(filled / FILE)) as database, database:
        database.execute("UPDATE records SET result = ? WHERE key = (SELECT min(key) FROM records)", (text,))
    check_refusal(filled)


def test_a_run_of_a_newer_version_is_refused_by_every_command(filled, howsmooth):
    with contextlib.closing(sqlite3.connect(filled / FILE)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    check_refusal(filled)
    for command in (["show", str(filled)], ["export", str(filled)], ["runs", str(filled.parent)]):
        done = howsmooth(*command)
        assert done.code == 2
        assert "newer howsmooth" in done.err
        assert str(filled / FILE) in done.err


def test_a_damaged_run_is_one_line_and_exit_code_two_for_every_command(filled, howsmooth, tmp_path):
    overwrite(filled, 0, b"\xff" * 100)
    (tmp_path / "study.toml").write_text("layers = [0]\nlengths = [8]\nsequences = 1", encoding="utf-8")
    sweeping = ["sweep", "study.toml", "--out", str(filled)]
    for command in (["show", str(filled)], ["export", str(filled)], ["runs", str(filled.parent)], sweeping):
        done = howsmooth(*command)
        assert done.code == 2
        assert len(done.err.splitlines()) == 1
        assert str(filled / FILE) in done.err


def test_a_file_that_a_killed_process_left_empty_is_begun(tmp_path):
    (tmp_path / FILE).touch()
    with Store(tmp_path) as store:
        store.add([filler(0)])
        assert store.records() == [filler(0)]


if __name__ == "__main__":
    serve()
