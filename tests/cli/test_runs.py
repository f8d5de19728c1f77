"""``howsmooth runs``, ``show`` and ``export``: what was done, without any model; and runs that are damaged."""

import contextlib
import importlib
import json
import re
import sqlite3
import subprocess
import sys

import pytest
from asked import answered, bounded, filler, radii
from drawn import certificates
from measured import record
from msgspec.structs import replace
from rich.console import Console
from small import beginning, module, tokenizer

import howsmooth as hs
from howsmooth.studies import kinds
from howsmooth.studies.kinds.attack import AttackAnswer, AttackAsk
from howsmooth.studies.kinds.tokens_in_ball import BoundsAnswer
from howsmooth.studies.records import Failure, Record, RunPlan, this_machine
from howsmooth.studies.runs.certified_accuracy import summarise_certificates
from howsmooth.studies.runs.database import FILE, VERSION
from howsmooth.studies.runs.store import Store

__all__ = ["beginning", "module", "tokenizer"]


@pytest.fixture
def filled(tmp_path):
    with Store(tmp_path / "runs" / "one") as store:
        store.add([*(record(layer, n, w) for layer in (0, 1) for n in (4, 8) for w in (0, 1)), bounded()])
    return tmp_path / "runs" / "one"


def test_a_folder_of_a_model_is_no_run_and_says_how_to_make_one(howsmooth, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}", encoding="utf-8")
    said = howsmooth("compare", "bert", "bert").err
    assert "it is a model; howsmooth measure bert makes a run of it" in said
    for command in (("compare", "bert", "bert"), ("swap", "bert", "--sentence", "film")):
        refused = howsmooth(*command, "--out", "page")
        assert (refused.code, refused.out) == (2, "")
        assert "as in page.html, got 'page'" in refused.err


def test_runs_are_listed_with_what_is_left(howsmooth, tmp_path):
    with Store(tmp_path / "runs" / "a") as store:
        answered(radii(1), store)
    with Store(tmp_path / "runs" / "deep" / "b") as store:
        store.add([filler(0), Failure(ask=filler(1).ask, error="no")])
        store.keep_plan(RunPlan(kind="text", keys=tuple(filler(i).ask.key for i in range(3))))
    found = howsmooth("runs")
    assert found.out.splitlines() == [
        "runs/a: 1 record; no model; attention; n = 2",
        "runs/deep/b: 1 record of 3 planned, 1 failed; m on t; attention; n = 8",
    ]
    rows = json.loads(howsmooth("runs", "--json").out)
    about = {"kinds": ["text"], "models": ["m"], "texts": ["t"], "maps": ["attention"]} | {
        "schemes": [],
        "lengths": [8],
    }
    assert rows[1] == {"run": "runs/deep/b", "records": 1, "planned": 3, "failed": 1} | about
    assert howsmooth("runs", "runs/deep").out.startswith("runs/deep/b")


