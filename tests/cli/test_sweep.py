"""``howsmooth sweep``: a study from a file, its mistakes, its failures, a full disk and a killed process."""

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import huggingface_hub
import pytest
from asked import untimed
from small import beginning, folder_model, module, save_model, tokenizer

from howsmooth.studies.records import Failure
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.store import Store

__all__ = ["beginning", "folder_model", "module", "save_model", "tokenizer"]

PATIENCE = 120.0
SMALL = {"layers": "[0]", "lengths": "[8]", "sequences": "1"}


@pytest.fixture
def study(tmp_path, folder_model, beginning, loaded_once):
    """Write a study of the small model in the current folder."""

    def write(**keys):
        keys = keys | {"models": f'["{folder_model}"]', "text": f'"{beginning}"'} | keys
        lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
        (tmp_path / "study.toml").write_text(lines, encoding="utf-8")
        return "study.toml"

    return write


def records(folder):
    with Store(folder) as store:
        return store.records()


def check_refusal(done, *words):
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert all(word in done.err for word in words)


@pytest.mark.slow
def test_a_study_is_done_and_a_second_time_there_is_nothing_to_do(study, howsmooth, tmp_path):
    study(**SMALL | {"maps": '["attention", "head:0"]', "seeds": "[0, 1]", "sequences": "2"})
    done = howsmooth("sweep", "study.toml", "--out", "run")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("8 of 8 answered, 0 failed.")
    before = records(tmp_path / "run")
    assert {(r.ask.map, r.ask.solver.seed) for r in before} == {(m, s) for m in ("attention", "head:0") for s in (0, 1)}
    again = howsmooth("sweep", "study.toml", "--out", "run", "--json")
    assert json.loads(again.out) == {"run": "run", "asks": 8, "done": 8, "failed": 0}
    assert records(tmp_path / "run") == before


@pytest.mark.slow
def test_without_a_folder_the_run_is_called_after_the_study(study, howsmooth, tmp_path):
    study(name='"my: first/study"', **SMALL)
    assert howsmooth("sweep", "study.toml").code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["my--first-study"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("squences", "3", "did you mean sequences"),
        ("layers", "[6]", "has the layers 0 to 1, got 6"),
        ("models", '["no/such/folder"]', "no/such/folder"),
        ("rtol", "1e-300", "rtol must be at least"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_line_and_leaves_nothing(
    key, value, words, study, howsmooth, tmp_path, monkeypatch
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    study(**{key: value} | {name: small for name, small in SMALL.items() if name != key})
    for options in ([], ["--dry-run"]):
        check_refusal(howsmooth("sweep", "study.toml", *options), "howsmooth: study.toml, line 1: ", words)
        assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "study.toml/run"], "--out"),
        (["--workers", "2", "--scheduler", "tcp://127.0.0.1:1"], "not both"),
        (["--workers", "-1"], "workers"),
        (["--out", ""], "--out"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused_and_leave_nothing(options, words, study, howsmooth, tmp_path):
    study(**SMALL)
    done = howsmooth("sweep", "study.toml", *options)
    assert done.code == 2
    assert words in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.slow
def test_a_dry_run_counts_and_estimates_and_writes_nothing(study, howsmooth, tmp_path):
    study(layers="[0, 1]", lengths="[4, 6, 8]", sequences="4")
    (tmp_path / "empty").mkdir()
    for more in ([], ["--out", "empty"]):
        found = json.loads(howsmooth("sweep", "study.toml", "--dry-run", "--json", *more).out)
        assert (found["asks"], found["done"], found["left"]) == (24, 0, 24)
        assert found["expected_seconds"] > 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "study.toml"]
    assert howsmooth("sweep", "study.toml", "--dry-run").out.startswith("24 asks, 0 done, 24 left: about ")
    assert howsmooth("sweep", "study.toml", "--out", "run").code == 0
    again = json.loads(howsmooth("sweep", "study.toml", "--dry-run", "--json", "--out", "run").out)
    assert again == {"run": "run", "asks": 24, "done": 24, "left": 0, "expected_seconds": 0.0}


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["measure", "reviews", "--layers", "0,1", "--lengths", "4", "--sequences", "3"], 6),
        (["attack", "reviews", "--layers", "0", "--lengths", "4", "--sequences", "1", "--eps", "0.1,1"], 10),
        pytest.param(["certify", "reviews", "--sentence", "gripping film"], 2, marks=pytest.mark.slow),
    ],
)
def test_every_command_that_fills_a_run_has_a_dry_run(words, asks, howsmooth, tmp_path):
    found = json.loads(howsmooth(*words, "--dry-run", "--json").out)
    assert (found["asks"], found["done"], found["left"]) == (asks, 0, asks)
    assert found["expected_seconds"] > 0
    assert not [*tmp_path.rglob("*")]


