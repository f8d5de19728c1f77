"""Whatever happens to a process, a disk or a file: what was stored is whole, and a sweep goes on from there.

This file is also a program: it loads everything once, and then forks a sweep whenever it is asked to, so that a sweep
can be killed many times without paying for as many imports. Its arguments are a small model and a text.
"""

import contextlib
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asked import answered, filler, radii, untimed, windows

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.studies.resources import Resources
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.store import Store
from howsmooth.studies.sweep.sweep import attempt, sweep
from howsmooth.studies.sweep.workers import using_threads

pytestmark = [pytest.mark.slow, pytest.mark.clock("processes are killed while they work")]
KILLS = 8
PATIENCE = 120.0


def work(model, place):
    """Return 42 asks: some by themselves, and some in cells of two."""
    digest = read_text(place).digest
    together = windows(model, digest, place=place, layers=(0, 1), lengths=(4, 6, 8))
    alone = radii(30)
    return [ask for i in range(6) for ask in alone[5 * i : 5 * i + 5] + together[2 * i : 2 * i + 2]]


def large(i):
    """Return a record that takes many pages, so that a kill finds some of them written and others not."""
    return filler(i, sizes=3000)


def serve(*given):
    """Fork a sweep, or a process that does nothing but write, for each line of standard input."""
    asks, held = work(*given), Resources()
    with Store(None) as store, using_threads(1):
        sweep(
            asks[:7], store, execute=lambda units: (attempt(unit, held) for unit in units)
        )  # loads all that is needed
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if child == 0:
            os._exit(do(asks, held, **asked))
        print(child, flush=True)


def do(asks, held, folder, what, limit=None):
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with Store(folder) as store:
            if what == "sweep":
                answered(asks, store, resources=held)
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
def asks(folder_model, beginning):
    return work(folder_model, beginning)


@pytest.fixture(scope="module")
def launcher(folder_model, beginning):
    process = subprocess.Popen(
        [sys.executable, __file__, folder_model, beginning],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
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
        return untimed(store.records())


def rows(folder, query):
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return database.execute(query).fetchall()


def count(folder):
    try:
        return rows(folder, "SELECT count(*) FROM records")[0][0]
    except sqlite3.OperationalError:
        return 0  # the file or its tables are not there yet


def wait_for(folder, wanted):
    """Wait until so many records are stored: how long that takes depends on what else the machine does."""
    end = time.monotonic() + PATIENCE
    while count(folder) < wanted:
        assert time.monotonic() < end, "no further record"
        time.sleep(0.002)


def check_whole(folder, asks, uninterrupted):
    assert rows(folder, "PRAGMA integrity_check") == [("ok",)]
    assert rows(folder, "SELECT count(*), count(DISTINCT key) FROM records") == [(len(asks), len(asks))]
    assert {ask.key for ask in asks} == uninterrupted.keys()
    assert by_key(folder) == uninterrupted


def test_a_sweep_killed_many_times_ends_as_one_that_was_not(launcher, asks, uninterrupted, tmp_path):
    moments = random.Random(0)
    counts = [0]
    for kill in range(KILLS):
        pid = launcher.start(tmp_path / "run")
        if kill % 4:
            wait_for(tmp_path / "run", counts[-1] + moments.randint(1, 3))
        time.sleep(moments.uniform(0, 0.01))
        assert launcher.kill(pid) in (-signal.SIGKILL, 0)  # when all is done it ends by itself
        if (tmp_path / "run" / FILE).exists():
            with Store(tmp_path / "run") as store:
                counts.append(len(store.records()))
    assert counts == sorted(counts), "a record was lost"
    assert any(0 < count < len(asks) for count in counts), "it was never killed in the middle: give it more work"
    assert launcher.wait(launcher.start(tmp_path / "run")) == 0
    check_whole(tmp_path / "run", asks, uninterrupted)


def test_a_process_that_only_writes_can_be_killed_at_any_moment(launcher, tmp_path):
    moments = random.Random(2)
    before = 0
    for _ in range(KILLS):
        pid = launcher.start(tmp_path / "run", "write")
        wait_for(tmp_path / "run", before + 2)
        time.sleep(moments.uniform(0, 0.02))
        assert launcher.kill(pid) == -signal.SIGKILL
        with Store(tmp_path / "run") as store:
            found = sorted(store.records(), key=lambda record: record.ask.layer)
        assert rows(tmp_path / "run", "PRAGMA integrity_check") == [("ok",)]
        expected = [large(i) for i in range(len(found))]
        assert [(r.ask, r.answer) for r in found] == [(r.ask, r.answer) for r in expected], "a hole, or half a record"
        assert len(found) >= before
        before = len(found)
    assert before > KILLS


def test_two_processes_on_one_folder_finish_and_every_record_is_there_once(launcher, asks, uninterrupted, tmp_path):
    pids = [launcher.start(tmp_path / "run") for _ in range(2)]  # they also begin the file at the same moment
    assert [launcher.wait(pid) for pid in pids] == [0, 0]
    check_whole(tmp_path / "run", asks, uninterrupted)


def test_a_process_finishes_beside_one_that_is_killed(launcher, asks, uninterrupted, tmp_path):
    pids = [launcher.start(tmp_path / "run") for _ in range(2)]
    wait_for(tmp_path / "run", 5)
    assert launcher.kill(pids[0]) == -signal.SIGKILL
    assert launcher.wait(pids[1]) == 0
    check_whole(tmp_path / "run", asks, uninterrupted)


@pytest.mark.parametrize("limit", [4096, 36_000])
def test_a_file_that_may_not_grow_is_an_error_and_the_store_stays_whole(limit, launcher, asks, uninterrupted, tmp_path):
    folder = tmp_path / "run"
    assert launcher.wait(launcher.start(folder, limit=limit)) == 2
    said = (tmp_path / "run.said").read_text(encoding="utf-8")
    assert len(said.splitlines()) == 1
    assert str(folder / FILE) in said
    if limit > 4096:
        assert rows(folder, "PRAGMA integrity_check") == [("ok",)]
        kept = by_key(folder)
        assert 0 < len(kept) < len(asks)
        assert kept.items() <= uninterrupted.items()
    assert launcher.wait(launcher.start(folder)) == 0
    check_whole(folder, asks, uninterrupted)


if __name__ == "__main__":
    serve(*sys.argv[1:])
