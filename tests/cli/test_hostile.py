"""Names that a terminal would obey, options that contradict each other, sizes that do not fit: said, never obeyed."""

import re

import numpy as np
import pytest
from asked import filler
from msgspec.structs import replace

from howsmooth.files import whole
from howsmooth.studies.records import Failure, plan_of
from howsmooth.studies.runs.database import FILE
from howsmooth.studies.runs.run_metadata import to_json
from howsmooth.studies.runs.store import Store

# A title for the window, a cleared screen, a colour, a bell, and the other direction of writing.
HOSTILE = "m\x1b]0;owned\x07\x1b[2J\x1b[31m\u202e\u2066\x9b1m"
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile(howsmooth, tmp_path):
    """Two runs of which every name, note and error is hostile."""
    for name in ("one", "two"):
        records = []
        for i in range(3):
            ask = filler(i).ask
            window = replace(ask.window, text=HOSTILE, length=8 + i)
            records.append(replace(filler(i), ask=replace(ask, model=HOSTILE, layer=0, window=window)))
        with Store(tmp_path / "runs" / name) as store:
            store.add(records)
            store.add([Failure(ask=replace(records[0].ask, layer=7), error=HOSTILE)])
            store.keep(f"notes on {HOSTILE}", to_json([HOSTILE]))
            store.keep_plan(plan_of(tuple(record.ask for record in records), command=f"howsmooth measure {HOSTILE}"))
    return howsmooth


@pytest.mark.parametrize(
    "arguments",
    [
        "show runs/one",
        "runs",
        "runs runs/one",
        "compare runs/one runs/two",
        "report runs/one",
        "export runs/one --to csv",
    ],
)
def test_nothing_that_is_shown_of_a_stored_name_is_obeyed(arguments, hostile):
    result = hostile(*arguments.split())
    assert result.code == 0, result.err
    assert HIDDEN.findall(result.out + result.err) == []
    if arguments.startswith(("show", "runs")):
        assert "m⟨U+001B⟩]0;owned" in result.out.replace("\n", "")


def test_a_report_shows_hostile_names_by_their_numbers(hostile, tmp_path):
    assert hostile("report", "runs/one", "-o", "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    body = re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)  # the program that draws is not ours
    assert HIDDEN.findall(body) == []
    assert "⟨U+202E⟩" in body
    assert "\u202e\u2066" not in page


def test_an_error_shows_hostile_names_by_their_numbers(howsmooth):
    result = howsmooth("show", HOSTILE)
    assert result.code == 2
    assert HIDDEN.findall(result.err) == []


def test_a_terminal_gets_no_colour_but_ours(hostile, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    result = hostile("show", "runs/one")
    assert "\x1b[1m" in result.out, "titles are bold"
    assert "\x1b[31m" not in result.out
    assert "\x1b]" not in result.out
    assert "\x1b[2J" not in result.out


@pytest.mark.parametrize("option", ["--token-ids", "--sentences", "--images", "--text"])
def test_a_source_without_a_name_is_refused(option, howsmooth):
    result = howsmooth("measure", "reviews", option, "")
    assert result.code == 2
    assert result.err == f"howsmooth: {option} must name a file or a folder, got nothing; leave it out.\n"


@pytest.mark.parametrize("command", ["certify reviews --sentence", "swap reviews --map classes --sentence"])
def test_a_sentence_that_is_no_utf_8_is_refused_in_one_sentence(command, howsmooth):
    result = howsmooth(*command.split(), "a bad \udcff film")  # as Python reads the byte 0xff from a command line
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "must be made of whole characters" in result.err


def test_a_part_of_a_model_is_refused_for_weights_in_files(howsmooth, head):
    result = howsmooth("bounds", *head, "--map", "head:0", "-n", "3", "-r", "1")
    assert result.code == 2
    assert "--map head:0 is a part of a model's layer" in result.err


@pytest.mark.parametrize(("ending", "dtype"), [("npz", np.int64), ("safetensors", np.uint16)])
def test_whole_numbers_as_weights_are_said(dtype, ending, howsmooth, tmp_path):
    from safetensors.numpy import save_file

    A = np.eye(2, dtype=dtype)
    np.savez("A.npz", A=A)
    save_file({"A": A}, "A.safetensors")
    result = howsmooth("bounds", f"A.{ending}", "-n", "1", "-r", "1", "--json")
    assert result.code == 0, result.err
    name = np.dtype(dtype).name
    assert result.err == f"howsmooth: A in 'A.{ending}' holds {name}, which is taken as real numbers, unscaled.\n"


@pytest.mark.parametrize(
    "command",
    [
        "sweep study.toml -o {}",
        "measure reviews -o {}",
        "report run -o {}.html",
        "export run --to csv -o {}.csv",
        "compare run run --figure {}.svg",
        "show {}",
        "runs {}",
        "bounds {}.npz -n 3 -r 1",
        "split --map-1d A=-1 --figure {}.svg",
        "lab -o {}.html",
        "measure reviews --text {}",
        "measure reviews --images {}",
        "measure {}",
    ],
)
def test_a_name_that_is_too_long_is_refused_in_one_sentence(command, howsmooth, tmp_path):
    (tmp_path / "study.toml").write_text('models = ["reviews"]\n', encoding="utf-8")
    with Store(tmp_path / "run") as store:
        store.add(filler(i) for i in range(3))
    result = howsmooth(*command.format("x" * 300).split())
    assert result.code == 2
    assert len(result.err.splitlines()) == 1


def test_a_small_archive_that_unpacks_to_gigabytes_is_refused(howsmooth, tmp_path, monkeypatch):
    import zipfile

    limit, side = tmp_path / "memory.max", 2**13
    limit.write_text(str(2**30), encoding="ascii")
    monkeypatch.setattr("howsmooth.files.LIMITS", (limit,))
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({side}, {side}), }}".ljust(117) + "\n"
    with (
        zipfile.ZipFile(tmp_path / "A.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("A.npy", "w", force_zip64=True) as file,
    ):
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        for _block in range(128):
            file.write(bytes(side * side * 8 // 128))
    assert (tmp_path / "A.npz").stat().st_size < 2**20
    result = howsmooth("bounds", "A.npz", "-n", "3", "-r", "1")
    assert result.code == 2
    assert "takes at least 2 GiB of memory" in result.err


def test_writers_of_one_file_do_not_meet(tmp_path):
    target = tmp_path / "figure.svg"
    with whole(target) as first, whole(target) as second:
        first.write_text("first", encoding="utf-8")
        second.write_text("second", encoding="utf-8")
        assert (first.suffix, second.suffix) == (".svg", ".svg")
        assert not target.exists()
    assert target.read_text(encoding="utf-8") == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]


def test_a_store_that_is_empty_ends_in_one_sentence(howsmooth, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).touch()
    for command in ("show", "report", "export"):
        result = howsmooth(command, "run")
        assert (result.code, result.out) == (2, "")
        assert "is empty: there is no run in it" in result.err