def test_a_dry_run_says_that_it_times_pieces(howsmooth, monkeypatch):
    said = []
    monkeypatch.setattr("howsmooth.cli.printing._tell", said.append)
    assert howsmooth("attack", "reviews", "--layer", "0", "--lengths", "4", "--sequences", "1", "--dry-run").code == 0
    assert said == ["Reading reviews …", "Timing two pieces of the work …"]


def test_a_dry_run_knows_what_is_done(howsmooth):
    words = ["measure", "reviews", "--layers", "0", "--lengths", "4", "--sequences", "1"]
    assert howsmooth(*words, "--out", "run").code == 0
    more = json.loads(howsmooth(*words[:-1], "3", "--out", "run", "--dry-run", "--json").out)
    assert (more["asks"], more["done"], more["left"]) == (3, 1, 2)


@pytest.mark.slow
def test_a_failure_is_said_and_ends_with_exit_code_one_until_it_is_mended(study, howsmooth, tmp_path):
    study(**SMALL | {"layers": "[0, 1]"})
    assert howsmooth("sweep", "study.toml", "--out", "run").code == 0
    record, other = sorted(records(tmp_path / "run"), key=lambda r: r.ask.layer)
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / FILE)) as database, database:
        database.execute("DELETE FROM records WHERE key = ?", (record.ask.key,))
    with Store(tmp_path / "run") as store:
        store.add([Failure(ask=record.ask, error="OSError: gone")])
    done = howsmooth("sweep", "study.toml", "--out", "run", "--json")
    assert done.code == 1
    assert json.loads(done.out)["failed"] == 1
    assert "OSError: gone" in done.err
    # failures of asks that the study no longer asks for are not its own
    study(**SMALL | {"layers": f"[{other.ask.layer}]"})
    assert howsmooth("sweep", "study.toml", "--out", "run").code == 0
    study(**SMALL | {"layers": "[0, 1]"})
    done = howsmooth("sweep", "study.toml", "--out", "run", "--retry-failed")
    assert (done.code, done.err) == (0, "")


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


def rows(folder, query):
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database:
        return database.execute(query).fetchall()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_exit_code_two_and_with_room_the_sweep_goes_on(study, small_disk, howsmooth):
    study(lengths="[4, 8, 12, 16, 20, 24]", sequences="10", maps='["head:0", "head:1"]', certify="false")
    run = small_disk / "run"
    for _ in range(2):  # still full
        check_refusal(howsmooth("sweep", "study.toml", "--out", str(run)), "full", str(run / FILE))
    assert rows(run, "PRAGMA integrity_check") == [("ok",)]
    kept = rows(run, "SELECT * FROM records ORDER BY key")
    assert 0 < len(kept) < 240
    assert _mount(small_disk, "remount,size=8m")
    done = howsmooth("sweep", "study.toml", "--out", str(run), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"run": str(run), "asks": 240, "done": 240, "failed": 0}
    assert set(kept) <= set(rows(run, "SELECT * FROM records"))


def test_a_disk_without_any_room_is_one_line_and_exit_code_two(study, small_disk, howsmooth):
    study(**SMALL)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb") as file:
        file.write(bytes(2**20))
    check_refusal(howsmooth("sweep", "study.toml", "--out", str(small_disk / "run")), str(small_disk / "run"))


@pytest.mark.slow
@pytest.mark.clock("a process is killed while it works")
def test_killed_and_called_again_it_ends_as_one_that_was_not(howsmooth, tmp_path):
    # about matrices: loading a model would take most of the time
    lengths = ", ".join(map(str, range(2, 62)))
    (tmp_path / "study.toml").write_text(
        f'kind = "bounds"\nA = [[-1.0]]\nV = [[1.0]]\nradius = 1.0\nlengths = [{lengths}]\n', encoding="utf-8"
    )
    command = [
        sys.executable,
        "-m",
        "howsmooth",
        "sweep",
        str(tmp_path / "study.toml"),
        "--out",
        str(tmp_path / "killed"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and process.poll() is None and not _some(tmp_path / "killed"):
            time.sleep(0.005)
        process.kill()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert 0 < len(records(tmp_path / "killed")) < 60
    for name in ("killed", "whole"):
        assert howsmooth("sweep", "study.toml", "--out", name).code == 0
    assert len(records(tmp_path / "whole")) == 60
    assert untimed(records(tmp_path / "killed")) == untimed(records(tmp_path / "whole"))


def _some(folder):
    try:
        return rows(folder, "SELECT count(*) FROM records") != [(0,)]
    except sqlite3.OperationalError:
        return False
