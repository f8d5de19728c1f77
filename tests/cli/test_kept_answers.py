"""Answers in the cache folder: what was computed, for the very same question, or nothing."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import howsmooth as hs
from howsmooth.cli import kept_answers, layer_bounds
from howsmooth.cli.kept_answers import answer_file, answers_folder, keep_answer, kept_answer
from howsmooth.spectral.estimates import Status
from howsmooth.studies.json_values import JsonValue

ASKED = ("head.npz", "--n", "4", "--radius", "2")


class Answer(JsonValue, frozen=True, kw_only=True):
    """A small answer."""

    value: float
    line: str


ANSWER = Answer(value=0.1, line="2.7 ≤ Lip ≤ 8.1")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOWSMOOTH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bounds(howsmooth, cache):
    """Bound a small head, whose file is new."""
    np.savez("head.npz", A=np.diag([1.0, -2.0]), V=np.eye(2))
    return lambda *more: howsmooth("bounds", *(ASKED if not more or more[0].startswith("-") else ()), *more)


@pytest.fixture
def never_computed(monkeypatch):
    monkeypatch.setattr("howsmooth.theory.bounds.table", lambda *_, **__: pytest.fail("bounds were computed"))


WITHOUT_TORCH = """
import sys
from howsmooth.cli.app import main

try:
    main()
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.clock("a process starts")
def test_another_process_finds_it_and_needs_no_torch(bounds):
    first = bounds()
    command = [sys.executable, "-c", WITHOUT_TORCH, "bounds", *ASKED]
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert again.stdout == first.out
    assert "Computed before" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--json"], ["--metric", "token"]], ids=" ".join)
def test_the_same_answer_is_found_again_without_computing_it(more, bounds, cache, request):
    first = bounds(*more)
    assert (first.code, first.err) == (0, "")
    assert len(list(cache.iterdir())) == 1
    request.getfixturevalue("never_computed")
    again = bounds(*more)
    assert (again.code, again.out) == (0, first.out)
    assert again.err.startswith("Computed before")


@pytest.mark.slow
def test_both_ways_of_printing_share_an_answer_and_it_can_be_left_out(bounds, cache, monkeypatch):
    shown = bounds("--no-cache")
    assert not cache.exists()
    data = json.loads(bounds("--json").out)
    assert bounds().out == shown.out
    (file,) = cache.iterdir()
    file.write_text("")
    anew = bounds("--no-cache", "--json")
    assert (json.loads(anew.out), anew.err) == (data, "")
    assert file.read_text() == ""
    monkeypatch.setenv("HOWSMOOTH_CACHE", "")
    assert (bounds().out, bounds().err) == (shown.out, "")


@pytest.mark.slow
def test_an_input_that_is_to_be_saved_is_computed(bounds, cache, tmp_path):
    first = bounds()
    saved = bounds("--save", "worst.safetensors")
    assert saved.out == first.out + "Saved tokens, direction and response to worst.safetensors.\n"
    assert (tmp_path / "worst.safetensors").exists()


@pytest.mark.slow
def test_a_damaged_answer_is_computed_anew_and_written_over(bounds, cache):
    first = bounds()
    (file,) = cache.iterdir()
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b"measured", b"invented"))
    anew = bounds()
    assert (anew.out, anew.err) == (first.out, "")
    assert file.read_bytes() == kept


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::howsmooth.errors.ConvergenceWarning")
def test_what_came_with_a_warning_is_not_kept(bounds, cache, monkeypatch):
    monkeypatch.setattr("howsmooth.spectral.estimates.NormEstimate.status", Status.MAX_STEPS)
    assert bounds().code == 0
    assert not cache.exists()


@pytest.fixture
def file_for(bounds, cache, monkeypatch):
    """Return where the answer to a command would be; nothing is computed."""
    looked_up = []

    def keep(file, _kind):
        looked_up.append(file)
        return layer_bounds.PrintedBounds(document="{}", line="", attention="", rows=(), measured=0, refused=())

    monkeypatch.setattr(layer_bounds, "kept_answer", keep)

    def ask(*more):
        assert bounds(*more).code == 0
        return looked_up[-1]

    return ask


