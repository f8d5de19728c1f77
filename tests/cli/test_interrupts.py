"""Ctrl-C, whenever it comes: one line, exit code 130, and the same command goes on from there."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from small import beginning, folder_model, module, save_model, tokenizer

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

import howsmooth as howsmooth_package

PATIENCE = 120.0
# Many small pieces of work: when the first is stored, the last is far away.
PIECES, ALL = "4,6,8,10,12,14,16,18", 32


@pytest.fixture
def asked(folder_model, beginning):
    return ("measure", folder_model, "--text", beginning, "--lengths", PIECES, "--sequences", "2")


def begin(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "howsmooth", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # whoever runs the tests in the background ignores what Ctrl-C sends, and so would what they start
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_imports(process: subprocess.Popen) -> None:
    """Wait until torch is being imported: before that, on a busy machine, not even Python itself may have begun."""
    maps = Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + PATIENCE
    while "libtorch" not in maps.read_text(encoding="utf-8"):
        assert time.monotonic() < end, "torch is not imported"
        time.sleep(0.02)


def wait_for_records(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        if path.is_file() and count(path):
            return
        time.sleep(0.02)
    pytest.fail("no record within two minutes")


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
@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_while_it_imports_it_ends_in_one_line(seconds, presses, tmp_path):
    with begin("measure", "--out", str(tmp_path / "run")) as process:
        wait_for_imports(process)
        for _press in range(presses):
            time.sleep(seconds / presses)
            process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, printed, said) == (130, "", "Stopped.\n")
    assert not (tmp_path / "run").exists()


def test_little_is_imported_before_it_is_heeded():
    # what Python does before that, nobody can mend
    source = str(Path(howsmooth_package.__file__).parents[1])
    asked = f"import sys; sys.path.insert(0, {source!r}); import howsmooth.cli.app; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-S", "-c", asked], capture_output=True, text=True, check=True)
    assert not {"typing", "re", "dataclasses", "howsmooth.cli.parser"} & set(found.stdout.split())


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
def test_a_second_one_ends_at_once_and_what_is_done_is_kept(howsmooth, asked, tmp_path):
    out = tmp_path / "run"
    with begin(*asked, "--out", str(out)) as process:
        wait_for_records(out / "records.sqlite", process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # what is done is being told
        process.send_signal(signal.SIGINT)
        _printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    (line,) = (line for line in said.splitlines() if " so far" not in line)  # it may say how far it is
    assert line.startswith("Stopped")
    assert {path.name for path in out.iterdir()} - {"records.sqlite-shm", "records.sqlite-wal"} <= {
        "records.sqlite",
        "report.html",
    }
    kept = count(out / "records.sqlite")
    assert 0 < kept < ALL
    again = howsmooth(*asked, "--out", str(out))
    assert again.code == 0, again.err
    assert f"{ALL} records ({ALL - kept} of them new)" in " ".join(again.out.split())