def test_a_folder_without_runs_says_so(howsmooth, tmp_path):
    (tmp_path / "empty").mkdir()
    assert howsmooth("runs", "empty").out == "No runs in empty.\n"
    done = howsmooth("runs", "nowhere")
    assert done.code == 2
    assert "nowhere" in done.err


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_folder_that_holds_no_run_is_refused_and_left_alone(command, howsmooth, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("empty", "nowhere", "file"):
        done = howsmooth(command, name)
        assert done.code == 2
        assert f"{name!r} holds no run" in done.err
        assert len(done.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


def test_a_run_is_shown_with_the_numbers_of_its_records(filled, howsmooth):
    done = howsmooth("show", str(filled), "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    (measurement,) = found["measurements"]
    assert [row["lower"] for row in measurement["records"]] == [
        record(layer, n, w).answer.lower for layer in (0, 1) for n in (4, 8) for w in (0, 1)
    ]
    assert [row["sharp_upper"] for row in found["records"]] == [1 / 3]
    words = howsmooth("show", str(filled)).out
    assert "'attention' at 2 windows" in words
    assert "bounds: " in words


@pytest.mark.slow
def test_what_is_proven_is_rounded_to_the_side_where_it_stays_true_in_every_command(howsmooth, tmp_path):
    (word,) = certificates(words=("film",), together=False)
    proven = {"certified": 0.26799999, "attacked": 0.34700001, "margin": 4.8699999}
    attacked = AttackAsk(model="m", layer=0, window=record(0, 4, 0).ask.window, eps=0.5)
    attained = AttackAnswer(attained=7.7299999, predicted=7.5, ceiling=8.8100001)
    with Store(tmp_path / "run") as store:
        store.add(
            [
                Record(ask=word.ask, answer=replace(word.answer, **proven), machine=this_machine()),
                Record(ask=attacked, answer=attained, machine=this_machine()),
                replace(bounded(), answer=BoundsAnswer(sharp_upper=1.4300001, tied_pair=1.2899999)),
                record(0, 4, 0, lower=2.1, upper=2.3700001, local_upper=5.5900001),
            ]
        )
    assert howsmooth("report", "run").code == 0
    run, console = hs.read_run(tmp_path / "run"), Console(width=200)
    with console.capture() as words:
        for found in (*summarise_certificates(r for r in run.records if r.ask.kind == "certificate"), run):
            console.print(found)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    texts = (
        howsmooth("show", "run", "--records").out,
        howsmooth("show", "run").out,
        re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL),
        " ".join(re.findall(r'"[^"]*"', page)),  # what is told to a pointer
        repr(run) + run._repr_html_() + words.get(),
    )
    # to three digits and more, each of these is what the nearest number would be
    nearest = {"0.268", "0.347", "4.87", "7.73", "8.81", "1.43", "1.29", "2.37", "5.59"}
    for text in texts:
        assert nearest & set(re.findall(r"\d+\.\d+", text)) == set()
    for said in ("0.267", "0.348", "4.86", "7.72", "8.82", "1.44", "1.28"):
        assert said in texts[0]


def test_show_says_the_same_as_measure_did_with_heads_beside_the_layer(
    howsmooth, tmp_path, module, tokenizer, beginning
):
    transformer = hs.load(module(), tokenizer=tokenizer)
    measured = hs.measure(
        transformer, text=beginning, layers=[0], lengths=[4, 6], sequences=2, per_head=True, out=tmp_path / "run"
    )
    (found,) = json.loads(howsmooth("show", str(tmp_path / "run"), "--json").out)["measurements"]
    assert found == json.loads(measured.to_json())
    assert "Worst by head at 6 tokens" in howsmooth("show", str(tmp_path / "run")).out


def test_failures_are_said_and_a_run_without_records_too(howsmooth, tmp_path):
    with Store(tmp_path / "run") as store:
        store.add([Failure(ask=filler(1).ask, error="no such thing")])
        store.keep_plan(RunPlan(kind="text", keys=(filler(1).ask.key,)))
    done = howsmooth("show", "run")
    assert done.code == 0
    assert "of 1 planned" in done.out
    assert "no such thing" in done.err


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
def test_a_table_goes_where_it_is_told(to, filled, howsmooth, tmp_path):
    done = howsmooth("export", str(filled), "--to", to)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"9 records in {filled / f'records.{to}'}.\n"
    assert howsmooth("export", str(filled), "--to", to, "--out", "table.txt").code == 0
    assert (tmp_path / "table.txt").stat().st_size > 0
    done = howsmooth("export", str(filled), "--to", to, "--out", "nowhere/table")
    assert done.code == 2
    assert "nowhere" in done.err
    assert howsmooth("export", str(filled), "--to", "xlsx").code == 2


def test_a_table_is_printed_where_its_file_is_a_hyphen(filled, howsmooth, tmp_path):
    howsmooth("export", str(filled), "--out", "table.csv")
    words = [sys.executable, "-m", "howsmooth", "export", str(filled), "--out", "-"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == ((tmp_path / "table.csv").read_bytes(), b"")
    assert not (tmp_path / "-").exists()
    done = howsmooth("export", str(filled), "--to", "parquet", "--out", "-")
    assert (done.code, done.out) == (2, "")
    assert done.err == "howsmooth: a table as parquet cannot be printed; name a file, or take --to csv.\n"


def damaged(folder, how):
    if how == "header":
        with (folder / FILE).open("r+b") as file:
            file.write(b"\xff" * 100)
        return
    statement = {
        "record": "UPDATE records SET result = replace(result, 'lower', 'lowex')",
        "plan": "INSERT INTO plans VALUES ('k', '{}', 'none')",
        "newer": f"PRAGMA user_version = {VERSION + 1}",
        "older": "PRAGMA user_version = 1",
    }[how]
    with contextlib.closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute(statement)


@pytest.mark.parametrize("how", ["header", "record", "plan", "newer", "older"])
def test_a_damaged_run_is_one_line_and_exit_code_two_for_every_command_and_does_not_hide_others(
    how, filled, howsmooth, tmp_path
):
    with Store(tmp_path / "runs" / "other") as store:
        store.add([filler(0)])
    damaged(filled, how)
    for command in (["show", str(filled)], ["report", str(filled)], ["show", str(filled), "--json"]):
        done = howsmooth(*command)
        assert done.code == 2
        assert done.out == ""
        assert len(done.err.splitlines()) == 1
        assert str(filled / FILE) in done.err
        assert "Traceback" not in done.err
    first, second = howsmooth("runs").out.splitlines()
    assert str(FILE) in first
    assert second.startswith("runs/other: 1 record;")


TOY = '''"""How far a stone falls."""

from howsmooth.studies.asks import Answer, Ask
from howsmooth.studies.kinds import Kind


class ToyAsk(Ask, frozen=True, kw_only=True, tag="toy"):
    """How far a stone falls."""

    time: float


class ToyAnswer(Answer, frozen=True, kw_only=True):
    """How far."""

    metres: float


def run(batch, cell, resources):
    """Let it fall."""
    return [ToyAnswer(metres=9.81 * ask.time**2 / 2) for ask in cell]


KINDS = (Kind(ask=ToyAsk, answer=ToyAnswer, run=run),)
'''


@pytest.mark.slow
def test_a_kind_in_one_file_is_swept_listed_shown_and_exported_by_the_commands(howsmooth, tmp_path, monkeypatch):
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "toy.py").write_text(TOY, encoding="utf-8")
    (tmp_path / "study.toml").write_text('kind = "toy"\ntimes = [1.0, 2.0]', encoding="utf-8")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path / "toys")])
    importlib.invalidate_caches()
    try:
        assert howsmooth("sweep", "study.toml", "--out", "runs/toys").code == 0
        shown = howsmooth("show", "runs/toys").out
        assert "toy: How far a stone falls." in shown
        assert "19.6" in shown
        assert howsmooth("runs").out.startswith("runs/toys: 2 records; no model")
        assert howsmooth("export", "runs/toys").out.startswith("2 records in")
        assert howsmooth("report", "runs/toys").code == 0
    finally:
        sys.modules.pop("howsmooth.studies.kinds.toy", None)
