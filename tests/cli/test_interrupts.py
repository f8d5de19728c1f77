"""Ctrl-C, whenever it comes: one line, exit code 130, and the same command goes on from there."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from small import beginning, folder_model, module, save_model, tokenizer

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

import howsmooth as howsmooth_package
from howsmooth.studies.runs.store import Store

pytestmark = pytest.mark.clock("Ctrl-C comes while a process works")
PATIENCE = 120.0
# Many small pieces of work: when the first is stored, the last is far away.
PIECES, ALL = "4,6,8,10,12,14,16,18", 32


@pytest.fixture
def asked(folder_model, beginning):
    return ("measure", folder_model, "--text", beginning, "--lengths", PIECES, "--sequences", "2")


def begin(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "howsmooth", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # whoever runs the tests in the background ignores what Ctrl-C sends, and so would what they start
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def wait_for_imports(process: subprocess.Popen) -> None:
    """Wait until torch is being imported: before that, on a busy machine, not even Python itself may have begun."""
    maps = Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + PATIENCE
    while "libtorch" not in maps.read_text(encoding="utf-8"):
        assert time.monotonic() < end, "torch is not imported"
        time.sleep(0.02)


def wait_for_records(path: Path, process: subprocess.Popen) -> None:
    wait_for(lambda: path.is_file() and count(path) > 0, process)


def wait_for(come: Callable[[], bool], process: subprocess.Popen | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not come():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come within two minutes"
        time.sleep(0.02)


def count(path: Path) -> int:
    return len(rows(path))


def rows(path: Path) -> list[tuple[str, str]]:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        return database.execute("SELECT key, result FROM records").fetchall()
    except sqlite3.OperationalError:
        return []  # the tables are not there yet
    finally:
        database.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="what a process has loaded is not told here")
@pytest.mark.parametrize(("seconds", "presses"), [(0.0, 1), (0.4, 2)])
def test_while_it_imports_it_ends_in_one_more_line(seconds, presses, tmp_path):
    with begin("measure", "--out", str(tmp_path / "run")) as process:
        wait_for_imports(process)
        for _press in range(presses):
            time.sleep(seconds / presses)
            process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, printed, said) == (130, "", "Reading minilm …\nStopped.\n")
    assert not (tmp_path / "run").exists()


def test_little_is_imported_before_it_is_heeded():
    # what Python does before that, nobody can mend
    source = str(Path(howsmooth_package.__file__).parents[1])
    asked = f"import sys; sys.path.insert(0, {source!r}); import howsmooth.cli.app; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-S", "-c", asked], capture_output=True, text=True, check=True)
    assert not {"typing", "re", "dataclasses", "howsmooth.cli.commands"} & set(found.stdout.split())


@pytest.mark.slow
def test_stopped_in_the_middle_it_keeps_what_is_done_and_goes_on(howsmooth, asked, tmp_path):
    out = tmp_path / "run"
    with begin(*asked, "--out", str(out)) as process:
        wait_for_records(out / "records.sqlite", process)
        process.send_signal(signal.SIGINT)
        _printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    kept = count(out / "records.sqlite")
    assert 0 < kept < ALL
    assert said.splitlines()[-1] == f"Stopped: {kept} of {ALL} measured and kept; the same command goes on from there."
    assert "Traceback" not in said
    before = dict(rows(out / "records.sqlite"))
    again = howsmooth(*asked, "--out", str(out), "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert found["complete"] is True
    assert len(found["records"]) == count(out / "records.sqlite") == ALL
    assert before.items() <= dict(rows(out / "records.sqlite")).items()


@pytest.mark.slow
def test_a_second_one_ends_at_once_and_what_is_done_is_kept(asked, tmp_path):
    out = tmp_path / "run"
    with begin(*asked, "--out", str(out)) as process:
        wait_for_records(out / "records.sqlite", process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # what is done is being told
        process.send_signal(signal.SIGINT)
        _printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    # it says what it reads, and may say how far it is
    (line,) = (line for line in said.splitlines() if " so far" not in line and not line.startswith("Reading "))
    assert line.startswith("Stopped")
    beside = {"records.sqlite-journal"}
    assert {path.name for path in out.iterdir()} - beside <= {"records.sqlite", "report.html"}
    with Store(out) as store:  # what goes on from there is the same as after one
        assert 0 < len(store.records()) < ALL


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while they start", "while they work"])
def test_processes_that_share_the_work_say_nothing_of_it(moment, tmp_path):
    # about matrices: loading a model would take most of the time, in each of the processes
    lengths = ", ".join(map(str, range(2, 600)))
    (tmp_path / "study.toml").write_text(
        f'kind = "bounds"\nA = [[-1.0]]\nV = [[1.0]]\nradii = [1.0, 2.0]\nlengths = [{lengths}]\n', encoding="utf-8"
    )
    out = tmp_path / "run"
    # a group of its own: a terminal sends Ctrl-C to every process of the command
    with begin(
        "sweep", str(tmp_path / "study.toml"), "--workers", "2", "--out", str(out), start_new_session=True
    ) as process:
        if moment == "while they start":
            wait_for(lambda: len(psutil.Process(process.pid).children()) >= 3, process)
            time.sleep(1.0)
        else:
            wait_for_records(out / "records.sqlite", process)
        os.killpg(process.pid, signal.SIGINT)
        _printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    (line,) = (line for line in said.splitlines() if " so far" not in line)  # it may say how far it is
    assert line.startswith("Stopped")
    wait_for(lambda: not [p for p in psutil.process_iter() if _group(p) == process.pid])


def _group(process: psutil.Process) -> int | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getpgid(process.pid)
    except (psutil.Error, ProcessLookupError):
        return None
