"""``howsmooth measure`` and ``howsmooth models``, as a new user would call them; and what they do with mistakes."""

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers

from howsmooth.models.builtin import built_in_path
from howsmooth.models.text import read_text

FIGURES = {
    "bounds_ladder",
    "constant_against_length",
    "constant_against_radius",
    "layers_by_length",
    "sensitive_tokens",
}
ASKED = ("layer", "length", "window", "lower", "upper", "confidence", "steps", "radius", "local_upper")
PATIENCE = 120.0


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A small model with two layers of three heads and 40 positions, and texts good and bad; apart from the output."""
    folder = tmp_path_factory.mktemp("things")
    shape = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 16}
    config = transformers.BertConfig(**shape, vocab_size=30522, max_position_embeddings=40)
    torch.manual_seed(0)
    module = transformers.BertModel(config)
    module.save_pretrained(folder / "tiny")
    transformers.AutoTokenizer.from_pretrained(built_in_path("minilm")).save_pretrained(folder / "tiny")
    module.embeddings.word_embeddings.weight.data[5, 5] = math.nan
    module.save_pretrained(folder / "broken")
    (folder / "empty model").mkdir()
    (folder / "beginning.txt").write_text(read_text().content[:2000], encoding="utf-8")
    (folder / "a [bold] name.txt").write_text(read_text().content[:2000], encoding="utf-8")
    (folder / "short.txt").write_text("the cat sat", encoding="utf-8")
    (folder / "empty.txt").write_text(" \n", encoding="utf-8")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 10)
    (folder / "nul.txt").write_bytes(b"words\x00and words")
    return folder


@pytest.fixture
def measure(howsmooth, things):
    """Measure the small model unless told otherwise."""

    def run(*arguments, model="tiny", text="beginning.txt"):
        return howsmooth("measure", str(things / model), "--text", str(things / text), *arguments)

    return run


def check_figures(folder, names):
    assert {path.stem for path in folder.glob("*.svg")} == names
    for path in folder.glob("*.svg"):
        content = path.read_text(encoding="utf-8")
        assert content.startswith("<svg")
        assert content.rstrip().endswith("</svg>")


def test_the_answer_comes_first_then_the_table_then_where_everything_is(howsmooth, tmp_path):
    done = howsmooth("measure", "--layers", "0,5", "--lengths", "8,16", "--sequences", "2")
    assert done.code == 0, done.err
    title, names, first, second, *rest = done.out.splitlines()
    assert title == "minilm on alice: the constant of 'attention' at 2 windows of n = 16 tokens"
    for name in ("layer", "constant", "exponent", "95 % interval", "R", "certificate", "sharp bound"):
        assert name in names
    for number, line in ((0, first), (5, second)):
        layer, constant, spread, exponent, low, high, radius, certificate, bound = line.split()
        assert int(layer) == number
        least, most = (float(end) for end in spread.split("–"))
        assert least * 0.995 <= float(constant) <= most * 1.005
        assert float(low.strip("[,")) <= float(exponent) <= float(high.strip("]"))
        assert 5 < float(radius) < 20
        assert float(constant) < float(certificate) < float(bound)
    assert "Mean constant by length" in rest
    (folder,) = (tmp_path / "runs").iterdir()
    place = folder.relative_to(tmp_path)
    told = "8 records (8 of them new)"
    assert rest[-1] == f"The report is {place / 'report.html'}. {told} and 5 figures are in {place}."
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert folder.name.startswith("minilm-attention-")
    assert (folder / "records.sqlite").is_file()
    check_figures(folder, FIGURES)
    assert done.err == ""


def test_json_is_one_object_and_all_there_is(measure, tmp_path):
    done = measure("--lengths", "4,8,12", "--sequences", "2", "--json", "--out", str(tmp_path / "o"))
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    found = json.loads(done.out)
    assert found["map"] == "attention"
    assert found["run"] == str(tmp_path / "o")
    assert found["model"].endswith("tiny")
    assert found["complete"] is True
    places = [(row["layer"], row["length"], row["window"]) for row in found["records"]]
    assert places == [(i, n, w) for i in (0, 1) for n in (4, 8, 12) for w in (0, 1)]
    for row in found["records"]:
        assert set(ASKED) <= set(row)
        assert "released" not in row
        assert 0 < row["lower"] <= row["upper"] <= row["lower"] * 1.001
        assert row["confidence"] == 0.999
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    for row in found["layers"]:
        assert row["exponent_low"] <= row["exponent"] <= row["exponent_high"]
        assert 0 < row["constant"] < row["sharp_upper"]
    check_figures(tmp_path / "o", FIGURES)
    assert done.err.startswith("The report is ")
    assert len(done.err.splitlines()) == 1


def test_the_released_quantity_is_printed_when_it_is_asked_for(measure):
    done = measure("--layers", "1", "--lengths", "4,6", "--sequences", "1", "--json", "--released-estimator")
    found = json.loads(done.out)
    assert all(row["released"] > 0 for row in found["records"])
    (layer,) = found["layers"]
    assert layer["released_exponent_low"] <= layer["released_exponent"] <= layer["released_exponent_high"]


def test_options_reach_the_solver(measure):
    asked = ("--layers", "0", "--lengths", "6", "--sequences", "1", "--json", "--confidence", "0.9")
    loose = json.loads(measure(*asked, "--rtol", "0.3").out)["records"][0]
    tight = json.loads(measure(*asked, "--rtol", "1e-4").out)["records"][0]
    assert loose["steps"] < tight["steps"]
    assert tight["upper"] <= tight["lower"] * (1 + 1e-4)
    assert loose["confidence"] == tight["confidence"] == 0.9


def test_single_heads_have_a_figure(measure, tmp_path):
    done = measure("--per-head", "--lengths", "4,6", "--sequences", "2", "--json", "--out", str(tmp_path / "o"))
    heads = json.loads(done.out)["heads"]
    assert len(heads) == 2 * 2 * 2 * 3
    assert {row["map"] for row in heads} == {"head:0", "head:1", "head:2"}
    check_figures(tmp_path / "o", FIGURES | {"heads_by_layer"})


def test_one_length_has_no_exponent(measure):
    asked = ("--layers", "0", "--lengths", "6", "--sequences", "2")
    (layer,) = json.loads(measure(*asked, "--json").out)["layers"]
    assert layer["exponent"] is None
    assert layer["exponent_low"] is None
    assert layer["exponent_high"] is None
    assert layer["constant"] > 0
    lines = measure(*asked).out.splitlines()
    (answer,) = (line.split() for line in lines if line.split()[:1] == ["0"])
    assert answer[3:5] == ["—", "—"]
    assert "Mean constant by length" not in lines


def test_the_same_command_measures_nothing_twice(measure, tmp_path):
    asked = ("--layers", "0", "--lengths", "4,6", "--sequences", "2", "--json")
    first, again = measure(*asked), measure(*asked)
    assert first.out == again.out
    (folder,) = (tmp_path / "runs").iterdir()
    database = sqlite3.connect(folder / "records.sqlite")
    assert database.execute("SELECT count(*) FROM measurements").fetchall() == [(4,)]
    database.close()
    # another map, and another solver, are other runs
    measure(*asked, "--map", "residual")
    measure(*asked, "--seed", "1")
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_names_with_brackets_are_printed_as_they_are(measure):
    done = measure("--layers", "0", "--lengths", "4", "--sequences", "1", text="a [bold] name.txt")
    assert "a [bold] name.txt" in "".join(done.out.splitlines()[:3])


def test_a_long_path_does_not_push_the_answer_away(measure):
    done = measure("--layers", "1", "--lengths", "4", "--sequences", "1")
    assert any(line.split()[:1] == ["1"] for line in done.out.splitlines()[:6]), done.out


def test_models_are_listed(howsmooth):
    done = howsmooth("models")
    assert done.code == 0
    head, minilm, smollm2, families, *_ = done.out.splitlines()
    assert head == "Built in:"
    assert minilm.split()[0] == "minilm"
    assert minilm.endswith("(installed)")
    assert smollm2.split()[0] == "smollm2"
    assert "bert, distilbert" in families
    found = json.loads(howsmooth("models", "--json").out)
    assert [row["name"] for row in found["built_in"]] == ["minilm", "smollm2"]
    assert all(row["installed"] and row["install"].startswith("pip install") for row in found["built_in"])
    assert {"bert", "gpt2", "llama", "vit"} <= set(found["families"])


def check_refusal(done, words, folder, before):
    assert done.code == 2, done.out + done.err
    (line,) = done.err.splitlines()
    assert line.startswith("howsmooth: ")
    assert words in line
    assert done.out == ""
    assert sorted(path.name for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "a"], "--layers takes whole numbers"),
        (["--layers", ""], "--layers takes whole numbers"),
        (["--layers", " "], "--layers takes whole numbers"),
        (["--layers", "0,,1"], "--layers takes whole numbers"),
        (["--layers", "-1"], "has the layers 0 to 1, got -1"),
        (["--layers", "2"], "has the layers 0 to 1, got 2"),
        (["--layers", "0.5"], "--layers takes whole numbers"),
        (["--lengths", "a"], "--lengths takes whole numbers"),
        (["--lengths", ""], "--lengths takes whole numbers"),
        (["--lengths", "8,,16"], "--lengths takes whole numbers"),
        (["--lengths", "-1"], "at least 1"),
        (["--lengths", "0"], "at least 1"),
        (["--lengths", "8,0"], "at least 1"),
        (["--lengths", "8,41"], "has positions for 40 tokens, got a length of 41"),
        (["--lengths", "40"], "tokens, enough for 10 windows of 40; 20 were asked for"),
        (["--sequences", "0"], "sequences must be at least 1, got 0"),
        (["--map", "atention"], "map must be one of attention, heads"),
        (["--map", ""], "map must be one of"),
        (["--map", "head:x"], "by its number"),
        (["--map", "head:3"], "0 to 2"),
        (["--map", "head:-1"], "0 to 2"),
        (["--map", "normed"], "behind attention"),
        (["--rtol", "0"], "rtol must lie between 0 and 1"),
        (["--rtol", "-1"], "rtol must lie between 0 and 1"),
        (["--rtol", "nan"], "rtol must lie between 0 and 1"),
        (["--confidence", "1"], "confidence must lie strictly between 0 and 1"),
        (["--confidence", "0"], "confidence must lie strictly between 0 and 1"),
        (["--device", "nope"], "the device 'nope' cannot be used"),
        (["--device", ""], "the device '' cannot be used"),
        (["--device", "cuda:77"], "the device 'cuda:77' cannot be used"),
        (["--special-tokens", "--lengths", "2"], "no room beside 2 special tokens"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(options, words, measure, tmp_path):
    rest = [] if "--lengths" in options else ["--lengths", "4"]
    many = [] if "--sequences" in options else ["--sequences", "20"]
    check_refusal(measure(*options, *rest, *many), words, tmp_path, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("short.txt", "has 3 tokens, enough for 0 windows of 4; 10 were asked for"),
        ("binary.txt", "must be UTF-8"),
        ("nul.txt", "NUL"),
        ("empty.txt", "is empty"),
        ("nothing.txt", "not there"),
        ("", "is a folder"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(text, words, measure, tmp_path):
    check_refusal(measure("--lengths", "4", text=text), words, tmp_path, [])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("minilmm", "did you mean minilm"),
        ("smolm2", "did you mean smollm2"),
        ("random:brt", "did you mean bert"),
        ("someone/nothing-like-it", "known are minilm"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_names(model, words, howsmooth, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    check_refusal(howsmooth("measure", model, "--lengths", "4"), words, tmp_path, [])


@pytest.mark.parametrize(
    ("model", "words"),
    [("broken", "hold NaN or infinity"), ("empty model", "no model can be loaded"), ("short.txt", "holds no model")],
)
def test_a_model_that_cannot_be_used_is_refused(model, words, measure, tmp_path):
    check_refusal(measure("--lengths", "4", model=model), words, tmp_path, [])


def test_a_folder_that_cannot_be_written_to_is_refused(measure, tmp_path):
    (tmp_path / "file").write_text("words", encoding="utf-8")
    for out in ("file", "file/below", "file/deep/below"):
        check_refusal(measure("--lengths", "4", "--out", out), "'file' is a file", tmp_path, ["file"])
    (tmp_path / "runs").write_text("no folder", encoding="utf-8")
    check_refusal(measure("--lengths", "4"), "'runs' is a file", tmp_path, ["file", "runs"])


def test_the_folder_is_looked_at_before_anything_is_loaded(measure, tmp_path):
    (tmp_path / "file").write_text("words", encoding="utf-8")
    done = measure("--lengths", "4", "--out", "file", model="broken")
    check_refusal(done, "'file' is a file", tmp_path, ["file"])


def test_a_folder_with_something_else_in_it_is_refused(measure, tmp_path):
    (tmp_path / "records.sqlite").write_text("not a database " * 100, encoding="utf-8")
    check_refusal(measure("--lengths", "4", "--out", "."), "cannot be read or written", tmp_path, ["records.sqlite"])


def test_stopped_in_the_middle_it_keeps_what_is_done_and_goes_on(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "howsmooth", "measure", "minilm", "--layers", "0,1,2"]
    command += ["--lengths", "32,64", "--sequences", "5", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        # whoever runs the tests in the background ignores what Ctrl-C sends, and so would what they start
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            wait_for_records(out / "records.sqlite", process)
            process.send_signal(signal.SIGINT)
            _printed, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130, said
    kept = count(out / "records.sqlite")
    assert 0 < kept < 30
    assert said.splitlines()[-1] == f"Stopped: {kept} of 30 measured and kept; the same command goes on from there."
    assert "Traceback" not in said
    before = dict(rows(out / "records.sqlite"))
    again = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE, env=environment
    )
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["complete"] is True
    assert len(found["records"]) == count(out / "records.sqlite") == 30
    assert before.items() <= dict(rows(out / "records.sqlite")).items()


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