@pytest.mark.parametrize(
    "more",
    [
        ["--n", "5"],
        ["--radius", "2.0000000000000004"],
        ["--metric", "token"],
        ["--search"],
        ["--kind", "l2"],
        ["--causal"],
        ["--scale", "0.5"],
        ["minilm", "--layer", "4", *ASKED[1:]],
        ["minilm", "--layer", "3", *ASKED[1:]],
        ["minilm", "--layer", "4", "--map", "head:3", *ASKED[1:]],
        ["minilm", "--layer", "4", "--family", "bert", *ASKED[1:]],
    ],
    ids=" ".join,
)
def test_every_option_makes_another_question(more, file_for):
    usual, other = file_for(), file_for(*more)
    assert other != usual
    assert file_for() == usual
    assert file_for("--json") == usual
    assert file_for(*more) == other
    if "--layer" in more:
        assert other != file_for("minilm", "--layer", "4", "--map", "heads", *ASKED[1:])


def test_other_weights_have_other_answers_even_of_one_size_and_age(bounds, tmp_path):
    file = tmp_path / "head.npz"
    before, known = os.stat(file), answer_file("head.npz", "question")
    assert answer_file("head.npz", "question") == known
    np.savez("head.npz", A=np.diag([1.0, -3.0]), V=np.eye(2))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (os.stat(file).st_size, os.stat(file).st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert answer_file("head.npz", "question") != known


@pytest.mark.slow
def test_weights_that_change_while_they_are_read_have_no_answer(bounds, cache, monkeypatch):
    def read(source):
        np.savez("head.npz", A=np.eye(2), V=np.eye(2))
        return original(source)

    original = layer_bounds.LayerSource.read
    monkeypatch.setattr(layer_bounds.LayerSource, "read", read)
    assert bounds().code == 0
    assert not cache.exists()


def test_other_code_has_other_answers(bounds, cache, tmp_path, monkeypatch):
    known = answer_file("head.npz", "question")
    with monkeypatch.context() as patch:
        patch.setattr(kept_answers.metadata, "version", lambda name: f"{name} 99")
        assert answer_file("head.npz", "question") != known
    (tmp_path / "package" / "theory").mkdir(parents=True)
    source = tmp_path / "package" / "theory" / "bounds.py"
    monkeypatch.setattr(hs, "__path__", [str(tmp_path / "package")])
    found = set()
    for text in ("bound = 1", "bound = 2"):
        source.write_text(text, encoding="utf-8")
        found.add(answer_file("head.npz", "question"))
    assert len(found - {known}) == 2


def test_what_cannot_be_known_again_has_no_answer(bounds, cache, monkeypatch, tmp_path):
    assert answer_file("head.npz", "question").parent == cache
    assert answer_file("random:bert", "question") is None
    assert answer_file("some/model", "question") is None
    monkeypatch.setenv("HOWSMOOTH_CACHE", "")
    assert answer_file("head.npz", "question") is None


def test_the_folder_is_that_of_the_user(monkeypatch):
    monkeypatch.delenv("HOWSMOOTH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert answers_folder() == Path("/var/caches/howsmooth")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert answers_folder() == Path("/home/somebody/.cache/howsmooth")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert answers_folder() is None


def test_of_a_damaged_file_nothing_is_believed(tmp_path):
    file = tmp_path / "new folder" / "answer.json"
    assert kept_answer(file, Answer) is None
    keep_answer(file, ANSWER)
    assert kept_answer(file, Answer) == ANSWER
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert kept_answer(file, Answer) is None
        file.write_bytes(whole[:place])
        assert kept_answer(file, Answer) is None
    keep_answer(file, ANSWER)
    assert file.read_bytes() == whole
    file.unlink()
    file.mkdir()
    assert kept_answer(file, Answer) is None
    keep_answer(file, ANSWER)
    assert list(tmp_path.rglob("*")) == [file.parent, file]


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    keep_answer(Path("/proc/answer.json"), ANSWER)  # a folder that is read-only for everybody
    keep_answer(tmp_path / "file" / "answer.json", ANSWER)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
    _least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))  # as on a full disk
    try:
        keep_answer(tmp_path / "answer.json", ANSWER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


WRITER = """
import sys
from pathlib import Path
from howsmooth.cli.kept_answers import keep_answer, kept_answer
from howsmooth.cli.layer_bounds import PrintedBounds

file, found = Path(sys.argv[1]), set()
answer = PrintedBounds(document="{}", line=sys.argv[2] * 20000, attention="", rows=(), measured=0, refused=())
keep_answer(file, answer)
for _turn in range(200):
    found.add(kept_answer(file, PrintedBounds).line)
    keep_answer(file, answer)
assert found <= {"a" * 20000, "b" * 20000}, "half an answer was read"
"""


@pytest.mark.slow
@pytest.mark.clock("two processes start")
def test_two_processes_that_write_at_once_read_whole_answers(tmp_path):
    file = str(tmp_path / "answer.json")
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, file, letter]) for letter in "ab"]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]
